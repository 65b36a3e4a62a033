//! The session of the moment: one is kept up, and whoever calls takes the current one.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::kvstore::{Backoff, Connector, EtcdConfig, Session, SessionError, Timing};

/// Where the current session is found; cheap to clone.
#[derive(Clone, Debug)]
pub struct Sessions(watch::Receiver<Option<Session>>);

/// Keeps a session up.
#[derive(Debug)]
pub struct SessionKeeper {
    connector: Connector,
    backoff: Backoff,
    current: watch::Sender<Option<Session>>,
}

impl SessionKeeper {
    /// For that etcd; nothing is dialed before [`Self::run`].
    #[must_use]
    pub fn new(config: EtcdConfig, timing: Timing) -> (Self, Sessions) {
        let (current, sessions) = watch::channel(None);
        let backoff = Backoff::new(timing.backoff_base, timing.backoff_max);
        (Self { connector: Connector::new(config, timing), backoff, current }, Sessions(sessions))
    }

    /// Dials, waits for the session's end, dials again, until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        cancel.run_until_cancelled(Box::pin(self.keep())).await;
    }

    async fn keep(&mut self) {
        loop {
            match self.connector.connect(&|_, _| {}).await {
                Ok(session) => {
                    tracing::debug!(endpoint = session.endpoint(), "allocator connected");
                    self.current.send_replace(Some(session.clone()));
                    self.backoff.reset();
                    let error = session.closed().await;
                    tracing::debug!(%error, "allocator's connection ended");
                    self.current.send_replace(None);
                }
                Err(error) => tracing::warn!(%error, "allocator not connected"),
            }
            sleep(self.backoff.next_delay()).await;
        }
    }
}

impl Sessions {
    /// The session of the moment, or the next one if that comes within `patience`.
    ///
    /// # Errors
    /// There is none.
    pub async fn current(&self, patience: Duration) -> Result<Session, SessionError> {
        // One that is over may still be here for a moment: whoever saw its end must not be given it again at once.
        let live = |session: &Option<Session>| {
            session.as_ref().is_some_and(|session| session.closed().now_or_never().is_none())
        };
        {
            let session = self.0.borrow();
            if live(&session)
                && let Some(session) = &*session
            {
                return Ok(session.clone());
            }
        }
        let mut sessions = self.0.clone();
        let none = || SessionError::ConnectionLost("there is no connection".to_owned());
        match timeout(patience, sessions.wait_for(live)).await {
            Ok(Ok(session)) => session.clone().ok_or_else(none),
            Ok(Err(_)) | Err(_) => Err(none()),
        }
    }
}
