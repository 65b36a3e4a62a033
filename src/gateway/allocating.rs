//! The allocator on our own store, and what else is written there: garbage collection, and what our cluster says of itself.

use tokio_util::sync::CancellationToken;

use super::tasks::Tasks;
use crate::allocator::etcd::{EtcdBackend, Presence, SessionKeeper, Store};
use crate::allocator::{
    AllocError, Allocator, AllocatorMetrics, AllocatorSettings, GcSettings, NumberRange, Paths, collect,
};
use crate::config::{AllocatingConfig, ClusterConfig, Config};
use crate::identity::{ClusterName, IdentityRange};
use crate::kvstore::EtcdConfig;
use crate::mirror::{OwnRecords, layout};
use crate::telemetry::{Metrics, Readiness};

/// The gateway's allocator.
pub type OwnAllocator = Allocator<EtcdBackend>;

/// Everything built that writes to our own store.
pub(super) struct Allocating {
    /// `None` where it is switched off.
    pub(super) allocator: Option<OwnAllocator>,
    backend: EtcdBackend,
    keeper: SessionKeeper,
    metrics: AllocatorMetrics,
    cluster: ClusterConfig,
    config: AllocatingConfig,
    numbers: NumberRange,
}

impl Allocating {
    /// `None` where nothing is to be written.
    pub(super) fn build(
        config: &Config,
        etcd: EtcdConfig,
        records: OwnRecords,
        metrics: &Metrics,
    ) -> Result<Option<Self>, AllocError> {
        let (cluster, config, stores) = (config.cluster.clone(), config.allocating.clone(), &config.stores);
        if !config.enabled && !config.collects && config.announce.is_none() {
            return Ok(None);
        }
        // Cannot fail: both were checked when the configuration was read.
        let numbers = NumberRange::try_from(IdentityRange::of(cluster.id, cluster.width))
            .map_err(|error| AllocError::Refused(error.to_string()))?;
        let paths = Paths::new(layout::STATE_PREFIX, &config.node)?;
        let (keeper, sessions) = SessionKeeper::new(etcd, stores.timing.clone());
        let store = Store::new(sessions, stores.timing.call).with_limits(config.limits);
        let backend = EtcdBackend::new(store, paths, numbers, config.terms);
        let metrics = AllocatorMetrics::of(metrics);
        let settings = AllocatorSettings {
            first_list: config.first_list,
            sync: config.sync,
            release_on_shutdown: config.release_on_shutdown,
            ..AllocatorSettings::new(numbers)
        };
        let allocator = config
            .enabled
            .then(|| Allocator::new(backend.clone(), std::sync::Arc::new(records), settings, metrics.clone()));
        Ok(Some(Self { allocator, backend, keeper, metrics, cluster, config, numbers }))
    }

    /// Runs it. What keeps the connection and the leases goes to `keepers`, which stop after `tasks`: a goodbye needs both.
    pub(super) fn spawn(self, tasks: &mut Tasks, keepers: &mut Tasks, readiness: &Readiness) {
        let Self { allocator, backend, keeper, metrics, cluster, config, numbers } = self;
        keepers.spawn("the allocator's connection", |stop| async move {
            keeper.run(stop).await;
            Ok(())
        });
        if let Some(interval) = config.announce {
            let presence = Presence {
                name: cluster.name.clone(),
                id: cluster.id,
                width: cluster.width,
                prefix: layout::STATE_PREFIX.to_owned(),
                interval,
            };
            let store = backend.store().clone();
            tasks.spawn("the announcement of the cluster", |stop| async move {
                presence.assert(&store, stop).await;
                Ok(())
            });
        }
        if config.collects {
            let (backend, metrics) = (backend.clone(), metrics.clone());
            let settings = GcSettings { numbers, times: config.gc };
            let prefix = election(&cluster.name);
            tasks.spawn("garbage collection", |stop| async move {
                backend.while_leading(&prefix, &stop, || collect(&backend, settings, &metrics)).await;
                Ok(())
            });
        }
        if let Some(allocator) = allocator {
            tasks.spawn_once(show_missing(allocator.clone(), readiness.clone()));
            tasks.spawn("the allocator", |stop| async move {
                allocator.run(stop).await;
                Ok(())
            });
        }
        keepers.spawn("the leases", |stop: CancellationToken| async move {
            backend.run(stop).await;
            Ok(())
        });
    }
}

/// Where the replicas of a cluster elect the one that collects.
fn election(cluster: &ClusterName) -> String {
    format!("meshgate/{cluster}/gc/")
}

/// Lost references are shown, and are no reason to take the gateway from its subscribers: they are being written again, and
/// what is known stays known.
async fn show_missing(allocator: OwnAllocator, readiness: Readiness) {
    let mut missing = allocator.missing_references();
    let count = missing.clone();
    // An error says that the allocator is gone, with the gateway.
    while missing.wait_for(|missing| *missing > 0).await.is_ok() {
        let count = count.clone();
        let _concern = readiness.concern("references", move || {
            format!("{} of label sets in use are being written again: their lease was lost", *count.borrow())
        });
        if missing.wait_for(|missing| *missing == 0).await.is_err() {
            return;
        }
    }
}
