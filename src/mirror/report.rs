//! One cluster's voice: every transition, failure and refusal reaches the status board, the metrics and the log from here,
//! with the same reasons in all three.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::apply::Outcome;
use super::audit::{Extent, Findings};
use super::auditor::Audited;
use super::availability::{Absence, Availability, Source};
use super::rejects::{Example, MAX_EXAMPLES, RejectTally};
use crate::kvstore::{ConnectError, Session, SessionError};
use crate::telemetry::{
    ClusterMetrics, ClusterState, ClusterStatus, LastError, LogLimiter, Metrics, RejectExample, StatusBoard,
};
use crate::view::{ClusterView, SourcePosition};

/// Log lines about one cluster and one reason come at most once in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Something that went wrong, in the three forms that operators need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Bounded set of names; a metric label.
    pub reason: &'static str,
    /// In plain words.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl Failure {
    /// Whether the store knows us and refuses us.
    pub(super) fn is_denial(&self) -> bool {
        self.reason == SessionError::DENIED
    }
}

impl From<&ConnectError> for Failure {
    fn from(error: &ConnectError) -> Self {
        Self { reason: error.reason(), message: error.to_string(), hint: error.hint() }
    }
}

impl From<&SessionError> for Failure {
    fn from(error: &SessionError) -> Self {
        Self { reason: error.reason(), message: error.to_string(), hint: error.hint() }
    }
}

/// Tells about one cluster.
#[derive(Debug)]
pub struct Reporter {
    cluster: String,
    board: StatusBoard,
    all_metrics: Metrics,
    metrics: ClusterMetrics,
    log: LogLimiter,
    availability: watch::Sender<Availability>,
}

impl Reporter {
    /// Puts the cluster on the board, state `configured`.
    #[must_use]
    pub fn new(cluster: &str, local: bool, board: StatusBoard, metrics: Metrics) -> Self {
        let mut absence = Absence::from_now();
        board.update(cluster, |status| {
            status.local = local;
            // An earlier task of the cluster may have begun it.
            absence = status.unavailable_since.map_or(absence, Absence::from);
            status.unavailable_since = Some(absence.since);
        });
        Self {
            cluster: cluster.to_owned(),
            board,
            metrics: metrics.cluster(cluster),
            all_metrics: metrics,
            log: LogLimiter::new(1, LOG_INTERVAL),
            availability: watch::Sender::new(Availability { absence: Some(absence), ..Availability::default() }),
        }
    }

    /// The cluster's name.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The cluster's counters.
    #[must_use]
    pub const fn metrics(&self) -> &ClusterMetrics {
        &self.metrics
    }

    /// Whether the cluster is in step; wakes when that changes, or whether anything is shown of it.
    #[must_use]
    pub fn availability(&self) -> watch::Receiver<Availability> {
        self.availability.subscribe()
    }

    /// A transition; `doing` is the stage, in a word.
    pub fn state(&self, state: ClusterState, doing: &'static str) {
        self.change(|status| (status.state, status.stage) = (state, doing));
    }

    /// What is being done, in a word.
    pub fn stage(&self, doing: &'static str) {
        self.board.update(&self.cluster, |status| status.stage = doing);
    }

    /// A transition on the way to being synced; a cluster that is so already only does something beside it.
    pub fn approach(&self, state: ClusterState, doing: &'static str) {
        self.change(|status| {
            if !matches!(status.state, ClusterState::Synced | ClusterState::Degraded | ClusterState::Denied) {
                status.state = state;
            }
            status.stage = doing;
        });
    }

    /// Connecting, for the first time or again: what was synced once is `reconnecting`.
    pub fn connecting(&self) {
        self.change(|status| {
            if status.state != ClusterState::Denied {
                status.state = if status.synced_once { ClusterState::Reconnecting } else { ClusterState::Connecting };
            }
            status.stage = "connect";
        });
    }

    /// Changes the status, and logs the transition if it is one; outside of the board's lock, since a log can block.
    fn change(&self, change: impl FnOnce(&mut ClusterStatus)) {
        let (mut from, mut to) = (ClusterState::default(), ClusterState::default());
        self.board.update(&self.cluster, |status| {
            from = status.state;
            change(status);
            to = status.state;
        });
        if from != to {
            tracing::info!(cluster = self.cluster, from = from.name(), to = to.name(), "cluster state");
        }
    }

    /// How far connecting has come.
    pub fn dialing(&self, stage: &'static str, endpoint: &str) {
        self.board.update(&self.cluster, |status| {
            status.stage = stage;
            endpoint.clone_into(&mut status.endpoint);
        });
    }

