//! One struct of truth per cluster, and one for the allocator; the API, the CLI and the metrics all read them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

/// The life of a cluster as seen from here (DESIGN.md, "State of one peer").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClusterState {
    /// Named by a file, not begun.
    #[default]
    Configured,
    /// Resolving, dialling, shaking hands.
    Connecting,
    /// Waiting for the cluster's configuration.
    ReadingConfig,
    /// Waiting for the announced canary.
    AwaitingCanary,
    /// The first list is running.
    Listing,
    /// Complete and live.
    Synced,
    /// Complete and connected, but the store's heartbeat stands still: nothing new can be expected of it.
    Degraded,
    /// Was synced; the connection is lost; what is known is kept.
    Reconnecting,
    /// Must not be used; the last error says why.
    Refused,
    /// Reached, but it does not let us read what we have to; what is known is kept.
    Denied,
}

impl ClusterState {
    /// All states, in order.
    pub const ALL: [Self; 10] = [
        Self::Configured,
        Self::Connecting,
        Self::ReadingConfig,
        Self::AwaitingCanary,
        Self::Listing,
        Self::Synced,
        Self::Degraded,
        Self::Reconnecting,
        Self::Refused,
        Self::Denied,
    ];

    /// Whether it will last until somebody changes something: nothing waits for such a cluster.
    #[must_use]
    pub const fn is_hopeless(self) -> bool {
        matches!(self, Self::Refused | Self::Denied)
    }

    /// The state's name in metrics, API and CLI.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Connecting => "connecting",
            Self::ReadingConfig => "reading-config",
            Self::AwaitingCanary => "awaiting-canary",
            Self::Listing => "listing",
            Self::Synced => "synced",
            Self::Degraded => "degraded",
            Self::Reconnecting => "reconnecting",
            Self::Refused => "refused",
            Self::Denied => "denied",
        }
    }
}

/// What went wrong last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastError {
    /// Bounded set of names; a metric label.
    pub reason: &'static str,
    /// In plain words.
    pub message: String,
    /// What to do.
    pub hint: String,
    /// When.
    pub at: SystemTime,
}

/// An entry that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectExample {
    /// Bounded set of names; a metric label.
    pub reason: &'static str,
    /// The key, escaped, shortened.
    pub key: String,
    /// What was wrong, in plain words.
    pub detail: String,
    /// When.
    pub at: SystemTime,
}

/// Everything there is to say about one cluster.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts that are independent of each other")]
pub struct ClusterStatus {
    /// Ours, not a peer.
    pub local: bool,
    /// 0 while unknown.
    pub cluster_id: u16,
    /// Where it is in its life.
    pub state: ClusterState,
    /// Since when.
    pub since: Option<SystemTime>,
    /// The stage of connecting or syncing, in a word.
    pub stage: &'static str,
    /// The endpoint in use, or tried last.
    pub endpoint: String,
    /// The etcd's own cluster ID, 0 while unknown.
    pub etcd_cluster_id: u64,
    /// The etcd's version.
    pub etcd_version: String,
    /// Highest revision applied.
    pub revision: i64,
    /// Identities held.
    pub identities: u64,
    /// Their checksum.
    pub checksum: u64,
    /// Complete at some time since start; stays true while reconnecting.
    pub synced_once: bool,
    /// Failures since start.
    pub failures: u64,
    /// The last one.
    pub last_error: Option<LastError>,
    /// Refused entries by reason, since start.
    pub rejects: BTreeMap<&'static str, u64>,
    /// The last few of them.
    pub reject_examples: Vec<RejectExample>,
    /// When the last change came.
    pub last_event: Option<SystemTime>,
    /// The heartbeat key's value: the time at which the store's owner wrote it, by its clock.
    pub last_heartbeat: Option<SystemTime>,
    /// When that value was seen to change last, by our clock.
    pub heartbeat_moved: Option<SystemTime>,
    /// Whether it has stood still for too long.
    pub heartbeat_stale: bool,
    /// When what is held was compared with the store's keys last.
    pub last_audit: Option<SystemTime>,
    /// How often that found a difference, since start.
    pub audit_repairs: u64,
    /// When the certificate expires that the connection was made with.
    pub certificate_expires: Option<SystemTime>,
    /// Counts the sessions since start: each is one connection to one etcd.
    pub session: u64,
    /// What is held is complete, but as an earlier process knew it: the store was not reached since.
    pub stale: bool,
    /// Since when the cluster is out of step, whatever the cause; none while it is in step. Only a sync ends it, and a
    /// restart does not begin it anew if it was kept.
    pub unavailable_since: Option<SystemTime>,
    /// What was held was withdrawn, because that lasted for too long.
    pub revoked: bool,
    /// When what is held was kept on disk last.
    pub picture_kept: Option<SystemTime>,
    /// What is wrong with that, in plain words.
    pub picture_trouble: Option<String>,
}

