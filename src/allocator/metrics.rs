//! What the allocator counts, in its own words.

use std::time::Duration;

use tokio::time::Instant;

use super::{AllocError, Allocation, IdPool};
use crate::telemetry::{AllocatorSeries, Metrics, StatusBoard};

/// Counters of one allocator; cheap to clone.
#[derive(Clone, Debug)]
pub struct AllocatorMetrics(AllocatorSeries);

impl Default for AllocatorMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl AllocatorMetrics {
    /// All at zero, shown nowhere.
    #[must_use]
    pub fn new() -> Self {
        Self(AllocatorSeries::new(StatusBoard::default()))
    }

    /// Those of a gateway.
    #[must_use]
    pub fn of(metrics: &Metrics) -> Self {
        Self(metrics.allocator().clone())
    }

    pub(super) fn allocation(&self) -> Timer<'_> {
        Timer { metrics: self, since: Instant::now(), ended: false }
    }

    pub(super) fn attempt(&self) {
        self.0.attempt();
    }

    pub(super) fn fast_path(&self, hit: bool) {
        self.0.path(hit);
    }

    pub(super) fn lock_wait(&self) -> prometheus::HistogramTimer {
        self.0.lock_wait()
    }

    pub(super) fn recreated(&self) {
        self.0.recreated();
    }

    pub(super) fn conflict(&self) {
        self.0.conflict();
    }

    /// How often a number in use here was found to stand for other labels in the store.
    #[must_use]
    pub fn conflicts(&self) -> u64 {
        self.0.conflicts()
    }

    /// Attempts that took one transaction, and attempts that took the lock.
    #[must_use]
    pub fn paths(&self) -> (u64, u64) {
        self.0.paths()
    }

    pub(super) fn listed(&self) {
        self.0.status(|status| status.listed = true);
    }

    pub(super) fn pool(&self, pool: &IdPool) {
        self.0.status(|status| {
            (status.free, status.leased, status.used) = (pool.available(), pool.leased(), pool.in_use());
        });
    }

    /// Label sets in local use, leases, and what hangs on them.
    pub(super) fn references(&self, local: usize, (leases, keys): (usize, usize)) {
        self.0.status(|status| {
            (status.local, status.leases, status.leased_keys) = (local as u64, leases as u64, keys as u64);
        });
    }

    pub(super) fn lost_leases(&self, count: u64) {
        self.0.lost_leases(count);
    }

    pub(super) fn identities_collected(&self, alive: usize, deleted: usize, took: Duration) {
        self.0.status(|status| status.records = alive as u64);
        self.0.collected("identity", deleted as u64, took);
    }

    pub(super) fn locks_collected(&self, alive: usize, oldest: Duration, deleted: usize, took: Duration) {
        self.0.status(|status| (status.locks, status.oldest_lock) = (alive as u64, oldest));
        self.0.collected("lock", deleted as u64, took);
    }

    /// Garbage is being collected here, until the guard is dropped.
    pub(super) fn collecting(&self) -> Collecting<'_> {
        self.0.status(|status| status.collecting = true);
        Collecting(self)
    }
}

/// Garbage is being collected here.
pub(super) struct Collecting<'a>(&'a AllocatorMetrics);

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        self.0.0.status(|status| {
            // What another replica finds from now on is not known here.
            (status.collecting, status.records, status.locks) = (false, 0, 0);
            status.oldest_lock = Duration::ZERO;
        });
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
        self.metrics.0.allocation(outcome, self.since.elapsed());
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.observe("cancelled");
        }
    }
}
