//! The series of one cluster, which live exactly as long as the cluster is configured.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::super::{ClusterState, StatusBoard};
use super::{always, table};

/// Seconds. A peer on the same LAN lists 65,000 identities in about 0.2 s; a list that takes 3 minutes is given up.
const SYNC_BUCKETS: [f64; 13] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0];

/// A sample is a double, which holds 53 bits exactly.
const CHECKSUM_SHOWN: u64 = (1 << 48) - 1;

fn unix_seconds(at: Option<SystemTime>) -> i64 {
    let since = at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Counters of one cluster; cheap to clone. One that outlives its cluster counts into nothing.
#[derive(Clone, Debug)]
pub struct ClusterMetrics(Arc<Series>);

#[derive(Debug)]
struct Series {
    events: IntCounterVec,
    upsert: IntCounter,
    delete: IntCounter,
    unchanged: IntCounter,
    rejects: IntCounterVec,
    failures: IntCounterVec,
    sync: HistogramVec,
    first: Histogram,
    again: Histogram,
    audits: IntCounterVec,
    clean: IntCounter,
    repaired: IntCounter,
    pictures: IntCounterVec,
    revocations: IntCounter,
}

impl ClusterMetrics {
    fn new(cluster: &str) -> Self {
        let counters =
            |spec: table::Spec| always(IntCounterVec::new(spec.opts_of(cluster), &spec.labels_within_cluster()));
        let events = counters(table::EVENTS);
        let sync = always(HistogramVec::new(
            table::SYNC_DURATION.histogram_opts_of(cluster, &SYNC_BUCKETS),
            &table::SYNC_DURATION.labels_within_cluster(),
        ));
        let audits = counters(table::AUDITS);
        Self(Arc::new(Series {
            clean: audits.with_label_values(&["clean"]),
            repaired: audits.with_label_values(&["repaired"]),
            audits,
            pictures: counters(table::PICTURES),
            revocations: always(IntCounter::with_opts(table::REVOCATIONS.opts_of(cluster))),
            upsert: events.with_label_values(&["upsert"]),
            delete: events.with_label_values(&["delete"]),
            unchanged: events.with_label_values(&["unchanged"]),
            events,
            rejects: counters(table::REJECTS),
            failures: counters(table::FAILURES),
            first: sync.with_label_values(&["first"]),
            again: sync.with_label_values(&["again"]),
            sync,
        }))
    }

    /// Upserts that changed something.
    pub fn upserts(&self, count: u64) {
        self.0.upsert.inc_by(count);
    }

    /// Deletes of something that was there.
    pub fn deletes(&self, count: u64) {
        self.0.delete.inc_by(count);
    }

    /// Upserts that said nothing new.
    pub fn unchanged(&self, count: u64) {
        self.0.unchanged.inc_by(count);
    }

    /// An entry was refused. `reason` is from a bounded set of names.
    pub fn reject(&self, reason: &'static str) {
        self.0.rejects.with_label_values(&[reason]).inc();
    }

    /// An attempt or a session failed. `reason` is from a bounded set of names.
    pub fn failure(&self, reason: &'static str) {
        self.0.failures.with_label_values(&[reason]).inc();
    }

    /// The first list of this cluster was published after that time.
    pub fn first_sync(&self, took: Duration) {
        self.0.first.observe(took.as_secs_f64());
    }

    /// A further list was published after that time.
    pub fn sync_again(&self, took: Duration) {
        self.0.again.observe(took.as_secs_f64());
    }

    /// Something happened to the cluster's picture on disk. `result` is from a bounded set of names.
    pub fn picture(&self, result: &'static str) {
        self.0.pictures.with_label_values(&[result]).inc();
    }

    /// The cluster's entries were withdrawn because it was out of step for too long.
    pub fn revoked(&self) {
        self.0.revocations.inc();
    }

    /// An audit came to its end: it agreed, or it found what a list had to repair.
    pub fn audit(&self, clean: bool) {
        if clean { &self.0.clean } else { &self.0.repaired }.inc();
    }

    fn collect(&self) -> impl Iterator<Item = MetricFamily> {
        let Series { events, rejects, failures, sync, audits, pictures, revocations, .. } = &*self.0;
        let vecs = [events.collect(), rejects.collect(), failures.collect(), sync.collect(), audits.collect()];
        vecs.into_iter().flatten().chain(pictures.collect()).chain(revocations.collect())
    }
}

/// All clusters' series, and what a scrape derives from the status board.
#[derive(Clone, Debug)]
pub(super) struct Clusters {
    series: Arc<Mutex<BTreeMap<String, ClusterMetrics>>>,
    board: StatusBoard,
}

impl Clusters {
    pub(super) fn new(board: StatusBoard) -> Self {
        Self { series: Arc::default(), board }
    }

    pub(super) fn get(&self, cluster: &str) -> ClusterMetrics {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = series.get(cluster) {
            return found.clone();
        }
        series.entry(cluster.to_owned()).or_insert_with(|| ClusterMetrics::new(cluster)).clone()
    }

    pub(super) fn forget(&self, cluster: &str) {
        self.series.lock().unwrap_or_else(PoisonError::into_inner).remove(cluster);
    }

    /// The gauges of the status board, made anew for each scrape: there is no second truth that could lag behind.
    fn board_families(&self) -> Vec<MetricFamily> {
        let peers = always(IntGaugeVec::new(table::PEERS.opts(), table::PEERS.labels));
        for state in ClusterState::ALL {
            peers.with_label_values(&[state.name()]).set(0);
        }
        let mut families = Vec::new();
        for (name, status) in self.board.snapshot() {
            if !status.local {
                peers.with_label_values(&[status.state.name()]).inc();
            }
            for (spec, value) in [
                (table::IDENTITIES, i64::try_from(status.identities).unwrap_or(i64::MAX)),
                (table::READY, i64::from(status.is_ready())),
                (table::REVISION, status.revision),
                (table::CHECKSUM, (status.checksum & CHECKSUM_SHOWN).cast_signed()),
                (table::LAST_EVENT, unix_seconds(status.last_event)),
                (table::LAST_HEARTBEAT, unix_seconds(status.heartbeat_moved)),
                (table::CERTIFICATE_EXPIRY, unix_seconds(status.certificate_expires)),
                (table::STALE, i64::from(status.stale)),
                (table::UNAVAILABLE_SINCE, unix_seconds(status.unavailable_since)),
            ] {
                let gauge = always(IntGauge::with_opts(spec.opts_of(&name)));
                gauge.set(value);
                families.extend(gauge.collect());
            }
        }
        families.extend(peers.collect());
        families
    }
}

impl Collector for Clusters {
    /// None: descriptors name const labels, and ours come and go with the clusters. The table test stands in for the
    /// registry's check.
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    /// Several families of one name, which the registry joins.
    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.board_families();
        let series: Vec<_> = self.series.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        families.extend(series.iter().flat_map(ClusterMetrics::collect));
        families
    }
}
