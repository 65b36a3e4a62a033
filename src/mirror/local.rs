//! Our own cluster: the same machinery on our own etcd, with no configuration to read and no canary to wait for. What was
//! synced once is shown for as long as the gateway runs, whether the etcd is there or not.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::admission::Admission;
use super::apply::Mirror;
use super::dialer::Dialer;
use super::follower::Follower;
use super::layout;
use super::outlet::Outlet;
use super::report::{Failure, Reporter};
use crate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters};
use crate::kvstore::{EtcdConfig, ListWatchOptions, Timing};
use crate::telemetry::{Metrics, StatusBoard};
use crate::view::{ClusterBuilder, Interner};

/// What the local cluster is made of.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    /// Its name.
    pub name: ClusterName,
    /// Its ID; 0 where the cluster is in no mesh.
    pub id: ClusterId,
    /// How the mesh splits its numbers.
    pub width: MaxConnectedClusters,
    /// Where its etcd is.
    pub etcd: EtcdConfig,
    /// Deadlines of the connection.
    pub timing: Timing,
    /// Page size and the like.
    pub list_watch: ListWatchOptions,
    /// How often what is held is compared with all keys of the store; jittered.
    pub audit_interval: Duration,
}

/// The life of our own cluster.
#[derive(Debug)]
pub struct LocalCluster {
    dialer: Dialer,
    follower: Follower,
    reporter: Reporter,
}

impl LocalCluster {
    /// Not begun.
    #[must_use]
    pub fn new(
        settings: LocalSettings,
        interner: Interner,
        outlet: impl Into<Outlet>,
        board: StatusBoard,
        metrics: Metrics,
    ) -> Self {
        let LocalSettings { name, id, width, etcd, timing, list_watch, audit_interval } = settings;
        let reporter = Reporter::new(name.as_str(), true, board, metrics);
        reporter.cluster_id(id.get());
        let range = IdentityRange::of(id, width);
        let builder = ClusterBuilder::new(interner, name, id, range);
        let prefix = layout::state_ids().into_bytes();
        let mirror = Mirror::new(prefix.clone(), Admission::local(range), builder);
        let follower = Follower::new(mirror, prefix, list_watch, outlet).auditing_every(audit_interval);
        Self { dialer: Dialer::new(etcd, &timing), follower, reporter }
    }

    /// Runs until cancelled. Withdraws nothing then: a gateway that stops says nothing about its cluster.
    pub async fn run(mut self, cancel: CancellationToken) {
        // Boxed: it is large, and lives as long as the gateway.
        cancel.run_until_cancelled(Box::pin(self.live())).await;
    }

    async fn live(&mut self) {
        let mut next = None;
        loop {
            let session = match next.take() {
                Some(session) => session,
                None => self.dialer.connect(&self.reporter).await,
            };
            let since = Instant::now();
            let error = tokio::select! {
                error = self.follower.follow(&session, &self.reporter) => error,
                successor = self.dialer.successor(&session, &self.reporter) => {
                    next = Some(successor);
                    continue;
                }
            };
            let live_for = self.follower.is_live().then(|| since.elapsed());
            self.follower.break_off(&self.reporter);
            drop(session);
            let failure = Failure::from(&error);
            self.reporter.failure(failure.clone());
            self.reporter.connecting();
            self.dialer.pause_after(&failure, error.is_retryable(), live_for).await;
        }
    }
}
