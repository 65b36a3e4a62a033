//! The life of one peer: connect, read its cluster-config, hold its cluster ID, await its canary, list, watch; and again,
//! until its file is removed.
//!
//! All of it is one task, and a peer has one session at a time. So nothing that a session wrote can be removed by the late
//! end of an earlier one (R22), and dropping a future at any point is the whole of cancelling it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::config::Us;
use super::directory::PeerFile;
use super::heartbeat::{Heartbeat, HeartbeatPolicy};
use super::keeping::{Keeper, Keeping};
use super::pursuit::{End, follow_heartbeat, pursue, until_changed};
use super::register::{ClaimError, ClusterIdRegister};
use super::state::{Plan, Reading, Verdict, decide};
use super::tenure::{Makings, Tenure};
use crate::identity::ClusterName;
use crate::kvstore::{KeyWatch, Session, Timing};
use crate::mirror::{Absence, DEFAULT_AUDIT_INTERVAL, Dialer, Failure, Reporter, layout};
use crate::telemetry::{ClusterState, Metrics, StatusBoard};
use crate::tls::ClientTls;

/// Intervals and deadlines of a peer's life.
#[derive(Clone, Debug)]
pub struct PeerTiming {
    /// Of the connection.
    pub etcd: Timing,
    /// How often a peer's heartbeat is read; jittered. Linearizable, so it also shows that the store has a quorum.
    pub poll: Duration,
    /// What the heartbeat means.
    pub heartbeat: HeartbeatPolicy,
    /// How long it may stand still.
    pub heartbeat_timeout: Duration,
    /// How often what is held is compared with all keys of the peer's store; jittered.
    pub audit_interval: Duration,
    /// How long a session goes on after its file was replaced, if the new file's connection does not come about.
    pub replace_wait: Duration,
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
            heartbeat: HeartbeatPolicy::default(),
            // Two of Cilium's beats.
            heartbeat_timeout: Duration::from_mins(2),
            audit_interval: DEFAULT_AUDIT_INTERVAL,
            replace_wait: Duration::from_secs(10),
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
    pub(super) keeping: Arc<Keeping>,
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
    reporter: Arc<Reporter>,
    heartbeat: Heartbeat,
    keeper: Keeper,
    tenure: Option<Tenure>,
    /// The one in use; the next file's goes on from it.
    session: Option<Session>,
    /// What connections present and trust; its last good contents outlive a change of the file.
    certificates: Option<Arc<ClientTls>>,
}

impl Peer {
    pub(super) fn new(name: ClusterName, environment: Arc<Environment>) -> Self {
        let Environment { board, metrics, makings, keeping, .. } = &*environment;
        let reporter = Arc::new(Reporter::new(name.as_str(), false, board.clone(), metrics.clone()));
        let keeper = Keeper::new(name.clone(), Arc::clone(keeping), makings, Arc::clone(&reporter));
        let PeerTiming { heartbeat, heartbeat_timeout, .. } = environment.timing;
        let heartbeat = Heartbeat::new(heartbeat, heartbeat_timeout, Instant::now());
        // Left behind by a task of this peer that panicked: its entries are shown, so they are ours to keep or to drain.
        let tenure = environment
            .register
            .adopt(&name)
            .map(|claim| Tenure::begin(claim, &name, layout::state_ids(), &environment.makings));
        if let Some(tenure) = &tenure {
            reporter.shown(Some(tenure.follower.current()));
        }
        Self { name, environment, reporter, heartbeat, keeper, tenure, session: None, certificates: None }
    }

    /// Lives until the file is removed (then nothing of the peer is left), or until cancelled (then everything is).
    pub(super) async fn run(mut self, mut desired: watch::Receiver<Desired>, cancel: CancellationToken) {
        if cancel.run_until_cancelled(Box::pin(self.restore())).await.is_none() {
            return;
        }
        let keeper = self.keeper.clone();
        let mut keeping = Box::pin(keeper.keep());
        loop {
            let Some(file) = desired.borrow_and_update().clone() else {
                self.session = None;
                self.drain();
                // It may have the file in hand.
                drop(keeping);
                Box::pin(keeper.remove()).await;
                self.reporter.forget();
                return;
            };
            tokio::select! {
                biased;
                () = cancel.cancelled() => {
                    drop(keeping);
                    return Box::pin(keeper.keep_last()).await;
                }
                changed = desired.changed() => match changed {
                    // What is shown stays until the new file's session has synced, and the old session until it stands (P10).
                    Ok(()) => {}
                    Err(_) => return,
                },
                absence = Box::pin(keeper.expired()) => self.revoke(absence),
                never = &mut keeping => match never {},
                never = self.serve(&file) => match never {},
            }
        }
    }

