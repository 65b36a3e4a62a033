//! Connects until it works: backoff between attempts, every failure told.

use std::time::Duration;

use tokio::time::sleep;

use super::report::{Failure, Reporter};
use crate::kvstore::{Backoff, Connector, EtcdConfig, Session, Stage, Timing};

/// A session that was live for this long shows that the trouble before it is over.
const STEADY: Duration = Duration::from_secs(10);

/// Makes one session after the other to one etcd.
#[derive(Debug)]
pub struct Dialer {
    connector: Connector,
    backoff: Backoff,
    backoff_max: Duration,
}

impl Dialer {
    /// For that configuration.
    #[must_use]
    pub fn new(config: EtcdConfig, timing: &Timing) -> Self {
        Self {
            connector: Connector::new(config, timing.clone()),
            backoff: Backoff::new(timing.backoff_base, timing.backoff_max),
            backoff_max: timing.backoff_max,
        }
    }

    /// The next session, however long it takes. May be dropped at any time.
    pub async fn connect(&mut self, reporter: &Reporter) -> Session {
        reporter.connecting();
        loop {
            let told = |stage: Stage, endpoint: &str| reporter.dialing(stage.name(), endpoint);
            match self.connector.connect(&told).await {
                Ok(session) => {
                    reporter.connected(&session);
                    return session;
                }
                Err(error) => {
                    let delay = self.delay(error.is_retryable());
                    reporter.failure(Failure::from(&error));
                    sleep(delay).await;
                }
            }
        }
    }

    /// A session ended after it was live for that long, if it ever was; waits before the next one.
    pub async fn pause_after(&mut self, retryable: bool, live_for: Option<Duration>) {
        if live_for.is_some_and(|live_for| live_for >= STEADY) {
            self.backoff.reset();
        }
        let delay = self.delay(retryable);
        sleep(delay).await;
    }

    /// What will not heal by itself (certificates, permissions) is tried at the slowest pace: someone has to change
    /// something, and an etcd that refuses us must not be hammered.
    fn delay(&mut self, retryable: bool) -> Duration {
        let delay = self.backoff.next_delay();
        if retryable { delay } else { self.backoff_max.mul_f64(1.0 - fastrand::f64() / 2.0) }
    }
}
