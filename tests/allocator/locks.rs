//! Locks: fenced, bounded, and never left behind.

use std::time::Duration;

use futures_util::future::join_all;
use meshgate::allocator::backend::{Backend, Lock};
use meshgate::allocator::etcd::{EtcdTerms, LeaseTerms};
use meshgate::allocator::{GcSettings, GcTimes, IdentityGc, NumberRange};
use meshgate::identity::NumericIdentity;
use tokio::time::Instant;

use super::cilium::Agent;
use super::support::{BASE, Node, SOON, Setup, dump, etcd, masters, numbered, slaves};
use crate::support::eventually;

fn with_locks() -> Setup {
    Setup { terms: EtcdTerms { fast_path: false, ..EtcdTerms::default() }, ..Setup::default() }
}

fn soon() -> Instant {
    Instant::now() + SOON
}

async fn locks(client: &etcd_client::Client) -> Vec<String> {
    dump(client, &format!("{BASE}/locks/")).await.into_iter().map(|(path, _)| path).collect()
}

#[tokio::test]
async fn the_way_with_locks_alone_does_all() {
    let etcd = etcd().await;
    let client = etcd.client();
    let (a, b) = (Node::start_with(&etcd, "a", with_locks()).await, Node::start_with(&etcd, "b", with_locks()).await);
    let first = a.allocate(&numbered(1)).await.unwrap();
    assert!(first.is_new && first.first_use);
    let second = b.allocate(&numbered(1)).await.unwrap();
    assert_eq!((second.number, second.is_new), (first.number, false));
    a.release(&numbered(1)).await.unwrap();
    b.release(&numbered(1)).await.unwrap();
    eventually("b knows the record", SOON, || async { b.allocator.get(&numbered(1), soon()).await.unwrap().is_some() })
        .await;
    assert_eq!(b.allocate(&numbered(1)).await.unwrap().number, first.number, "the record that was left");
    assert_eq!(locks(&client).await, Vec::<String>::new());
    assert_eq!(a.metrics.paths().0 + b.metrics.paths().0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a02_one_number_although_lock_leases_are_revoked_under_the_holders() {
    let etcd = etcd().await;
    let client = etcd.client();
    let nodes = join_all(["a", "b", "c"].map(|name| Node::start_with(&etcd, name, with_locks()))).await;
    for round in 0..5 {
        let labels = numbered(round);
        let allocations = join_all((0..50).map(|n| nodes[n % 3].allocate(&labels)));
        let revoking = async {
            for _ in 0..3 {
                eventually("somebody holds the lock", Duration::from_secs(1), || async {
                    !locks(&client).await.is_empty() || masters(&client).await.len() > round
                })
                .await;
                for path in locks(&client).await {
                    let lease = i64::from_str_radix(path.rsplit_once('/').unwrap().1, 16).unwrap();
                    let _ = client.lease_client().revoke(lease).await;
                }
            }
        };
        let (allocations, ()) = tokio::join!(allocations, revoking);
        let numbers: Vec<_> = allocations.into_iter().map(|result| result.unwrap().number).collect();
        assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
        let used: Vec<_> =
            slaves(&client).await.into_iter().filter(|(path, _)| path.contains(labels.as_str())).collect();
        assert!(used.len() == 3 && used.iter().all(|(_, number)| *number == numbers[0].to_string()), "{used:?}");
    }
    // A holder that lost its lock between record and reference leaves a record that nobody refers to: the collector's.
    let (min, max) = Setup::default().numbers;
    let times = GcTimes { pace: Duration::ZERO, ..GcTimes::default() };
    let mut gc = IdentityGc::new(GcSettings { numbers: NumberRange::new(min, max, 0).unwrap(), times });
    for _ in 0..2 {
        gc.round(&nodes[0].etcd).await.unwrap();
    }
    let mut left: Vec<_> = masters(&client).await.into_iter().map(|(_, labels)| labels).collect();
    left.sort_unstable();
    assert_eq!(left, [0, 1, 2, 3, 4].map(|n| numbered(n).to_string()), "one record for each label set");
}

#[tokio::test]
async fn g08_a_holder_that_slept_past_its_lock_writes_nothing_and_unlocks_nothing() {
    let etcd = etcd().await;
    let client = etcd.client();
    let (a, b) = (Node::start(&etcd, "a").await, Node::start(&etcd, "b").await);
    let labels = numbered(1);
    let stale = a.etcd.lock(&labels, soon()).await.unwrap();
    let path = locks(&client).await.pop().unwrap();
    // While it sleeps, its lease ends.
    let lease = i64::from_str_radix(path.rsplit_once('/').unwrap().1, 16).unwrap();
    client.lease_client().revoke(lease).await.unwrap();
    let number = b.allocate(&labels).await.unwrap().number;
    let held = b.etcd.lock(&labels, soon()).await.unwrap();
    let before = locks(&client).await;
    // It wakes and goes on.
    let other = NumericIdentity::new(327_777);
    for result in [
        a.etcd.allocate(other, &labels, Some(&stale)).await.map(drop),
        a.etcd.acquire_reference(number, &labels, Some(&stale)).await.map(drop),
        a.etcd.get(&labels, Some(&stale)).await.map(drop),
        a.etcd.update(number, &labels, meshgate::allocator::backend::Update::IfDifferent, Some(&stale)).await.map(drop),
    ] {
        assert_eq!(result.unwrap_err().reason(), "lock-lost");
    }
    stale.unlock().await;
    assert_eq!(locks(&client).await, before, "the next holder's lock is not touched");
    held.unlock().await;
    assert_eq!(a.allocate(&labels).await.unwrap().number, number);
}

#[tokio::test]
async fn g12_the_callers_deadline_bounds_the_wait_for_a_lock() {
    let etcd = etcd().await;
    let client = etcd.client();
    let node = Node::start(&etcd, "a").await;
    let agent = Agent::new(client.clone(), "c", Setup::default().numbers).await;
    let labels = numbered(1);
    let unlock = agent.hold(labels.as_str()).await;
    let since = Instant::now();
    let error = node.allocator.allocate(&labels, since + Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(error.reason(), "deadline");
    assert!(since.elapsed() < Duration::from_secs(1));
    eventually("nothing of ours is left in the queue", SOON, || async { locks(&client).await.len() == 1 }).await;
    assert!(masters(&client).await.is_empty() && slaves(&client).await.is_empty());
    let (allocated, ()) = tokio::join!(node.allocate(&labels), async {
        eventually("we wait again", SOON, || async { locks(&client).await.len() == 2 }).await;
        unlock.await;
    });
    assert!(allocated.unwrap().is_new);
    assert_eq!(node.metrics.paths(), (0, 2), "both times the lock was in the way");
    eventually("it is unlocked", SOON, || async { locks(&client).await.is_empty() }).await;
}

#[tokio::test]
async fn g06_an_uncertain_unlock_blocks_nobody_for_longer_than_the_locks_lease() {
    let mut etcd = etcd().await;
    let client = etcd.client();
    let terms =
        EtcdTerms { locks: LeaseTerms { ttl: Duration::from_secs(3), ..LeaseTerms::LOCKS }, ..EtcdTerms::default() };
    let setup = Setup { terms, call: Duration::from_millis(300), ..Setup::default() };
    let (a, b) = (Node::start_with(&etcd, "a", setup).await, Node::start_with(&etcd, "b", setup).await);
    let labels = numbered(1);
    b.allocate(&numbered(2)).await.unwrap();
    let lock = a.etcd.lock(&labels, soon()).await.unwrap();
    etcd.stop().unwrap();
    lock.unlock().await;
    etcd.cont().unwrap();
    let since = Instant::now();
    b.allocate(&labels).await.unwrap();
    assert!(since.elapsed() < Duration::from_secs(8), "{:?}", since.elapsed());
    eventually("no lock is left", SOON, || async { locks(&client).await.is_empty() }).await;
}
