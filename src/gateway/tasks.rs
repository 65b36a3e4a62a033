//! Named tasks that are meant to run until they are told to stop, and that are waited for, with a deadline, when they are.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// What a task may fail with.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A task ended that should not have.
#[derive(Debug, thiserror::Error)]
#[error("{task} ended unexpectedly: {why}")]
pub struct TaskEnded {
    /// Its name.
    pub task: &'static str,
    /// In plain words.
    pub why: String,
}

/// A group of tasks that stop together.
#[derive(Default)]
pub(super) struct Tasks {
    set: JoinSet<Result<(), BoxError>>,
    names: HashMap<Id, &'static str>,
    stop: CancellationToken,
}

impl Tasks {
    /// Runs what `task` makes of the group's token.
    pub fn spawn<F>(&mut self, name: &'static str, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        let handle = self.set.spawn(task(self.stop.clone()));
        self.names.insert(handle.id(), name);
    }

    /// Runs something that may well end before the group is told to stop, and is dropped then.
    pub fn spawn_once(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn("a short task", |stop| async move {
            stop.run_until_cancelled(task).await;
            stop.cancelled().await;
            Ok(())
        });
    }

    /// Waits for the first task that ends though nobody told it to; for ever in a group without tasks.
    pub async fn first_end(&mut self) -> TaskEnded {
        match self.set.join_next_with_id().await {
            Some(ended) => {
                let (task, why) = self.judge(ended);
                TaskEnded { task, why: why.unwrap_or_else(|| "it returned".to_owned()) }
            }
            None => std::future::pending().await,
        }
    }

    /// Tells them to stop, waits for so long, then cuts them off and logs who they were.
    pub async fn stop(&mut self, grace: Duration) {
        self.stop.cancel();
        let all_end = async {
            while let Some(ended) = self.set.join_next_with_id().await {
                if let (task, Some(why)) = self.judge(ended) {
                    tracing::warn!(task, why, "a task failed while stopping");
                }
            }
        };
        if timeout(grace, all_end).await.is_err() {
            let slow: Vec<_> = self.names.values().copied().collect();
            tracing::warn!(tasks = slow.join(", "), ?grace, "not done within the grace, cut off");
            self.set.shutdown().await;
            self.names.clear();
        }
    }

    /// Who ended, and why where it was not by returning.
    fn judge(&mut self, ended: Result<(Id, Result<(), BoxError>), JoinError>) -> (&'static str, Option<String>) {
        let (id, why) = match ended {
            Ok((id, Ok(()))) => (id, None),
            Ok((id, Err(error))) => (id, Some(error.to_string())),
            // The panic's message and place are on standard error already.
            Err(error) => (error.id(), Some("it panicked".to_owned())),
        };
        (self.names.remove(&id).unwrap_or("a task"), why)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stops_in_time_and_cuts_off_what_does_not() {
        let mut tasks = Tasks::default();
        let (held, dropped) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn("good", |stop| async move {
            stop.cancelled().await;
            Ok(())
        });
        tasks.spawn("stuck", |_| async move {
            let _held = held;
            pending().await
        });
        let begin = tokio::time::Instant::now();
        tasks.stop(Duration::from_secs(3)).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(3));
        dropped.await.expect_err("the stuck task is gone, with all it held");
    }

    #[tokio::test]
    async fn names_the_task_that_ended() {
        let mut tasks = Tasks::default();
        tasks.spawn("endless", |_| pending());
        tasks.spawn("failing", |_| async { Err("out of luck".into()) });
        assert_eq!(tasks.first_end().await.to_string(), "failing ended unexpectedly: out of luck");
        tasks.spawn("leaving", |_| async { Ok(()) });
        assert_eq!(tasks.first_end().await.to_string(), "leaving ended unexpectedly: it returned");
    }
}
