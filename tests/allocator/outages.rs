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
use super::support::{BASE, Node, Reach, SOON, Setup, dump, etcd, masters, numbered, slaves};
use crate::support::proxy::Proxy;
use crate::support::{EtcdCluster, EtcdOptions, eventually};

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
    let ttl = Duration::from_secs(20);
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
    sleep(ttl.mul_f64(0.9)).await;
    proxy.restore();
    let lease = before.values().next().unwrap().0;
    let left = async || client.lease_client().time_to_live(lease, None).await.unwrap().ttl();
    eventually("it is renewed", SOON, || async { left().await > ttl.as_secs().cast_signed() / 2 }).await;
    node.allocate(&numbered(30)).await.unwrap();
    let kept = references(&client).await;
    assert!(before.iter().all(|(path, at)| kept.get(path) == Some(at)), "neither lost nor written again");
    assert_eq!(losses(), 0);

    proxy.cut_off();
    eventually("the store ends the lease", ttl * 3, || async { references(&client).await.is_empty() }).await;
    // So the cut has lasted for more than 1.1 times of what was left.
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

/// Everything in this process stands still, as under `SIGSTOP`; the store does not.
#[tokio::test]
async fn g05_a_process_that_was_suspended_past_its_lease_notices_and_goes_on() {
    let ttl = Duration::from_secs(3);
    let etcd = etcd().await;
    let client = etcd.client();
    let node = Node::start_with(&etcd, "a", short_lived(ttl)).await;
    for n in 0..30 {
        node.allocate(&numbered(n)).await.unwrap();
    }
    let before = references(&client).await;
    #[expect(clippy::disallowed_methods, reason = "the runtime has one thread, and is to stand still")]
    std::thread::sleep(ttl * 2);
    eventually("the loss is noticed", SOON, || async { *node.etcd.reference_leases().losses().borrow() == 1 }).await;
    eventually("all are back", SOON, || async { references(&client).await.len() == 30 }).await;
    let gone = before.values().next().unwrap().0;
    assert!(references(&client).await.values().all(|(lease, _)| *lease != gone));
    node.allocate(&numbered(30)).await.unwrap();
    assert_eq!(*node.etcd.reference_leases().losses().borrow(), 1, "one notice");
}

#[tokio::test]
async fn g06_an_unlock_without_a_quorum_blocks_nobody_for_longer_than_the_locks_lease() {
    let mut cluster = EtcdCluster::start(3, &EtcdOptions::plain("quorum").in_memory()).await.unwrap();
    let setup = short_lived(Duration::from_mins(15));
    let ttl = LeaseTerms::LOCKS.ttl;
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
    b.allocator.allocate(&labels, since + ttl * 2).await.unwrap();
    // The election of a leader, which renews every lease, takes some of these seconds.
    assert!(since.elapsed() < ttl + Duration::from_secs(6), "{:?}", since.elapsed());
    println!("{:?} after it had healed", since.elapsed());
    eventually("no lock is left", SOON, || async { dump(&client, &format!("{BASE}/locks/")).await.is_empty() }).await;
}

/// Neither the unlock nor the delete that follows comes through, and the holder goes on with everything else.
#[tokio::test]
async fn g06_a_lock_whose_unlock_was_lost_ends_with_its_lease() {
    let (ttl, setup) = (LeaseTerms::LOCKS.ttl, short_lived(Duration::from_mins(15)));
    let etcd = etcd().await;
    let client = etcd.client();
    let proxy = Proxy::to(etcd.port()).await;
    let through = EtcdConfig { endpoints: vec![format!("http://127.0.0.1:{}", proxy.port())], ..Reach::config(&etcd) };
    let (a, b) = (Node::start_with(&through, "a", setup).await, Node::start_with(&etcd, "b", setup).await);
    let labels = numbered(1);
    let lock = a.etcd.lock(&labels, Instant::now() + SOON).await.unwrap();
    proxy.cut_off();
    lock.unlock().await;
    // Longer than the delete is tried for.
    sleep(setup.call * 3).await;
    proxy.restore();
    let since = Instant::now();
    a.allocate(&numbered(2)).await.unwrap();
    assert_eq!(dump(&client, &format!("{BASE}/locks/")).await.len(), 1, "it is there still");
    assert!(b.allocator.allocate(&labels, since + ttl * 2).await.unwrap().is_new);
    assert!(since.elapsed() < ttl + Duration::from_secs(5), "{:?}", since.elapsed());
}

/// Moves the leadership on, if this is a moment at which somebody has it; whether it did.
async fn move_leader(cluster: &EtcdCluster) -> bool {
    let mut status = Vec::new();
    for member in cluster.members() {
        let asked = timeout(Duration::from_secs(2), async { member.client().maintenance_client().status().await });
        let Ok(Ok(answer)) = asked.await else { continue };
        status.push((answer.header().unwrap().member_id(), answer.leader(), member));
    }
    let Some((leader, _, member)) = status.iter().find(|(id, leader, _)| id == leader) else { return false };
    let Some((next, _, _)) = status.iter().find(|(id, _, _)| id != leader) else { return false };
    let moving = timeout(Duration::from_secs(2), member.client().maintenance_client().move_leader(*next)).await;
    moving.is_ok_and(|moved| moved.is_ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g12_leases_that_outlive_their_time_mislead_nobody() {
    // Longer than the time between two moves, shorter than what is waited for: only the moves keep it alive.
    let (ttl, moves) = (Duration::from_secs(15), Duration::from_secs(10));
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
            let pause = if move_leader(&cluster).await { moves } else { Duration::from_millis(100) };
            let _ = timeout(pause, calm.cancelled()).await;
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
        assert!(waited.elapsed() < Duration::from_secs(10), "long before its lease would end");
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
