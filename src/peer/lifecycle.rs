//! The life of one peer: connect, read its cluster-config, hold its cluster ID, await its canary, list, watch; and again,
//! until its file is removed.
//!
//! All of it is one task, and a peer has one session at a time. So nothing that a session wrote can be removed by the late
//! end of an earlier one (R22), and dropping a future at any point is the whole of cancelling it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::config::Us;
use super::directory::PeerFile;
use super::register::{ClaimError, ClusterIdRegister};
use super::state::{Plan, Reading, Verdict, decide};
use super::tenure::{Makings, Tenure};
use crate::identity::ClusterName;
use crate::kvstore::{Session, SessionError, Timing, jittered};
use crate::mirror::{Dialer, Failure, Reporter, layout};
use crate::telemetry::{ClusterState, Metrics, StatusBoard};

/// Intervals and deadlines of a peer's life.
#[derive(Clone, Debug)]
pub struct PeerTiming {
    /// Of the connection.
    pub etcd: Timing,
    /// How often a peer's cluster-config and heartbeat are read while all is well, and while it is refused; jittered. So long
    /// it takes to notice another ID or capability.
    pub poll: Duration,
    /// How often the key is looked for that a peer is waiting for; jittered.
    pub wait_poll: Duration,
    /// How long a session waits for the cluster-config. Then another one is made: another replica may have it.
    pub config_wait: Duration,
    /// The same for the canary, which comes after all of the peer's identities have been written.
    pub canary_wait: Duration,
}

impl Default for PeerTiming {
    fn default() -> Self {
        Self {
            etcd: Timing::default(),
            poll: Duration::from_secs(5),
            wait_poll: Duration::from_millis(500),
            // Cilium's.
            config_wait: Duration::from_mins(3),
            canary_wait: Duration::from_mins(10),
        }
    }
}

/// What all peers share.
#[derive(Debug)]
pub(super) struct Environment {
    pub(super) us: Us,
    pub(super) register: ClusterIdRegister,
    pub(super) makings: Makings,
    pub(super) timing: PeerTiming,
    pub(super) board: StatusBoard,
    pub(super) metrics: Metrics,
}

/// The file that a peer is to follow; `None` when it is removed.
pub(super) type Desired = Option<Arc<PeerFile>>;

/// One peer.
#[derive(Debug)]
pub(super) struct Peer {
    name: ClusterName,
    environment: Arc<Environment>,
    reporter: Reporter,
    tenure: Option<Tenure>,
}

/// Why a session is given up.
#[derive(Debug)]
struct End {
    failure: Failure,
    retryable: bool,
}

impl From<SessionError> for End {
    fn from(error: SessionError) -> Self {
        Self { failure: Failure::from(&error), retryable: error.is_retryable() }
    }
}

impl Peer {
    pub(super) fn new(name: ClusterName, environment: Arc<Environment>) -> Self {
        let reporter = Reporter::new(name.as_str(), false, environment.board.clone(), environment.metrics.clone());
        // Left behind by a task of this peer that panicked: its entries are shown, so they are ours to keep or to drain.
        let tenure = environment
            .register
            .adopt(&name)
            .map(|claim| Tenure::begin(claim, &name, layout::state_ids(), &environment.makings));
        Self { name, environment, reporter, tenure }
    }

