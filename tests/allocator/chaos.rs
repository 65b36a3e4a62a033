//! Three gateways on one etcd of three members, while gateways and the etcd's leader are killed. The seed is printed and
//! replays the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use meshgate::allocator::etcd::{EtcdTerms, LeaseTerms};
use meshgate::allocator::{GcSettings, GcTimes, IdentityGc, NumberRange};
use meshgate::kvstore::EtcdConfig;
use tokio::sync::{Mutex, RwLock};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::support::{BASE, Node, Setup, masters, numbered, show_log, size, slaves};
use crate::support::{EtcdCluster, EtcdOptions, eventually};

const CALLERS: usize = 16;
const LONG: Duration = Duration::from_mins(10);

/// One gateway over its incarnations, and what its users hold by what they were told.
struct Gateway {
    name: &'static str,
    config: EtcdConfig,
    setup: Setup,
    node: RwLock<Option<Node>>,
    /// Ends with the incarnation: its callers go down with it, whatever they were waiting for.
    life: std::sync::Mutex<CancellationToken>,
    wanted: Mutex<Vec<usize>>,
    held: Mutex<BTreeMap<usize, String>>,
}

impl Gateway {
    /// Everything that was held is lost, and wanted again.
    async fn kill_and_restart(&self) {
        self.life.lock().unwrap().cancel();
        let mut node = self.node.write().await;
        if let Some(node) = node.take() {
            node.kill().await;
        }
        *self.life.lock().unwrap() = CancellationToken::new();
        let lost = std::mem::take(&mut *self.held.lock().await);
        self.wanted.lock().await.extend(lost.into_keys());
        *node = Some(Node::start_with(&self.config, self.name, self.setup).await);
    }

    /// A user: takes what is wanted until nothing is.
    async fn serve(&self, finished: &CancellationToken) {
        while !finished.is_cancelled() {
            let Some(set) = self.wanted.lock().await.pop() else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            let node = self.node.read().await;
            let labels = numbered(set);
            let deadline = Instant::now() + Duration::from_secs(2);
            let life = self.life.lock().unwrap().clone();
            let allocated = match &*node {
                Some(node) => life.run_until_cancelled(node.allocator.allocate(&labels, deadline)).await,
                None => None,
            };
            match allocated {
                Some(Ok(allocation)) => drop(self.held.lock().await.insert(set, allocation.number.to_string())),
                _ => {
                    self.wanted.lock().await.insert(0, set);
                }
            }
        }
    }

    async fn release(&self, sets: &[usize]) {
        let node = self.node.read().await;
        let node = node.as_ref().unwrap();
        join_all(sets.iter().map(|&set| async move {
            node.release(&numbered(set)).await.unwrap();
        }))
        .await;
        let mut held = self.held.lock().await;
        for set in sets {
            held.remove(set);
        }
    }
}

async fn kill_the_leader(cluster: &mut EtcdCluster) {
    for n in 0..cluster.members().len() {
        let client = cluster.members()[n].client();
        let status = timeout(Duration::from_secs(2), async { client.maintenance_client().status().await }).await;
        if let Ok(Ok(status)) = status
            && status.header().is_some_and(|header| header.member_id() == status.leader())
        {
            let member = cluster.member(n);
            member.kill().unwrap();
            sleep(Duration::from_millis(fastrand::u64(..1_500))).await;
            member.restart().await.unwrap();
            return;
        }
    }
}