    /// One session after the other; the one of the file before goes on until the first of this file stands.
    async fn serve(&mut self, file: &PeerFile) -> Infallible {
        let config = match &file.config {
            Ok(config) => config.clone(),
            Err(failure) => {
                self.session = None;
                self.break_off();
                self.reporter.blocked(ClusterState::Refused, "file", failure.clone());
                return std::future::pending().await;
            }
        };
        let (reporter, wait) = (Arc::clone(&self.reporter), self.environment.timing.replace_wait);
        let mut dialer = Dialer::new(config, &self.environment.timing.etcd).with_certificates(&mut self.certificates);
        let mut next = None;
        // Kept until then: yet another file may come meanwhile.
        if let Some(before) = self.session.clone() {
            let first = async { timeout(wait, dialer.connect_beside(&before, &reporter)).await.ok() };
            // If it ends by itself, or takes too long to replace, it is the new file's turn alone.
            match self.use_until(&before, first).await {
                Ok(first) => next = first,
                Err(end) => reporter.failure(end.failure),
            }
        }
        loop {
            let session = if let Some(session) = next.take() {
                session
            } else {
                self.session = None;
                self.break_off();
                Box::pin(dialer.connect(&reporter)).await
            };
            self.session = Some(session.clone());
            let since = Instant::now();
            match self.use_until(&session, async { Some(dialer.successor(&session, &reporter).await) }).await {
                Ok(successor) => next = successor,
                Err(end) => {
                    let live_for =
                        self.tenure.as_ref().is_some_and(|tenure| tenure.follower.is_live()).then(|| since.elapsed());
                    self.session = None;
                    self.break_off();
                    drop(session);
                    reporter.failure(end.failure.clone());
                    reporter.connecting();
                    dialer.pause_after(&end.failure, end.retryable, live_for).await;
                }
            }
        }
    }

    /// Uses a session until `successor` resolves, with whatever that brings.
    async fn use_until(
        &mut self,
        session: &Session,
        successor: impl Future<Output = Option<Session>>,
    ) -> Result<Option<Session>, End> {
        tokio::select! {
            // Boxed: both are large, and live as long as the session.
            end = Box::pin(self.use_session(session)) => Err(end),
            successor = Box::pin(successor) => Ok(successor),
        }
    }

    async fn use_session(&mut self, session: &Session) -> End {
        self.reporter.approach(ClusterState::ReadingConfig, "cluster-config");
        self.heartbeat.session(session.etcd_cluster_id(), Instant::now());
        let key = layout::cluster_config_key(&self.name);
        let mut config = match KeyWatch::open(session, key.as_bytes()).await {
            Ok(config) => config,
            Err(error) => return error.into(),
        };
        loop {
            let plan = match self.settle(&mut config).await {
                Ok(plan) => plan,
                Err(end) => return end,
            };
            // `settle` has made it; asked for again rather than assumed.
            let Some(tenure) = &mut self.tenure else { continue };
            let Environment { us, timing, .. } = &*self.environment;
            tokio::select! {
                end = pursue(tenure, session, &plan, timing, &self.reporter) => return end,
                end = follow_heartbeat(&mut self.heartbeat, session, timing, &self.reporter) => return end,
                changed = until_changed(&mut config, &plan, us, &self.name, &self.reporter) => match changed {
                    Ok(()) => tracing::info!(peer = %self.name, "the peer's configuration changed"),
                    Err(error) => return error.into(),
                },
            }
            // Whatever it was that changed, the list is what is true of it (P4); a net effect it has none, or its own.
            tenure.follower.start_over(&self.reporter);
        }
    }

    /// Reads the peer's configuration until the peer may be used and its cluster ID is held.
    async fn settle(&mut self, config: &mut KeyWatch) -> Result<Plan, End> {
        let environment = Arc::clone(&self.environment);
        let timing = &environment.timing;
        let mut freed = environment.register.freed();
        let deadline = Instant::now() + timing.config_wait;
        loop {
            let reading = Reading::of(config.value());
            let held = self.tenure.as_ref().map(Tenure::id);
            let decision = decide(&reading, &environment.us, &self.name, held);
            if decision.drain {
                self.drain();
            }
            let until = match decision.verdict {
                Verdict::Follow(plan) => match self.hold(&plan) {
                    Ok(()) => return Ok(plan),
                    Err(error) => {
                        let failure =
                            Failure { reason: error.reason(), message: error.to_string(), hint: error.hint() };
                        self.reporter.blocked(ClusterState::Refused, "cluster-id", failure);
                        None
                    }
                },
                Verdict::Refuse(error) => {
                    let failure = Failure { reason: error.reason(), message: error.to_string(), hint: error.hint() };
                    self.reporter.blocked(ClusterState::Refused, "cluster-config", failure);
                    None
                }
                Verdict::Wait(failure) if Instant::now() >= deadline => return Err(End { failure, retryable: true }),
                Verdict::Wait(failure) => {
                    self.reporter.blocked(ClusterState::ReadingConfig, "cluster-config", failure);
                    Some(deadline)
                }
            };
            let too_late = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = config.changed() => changed?,
                () = too_late => {}
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

    /// Shows what an earlier process knew of the peer, if its cluster ID can be had.
    async fn restore(&mut self) {
        if self.tenure.is_some() {
            return;
        }
        let Some((picture, absence)) = self.keeper.restore().await else { return };
        match self.environment.register.claim(picture.version.id(), &self.name) {
            Ok(claim) => {
                self.tenure = Some(Tenure::restore(claim, &self.name, &picture, &self.environment.makings));
                self.keeper.restored(picture, absence).await;
            }
            Err(error) => self.keeper.refused(&error),
        }
    }

    /// Withdraws what is held: the peer was absent for too long.
    fn revoke(&mut self, absence: Option<Absence>) {
        self.reporter.revoked(absence);
        self.drain();
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
