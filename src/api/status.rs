//! How the gateway itself is doing, from what also feeds readiness and metrics.

use super::{Parts, convert, pb};
use crate::telemetry::{AllocatorStatus, GuardReport, Metrics, Readiness, StatusBoard};
use crate::view::View;

/// Everything but the clusters, of which not everybody may see all.
#[derive(Clone, Debug)]
pub(super) struct GatewayStatus {
    cluster: String,
    readiness: Readiness,
    status: StatusBoard,
    metrics: Metrics,
    view: View,
}

impl GatewayStatus {
    pub(super) fn of(parts: &Parts) -> Self {
        let Parts { cluster, view, status, metrics, readiness, .. } = parts.clone();
        Self { cluster: cluster.to_string(), readiness, status, metrics, view }
    }

    /// The answer, with those clusters.
    pub(super) fn with(&self, clusters: Vec<pb::ClusterInfo>) -> pb::GetStatusResponse {
        let report = self.readiness.report();
        let history = self.view.history_size();
        pb::GetStatusResponse {
            cluster: self.cluster.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: report.ready,
            stopping: report.stopping,
            conditions: report.guards.into_iter().filter(|guard| !guard.done).map(condition).collect(),
            clusters,
            allocator: self.status.allocator().map(allocator),
            subscriptions: Some(pb::SubscriptionsInfo {
                open: self.metrics.subscribers(),
                history_versions: history.versions as u64,
                history_bytes: history.bytes as u64,
            }),
            unusable_files: self.metrics.reloads_failing().into_iter().map(str::to_owned).collect(),
        }
    }
}

fn condition(guard: GuardReport) -> pb::Condition {
    let GuardReport { name, concern, waited, why, .. } = guard;
    pb::Condition { name: name.to_owned(), pending: !concern, lasted: Some(convert::duration(waited)), why }
}

fn allocator(status: AllocatorStatus) -> pb::AllocatorInfo {
    let AllocatorStatus { listed, free, leased, used, local, leases, leased_keys, collecting, .. } = status;
    pb::AllocatorInfo { listed, free, leased, used, local_keys: local, leases, leased_keys, collecting }
}