/// `MESHGATE_CHAOS_SETS` label sets (the full run is 20,000), half of them wanted by all gateways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_record_for_each_label_set_whoever_dies() {
    show_log();
    let sets = size("MESHGATE_CHAOS_SETS", 400);
    let seed: u64 = std::env::var("MESHGATE_SEED").map_or_else(|_| fastrand::u64(..), |text| text.parse().unwrap());
    println!("MESHGATE_SEED={seed}");
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut cluster = EtcdCluster::start(3, &EtcdOptions::plain("chaos").in_memory()).await.unwrap();
    let references = LeaseTerms { ttl: Duration::from_secs(20), ..LeaseTerms::REFERENCES };
    let terms = EtcdTerms { references, ..EtcdTerms::default() };
    let setup = Setup { terms, sync: Duration::from_secs(2), call: Duration::from_secs(2), ..Setup::default() };
    let gateways: Vec<_> = ["g1", "g2", "g3"]
        .into_iter()
        .enumerate()
        .map(|(n, name)| {
            let shared = 0..sets / 2;
            let own = (sets / 2..sets).filter(|set| set % 3 == n);
            let mut wanted: Vec<_> = shared.chain(own).collect();
            dice.shuffle(&mut wanted);
            Gateway {
                name,
                config: cluster.config(),
                setup,
                node: RwLock::default(),
                life: std::sync::Mutex::default(),
                wanted: Mutex::new(wanted),
                held: Mutex::default(),
            }
        })
        .collect();
    join_all(gateways.iter().map(Gateway::kill_and_restart)).await;

    let finished = CancellationToken::new();
    let since = Instant::now();
    let users = join_all(gateways.iter().flat_map(|gateway| (0..CALLERS).map(|_| gateway.serve(&finished))));
    let all: usize = gateways.len() * (sets / 2) + (sets - sets / 2);
    let chaos = async {
        let (mut gateways_killed, mut leaders_killed) = (0, 0);
        while gateways_killed + leaders_killed < (sets / 500).clamp(6, 30) {
            sleep(Duration::from_millis(dice.u64(200..1_500))).await;
            if dice.u8(..3) > 0 {
                gateways[dice.usize(..3)].kill_and_restart().await;
                gateways_killed += 1;
            } else {
                kill_the_leader(&mut cluster).await;
                leaders_killed += 1;
            }
        }
        let held = || async {
            join_all(gateways.iter().map(|gateway| gateway.held.lock()))
                .await
                .iter()
                .map(|held| held.len())
                .sum::<usize>()
        };
        eventually("everybody has everything", LONG, || async { held().await == all }).await;
        println!(
            "{gateways_killed} gateways and {leaders_killed} leaders killed; all held after {:?}",
            since.elapsed()
        );
        finished.cancel();
    };
    tokio::join!(users, chaos);

    for gateway in &gateways {
        let mut sets: Vec<_> = gateway.held.lock().await.keys().copied().collect();
        dice.shuffle(&mut sets);
        sets.truncate(sets.len() / 3);
        gateway.release(&sets).await;
    }
    let (mut expected, mut in_use) = (BTreeMap::new(), BTreeMap::new());
    for gateway in &gateways {
        for (&set, number) in &*gateway.held.lock().await {
            let labels = numbered(set).to_string();
            expected.insert(format!("{BASE}/value/{labels}/{}", gateway.name), number.clone());
            let before = in_use.insert(labels.clone(), number.clone());
            assert!(before.is_none_or(|before| before == *number), "two numbers for {labels}");
        }
    }
    let client = cluster.members()[0].client();
    eventually("the references are exactly those in use", LONG, || async {
        slaves(&client).await.into_iter().collect::<BTreeMap<_, _>>() == expected
    })
    .await;
    let before = masters(&client).await.len();
    let numbers = NumberRange::new(setup.numbers.0, setup.numbers.1, 0).unwrap();
    let mut gc = IdentityGc::new(GcSettings { numbers, times: GcTimes { pace: Duration::ZERO, ..GcTimes::default() } });
    let backend = gateways[0].node.read().await.as_ref().unwrap().etcd.clone();
    gc.round(&backend).await.unwrap();
    let removed = gc.round(&backend).await.unwrap().removed.len();
    let left: BTreeSet<_> = masters(&client).await.into_iter().collect();
    let right = in_use.into_iter().map(|(labels, number)| (format!("{BASE}/id/{number}"), labels)).collect();
    assert_eq!(left, right, "exactly one record for each label set in use");
    assert_eq!(removed, before - left.len(), "each removal is counted once");
    println!(
        "{sets} label sets: {} records, {removed} of {before} collected, {} references",
        left.len(),
        expected.len()
    );
}
