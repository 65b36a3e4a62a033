//! Stores that are cut off, lose their quorum, or change their leader all the time.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{Client, GetOptions, PutOptions};
use meshgate::allocator::backend::{Backend, Lock};
use meshgate::allocator::etcd::{EtcdTerms, LeaseTerms};
use meshgate::allocator::{GcSettings, GcTimes, IdentityGc, LockGc, NumberRange};
use meshgate::kvstore::EtcdConfig;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::contest::Referee;
use super::support::{BASE, Node, Reach, SOON, Setup, dump, etcd, masters, numbered, size, slaves};
use crate::support::proxy::Proxy;
use crate::support::{EtcdCluster, EtcdOptions, eventually};

/// Of references; the default is short, since time is what most of this is about.
fn ttl(otherwise: usize) -> Duration {
    Duration::from_secs(size("MESHGATE_LEASE_TTL", otherwise) as u64)
}

fn short_lived(ttl: Duration) -> Setup {
    let references = LeaseTerms { ttl, ..LeaseTerms::REFERENCES };
    Setup {
        terms: EtcdTerms { references, ..EtcdTerms::default() },
        call: Duration::from_secs(1),
        reconnect: Duration::from_millis(100),
        ..Setup::default()
    }
}

/// Lease and revision of each reference.
async fn references(client: &Client) -> BTreeMap<String, (i64, i64)> {
    let prefix = format!("{BASE}/value/");
    let answer = client.kv_client().get(prefix, Some(GetOptions::new().with_prefix())).await.unwrap();
    (answer.kvs().iter())
        .map(|entry| (entry.key_str().unwrap().to_owned(), (entry.lease(), entry.mod_revision())))
        .collect()
}

#[tokio::test]
async fn g05_a_cut_shorter_than_the_lease_costs_nothing_and_a_longer_one_is_repaired_once() {
    let ttl = ttl(5);
    // Reconnecting takes a moment, of which nine tenths of a short lease leave too little on a busy machine.
    let short = ttl.mul_f64(if ttl < Duration::from_secs(20) { 0.7 } else { 0.9 });
    let etcd = etcd().await;
    let client = etcd.client();
    let proxy = Proxy::to(etcd.port()).await;
    let through = EtcdConfig { endpoints: vec![format!("http://127.0.0.1:{}", proxy.port())], ..Reach::config(&etcd) };
    let node = Node::start_with(&through, "a", short_lived(ttl)).await;
    for n in 0..30 {
        node.allocate(&numbered(n)).await.unwrap();
    }
    let before = references(&client).await;
    let losses = || *node.etcd.reference_leases().losses().borrow();

    proxy.cut_off();
    sleep(short).await;
    proxy.restore();
    node.allocate(&numbered(30)).await.unwrap();
    // It would be gone by the end of this if it had not been renewed since.
    sleep(ttl).await;
    let kept = references(&client).await;
    assert!(before.iter().all(|(path, at)| kept.get(path) == Some(at)), "neither lost nor written again");
    assert_eq!(losses(), 0);

    proxy.cut_off();
    eventually("the store ends the lease", ttl * 3, || async { references(&client).await.is_empty() }).await;
    sleep(ttl / 10).await;
    proxy.restore();
    eventually("all are back", SOON, || async { references(&client).await.len() == 31 }).await;
    let back = references(&client).await;
    let lease = back.values().next().unwrap().0;
    assert!(before.values().all(|(old, _)| *old != lease) && back.values().all(|(one, _)| *one == lease));
    // Three of our renewals later nothing was written again, and no other loss was noticed.
    sleep(ttl / 4).await;
    assert_eq!(references(&client).await, back);
    assert_eq!(losses(), 1, "one notice");
}

#[tokio::test]
async fn g06_an_unlock_without_a_quorum_blocks_nobody_for_longer_than_the_locks_lease() {
    let mut cluster = EtcdCluster::start(3, &EtcdOptions::plain("quorum").in_memory()).await.unwrap();
    let locks = LeaseTerms { ttl: Duration::from_secs(4), ..LeaseTerms::LOCKS };
    let terms = EtcdTerms { locks, ..EtcdTerms::default() };
    let setup = Setup { terms, ..short_lived(Duration::from_mins(1)) };
    let config = cluster.config();
    // Each talks to one member; that of the first one loses the others and not its clients.
    let at = |n: usize| EtcdConfig { endpoints: vec![config.endpoints[n].clone()], ..config.clone() };
    let (a, b) = (Node::start_with(&at(0), "a", setup).await, Node::start_with(&at(1), "b", setup).await);
    b.allocate(&numbered(1)).await.unwrap();
    let labels = numbered(2);
    let lock = a.etcd.lock(&labels, Instant::now() + SOON).await.unwrap();
    for member in [1, 2] {
        cluster.member(member).stop().unwrap();
    }
    let since = Instant::now();
    lock.unlock().await;
    assert!(since.elapsed() < Duration::from_secs(5), "bounded by the call's deadline: {:?}", since.elapsed());
    for member in [1, 2] {
        cluster.member(member).cont().unwrap();
    }
    let client = cluster.members()[0].client();
    let since = Instant::now();
    // New or not: an attempt without a quorum may have been done all the same, and is found by the next one.
    b.allocator.allocate(&labels, Instant::now() + SOON).await.unwrap();
    assert!(since.elapsed() < locks.ttl * 2 + Duration::from_secs(6), "{:?}", since.elapsed());
    eventually("no lock is left", SOON, || async { dump(&client, &format!("{BASE}/locks/")).await.is_empty() }).await;
}

