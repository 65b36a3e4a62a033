//! One subscription: which frame comes next, and what is waited for when there is none.
//!
//! Driven by its reader alone: a frame is made when the one before was taken, from the versions of that moment. There is no
//! task and no queue behind it, so a reader that stops costs the versions that it holds, and nobody waits for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::admission::Admission;
use super::message::Message;
use super::part::Shelf;
use super::session::Session;
use crate::identity::ReservedIdentities;
use crate::telemetry::StatusBoard;
use crate::view::View;

/// What all subscriptions share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) view: View,
    pub(super) shelf: Shelf,
    pub(super) reserved: Arc<ReservedIdentities>,
    /// How long a gateway that is behind a token is waited for.
    pub(super) resume_wait: Duration,
    /// How long a version is held for a client that does not read.
    pub(super) hold: Duration,
    /// Wakes after transitions of clusters.
    pub(super) status: StatusBoard,
    pub(super) stop: CancellationToken,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum Next {
    Message(Arc<Message>),
    /// Nothing any more.
    End(End),
}

/// Why a subscription ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The gateway stops.
    Stop,
    /// A token cannot be resumed, and nothing else is wanted. Says why.
    NotResumable(String),
    /// The client did not read for longer than a version is held for it.
    TooSlow,
    /// The stream is old enough.
    MaxAge,
    /// The access policy lets the client see something else than it did; or nothing, for good.
    Denied { for_good: bool },
}

/// What there is to do at the moment.
#[derive(Debug)]
pub(super) enum Step {
    Next(Next),
    /// To look again when anything changes, at the latest at that time. Whether the progress of a source counts as well.
    Idle(Instant, bool),
}

/// A subscription as its stream has it. The state behind it is locked for moments only, never while something is waited
/// for, so that it can be given up from outside while the client does not read.
#[derive(Debug)]
pub(super) struct Reader {
    session: Arc<Mutex<Session>>,
    changes: watch::Receiver<u64>,
    progress: watch::Receiver<()>,
    transitions: watch::Receiver<()>,
    ready: watch::Receiver<bool>,
    admission: Admission,
    stop: CancellationToken,
}

impl Reader {
    pub(super) fn new(session: Session, ready: watch::Receiver<bool>, admission: Admission) -> Self {
        let Shared { view, status, stop, .. } = &session.shared;
        let (changes, progress) = (view.changes(), view.progress());
        let (transitions, stop) = (status.transitions(), stop.clone());
        Self { session: Arc::new(Mutex::new(session)), changes, progress, transitions, ready, admission, stop }
    }

    pub(super) fn session(&self) -> &Arc<Mutex<Session>> {
        &self.session
    }

    /// The next frame, or the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> Next {
        loop {
            // Before anything is looked at: what happens after that wakes us.
            self.changes.mark_unchanged();
            self.progress.mark_unchanged();
            self.transitions.mark_unchanged();
            self.ready.mark_unchanged();
            if let Some(end) = self.admission.judge() {
                return Next::End(end);
            }
            let step = lock(&self.session).step();
            let (deadline, progress) = match step {
                Step::Next(next) => return next,
                Step::Idle(deadline, progress) => (deadline, progress),
            };
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.admission.changed() => {}
                // The senders live in the view and the board that the session holds: an error cannot be.
                _ = self.changes.changed() => {}
                _ = self.transitions.changed() => {}
                _ = self.progress.changed(), if progress => {}
                // An error means that whoever knows has ended: the deadline decides then.
                Ok(()) = self.ready.changed() => {}
                () = sleep_until(deadline) => {}
            }
        }
    }
}

/// The state of a subscription; a panic elsewhere does not make it wrong.
pub(super) fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}