impl ClusterStatus {
    /// Complete, connected, and its store alive.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state == ClusterState::Synced
    }
}

/// Everything there is to say about the allocator of our own cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorStatus {
    /// The first list of the cluster's records is in: before it, nothing is allocated.
    pub listed: bool,
    /// Numbers of the cluster's range that can be handed out.
    pub free: u32,
    /// Numbers handed out and not yet seen in the store.
    pub leased: u32,
    /// Numbers in use by anybody.
    pub used: u32,
    /// Label sets in use through this gateway.
    pub local: u64,
    /// Leases that its references hang on.
    pub leases: u64,
    /// References that hang on them.
    pub leased_keys: u64,
    /// This replica collects garbage.
    pub collecting: bool,
    /// Records that its last round left; 0 while another replica collects.
    pub records: u64,
    /// Locks that its last round left.
    pub locks: u64,
    /// How long the oldest that it met, removed or not, had been seen unchanged.
    pub oldest_lock: Duration,
}

/// The status of every cluster, by name, and of the allocator; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct StatusBoard(Arc<Board>);

#[derive(Debug, Default)]
struct Board {
    clusters: Mutex<BTreeMap<String, ClusterStatus>>,
    allocator: Mutex<Option<AllocatorStatus>>,
    /// Wakes whoever waits for a transition: a cluster comes, goes, changes its state, or what it shows
    /// becomes complete, stale or void.
    transitions: watch::Sender<()>,
}

impl StatusBoard {
    /// Changes one cluster's status, making it if it is new. Setting `state` is the caller's; `since` follows by itself.
    pub fn update(&self, cluster: &str, change: impl FnOnce(&mut ClusterStatus)) {
        let mut clusters = self.clusters();
        let status = clusters.entry(cluster.to_owned()).or_default();
        let stage = |status: &ClusterStatus| (status.state, status.synced_once, status.stale, status.revoked);
        let before = stage(status);
        change(status);
        let new = status.since.is_none();
        if new || status.state != before.0 {
            status.since = Some(SystemTime::now());
        }
        if new || stage(status) != before {
            self.0.transitions.send_replace(());
        }
    }

    /// Forgets a cluster.
    pub fn remove(&self, cluster: &str) {
        self.clusters().remove(cluster);
        self.0.transitions.send_replace(());
    }

    /// A copy of everything.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<String, ClusterStatus> {
        self.clusters().clone()
    }

    /// Reads in place. Nobody can change the board meanwhile, so only look.
    pub fn read<T>(&self, read: impl FnOnce(&BTreeMap<String, ClusterStatus>) -> T) -> T {
        read(&self.clusters())
    }

    /// Changes the allocator's status.
    pub fn update_allocator(&self, change: impl FnOnce(&mut AllocatorStatus)) {
        let mut allocator = self.0.allocator.lock().unwrap_or_else(PoisonError::into_inner);
        change(allocator.get_or_insert_default());
    }

    /// The allocator's status; `None` where there is none.
    #[must_use]
    pub fn allocator(&self) -> Option<AllocatorStatus> {
        *self.0.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the clusters are as `condition` wants them. It is asked again after each transition (a cluster comes,
    /// goes, changes its state or is synced for the first time), not after each change of a number.
    pub async fn wait_for(&self, condition: impl Fn(&BTreeMap<String, ClusterStatus>) -> bool) {
        let mut transitions = self.0.transitions.subscribe();
        while !condition(&self.clusters()) {
            // The sender is ours, so this cannot fail.
            let _ = transitions.changed().await;
        }
    }

    /// Wakes after each transition.
    #[must_use]
    pub fn transitions(&self) -> watch::Receiver<()> {
        self.0.transitions.subscribe()
    }

    fn clusters(&self) -> MutexGuard<'_, BTreeMap<String, ClusterStatus>> {
        self.0.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn wakes_on_transitions() {
        let board = StatusBoard::default();
        board.update("a", |status| status.state = ClusterState::Listing);
        let since = board.snapshot()["a"].since;
        let waiting = tokio::spawn({
            let board = board.clone();
            async move { board.wait_for(|clusters| clusters["a"].state == ClusterState::Synced).await }
        });
        tokio::task::yield_now().await;
        board.update("a", |status| status.identities = 1);
        assert_eq!(board.snapshot()["a"].since, since, "a number is no transition");
        board.update("a", |status| status.state = ClusterState::Synced);
        waiting.await.expect("woken");
        assert_ne!(board.snapshot()["a"].since, since);
    }
}
