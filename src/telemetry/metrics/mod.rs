//! Metrics: a registry of our own, and typed handles, so that no caller spells a name or a label.

mod allocator;
mod clients;
mod cluster;
mod history;
mod subscriptions;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{IntGaugeVec, Registry, TextEncoder};

pub use allocator::AllocatorSeries;
pub use clients::ClientRefusal;
pub use cluster::ClusterMetrics;
pub use history::{AcknowledgedGauges, HistoryGauges};
pub use subscriptions::{FrameKind, SubscriptionEnd, SubscriptionGuard};
pub use table::{Kind, Spec, markdown, rows};

use super::StatusBoard;
use clients::Clients;
use cluster::Clusters;
use history::{Acknowledged, History};
use subscriptions::Subscriptions;

/// Files that are read again as they change, as metrics name them.
pub const LISTENER_CERTIFICATES: &str = "certificates";
/// The same.
pub const ACCESS_POLICY: &str = "access-policy";

/// Everything that is counted; cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    clusters: Clusters,
    subscriptions: Subscriptions,
    clients: Clients,
    reload_failing: IntGaugeVec,
    history: History,
    acknowledged: Acknowledged,
    allocator: AllocatorSeries,
}

impl Metrics {
    /// A registry of its own (tests run many gateways in one process), whose gauges of peers and identities read `board`.
    #[must_use]
    pub fn new(board: StatusBoard) -> Self {
        let registry = Registry::new();
        let build_info = always(IntGaugeVec::new(table::BUILD_INFO.opts(), table::BUILD_INFO.labels));
        build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        register(&registry, &build_info);
        always(registry.register(Box::new(ProcessCollector::for_self())));
        let allocator = AllocatorSeries::new(board.clone());
        register(&registry, &allocator);
        let clusters = Clusters::new(board);
        register(&registry, &clusters);
        let subscriptions = Subscriptions::new(&registry);
        let clients = Clients::new(&registry);
        let reload_failing = always(IntGaugeVec::new(table::RELOAD_FAILING.opts(), table::RELOAD_FAILING.labels));
        for file in [LISTENER_CERTIFICATES, ACCESS_POLICY] {
            reload_failing.with_label_values(&[file]).set(0);
        }
        register(&registry, &reload_failing);
        let history = History::new();
        register(&registry, &history);
        let acknowledged = Acknowledged::new();
        register(&registry, &acknowledged);
        Self(Arc::new(Inner {
            registry,
            clusters,
            subscriptions,
            clients,
            reload_failing,
            history,
            acknowledged,
            allocator,
        }))
    }

    /// The counters of one cluster, made at first use. Keep the handle rather than ask for each event.
    #[must_use]
    pub fn cluster(&self, name: &str) -> ClusterMetrics {
        self.0.clusters.get(name)
    }

    /// The allocator's counters.
    #[must_use]
    pub fn allocator(&self) -> &AllocatorSeries {
        &self.0.allocator
    }

    /// Drops all series of a cluster. Handles to them go on counting into nothing; a cluster of that name that is made
    /// again begins at zero.
    pub fn forget_cluster(&self, name: &str) {
        self.0.clusters.forget(name);
    }

    /// Counts a subscription as open until the guard is dropped or ended.
    pub fn subscription(&self) -> SubscriptionGuard {
        self.0.subscriptions.open()
    }

    /// A connection or a request of a client was refused.
    pub fn client_refused(&self, reason: ClientRefusal) {
        self.0.clients.refused(reason);
    }

    /// Whether a file that is read again as it changes cannot be used at the moment.
    pub fn reload_failing(&self, file: &'static str, failing: bool) {
        self.0.reload_failing.with_label_values(&[file]).set(failing.into());
    }

    /// Files of which [`Self::reload_failing`] said so last.
    #[must_use]
    pub fn reloads_failing(&self) -> Vec<&'static str> {
        let failing = |file: &&'static str| self.0.reload_failing.with_label_values(&[*file]).get() != 0;
        [LISTENER_CERTIFICATES, ACCESS_POLICY].into_iter().filter(failing).collect()
    }

    /// Subscriptions that are open.
    #[must_use]
    pub fn subscribers(&self) -> u64 {
        self.0.subscriptions.count()
    }

    /// Where a scrape reads how much is kept for subscribers that come back.
    pub fn read_history(&self, read: impl Fn() -> HistoryGauges + Send + Sync + 'static) {
        self.0.history.read_by(read);
    }

    /// Where a scrape reads what subscribers have acknowledged.
    pub fn read_acknowledged(&self, read: impl Fn() -> AcknowledgedGauges + Send + Sync + 'static) {
        self.0.acknowledged.read_by(read);
    }

    /// A subscriber has acknowledged, all but so many identities.
    pub fn acknowledged(&self, rejected: u64) {
        self.0.acknowledged.note(rejected);
    }

    /// A frame was handed to a subscription's stream.
    pub fn frame(&self, kind: FrameKind) {
        self.0.subscriptions.frame(kind);
    }

    /// A scrape, in Prometheus' text format.
    #[must_use]
    pub fn scrape(&self) -> String {
        let mut text = String::new();
        // Writing to a String fails for an empty family only, and the registry leaves those out.
        if let Err(error) = TextEncoder::new().encode_utf8(&self.0.registry.gather(), &mut text) {
            tracing::error!(%error, "the scrape is incomplete");
        }
        text
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Unwraps what can only fail for a bad or doubled name in the table.
#[expect(clippy::expect_used, reason = "the table is constant, and a test builds and scrapes all of it")]
fn always<T>(result: prometheus::Result<T>) -> T {
    result.expect("the metric table is well-formed")
}

fn register(registry: &Registry, collector: &(impl Collector + Clone + 'static)) {
    always(registry.register(Box::new(collector.clone())));
}
