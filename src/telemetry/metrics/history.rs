//! What a scrape asks the view and the subscriptions, which it does not know: how much they keep for those that come back.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntGauge, IntGaugeVec};

use super::{always, table};

/// How much is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryGauges {
    /// Replaced versions.
    pub versions: u64,
    /// What they keep alive, an estimate.
    pub bytes: u64,
    /// Versions that were dropped before their age.
    pub evicted: u64,
    /// Encoded frames.
    pub encoded_bytes: u64,
}

/// What subscribers have acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcknowledgedGauges {
    /// By cluster: subscribers whose state is the current one, and those whose is not.
    pub clusters: BTreeMap<String, (u64, u64)>,
}

type ReadAcknowledged = dyn Fn() -> AcknowledgedGauges + Send + Sync;

/// The same for acknowledgements.
#[derive(Clone)]
pub(super) struct Acknowledged {
    read: Arc<OnceLock<Box<ReadAcknowledged>>>,
    received: IntCounter,
    rejected: IntCounter,
}

impl Acknowledged {
    pub(super) fn new() -> Self {
        let counter = |spec: table::Spec| always(IntCounter::with_opts(spec.opts()));
        let (received, rejected) = (counter(table::ACKNOWLEDGEMENTS), counter(table::ACKNOWLEDGED_REJECTS));
        Self { read: Arc::default(), received, rejected }
    }

    /// The first reader is the one that counts.
    pub(super) fn read_by(&self, read: impl Fn() -> AcknowledgedGauges + Send + Sync + 'static) {
        let _ = self.read.set(Box::new(read));
    }

    pub(super) fn note(&self, rejected: u64) {
        self.received.inc();
        self.rejected.inc_by(rejected);
    }
}

impl Collector for Acknowledged {
    fn desc(&self) -> Vec<&Desc> {
        self.received.desc().into_iter().chain(self.rejected.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let by_cluster = always(IntGaugeVec::new(table::ACKNOWLEDGED.opts(), table::ACKNOWLEDGED.labels));
        let gauges = self.read.get().map(|read| read()).unwrap_or_default();
        for (cluster, (current, behind)) in gauges.clusters {
            for (state, subscribers) in [("current", current), ("behind", behind)] {
                let gauge = by_cluster.with_label_values(&[cluster.as_str(), state]);
                gauge.set(i64::try_from(subscribers).unwrap_or(i64::MAX));
            }
        }
        [self.received.collect(), self.rejected.collect(), by_cluster.collect()].into_iter().flatten().collect()
    }
}

type Read = dyn Fn() -> HistoryGauges + Send + Sync;

/// Reads at each scrape; zeros until somebody says where.
#[derive(Clone)]
pub(super) struct History {
    read: Arc<OnceLock<Box<Read>>>,
    descriptions: Arc<[Desc]>,
}

impl History {
    pub(super) fn new() -> Self {
        let specs = [table::HISTORY_VERSIONS, table::HISTORY_BYTES, table::HISTORY_EVICTED, table::ENCODED_BYTES];
        let describe = |spec: &table::Spec| {
            always(Desc::new(spec.name.to_owned(), spec.help.to_owned(), Vec::new(), HashMap::default()))
        };
        Self { read: Arc::default(), descriptions: specs.iter().map(describe).collect() }
    }

    /// The first reader is the one that counts.
    pub(super) fn read_by(&self, read: impl Fn() -> HistoryGauges + Send + Sync + 'static) {
        let _ = self.read.set(Box::new(read));
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").finish_non_exhaustive()
    }
}

impl Collector for History {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let HistoryGauges { versions, bytes, evicted, encoded_bytes } =
            self.read.get().map(|read| read()).unwrap_or_default();
        let gauge = |spec: table::Spec, value: u64| {
            let gauge = always(IntGauge::with_opts(spec.opts()));
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.collect()
        };
        let counter = always(IntCounter::with_opts(table::HISTORY_EVICTED.opts()));
        counter.inc_by(evicted);
        let gauges = [
            gauge(table::HISTORY_VERSIONS, versions),
            gauge(table::HISTORY_BYTES, bytes),
            gauge(table::ENCODED_BYTES, encoded_bytes),
            counter.collect(),
        ];
        gauges.into_iter().flatten().collect()
    }
}
