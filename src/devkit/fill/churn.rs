//! Changes at a steady rate, reproducible from a seed, with a model of what should be there afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client, Error};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{BadEntry, Cluster, Contents, LabelMix};

/// An etcd that is stopped does not answer at all.
const CALL: Duration = Duration::from_secs(5);
/// How long an etcd may be away before a churn gives up, where it is not told otherwise.
const PATIENCE: Duration = Duration::from_mins(1);
const RETRY: Duration = Duration::from_millis(50);
/// Above this rate several changes share a tick.
const TICKS_PER_SECOND: u32 = 200;
/// Spoiled entries that may lie about at one time.
const MOST_SPOILED: usize = 8;

/// Creates, relabels and deletes identities; the number of them stays about what it was.
#[derive(Debug)]
pub struct Churn {
    cluster: Cluster,
    mix: LabelMix,
    contents: Contents,
    /// Numbers under which something invalid stands.
    spoiled: BTreeSet<u32>,
    target: usize,
    next_set: u64,
    dice: fastrand::Rng,
    /// In a thousand.
    spoil: u16,
    patience: Duration,
    progress: Arc<Progress>,
}

/// How far a churn is, for whoever watches it.
#[derive(Debug, Default)]
struct Progress {
    changes: AtomicU64,
    identities: AtomicU64,
}

/// Why a churn ended before it was told to.
#[derive(Debug, thiserror::Error)]
#[error("etcd took no change: {0}")]
pub struct ChurnError(String);

#[derive(Clone, Debug)]
enum Change {
    Put(u32, String),
    Delete(u32),
    Spoil(u32, BadEntry),
}

impl Churn {
    /// Goes on from `contents`, which must be what [`super::fill`] wrote of this mix.
    #[must_use]
    pub fn new(cluster: Cluster, mix: LabelMix, contents: Contents, seed: u64) -> Self {
        let progress = Progress { changes: AtomicU64::new(0), identities: AtomicU64::new(contents.len() as u64) };
        Self {
            cluster,
            mix,
            target: contents.len(),
            next_set: contents.len() as u64,
            contents,
            spoiled: BTreeSet::new(),
            dice: fastrand::Rng::with_seed(seed),
            spoil: 0,
            patience: PATIENCE,
            progress: Arc::new(progress),
        }
    }

    /// Of a thousand changes, overwrites this many entries with something invalid, which a gateway must withdraw.
    #[must_use]
    pub fn with_bad_entries(mut self, per_thousand: u16) -> Self {
        self.spoil = per_thousand;
        self
    }

