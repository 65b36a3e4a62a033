//! What the allocator counts.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};

use tokio::time::Instant;

use super::{AllocError, Allocation, IdPool};

/// Seconds. An allocation is one round trip; one that waits for a lock can take a minute.
const SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0, 60.0];

/// Counters of one allocator; cheap to clone. A collector: register it with the registry that is served.
#[derive(Clone, Debug)]
pub struct AllocatorMetrics {
    allocations: HistogramVec,
    attempts: IntCounter,
    path: IntCounterVec,
    numbers: IntGaugeVec,
    lock_wait: Histogram,
    events: IntCounterVec,
    leases: IntGauge,
    leased_keys: IntGauge,
    gc: IntCounterVec,
    gc_duration: HistogramVec,
}

impl Default for AllocatorMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl AllocatorMetrics {
    /// All at zero.
    ///
    /// # Panics
    /// Never: the names and labels below are valid, as the first test that makes one shows.
    #[must_use]
    pub fn new() -> Self {
        let name = |name: &str| format!("meshgate_allocator_{name}");
        let histogram = |n: &str, help: &str, labels: &[&str]| {
            valid(HistogramVec::new(HistogramOpts::new(name(n), help).buckets(SECONDS.to_vec()), labels))
        };
        let counters =
            |n: &str, help: &str, labels: &[&str]| valid(IntCounterVec::new(Opts::new(name(n), help), labels));
        let gauge = |n: &str, help: &str| valid(IntGauge::new(name(n), help));
        Self {
            allocations: histogram(
                "duration_seconds",
                "Allocations by outcome: new, known, local, or why not",
                &["outcome"],
            ),
            attempts: valid(IntCounter::new(name("attempts_total"), "Attempts at allocations that asked the store")),
            path: counters("path_total", "Attempts by path: fast (one transaction) or lock", &["path"]),
            numbers: valid(IntGaugeVec::new(Opts::new(name("numbers"), "Numbers of the range by state"), &["state"])),
            lock_wait: valid(Histogram::with_opts(
                HistogramOpts::new(name("lock_wait_seconds"), "Waits for the lock on a label set")
                    .buckets(SECONDS.to_vec()),
            )),
            events: counters("repairs_total", "Identities re-created, and conflicts found while doing so", &["event"]),
            leases: gauge("leases", "Leases that references hang on"),
            leased_keys: gauge("leased_keys", "References that hang on leases"),
            gc: counters(
                "gc_total",
                "What garbage collection found, by kind (identity, lock) and result",
                &["kind", "result"],
            ),
            gc_duration: histogram("gc_duration_seconds", "Rounds of garbage collection by kind", &["kind"]),
        }
    }

    pub(super) fn allocation(&self) -> Timer<'_> {
        Timer { metrics: self, since: Instant::now(), ended: false }
    }

    pub(super) fn attempt(&self) {
        self.attempts.inc();
    }

    pub(super) fn fast_path(&self, hit: bool) {
        self.path.with_label_values(&[if hit { "fast" } else { "lock" }]).inc();
    }

    pub(super) fn lock_wait(&self) -> prometheus::HistogramTimer {
        self.lock_wait.start_timer()
    }

    pub(super) fn recreated(&self) {
        self.events.with_label_values(&["recreated"]).inc();
    }

    pub(super) fn conflict(&self) {
        self.events.with_label_values(&["conflict"]).inc();
    }

    /// How often a number in use here was found to stand for other labels in the store.
    #[must_use]
    pub fn conflicts(&self) -> u64 {
        self.events.with_label_values(&["conflict"]).get()
    }

    /// Attempts that took one transaction, and attempts that took the lock.
    #[must_use]
    pub fn paths(&self) -> (u64, u64) {
        (self.path.with_label_values(&["fast"]).get(), self.path.with_label_values(&["lock"]).get())
    }

    pub(super) fn pool(&self, pool: &IdPool) {
        for (state, count) in [("free", pool.available()), ("leased", pool.leased()), ("used", pool.in_use())] {
            self.numbers.with_label_values(&[state]).set(count.into());
        }
    }

    /// Leases and what hangs on them.
    pub(super) fn leases(&self, (leases, keys): (usize, usize)) {
        self.leases.set(i64::try_from(leases).unwrap_or(i64::MAX));
        self.leased_keys.set(i64::try_from(keys).unwrap_or(i64::MAX));
    }

    pub(super) fn gc(&self, kind: &str, alive: usize, deleted: usize, took: std::time::Duration) {
        self.gc.with_label_values(&[kind, "alive"]).inc_by(alive as u64);
        self.gc.with_label_values(&[kind, "deleted"]).inc_by(deleted as u64);
        self.gc_duration.with_label_values(&[kind]).observe(took.as_secs_f64());
    }
}

impl Collector for AllocatorMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.parts().into_iter().flat_map(Collector::collect).collect()
    }
}

impl AllocatorMetrics {
    fn parts(&self) -> [&dyn Collector; 10] {
        [
            &self.allocations,
            &self.attempts,
            &self.path,
            &self.numbers,
            &self.lock_wait,
            &self.events,
            &self.leases,
            &self.leased_keys,
            &self.gc,
            &self.gc_duration,
        ]
    }
}

/// Times one allocation; one that is dropped was cancelled by its caller.
pub(super) struct Timer<'a> {
    metrics: &'a AllocatorMetrics,
    since: Instant,
    ended: bool,
}

impl Timer<'_> {
    pub(super) fn ended(mut self, result: &Result<Allocation, AllocError>) {
        let outcome = match result {
            Ok(Allocation { is_new: true, .. }) => "new",
            Ok(Allocation { first_use: true, .. }) => "known",
            Ok(_) => "local",
            Err(error) => error.reason(),
        };
        self.observe(outcome);
    }

    fn observe(&mut self, outcome: &str) {
        self.ended = true;
        self.metrics.allocations.with_label_values(&[outcome]).observe(self.since.elapsed().as_secs_f64());
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.observe("cancelled");
        }
    }
}

fn valid<T>(made: prometheus::Result<T>) -> T {
    match made {
        Ok(made) => made,
        // Only a name or label that is spelled wrong above can bring us here, and then every test does.
        Err(error) => unreachable!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers() {
        let registry = prometheus::Registry::new();
        let metrics = AllocatorMetrics::new();
        registry.register(Box::new(metrics.clone())).unwrap();
        metrics.conflict();
        assert!(registry.gather().iter().any(|family| family.name() == "meshgate_allocator_repairs_total"));
    }
}
