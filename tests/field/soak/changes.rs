//! Continuous change of one store, which knows what it took away.

use std::collections::BTreeSet;
use std::time::Duration;

use etcd_client::Client;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::support::fill::{Churn, Cluster, Contents, LabelMix};

/// Changes a second.
const RATE: u32 = 20;
/// Of a thousand changes of a peer's store, so many write what must be refused.
const BAD: u16 = 50;

/// The changes of one store: paused or running.
pub struct Changes {
    cluster: Cluster,
    seed: u64,
    bad: u16,
    generation: u64,
    paused: Option<Churn>,
    running: Option<(CancellationToken, AbortOnDropHandle<Outcome>)>,
    /// Numbers that were taken away, or spoiled, since the last [`Self::forget`].
    pub gone: BTreeSet<u32>,
}

type Outcome = (Churn, BTreeSet<u32>);

impl Changes {
    pub fn of_a_peer(cluster: Cluster, contents: Contents, seed: u64) -> Self {
        Self::new(cluster, contents, seed, BAD)
    }

    /// Our own store may say what it likes.
    pub fn of_our_own(cluster: Cluster, contents: Contents, seed: u64) -> Self {
        Self::new(cluster, contents, seed, 0)
    }

    fn new(cluster: Cluster, contents: Contents, seed: u64, bad: u16) -> Self {
        let mut changes =
            Self { cluster, seed, bad, generation: 0, paused: None, running: None, gone: BTreeSet::new() };
        changes.rebuild(contents);
        changes
    }

    /// Goes on from other contents, with labels that were never there before.
    pub fn rebuild(&mut self, contents: Contents) {
        self.generation += 1;
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(self.generation);
        let mix = LabelMix::new(&self.cluster.name, seed);
        self.paused = Some(Churn::new(self.cluster.clone(), mix, contents, seed).with_bad_entries(self.bad));
    }

    pub fn resume(&mut self, client: Client) {
        if let Some(churn) = self.paused.take() {
            let stop = CancellationToken::new();
            let task = tokio::spawn(change(churn, client, stop.clone()));
            self.running = Some((stop, AbortOnDropHandle::new(task)));
        }
    }

    /// Lets it finish the change at hand.
    pub async fn pause(&mut self) {
        if let Some((stop, task)) = self.running.take() {
            stop.cancel();
            let (churn, gone) = task.await.expect("the store takes changes");
            self.paused = Some(churn);
            self.gone.extend(gone);
        }
    }

    pub fn forget(&mut self) {
        self.gone.clear();
    }
}

async fn change(mut churn: Churn, client: Client, stop: CancellationToken) -> Outcome {
    let mut tick = interval(Duration::from_secs(1) / RATE);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut held, mut gone): (BTreeSet<u32>, _) = (churn.contents().keys().copied().collect(), BTreeSet::new());
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return (churn, gone),
            _ = tick.tick() => {}
        }
        churn.step(&client).await.expect("the store comes back in time");
        let now = churn.contents();
        gone.extend(held.iter().filter(|number| !now.contains_key(number)));
        held = now.keys().copied().collect();
    }
}
