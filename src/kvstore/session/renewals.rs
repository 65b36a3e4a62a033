//! The renewals of all leases of a session, on one stream that stays open: a renewal is one message and its answer, and
//! while it is open, pings show whether the connection lives.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use etcd_client::{LeaseClient, LeaseKeepAliveResponse, LeaseKeepAliveStream, LeaseKeeper};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::kvstore::SessionError;

/// The stream, opened by the first renewal, and anew by the next one after it ended.
#[derive(Default)]
pub(super) struct Renewals {
    current: Mutex<Option<Arc<Open>>>,
    /// One opens, the others wait for it.
    opening: tokio::sync::Mutex<()>,
}

/// An open stream; its end is told to all who wait.
struct Open {
    /// Of the lease that it was opened with.
    keeper: LeaseKeeper,
    waiting: Arc<Mutex<Waiting>>,
    _reader: AbortOnDropHandle<()>,
}

type Answer = Result<LeaseKeepAliveResponse, SessionError>;

/// Who waits for which lease's answers, in the order of the questions, in which etcd answers those of one lease.
#[derive(Default)]
struct Waiting {
    by_lease: HashMap<i64, VecDeque<oneshot::Sender<Answer>>>,
    ended: bool,
}

impl Waiting {
    fn next(&mut self, id: i64) -> Option<oneshot::Sender<Answer>> {
        let queue = self.by_lease.get_mut(&id)?;
        let waiter = queue.pop_front();
        if queue.is_empty() {
            self.by_lease.remove(&id);
        }
        waiter
    }
}

impl Renewals {
    /// Renews a lease. One that is gone is answered so, and touches no other.
    pub(super) async fn renew(&self, leases: LeaseClient, id: i64) -> Answer {
        let open = self.open(leases, id).await?;
        let (waiter, answer) = oneshot::channel();
        {
            let mut waiting = lock(&open.waiting);
            if waiting.ended {
                return Err(over());
            }
            waiting.by_lease.entry(id).or_default().push_back(waiter);
        }
        // The same stream for another lease.
        LeaseKeeper { id, sender: open.keeper.sender.clone() }.keep_alive().await?;
        answer.await.unwrap_or_else(|_| Err(over()))
    }

    /// Gives the stream up: one on which an answer failed to come is not asked again.
    pub(super) fn close(&self) {
        self.current().take();
    }

    async fn open(&self, mut leases: LeaseClient, id: i64) -> Result<Arc<Open>, SessionError> {
        let _turn = self.opening.lock().await;
        let current = self.current().clone();
        if let Some(open) = current.filter(|open| !lock(&open.waiting).ended) {
            return Ok(open);
        }
        // This renews the lease, but keeps the answer's header to itself: it is asked for once more.
        let (keeper, answers) = leases.keep_alive(id).await?;
        let waiting = Arc::default();
        let reader = AbortOnDropHandle::new(tokio::spawn(read(answers, Arc::clone(&waiting))));
        let open = Arc::new(Open { keeper, waiting, _reader: reader });
        *self.current() = Some(Arc::clone(&open));
        Ok(open)
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Open>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands each answer to the first who waits for it, until the stream ends.
async fn read(mut answers: LeaseKeepAliveStream, waiting: Arc<Mutex<Waiting>>) {
    let end = loop {
        match answers.message().await {
            Ok(Some(answer)) => {
                if let Some(waiter) = lock(&waiting).next(answer.id()) {
                    // Whoever gave up has dropped the other end.
                    let _ = waiter.send(Ok(answer));
                }
            }
            Ok(None) => break over(),
            Err(error) => break error.into(),
        }
    };
    let waiters = {
        let mut waiting = lock(&waiting);
        waiting.ended = true;
        std::mem::take(&mut waiting.by_lease)
    };
    for waiter in waiters.into_values().flatten() {
        let _ = waiter.send(Err(end.clone()));
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    // Every change is complete before anything can panic.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn over() -> SessionError {
    SessionError::Unavailable("the server ended the stream of renewals".to_owned())
}