    /// A session was made.
    pub fn connected(&self, session: &Session) {
        let mut before = 0;
        self.board.update(&self.cluster, |status| {
            before = status.etcd_cluster_id;
            session.endpoint().clone_into(&mut status.endpoint);
            status.etcd_cluster_id = session.etcd_cluster_id();
            status.session += 1;
            status.certificate_expires = session.certificate().map(|facts| facts.not_after);
            session.version().unwrap_or_default().clone_into(&mut status.etcd_version);
        });
        tracing::info!(
            cluster = self.cluster,
            endpoint = session.endpoint(),
            etcd_cluster_id = format_args!("{:x}", session.etcd_cluster_id()),
            "connected"
        );
        if ![0, session.etcd_cluster_id()].contains(&before) {
            let (endpoint, now) = (session.endpoint(), session.etcd_cluster_id());
            self.concern(Failure {
                reason: "etcd-cluster-id-changed",
                message: format!("behind {endpoint} is another etcd than before: {before:x} became {now:x}"),
                hint:
                    "expected once where an etcd was replaced; again and again, replicas with etcds of their own share \
                       that address: give each an address of its own"
                        .into(),
            });
        }
    }

    /// An attempt or a session failed.
    pub fn failure(&self, failure: Failure) {
        // Until it is synced, or fails otherwise.
        self.change(|status| {
            if failure.is_denial() {
                status.state = ClusterState::Denied;
            } else if status.state == ClusterState::Denied {
                status.state = ClusterState::Connecting;
            }
        });
        self.metrics.failure(failure.reason);
        if let Some(suppressed) = self.log.allow(failure.reason) {
            let Failure { reason, message, hint } = &failure;
            tracing::warn!(cluster = self.cluster, reason, hint, suppressed, "{message}");
        }
        self.board.update(&self.cluster, |status| {
            status.failures += 1;
            let Failure { reason, message, hint } = failure;
            status.last_error = Some(LastError { reason, message, hint, at: SystemTime::now() });
        });
    }

    /// Something that lasts keeps the cluster in `state`: told when it begins or changes, not each time it is looked at.
    pub fn blocked(&self, state: ClusterState, doing: &'static str, failure: Failure) {
        let mut news = false;
        self.change(|status| {
            news = status.state != state || !is_known(status, &failure);
            (status.state, status.stage) = (state, doing);
        });
        if news {
            self.failure(failure);
        }
    }

    /// The same for something that does not hinder yet.
    pub fn concern(&self, failure: Failure) {
        let mut news = false;
        self.board.update(&self.cluster, |status| news = !is_known(status, &failure));
        if news {
            self.failure(failure);
        }
    }

    /// The cluster's ID, 0 when it gave it up.
    pub fn cluster_id(&self, id: u16) {
        self.board.update(&self.cluster, |status| status.cluster_id = id);
    }

    /// The heartbeat key moved; the time in it, where it is one.
    pub fn heartbeat(&self, at: Option<SystemTime>) {
        self.board.update(&self.cluster, |status| {
            status.last_heartbeat = at.or(status.last_heartbeat);
            status.heartbeat_moved = Some(SystemTime::now());
        });
    }

    /// Whether the heartbeat stands still.
    pub fn heartbeat_stale(&self, stale: bool) {
        self.change(|status| {
            status.heartbeat_stale = stale;
            status.state = match status.state {
                ClusterState::Synced | ClusterState::Degraded => live_state(stale),
                other => other,
            };
        });
    }

    /// A step was taken.
    pub(super) fn outcome(&self, outcome: &Outcome) {
        self.metrics.upserts(outcome.counts.upserted);
        self.metrics.unchanged(outcome.counts.unchanged);
        self.metrics.deletes(outcome.counts.removed);
        if outcome.rejects.total() > 0 {
            self.refused(&outcome.rejects);
        }
    }

    /// An audit came to its end.
    pub(super) fn audited(&self, audited: &Audited) {
        let Audited { extent, findings, .. } = audited;
        let clean = !findings.is_divergence();
        self.metrics.audit(clean);
        self.board.update(&self.cluster, |status| {
            status.last_audit = Some(SystemTime::now());
            status.audit_repairs += u64::from(!clean);
        });
        if clean {
            tracing::debug!(cluster = self.cluster, ?extent, "audit: agrees with the store");
            return;
        }
        let Findings { missing, surplus, outdated, examples, .. } = findings;
        let whole = *extent == Extent::Whole;
        tracing::warn!(
            cluster = self.cluster,
            whole,
            missing,
            surplus,
            outdated,
            examples = examples.join("; "),
            "audit: what is held is not what the store holds; it is listed again"
        );
    }

    /// What the view shows of the cluster; nothing if `None`.
    pub fn shown(&self, version: Option<&ClusterView>) {
        self.board.update(&self.cluster, |status| {
            status.identities = version.map_or(0, |version| version.len() as u64);
            status.checksum = version.map_or(0, ClusterView::checksum);
            status.stale = version.is_some_and(ClusterView::is_stale);
        });
        let holds = version.is_some_and(ClusterView::is_synced);
        self.availability.send_if_modified(|availability| std::mem::replace(&mut availability.holds, holds) != holds);
    }