    /// Lives until the file is removed (then nothing of the peer is left), or until cancelled (then everything is).
    pub(super) async fn run(mut self, mut desired: watch::Receiver<Desired>, cancel: CancellationToken) {
        loop {
            let Some(file) = desired.borrow_and_update().clone() else {
                self.drain();
                self.reporter.forget();
                return;
            };
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                changed = desired.changed() => match changed {
                    // What is shown stays until the new file's session has synced (P10).
                    Ok(()) => self.break_off(),
                    Err(_) => return,
                },
                never = self.serve(&file) => match never {},
            }
        }
    }

    /// One session after the other.
    async fn serve(&mut self, file: &PeerFile) -> Infallible {
        let config = match &file.config {
            Ok(config) => config.clone(),
            Err(failure) => {
                self.reporter.blocked(ClusterState::Refused, "file", failure.clone());
                return std::future::pending().await;
            }
        };
        let mut dialer = Dialer::new(config, &self.environment.timing.etcd);
        loop {
            let session = dialer.connect(&self.reporter).await;
            let since = Instant::now();
            let end = self.use_session(&session).await;
            let live_for =
                self.tenure.as_ref().is_some_and(|tenure| tenure.follower.is_live()).then(|| since.elapsed());
            self.break_off();
            drop(session);
            self.reporter.failure(end.failure);
            self.reporter.connecting();
            dialer.pause_after(end.retryable, live_for).await;
        }
    }

    async fn use_session(&mut self, session: &Session) -> End {
        loop {
            let plan = match self.settle(session).await {
                Ok(plan) => plan,
                Err(end) => return end,
            };
            // `settle` has made it; asked for again rather than assumed.
            let Some(tenure) = &mut self.tenure else { continue };
            let reading = ConfigReader { peer: &self.name, environment: &self.environment, reporter: &self.reporter };
            tokio::select! {
                end = pursue(tenure, session, &plan, &self.environment.timing, &self.reporter) => return end,
                changed = reading.until_changed(session, &plan) => match changed {
                    Ok(()) => tracing::info!(peer = %self.name, "the peer's configuration changed"),
                    Err(end) => return end,
                },
            }
            // Whatever it was that changed, the list is what is true of it (P4); a net effect it has none, or its own.
            tenure.follower.start_over(&self.reporter);
        }
    }

    /// Reads the peer's configuration until the peer may be used and its cluster ID is held.
    async fn settle(&mut self, session: &Session) -> Result<Plan, End> {
        let environment = Arc::clone(&self.environment);
        let timing = &environment.timing;
        let key = layout::cluster_config_key(&self.name);
        let mut freed = environment.register.freed();
        let deadline = Instant::now() + timing.config_wait;
        self.reporter.state(ClusterState::ReadingConfig, "cluster-config");
        loop {
            let (value, _) = session.get(key.as_bytes()).await?;
            let reading = Reading::of(value.as_ref().map(|entry| entry.value.as_slice()));
            let held = self.tenure.as_ref().map(Tenure::id);
            let decision = decide(&reading, &environment.us, &self.name, held);
            if decision.drain {
                self.drain();
            }
            let pause = match decision.verdict {
                Verdict::Follow(plan) => match self.hold(&plan) {
                    Ok(()) => return Ok(plan),
                    Err(error) => {
                        let failure =
                            Failure { reason: error.reason(), message: error.to_string(), hint: error.hint() };
                        self.reporter.blocked(ClusterState::Refused, "cluster-id", failure);
                        timing.poll
                    }
                },
                Verdict::Refuse(error) => {
                    let failure = Failure { reason: error.reason(), message: error.to_string(), hint: error.hint() };
                    self.reporter.blocked(ClusterState::Refused, "cluster-config", failure);
                    timing.poll
                }
                Verdict::Wait(failure) if Instant::now() >= deadline => return Err(End { failure, retryable: true }),
                Verdict::Wait(failure) => {
                    self.reporter.blocked(ClusterState::ReadingConfig, "cluster-config", failure);
                    timing.wait_poll
                }
            };
            tokio::select! {
                () = sleep(jittered(pause)) => {}
                // Whatever was freed may be what we want; who asks first has it.
                Ok(()) = freed.changed() => {}
            }
        }
    }

    /// Takes the plan's ID, or goes on with it: `decide` has had the entries of any other ID drained.
    fn hold(&mut self, plan: &Plan) -> Result<(), ClaimError> {
        if let Some(tenure) = &mut self.tenure {
            tenure.read_as(plan, &self.reporter);
        } else {
            let claim = self.environment.register.claim(plan.id, &self.name)?;
            self.tenure = Some(Tenure::begin(claim, &self.name, plan.prefix.clone(), &self.environment.makings));
        }
        self.reporter.cluster_id(plan.id.get());
        Ok(())
    }

    fn break_off(&mut self) {
        if let Some(tenure) = &mut self.tenure {
            tenure.follower.break_off(&self.reporter);
        }
    }

    fn drain(&mut self) {
        if let Some(tenure) = self.tenure.take() {
            tenure.drain(&self.reporter);
        }
    }
}

/// Awaits the canary, then lists and watches until the session is over.
async fn pursue(tenure: &mut Tenure, session: &Session, plan: &Plan, timing: &PeerTiming, reporter: &Reporter) -> End {
    if let Some(canary) = &plan.canary
        && let Err(end) = await_canary(session, canary, timing, reporter).await
    {
        return end;
    }
    tenure.follower.follow(session, reporter).await.into()
}

async fn await_canary(session: &Session, canary: &str, timing: &PeerTiming, reporter: &Reporter) -> Result<(), End> {
    reporter.state(ClusterState::AwaitingCanary, "canary");
    let deadline = Instant::now() + timing.canary_wait;
    while session.get(canary.as_bytes()).await?.0.is_none() {
        let failure = Failure {
            reason: "canary-missing",
            message: format!("the peer has not said yet that its identities are complete: no key {canary}"),
            hint: "normal while its clustermesh-apiserver fills a new etcd; otherwise look at that server's log".into(),
        };
        if Instant::now() >= deadline {
            return Err(End { failure, retryable: true });
        }
        reporter.concern(failure);
        sleep(jittered(timing.wait_poll)).await;
    }
    Ok(())
}

/// Looks at a peer's configuration again and again while its identities are followed.
struct ConfigReader<'a> {
    peer: &'a ClusterName,
    environment: &'a Environment,
    reporter: &'a Reporter,
}

impl ConfigReader<'_> {
    /// Returns when the configuration says anything else than `plan`. One that is absent or malformed says nothing.
    async fn until_changed(&self, session: &Session, plan: &Plan) -> Result<(), End> {
        let key = layout::cluster_config_key(self.peer);
        loop {
            self.read_heartbeat(session).await?;
            sleep(jittered(self.environment.timing.poll)).await;
            let (value, _) = session.get(key.as_bytes()).await?;
            let reading = Reading::of(value.as_ref().map(|entry| entry.value.as_slice()));
            match decide(&reading, &self.environment.us, self.peer, Some(plan.id)).verdict {
                Verdict::Wait(failure) => self.reporter.concern(failure),
                Verdict::Follow(same) if same == *plan => {}
                Verdict::Follow(_) | Verdict::Refuse(_) => return Ok(()),
            }
        }
    }

    /// A peer may grant us no access to its heartbeat; nothing depends on it yet.
    async fn read_heartbeat(&self, session: &Session) -> Result<(), SessionError> {
        let value = match session.get(layout::HEARTBEAT_KEY.as_bytes()).await {
            Ok((value, _)) => value,
            Err(SessionError::Denied(_)) => None,
            Err(error) => return Err(error),
        };
        if let Some(at) = value.and_then(|entry| parse_time(&entry.value)) {
            self.reporter.heartbeat(at);
        }
        Ok(())
    }
}

fn parse_time(value: &[u8]) -> Option<SystemTime> {
    OffsetDateTime::parse(std::str::from_utf8(value).ok()?, &Rfc3339).ok().map(SystemTime::from)
}
