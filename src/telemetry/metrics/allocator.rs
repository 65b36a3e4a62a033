//! What the allocator counts. Its gauges are made from the status board at each scrape, as the clusters' are.

use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec};

use super::super::{AllocatorStatus, StatusBoard};
use super::{always, table};

/// Seconds. An allocation is one round trip; one that waits for a lock can take a minute.
const SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0, 60.0];

/// The series of an allocator; cheap to clone. Every label value is from a bounded set of names.
#[derive(Clone, Debug)]
pub struct AllocatorSeries {
    board: StatusBoard,
    allocations: HistogramVec,
    attempts: IntCounter,
    paths: IntCounterVec,
    lock_wait: Histogram,
    repairs: IntCounterVec,
    lost_leases: IntCounter,
    gc_deleted: IntCounterVec,
    gc_duration: HistogramVec,
}

impl AllocatorSeries {
    /// All at zero.
    #[must_use]
    pub fn new(board: StatusBoard) -> Self {
        let histogram = |spec: table::Spec| always(HistogramVec::new(spec.histogram_opts(&SECONDS), spec.labels));
        let counters = |spec: table::Spec| always(IntCounterVec::new(spec.opts(), spec.labels));
        let counter = |spec: table::Spec| always(IntCounter::with_opts(spec.opts()));
        let series = Self {
            board,
            allocations: histogram(table::ALLOCATIONS),
            attempts: counter(table::ATTEMPTS),
            paths: counters(table::PATHS),
            lock_wait: always(Histogram::with_opts(table::LOCK_WAIT.histogram_opts(&SECONDS))),
            repairs: counters(table::REPAIRS),
            lost_leases: counter(table::LOST_LEASES),
            gc_deleted: counters(table::GC_DELETED),
            gc_duration: histogram(table::GC_DURATION),
        };
        for path in ["fast", "lock"] {
            series.paths.with_label_values(&[path]);
        }
        for event in ["recreated", "conflict"] {
            series.repairs.with_label_values(&[event]);
        }
        series
    }

    /// The allocator's part of the status board.
    pub fn status(&self, change: impl FnOnce(&mut AllocatorStatus)) {
        self.board.update_allocator(change);
    }

    /// An allocation ended so, after that time.
    pub fn allocation(&self, outcome: &str, took: Duration) {
        self.allocations.with_label_values(&[outcome]).observe(took.as_secs_f64());
    }

    /// An allocation asked the store.
    pub fn attempt(&self) {
        self.attempts.inc();
    }

    /// An attempt was decided by one transaction, or needed the lock.
    pub fn path(&self, fast: bool) {
        self.paths.with_label_values(&[if fast { "fast" } else { "lock" }]).inc();
    }

    /// Attempts that took one transaction, and attempts that took the lock.
    #[must_use]
    pub fn paths(&self) -> (u64, u64) {
        (self.paths.with_label_values(&["fast"]).get(), self.paths.with_label_values(&["lock"]).get())
    }

    /// Times a wait for a lock.
    pub fn lock_wait(&self) -> prometheus::HistogramTimer {
        self.lock_wait.start_timer()
    }

    /// A missing identity was written again.
    pub fn recreated(&self) {
        self.repairs.with_label_values(&["recreated"]).inc();
    }

    /// A number in use here was found to stand for other labels in the store.
    pub fn conflict(&self) {
        self.repairs.with_label_values(&["conflict"]).inc();
    }

    /// How often that was.
    #[must_use]
    pub fn conflicts(&self) -> u64 {
        self.repairs.with_label_values(&["conflict"]).get()
    }

    /// Leases were lost.
    pub fn lost_leases(&self, count: u64) {
        self.lost_leases.inc_by(count);
    }

    /// A round of garbage collection removed so many, in that time.
    pub fn collected(&self, kind: &str, deleted: u64, took: Duration) {
        self.gc_deleted.with_label_values(&[kind]).inc_by(deleted);
        self.gc_duration.with_label_values(&[kind]).observe(took.as_secs_f64());
    }

    fn parts(&self) -> [&dyn Collector; 8] {
        [
            &self.allocations,
            &self.attempts,
            &self.paths,
            &self.lock_wait,
            &self.repairs,
            &self.lost_leases,
            &self.gc_deleted,
            &self.gc_duration,
        ]
    }

    fn gauges(&self) -> Vec<MetricFamily> {
        let Some(status) = self.board.allocator() else { return Vec::new() };
        let AllocatorStatus { free, leased, used, local, leases, leased_keys, collecting, .. } = status;
        let old_locks = status.oldest_lock.as_secs();
        let one = |spec: table::Spec, values: &[(&[&str], u64)]| {
            let gauge = always(IntGaugeVec::new(spec.opts(), spec.labels));
            for (labels, value) in values {
                gauge.with_label_values(labels).set(i64::try_from(*value).unwrap_or(i64::MAX));
            }
            gauge.collect()
        };
        [
            one(table::NUMBERS, &[(&["free"], free.into()), (&["leased"], leased.into()), (&["used"], used.into())]),
            one(table::LOCAL_KEYS, &[(&[], local)]),
            one(table::LEASES, &[(&[], leases)]),
            one(table::LEASED_KEYS, &[(&[], leased_keys)]),
            one(table::GC_LEADER, &[(&[], collecting.into())]),
            one(table::GC_ALIVE, &[(&["identity"], status.records), (&["lock"], status.locks)]),
            one(table::OLDEST_LOCK, &[(&[], old_locks)]),
        ]
        .concat()
    }
}

impl Collector for AllocatorSeries {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.gauges();
        families.extend(self.parts().into_iter().flat_map(Collector::collect));
        families
    }
}