    /// Out of step, whatever the cause; since now, unless it was so already.
    pub fn unavailable(&self) {
        if self.availability.borrow().absence.is_none() {
            self.absent(Some(Absence::from_now()));
        }
    }

    /// The cluster is shown as an earlier process knew it, which had not reached it since `absence`.
    pub fn restored(&self, version: &ClusterView, absence: Absence) {
        self.absent(Some(absence));
        self.cluster_id(version.id().get());
        if let Some(SourcePosition { etcd_cluster_id, revision }) = version.position() {
            self.board.update(&self.cluster, |status| {
                (status.etcd_cluster_id, status.revision) = (etcd_cluster_id, revision);
            });
        }
        self.shown(Some(version));
    }

    /// What was held of the cluster was withdrawn because it was out of reach for too long.
    pub fn revoked(&self, absence: Option<Absence>) {
        self.metrics.revoked();
        let lasted = absence.map(|absence| humantime::format_duration(absence.lasted()).to_string());
        tracing::warn!(
            cluster = self.cluster,
            lasted,
            "out of reach for longer than peer-ttl: its entries are withdrawn"
        );
        self.board.update(&self.cluster, |status| status.revoked = true);
    }

    fn absent(&self, absence: Option<Absence>) {
        let since = absence.map(|absence| absence.since);
        self.board.update(&self.cluster, |status| status.unavailable_since = since);
        self.availability.send_modify(|availability| availability.absence = absence);
    }

    /// What is shown is complete up to there, or newer.
    pub(super) fn applied(&self, position: SourcePosition, prefix: &[u8]) {
        // Nobody waits for it.
        self.availability.send_if_modified(|availability| {
            Source::advance(&mut availability.source, position, prefix);
            false
        });
    }

    /// The cluster's picture was kept.
    pub fn picture_kept(&self, at: SystemTime) {
        self.metrics.picture("kept");
        self.board.update(&self.cluster, |status| (status.picture_kept, status.picture_trouble) = (Some(at), None));
    }

    /// The cluster's picture was read; it was kept at that time.
    pub fn picture_restored(&self, kept: SystemTime) {
        self.metrics.picture("restored");
        self.board.update(&self.cluster, |status| status.picture_kept = Some(kept));
    }

    /// Something is wrong with the cluster's picture; `result` is from a bounded set of names. Told once.
    pub fn picture_trouble(&self, result: &'static str, message: &str) {
        self.metrics.picture(result);
        let mut news = false;
        self.board.update(&self.cluster, |status| {
            news = status.picture_trouble.as_deref() != Some(message);
            status.picture_trouble = Some(message.to_owned());
        });
        if news {
            tracing::warn!(cluster = self.cluster, result, "picture: {message}");
        }
    }

    /// Events were applied up to that revision; `now` if they were any.
    pub(super) fn revision(&self, revision: i64, event: bool) {
        self.board.update(&self.cluster, |status| {
            status.revision = revision;
            if event {
                status.last_event = Some(SystemTime::now());
            }
        });
    }

    /// Complete and live.
    pub(super) fn synced(&self) {
        self.change(|status| {
            status.synced_once = true;
            status.revoked = false;
            (status.state, status.stage) = (live_state(status.heartbeat_stale), "watch");
        });
        self.absent(None);
    }

    /// The cluster is gone: no trace of it stays.
    pub fn forget(&self) {
        self.board.remove(&self.cluster);
        self.all_metrics.forget_cluster(&self.cluster);
    }

    fn refused(&self, tally: &RejectTally) {
        for (reason, count) in tally.counts() {
            (0..count).for_each(|_| self.metrics.reject(reason.name()));
        }
        for example in tally.examples() {
            let Example { reason, key, detail } = example;
            if let Some(suppressed) = self.log.allow(reason.name()) {
                tracing::warn!(
                    cluster = self.cluster,
                    reason = reason.name(),
                    key,
                    suppressed,
                    "entry refused: {detail}"
                );
            }
        }
        let at = SystemTime::now();
        self.board.update(&self.cluster, |status| {
            for (reason, count) in tally.counts() {
                *status.rejects.entry(reason.name()).or_default() += count;
            }
            status.reject_examples.extend(tally.examples().iter().map(|example| RejectExample {
                reason: example.reason.name(),
                key: example.key.clone(),
                detail: example.detail.clone(),
                at,
            }));
            let too_many = status.reject_examples.len().saturating_sub(MAX_EXAMPLES);
            status.reject_examples.drain(..too_many);
        });
    }
}

const fn live_state(heartbeat_stale: bool) -> ClusterState {
    if heartbeat_stale { ClusterState::Degraded } else { ClusterState::Synced }
}

fn is_known(status: &ClusterStatus, failure: &Failure) -> bool {
    status.last_error.as_ref().is_some_and(|known| known.reason == failure.reason && known.message == failure.message)
}