    /// Waits that long for an etcd that is away.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// What a gateway should show of the store now.
    #[must_use]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Changes made so far.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.progress.changes.load(Ordering::Relaxed)
    }

    /// Makes one change. It is tried until etcd takes it: each is idempotent, and so the model stays true whatever became of
    /// a call whose answer was lost.
    ///
    /// # Errors
    /// Etcd takes no change for longer than the churn has patience.
    pub async fn step(&mut self, client: &Client) -> Result<(), ChurnError> {
        let change = self.plan();
        let start = Instant::now();
        loop {
            let last_error = match timeout(CALL, write(client, &self.cluster, &change)).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) => error.to_string(),
                Err(elapsed) => elapsed.to_string(),
            };
            if start.elapsed() > self.patience {
                return Err(ChurnError(last_error));
            }
            sleep(RETRY).await;
        }
        self.commit(change);
        Ok(())
    }

    /// Makes `rate` changes a second until it is told to stop.
    ///
    /// # Errors
    /// Etcd takes no change for longer than the churn has patience.
    pub async fn run(&mut self, client: &Client, rate: u32, stop: &CancellationToken) -> Result<(), ChurnError> {
        let ticks = rate.clamp(1, TICKS_PER_SECOND);
        let mut tick = interval(Duration::from_secs(1) / ticks);
        // After an outage we go on at the same rate; what was missed is not made up for.
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let start = Instant::now();
        for n in 1_u64.. {
            tokio::select! {
                _ = tick.tick() => {}
                () = stop.cancelled() => break,
            }
            let due = |n: u64| n * u64::from(rate) / u64::from(ticks);
            for _ in due(n - 1)..due(n) {
                self.step(client).await?;
            }
        }
        tracing::debug!(changes = self.changes(), seconds = start.elapsed().as_secs(), "churn stopped");
        Ok(())
    }

    /// Runs it in the background.
    #[must_use]
    pub fn start(mut self, client: Client, rate: u32) -> RunningChurn {
        let stop = CancellationToken::new();
        let (stopped, progress) = (stop.clone(), Arc::clone(&self.progress));
        let task = tokio::spawn(async move { self.run(&client, rate, &stopped).await.map(|()| self) });
        RunningChurn { stop, progress, task }
    }

    fn plan(&mut self) -> Change {
        if self.dice.u16(..1000) < self.spoil {
            let bad = self.dice.choice([BadEntry::ForeignLabels, BadEntry::NoClusterLabel, BadEntry::NotUtf8]);
            if let (true, Some(number), Some(bad)) = (self.spoiled.len() < MOST_SPOILED, self.any(), bad) {
                return Change::Spoil(number, bad);
            }
            if let Some(&number) = self.spoiled.first() {
                return Change::Delete(number);
            }
        }
        // Pulled towards the target by a quarter: 1 in 5 relabels, the rest creates or deletes.
        let slack = self.target / 4 + 1;
        let few = self.contents.len() + slack <= self.target;
        let many = self.contents.len() >= self.target + slack;
        match (self.dice.u8(..10), self.any()) {
            (0..2, Some(number)) if !few && !many => Change::Put(number, self.fresh_set()),
            (0..6, Some(number)) if !few => Change::Delete(number),
            _ if many => self.any().map_or(Change::Delete(0), Change::Delete),
            _ => Change::Put(self.free_number(), self.fresh_set()),
        }
    }

    fn commit(&mut self, change: Change) {
        match change {
            Change::Put(number, set) => {
                self.spoiled.remove(&number);
                self.contents.insert(number, set);
            }
            Change::Delete(number) => {
                self.spoiled.remove(&number);
                self.contents.remove(&number);
            }
            Change::Spoil(number, _) => {
                self.spoiled.insert(number);
                self.contents.remove(&number);
            }
        }
        self.progress.changes.fetch_add(1, Ordering::Relaxed);
        self.progress.identities.store(self.contents.len() as u64, Ordering::Relaxed);
    }

    /// A number in use: the first at or above a random one.
    fn any(&mut self) -> Option<u32> {
        let from = self.dice.u32(self.cluster.numbers());
        self.contents.range(from..).chain(&self.contents).next().map(|(&number, _)| number)
    }

    fn free_number(&mut self) -> u32 {
        loop {
            let number = self.dice.u32(self.cluster.numbers());
            // A full range has none; then this one gets other labels.
            if !self.contents.contains_key(&number) || self.contents.len() as u64 >= u64::from(self.cluster.size()) {
                return number;
            }
        }
    }

    fn fresh_set(&mut self) -> String {
        self.next_set += 1;
        self.mix.key_string(self.next_set - 1)
    }
}

async fn write(client: &Client, cluster: &Cluster, change: &Change) -> Result<(), Error> {
    let mut kv = client.kv_client();
    match change {
        Change::Put(number, set) => kv.put(cluster.identity_key(*number), set.as_str(), None).await.map(|_| ()),
        Change::Delete(number) => kv.delete(cluster.identity_key(*number), None).await.map(|_| ()),
        Change::Spoil(number, bad) => {
            let (key, value) = bad.entry(cluster, *number);
            kv.put(key, value, None).await.map(|_| ())
        }
    }
}

/// A churn in the background; dropping it ends it at once.
#[derive(Debug)]
pub struct RunningChurn {
    stop: CancellationToken,
    progress: Arc<Progress>,
    task: JoinHandle<Result<Churn, ChurnError>>,
}

impl RunningChurn {
    /// Changes made so far.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.progress.changes.load(Ordering::Relaxed)
    }

    /// How many valid identities the store holds.
    #[must_use]
    pub fn identities(&self) -> u64 {
        self.progress.identities.load(Ordering::Relaxed)
    }

    /// Lets it finish the change at hand and returns it; its contents are then what the store holds.
    ///
    /// # Errors
    /// It had given up before, or its task died.
    pub async fn stop(mut self) -> Result<Churn, ChurnError> {
        self.stop.cancel();
        (&mut self.task).await.unwrap_or_else(|panic| Err(ChurnError(panic.to_string())))
    }
}

impl Drop for RunningChurn {
    fn drop(&mut self) {
        self.task.abort();
    }
}
