//! The peers' tasks: started, told about their files, started again if they panic, and waited for in the end.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{sleep, timeout};

use super::directory::PeerFile;
use super::lifecycle::Desired;
use crate::identity::ClusterName;
use crate::kvstore::Backoff;
use crate::telemetry::{LastError, StatusBoard};

/// How long peers may take to stop; each of them stops at its next await, so this is a safety net.
const STOP: Duration = Duration::from_secs(5);

pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The peers' tasks. Each of them ends when its file is removed; one that ends otherwise is started again.
pub(super) struct Crew<F> {
    start: F,
    board: StatusBoard,
    members: BTreeMap<ClusterName, Member>,
    tasks: JoinSet<()>,
    names: HashMap<Id, ClusterName>,
}

struct Member {
    desired: watch::Sender<Desired>,
    backoff: Backoff,
}

impl<F: Fn(ClusterName, watch::Receiver<Desired>) -> Task> Crew<F> {
    pub(super) fn new(board: StatusBoard, start: F) -> Self {
        Self { start, board, members: BTreeMap::new(), tasks: JoinSet::new(), names: HashMap::new() }
    }

    pub(super) fn present(&mut self, name: ClusterName, file: Arc<PeerFile>) {
        // A member that is about to end because its file was removed sees the new one, or is started again when it ends.
        if let Some(member) = self.members.get(&name) {
            member.desired.send_replace(Some(file));
            return;
        }
        // On the board before its task runs: whoever asks after the first look sees every peer.
        self.board.update(name.as_str(), |_| ());
        let member = Member {
            desired: watch::Sender::new(Some(file)),
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_mins(1)),
        };
        self.spawn(&name, member.desired.subscribe(), Duration::ZERO);
        self.members.insert(name, member);
    }

    pub(super) fn removed(&mut self, name: &ClusterName) {
        if let Some(member) = self.members.get(name) {
            member.desired.send_replace(None);
        }
    }

    fn spawn(&mut self, name: &ClusterName, desired: watch::Receiver<Desired>, delay: Duration) {
        let task = (self.start)(name.clone(), desired);
        let handle = self.tasks.spawn(async move {
            sleep(delay).await;
            task.await;
        });
        self.names.insert(handle.id(), name.clone());
    }

    /// The next task that ended; never, while there are none.
    pub(super) async fn next_end(&mut self) -> Result<(Id, ()), JoinError> {
        match self.tasks.join_next_with_id().await {
            Some(ended) => ended,
            None => std::future::pending().await,
        }
    }

    pub(super) fn reap(&mut self, ended: Result<(Id, ()), JoinError>) {
        let (id, panicked) = match ended {
            Ok((id, ())) => (id, None),
            Err(error) => (error.id(), Some(error)),
        };
        let Some(name) = self.names.remove(&id) else { return };
        let Some(member) = self.members.get_mut(&name) else { return };
        let wanted = member.desired.borrow().is_some();
        match panicked {
            None if !wanted => {
                self.members.remove(&name);
            }
            // Its file came back while it was draining.
            None => {
                let desired = member.desired.subscribe();
                self.spawn(&name, desired, Duration::ZERO);
            }
            Some(error) => {
                tracing::error!(peer = %name, %error, "the peer's task panicked; it starts again");
                self.board.update(name.as_str(), |status| {
                    status.failures += 1;
                    status.last_error = Some(LastError {
                        reason: "internal",
                        message: format!("a fault of ours: {error}"),
                        hint: "report it with the log; the peer is tried again".into(),
                        at: SystemTime::now(),
                    });
                });
                // Even if it is not wanted any more: what it shows has to be drained by someone.
                let (desired, delay) = (member.desired.subscribe(), member.backoff.next_delay());
                self.spawn(&name, desired, delay);
            }
        }
    }

    /// Waits for all tasks, which have been cancelled; not for ever.
    pub(super) async fn stop(mut self) {
        let ended = timeout(STOP, async { while self.tasks.join_next().await.is_some() {} }).await;
        if ended.is_err() {
            tracing::error!(peers = self.tasks.len(), "peers did not stop in time");
            self.tasks.shutdown().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use super::super::directory::tests::file;
    use super::*;

    fn name(name: &str) -> ClusterName {
        ClusterName::new(name).unwrap()
    }

    type Receiver = watch::Receiver<Desired>;

    /// Tasks that do what the test scripted, one entry a start, and otherwise wait for the removal of their file.
    fn crew(
        script: Vec<fn(Receiver) -> Task>,
    ) -> (Crew<impl Fn(ClusterName, Receiver) -> Task>, watch::Receiver<usize>) {
        let started = watch::Sender::new(0);
        let starts = started.subscribe();
        let script = Mutex::new(VecDeque::from(script));
        let crew = Crew::new(StatusBoard::default(), move |_, desired: Receiver| {
            started.send_modify(|count| *count += 1);
            let scripted = script.lock().unwrap().pop_front();
            scripted.unwrap_or(obedient)(desired)
        });
        (crew, starts)
    }

    fn obedient(mut desired: Receiver) -> Task {
        Box::pin(async move {
            let _ = desired.wait_for(Option::is_none).await;
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_panics_starts_again_and_others_do_not_notice() {
        let (mut crew, starts) = crew(vec![|_| Box::pin(async { panic!("scripted") })]);
        crew.present(name("bad"), file(1));
        crew.present(name("good"), file(2));
        let ended = crew.next_end().await;
        crew.reap(ended);
        assert_eq!(*starts.borrow(), 3);
        assert_eq!(crew.tasks.len(), 2);
        let board = crew.board.snapshot();
        assert_eq!(board["bad"].last_error.as_ref().unwrap().reason, "internal");
        assert!(board["good"].last_error.is_none());
        crew.removed(&name("bad"));
        let ended = crew.next_end().await;
        crew.reap(ended);
        assert_eq!(crew.members.keys().map(ClusterName::as_str).collect::<Vec<_>>(), ["good"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_comes_back_while_its_peer_drains_starts_it_again() {
        let (mut crew, starts) = crew(vec![]);
        crew.present(name("blue"), file(1));
        crew.removed(&name("blue"));
        let ended = crew.next_end().await;
        crew.present(name("blue"), file(2));
        crew.reap(ended);
        assert_eq!((*starts.borrow(), crew.tasks.len()), (2, 1));
        crew.removed(&name("blue"));
        let ended = crew.next_end().await;
        crew.reap(ended);
        assert!(crew.members.is_empty() && crew.names.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn r04_stopping_does_not_wait_for_a_task_that_hangs() {
        let (mut crew, _) = crew(vec![|_| Box::pin(std::future::pending())]);
        crew.present(name("hung"), file(1));
        crew.stop().await;
    }
}
