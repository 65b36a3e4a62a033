//! Collecting what nobody uses: records in two rounds, locks in two rounds.
//!
//! A round marks what it finds unused; the next one removes what is still unused *and as it was marked*. Marks are only in
//! memory and are no write, so collecting is no sign of life by itself (G10), and a new collector begins with none. The
//! store decides at each removal, in one step with all conditions (A4): whatever a round believes, nothing in use goes.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::backend::{Backend, LockRecord, MasterRecord, Removal};
use super::metrics::AllocatorMetrics;
use super::{AllocError, NumberRange};
use crate::identity::NumericIdentity;

/// When to collect; the defaults are Cilium's (WIRE.md, "Constants that others expect").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcTimes {
    /// Time between two rounds over records.
    pub identity_interval: Duration,
    /// Time between two rounds over locks. A lock whose lease is dead or abandoned is gone after two of them.
    pub lock_interval: Duration,
    /// Shortest time between two removals: 24 ms make 2,500 a minute.
    pub pace: Duration,
}

impl Default for GcTimes {
    fn default() -> Self {
        Self {
            identity_interval: Duration::from_mins(15),
            lock_interval: Duration::from_secs(30),
            pace: Duration::from_millis(24),
        }
    }
}

/// How to collect.
#[derive(Clone, Copy, Debug)]
pub struct GcSettings {
    /// The numbers that are ours to collect; never another's (A9).
    pub numbers: NumberRange,
    /// When.
    pub times: GcTimes,
}

impl GcSettings {
    /// The defaults for those numbers.
    #[must_use]
    pub fn new(numbers: NumberRange) -> Self {
        Self { numbers, times: GcTimes::default() }
    }
}

/// What one round found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcRound {
    /// Records that stay, marked ones included.
    pub alive: usize,
    /// Of those, the ones that the next round may remove.
    pub marked: Vec<MasterRecord>,
    /// Removed.
    pub removed: Vec<MasterRecord>,
}

/// Collects records. Keeps the marks of the last round.
#[derive(Clone, Debug)]
pub struct IdentityGc {
    settings: GcSettings,
    marks: HashMap<NumericIdentity, i64>,
}

impl IdentityGc {
    /// No marks yet.
    #[must_use]
    pub fn new(settings: GcSettings) -> Self {
        Self { settings, marks: HashMap::new() }
    }

    /// One round. A removal that fails is left to the next round.
    ///
    /// # Errors
    /// The store could not be read; the marks stay.
    pub async fn round<B: Backend>(&mut self, backend: &B) -> Result<GcRound, AllocError> {
        let mut ours = backend.masters().await?;
        ours.retain(|record| self.settings.numbers.contains(record.number));
        let total = ours.len();
        let unused = backend.unused(ours).await?;
        let marks = std::mem::take(&mut self.marks);
        let mut round = GcRound::default();
        let mut gone = 0;
        let mut next = Instant::now();
        for record in unused {
            if marks.get(&record.number) == Some(&record.revision) {
                sleep_until(next).await;
                match Self::remove(backend, &record).await {
                    Ok(Removal::Removed) => {
                        tracing::info!(number = %record.number, labels = %record.labels, "unused identity removed");
                        next = Instant::now() + self.settings.times.pace;
                        round.removed.push(record);
                        continue;
                    }
                    Ok(Removal::InUse) => continue,
                    Ok(Removal::Gone) => {
                        gone += 1;
                        continue;
                    }
                    Ok(Removal::Touched) => {}
                    Err(error) => tracing::warn!(number = %record.number, %error, "unused identity not removed"),
                }
            }
            self.marks.insert(record.number, record.revision);
            round.marked.push(record);
        }
        round.alive = total - round.removed.len() - gone;
        Ok(round)
    }

    /// Asks once more where the answer did not come: what is gone then went by our first try, or would have gone by it.
    async fn remove<B: Backend>(backend: &B, record: &MasterRecord) -> Result<Removal, AllocError> {
        match backend.remove_unused(record).await {
            Err(error) if error.is_retryable() => match backend.remove_unused(record).await? {
                Removal::Gone => Ok(Removal::Removed),
                other => Ok(other),
            },
            result => result,
        }
    }
}

/// What one round over locks found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockGcRound {
    /// Locks that stay.
    pub alive: usize,
    /// How long the oldest that was met, removed or not, has been seen unchanged.
    pub oldest: Duration,
    /// Removed.
    pub removed: Vec<LockRecord>,
}

/// Collects locks. Goes by unchanged revisions and its own clock, not by leases: those can outlive their time by far (G12).
#[derive(Clone, Debug, Default)]
pub struct LockGc {
    /// Revision, and since when it is known.
    marks: HashMap<String, (i64, Instant)>,
}

impl LockGc {
    /// One round. A holder whose lock is removed while it lives notices at its next write, which is conditional on its lock,
    /// and begins anew.
    ///
    /// # Errors
    /// The store could not be read; the marks stay.
    pub async fn round<B: Backend>(&mut self, backend: &B) -> Result<LockGcRound, AllocError> {
        let locks = backend.locks().await?;
        let now = Instant::now();
        let mut marks = std::mem::take(&mut self.marks);
        let mut round = LockGcRound::default();
        for lock in locks {
            let marked = marks.remove(&lock.path).filter(|(revision, _)| *revision == lock.revision);
            let since = marked.map_or(now, |(_, since)| since);
            round.oldest = round.oldest.max(now - since);
            if marked.is_some() {
                match backend.remove_lock(&lock).await {
                    Ok(true) => {
                        tracing::warn!(lock = lock.path, "lock removed that was held over two rounds");
                        round.removed.push(lock);
                        continue;
                    }
                    // Gone, or another one by now.
                    Ok(false) => continue,
                    Err(error) => tracing::warn!(lock = lock.path, %error, "old lock not removed"),
                }
            }
            round.alive += 1;
            self.marks.insert(lock.path, (lock.revision, since));
        }
        Ok(round)
    }
}

/// Collects for ever, both kinds at their intervals. The caller sees to it that one replica does at a time, and drops the
/// future to stop: every removal is complete in itself.
pub async fn collect<B: Backend>(backend: &B, settings: GcSettings, metrics: &AllocatorMetrics) {
    let _collecting = metrics.collecting();
    let identities = async {
        let mut gc = IdentityGc::new(settings);
        loop {
            let since = Instant::now();
            match gc.round(backend).await {
                Ok(round) => metrics.identities_collected(round.alive, round.removed.len(), since.elapsed()),
                Err(error) => tracing::warn!(%error, "no collection of identities this time"),
            }
            sleep(settings.times.identity_interval.saturating_sub(since.elapsed())).await;
        }
    };
    let locks = async {
        let mut gc = LockGc::default();
        loop {
            let since = Instant::now();
            match gc.round(backend).await {
                Ok(LockGcRound { alive, oldest, removed }) => {
                    metrics.locks_collected(alive, oldest, removed.len(), since.elapsed());
                }
                Err(error) => tracing::warn!(%error, "no collection of locks this time"),
            }
            sleep(settings.times.lock_interval.saturating_sub(since.elapsed())).await;
        }
    };
    tokio::join!(identities, locks);
}