/// Moves the leadership on, if this is a moment at which somebody has it.
async fn move_leader(cluster: &EtcdCluster) {
    let mut status = Vec::new();
    for member in cluster.members() {
        let asked = timeout(Duration::from_secs(2), async { member.client().maintenance_client().status().await });
        let Ok(Ok(answer)) = asked.await else { continue };
        status.push((answer.header().unwrap().member_id(), answer.leader(), member));
    }
    let Some((leader, _, member)) = status.iter().find(|(id, leader, _)| id == leader) else { return };
    let Some((next, _, _)) = status.iter().find(|(id, _, _)| id != leader) else { return };
    let _ = timeout(Duration::from_secs(2), member.client().maintenance_client().move_leader(*next)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g12_leases_that_outlive_their_time_mislead_nobody() {
    let ttl = ttl(4);
    let cluster = EtcdCluster::start(3, &EtcdOptions::plain("moving").in_memory()).await.unwrap();
    let client = cluster.members()[0].client();
    let referee = tokio::spawn(Referee::default().watch(cluster.members()[1].client(), "the-end".to_owned()));
    let setup = short_lived(ttl);
    let gone = Node::start_with(&cluster.config(), "gone", setup).await;
    for n in 0..100 {
        gone.allocate(&numbered(n)).await.unwrap();
    }
    let node = Node::start_with(&cluster.config(), "a", short_lived(Duration::from_mins(15))).await;
    let kept = node.allocate(&numbered(0)).await.unwrap().number;
    // The holder of a lock is gone too; its lease is as long as a lock's is.
    let lease = client.lease_client().grant(25, None).await.unwrap().id();
    let (labels, options) = (numbered(200), PutOptions::new().with_lease(lease));
    let lock = format!("{BASE}/locks/{labels}/{lease:x}");
    client.kv_client().put(lock.as_str(), "", Some(options)).await.unwrap();
    gone.kill().await;

    let numbers = NumberRange::new(setup.numbers.0, setup.numbers.1, 0).unwrap();
    let times = GcTimes { pace: Duration::ZERO, ..GcTimes::default() };
    let (calm, done) = (CancellationToken::new(), CancellationToken::new());
    let moving = async {
        while !calm.is_cancelled() {
            move_leader(&cluster).await;
            sleep(ttl / 3).await;
        }
    };
    let collecting = async {
        let (mut identities, mut locks) = (IdentityGc::new(GcSettings { numbers, times }), LockGc::default());
        let mut freed = 0;
        while !done.is_cancelled() {
            // Rounds fail while there is no leader; the next one goes on with what was marked.
            let _ = identities.round(&node.etcd).await;
            if let Ok(round) = locks.round(&node.etcd).await {
                freed += round.removed.len();
            }
            sleep(Duration::from_millis(500)).await;
        }
        freed
    };
    let watching = async {
        let waited = Instant::now();
        assert!(node.allocate(&labels).await.unwrap().is_new, "the lock was freed by what watches it");
        assert!(waited.elapsed() < Duration::from_secs(20), "long before its lease would end");
        sleep(ttl * 2).await;
        assert_eq!(slaves(&client).await.len(), 102, "each new leader renews every lease");
        assert_eq!(masters(&client).await.len(), 101, "and nothing was collected meanwhile");
        calm.cancel();
        eventually("only what is in use is left", ttl * 5 + SOON, || async { masters(&client).await.len() == 2 }).await;
        done.cancel();
    };
    let (freed, (), ()) = tokio::join!(collecting, moving, watching);
    // The waiter's own key may have been too old for so short a period as well; then it queued again.
    assert!(freed > 0);
    let left = masters(&client).await;
    assert!(left.contains(&(format!("{BASE}/id/{kept}"), numbered(0).to_string())), "{left:?}");
    client.kv_client().put(format!("{BASE}/the-end"), "", None).await.unwrap();
    // It saw every change: no record went while something referred to it.
    referee.await.unwrap();
}
