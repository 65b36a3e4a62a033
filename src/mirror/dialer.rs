//! Connects until it works: backoff between attempts, every failure told.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::sleep;

use super::report::{Failure, Reporter};
use crate::kvstore::{Backoff, Connector, EtcdConfig, Resolver, Session, Stage, Timing, jittered};
use crate::tls::{CertFacts, ClientTls};

/// A session that was live for this long shows that the trouble before it is over.
const STEADY: Duration = Duration::from_secs(10);

/// A certificate's end is looked for at least this often.
const LOOK: Duration = Duration::from_mins(10);

fn lifetime(certificate: &CertFacts) -> Duration {
    certificate.not_after.duration_since(certificate.not_before).unwrap_or_default()
}

fn rfc3339(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

/// Makes one session after the other to one etcd.
#[derive(Debug)]
pub struct Dialer {
    connector: Connector,
    backoff: Backoff,
    backoff_base: Duration,
    backoff_max: Duration,
    denied_pause: Duration,
    resolve_interval: Duration,
}

impl Dialer {
    /// For that configuration.
    #[must_use]
    pub fn new(config: EtcdConfig, timing: &Timing) -> Self {
        Self {
            connector: Connector::new(config, timing.clone()),
            backoff: Backoff::new(timing.backoff_base, timing.backoff_max),
            backoff_base: timing.backoff_base,
            backoff_max: timing.backoff_max,
            denied_pause: timing.denied_pause,
            resolve_interval: timing.resolve_interval,
        }
    }

    /// The same with another resolver than the operating system's.
    #[must_use]
    pub fn with_resolver(mut self, resolver: Resolver) -> Self {
        self.connector = self.connector.with_resolver(resolver);
        self
    }

    /// Goes on with certificates of the same files: see [`Connector::with_certificates`].
    #[must_use]
    pub fn with_certificates(mut self, known: &mut Option<Arc<ClientTls>>) -> Self {
        self.connector = self.connector.with_certificates(known);
        self
    }

    /// The next session, however long it takes. May be dropped at any time.
    pub async fn connect(&mut self, reporter: &Reporter) -> Session {
        reporter.connecting();
        loop {
            let told = |stage: Stage, endpoint: &str| reporter.dialing(stage.name(), endpoint);
            match self.connector.connect(&told).await {
                Ok(session) => {
                    self.connected(&session, reporter);
                    return session;
                }
                Err(error) => {
                    let failure = Failure::from(&error);
                    let delay = self.delay(&failure, error.is_retryable());
                    reporter.failure(failure);
                    sleep(delay).await;
                }
            }
        }
    }

    /// The next session, made while another one is in use still, which is left when this is ready.
    pub async fn connect_beside(&self, session: &Session, reporter: &Reporter) -> Session {
        let mut backoff = Backoff::new(self.backoff_base, self.backoff_max);
        loop {
            match self.connector.connect_beside(session, &|_, _| ()).await {
                Ok(session) => {
                    self.connected(&session, reporter);
                    return session;
                }
                Err(error) => reporter.failure(Failure::from(&error)),
            }
            sleep(backoff.next_delay()).await;
        }
    }

    fn connected(&self, session: &Session, reporter: &Reporter) {
        reporter.connected(session);
        if let Some(trouble) = self.connector.certificate_trouble() {
            reporter.concern(Failure {
                reason: trouble.reason(),
                message: format!("the certificates of before are in use still: {trouble}"),
                hint: trouble.hint(),
            });
        }
    }

    /// A session to move to, once this one should be left although it works: ahead of the end of its certificate, or when
    /// its name has come to mean another address.
    pub async fn successor(&self, session: &Session, reporter: &Reporter) -> Session {
        tokio::select! {
            () = self.certificate_ends(session, reporter) => {
                tracing::info!(cluster = reporter.cluster(), "connecting anew ahead of the certificate's end");
            }
            () = self.address_changes(session) => {
                let (endpoint, address) = (session.endpoint(), session.address());
                tracing::info!(cluster = reporter.cluster(), endpoint, %address, "the name has come to mean another address");
            }
        }
        self.connect_beside(session, reporter).await
    }

    /// Returns when the certificate in use nears its end and a newer one is there.
    async fn certificate_ends(&self, session: &Session, reporter: &Reporter) {
        let Some(in_use) = session.certificate() else { return std::future::pending().await };
        // Within the last third of its life, and not all peers at once.
        let ahead = lifetime(in_use).mul_f64(0.2 + fastrand::f64() / 10.0);
        loop {
            let left = in_use.not_after.duration_since(SystemTime::now()).unwrap_or_default();
            if let Some(early) = left.checked_sub(ahead).filter(|early| !early.is_zero()) {
                // The clock that certificates go by may be set meanwhile.
                sleep(early.min(LOOK)).await;
                continue;
            }
            match self.connector.certificate().await {
                Ok(Some(newest)) if newest.not_after > in_use.not_after => return,
                Ok(_) | Err(_) => reporter.concern(Failure {
                    reason: "certificate-expiring",
                    message: format!("the certificate that we present expires {}", rfc3339(in_use.not_after)),
                    hint: "put a newer one into the same files: it is taken up without a break".into(),
                }),
            }
            sleep((left / 10).clamp(Duration::from_millis(500), LOOK)).await;
        }
    }

    async fn address_changes(&self, session: &Session) {
        loop {
            sleep(jittered(self.resolve_interval)).await;
            if !self.connector.is_current(session).await {
                return;
            }
        }
    }

    /// A session ended so, after it was live for that long, if it ever was; waits before the next one.
    pub async fn pause_after(&mut self, failure: &Failure, retryable: bool, live_for: Option<Duration>) {
        if live_for.is_some_and(|live_for| live_for >= STEADY) {
            self.backoff.reset();
        }
        let delay = self.delay(failure, retryable);
        sleep(delay).await;
    }

    /// What will not heal by itself (certificates) is tried at the slowest pace: someone has to change something. One that
    /// knows us and refuses us is asked less than once a minute, whatever it guards (T7, E7).
    fn delay(&mut self, failure: &Failure, retryable: bool) -> Duration {
        let delay = self.backoff.next_delay();
        if retryable {
            delay
        } else if failure.is_denial() {
            self.denied_pause.mul_f64(1.0 + fastrand::f64() / 2.0)
        } else {
            self.backoff_max.mul_f64(1.0 - fastrand::f64() / 2.0)
        }
    }
}
