//! Garbage collection of records and locks.

use std::time::Duration;

use futures_util::future::join_all;
use meshgate::allocator::backend::{Backend, Removal};
use meshgate::allocator::{GcSettings, GcTimes, IdentityGc, LockGc, Masters, NumberRange};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cilium::{Agent, jitter};
use super::contest::Referee;
use super::flaky::{Fault, Flaky};
use super::support::{BASE, Node, SOON, Setup, etcd, masters, numbered, put, size, slaves};
use crate::support::eventually;

fn settings(numbers: (u32, u32)) -> GcSettings {
    let numbers = NumberRange::new(numbers.0, numbers.1, 0).unwrap();
    GcSettings { numbers, times: GcTimes { pace: Duration::ZERO, ..GcTimes::default() } }
}

fn own() -> GcSettings {
    settings(Setup::default().numbers)
}

#[tokio::test]
async fn a02_a_duplicate_that_nobody_uses_goes_and_the_used_one_stays() {
    let etcd = etcd().await;
    let client = etcd.client();
    let node = Node::start(&etcd, "a").await;
    let number = node.allocate(&numbered(1)).await.unwrap().number;
    let duplicate = if number.get() == 327_777 { 327_778 } else { 327_777 };
    put(&client, &format!("id/{duplicate}"), numbered(1).as_str()).await;
    let mut gc = IdentityGc::new(own());
    let first = gc.round(&node.etcd).await.unwrap();
    assert_eq!((first.alive, first.marked.len(), first.removed.len()), (2, 1, 0));
    let second = gc.round(&node.etcd).await.unwrap();
    assert_eq!(second.removed.iter().map(|record| record.number.get()).collect::<Vec<_>>(), [duplicate]);
    assert_eq!(masters(&client).await, [(format!("{BASE}/id/{number}"), numbered(1).to_string())]);
}

#[tokio::test]
async fn a04_a_record_that_is_taken_into_use_between_look_and_delete_stays() {
    let etcd = etcd().await;
    let client = etcd.client();
    let (a, b) = (Node::start(&etcd, "a").await, Node::start(&etcd, "b").await);
    let number = a.allocate(&numbered(1)).await.unwrap().number;
    a.release(&numbered(1)).await.unwrap();
    let unused = a.etcd.unused(a.etcd.masters().await.unwrap()).await.unwrap();
    assert_eq!(unused.len(), 1);
    eventually("b knows the record", SOON, || async { !b.records.numbers_of(&numbered(1)).is_empty() }).await;
    // The collector has judged; now somebody takes the labels up again.
    assert_eq!(b.allocate(&numbered(1)).await.unwrap().number, number);
    assert_eq!(a.etcd.remove_unused(&unused[0]).await.unwrap(), Removal::InUse);
    // Nor while somebody holds, or waits for, a lock on the labels or on the number.
    b.release(&numbered(1)).await.unwrap();
    for lock in [format!("locks/{}/77", numbered(1)), format!("locks/id/{number}/77")] {
        put(&client, &lock, "").await;
        assert_eq!(a.etcd.remove_unused(&unused[0]).await.unwrap(), Removal::Touched);
        client.kv_client().delete(format!("{BASE}/{lock}"), None).await.unwrap();
    }
    assert_eq!(a.etcd.remove_unused(&unused[0]).await.unwrap(), Removal::Removed);
}

/// Allocations and releases against our collector and one that does as Cilium's. Rounds from `MESHGATE_GC_ROUNDS`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a04_collectors_never_take_a_record_that_is_in_use() {
    let rounds = size("MESHGATE_GC_ROUNDS", 1_250);
    let etcd = etcd().await;
    let client = etcd.client();
    let referee = tokio::spawn(Referee::default().watch(etcd.client(), "the-end".to_owned()));
    let nodes = [Node::start(&etcd, "a").await, Node::start(&etcd, "b").await];
    let cilium = Agent::new(client.clone(), "operator", Setup::default().numbers).await;
    let stop = CancellationToken::new();
    let ours = async {
        let (mut gc, mut removed) = (IdentityGc::new(own()), 0);
        while !stop.is_cancelled() {
            removed += gc.round(&nodes[0].etcd).await.unwrap().removed.len();
            jitter().await;
        }
        removed
    };
    let theirs = async {
        let mut removed = 0;
        while !stop.is_cancelled() {
            for (path, labels) in masters(&client).await {
                let number = path.rsplit_once('/').unwrap().1.parse().unwrap();
                removed += usize::from(cilium.collect(number, &labels).await);
            }
            jitter().await;
        }
        removed
    };
    let users = async {
        join_all((0..8).map(|user| {
            let node = &nodes[user % 2];
            async move {
                for _ in 0..rounds {
                    let labels = numbered(fastrand::usize(..5));
                    node.allocate(&labels).await.unwrap();
                    jitter().await;
                    node.release(&labels).await.unwrap();
                }
            }
        }))
        .await;
        stop.cancel();
    };
    let (ours, theirs, ()) = tokio::join!(ours, theirs, users);
    client.kv_client().put(format!("{BASE}/the-end"), "", None).await.unwrap();
    let referee = referee.await.unwrap();
    println!("removed by us {ours}, by Cilium's way {theirs}; {} writes judged", referee.changes);
    assert!(ours > 0 && theirs > 0);
    assert!(slaves(&client).await.is_empty());
}

#[tokio::test]
async fn a09_other_clusters_and_reserved_numbers_are_never_collected() {
    let etcd = etcd().await;
    let client = etcd.client();
    for number in [1, 100, 200, 256, 65_535, 65_536, 70_000, 131_071, 131_072, 140_000] {
        put(&client, &format!("id/{number}"), &format!("k8s:n={number};")).await;
    }
    let node = Node::start(&etcd, "a").await;
    let mut gc = IdentityGc::new(settings((65_536, 131_071)));
    for _ in 0..4 {
        gc.round(&node.etcd).await.unwrap();
    }
    let mut left: Vec<u32> =
        masters(&client).await.iter().map(|(path, _)| path.rsplit_once('/').unwrap().1.parse().unwrap()).collect();
    left.sort_unstable();
    assert_eq!(left, [1, 100, 200, 256, 65_535, 131_072, 140_000]);
}

#[tokio::test]
async fn g10_an_unused_record_goes_in_two_rounds_and_in_three_if_touched() {
    let etcd = etcd().await;
    let client = etcd.client();
    for n in 0..1000 {
        put(&client, &format!("id/{}", 327_680 + n), &format!("k8s:n={n};")).await;
    }
    let node = Node::start(&etcd, "a").await;
    let mut gc = IdentityGc::new(own());
    let first = gc.round(&node.etcd).await.unwrap();
    assert_eq!((first.alive, first.removed.len()), (1000, 0));
    put(&client, "id/327690", "k8s:n=10;").await;
    let second = gc.round(&node.etcd).await.unwrap();
    assert_eq!((second.alive, second.removed.len()), (1, 999));
    let mut restarted = IdentityGc::new(own());
    assert_eq!(restarted.round(&node.etcd).await.unwrap().removed, [], "a new collector has seen nothing yet");
    assert_eq!(gc.round(&node.etcd).await.unwrap().removed.len(), 1);
    assert!(masters(&client).await.is_empty());
}

#[tokio::test]
async fn removals_keep_to_their_pace() {
    let etcd = etcd().await;
    let client = etcd.client();
    for n in 0..20 {
        put(&client, &format!("id/{}", 327_680 + n), &format!("k8s:n={n};")).await;
    }
    let node = Node::start(&etcd, "a").await;
    let times = GcTimes { pace: Duration::from_millis(30), ..GcTimes::default() };
    let mut gc = IdentityGc::new(GcSettings { times, ..own() });
    gc.round(&node.etcd).await.unwrap();
    let since = Instant::now();
    assert_eq!(gc.round(&node.etcd).await.unwrap().removed.len(), 20);
    assert!(since.elapsed() >= 19 * times.pace, "{:?}", since.elapsed());
}

#[tokio::test]
async fn a_removal_whose_answer_is_lost_is_counted_once() {
    let etcd = etcd().await;
    let client = etcd.client();
    for n in 0..6 {
        put(&client, &format!("id/{}", 327_680 + n), &format!("k8s:n={n};")).await;
    }
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let node = Node::start_on(&etcd, "a", Setup::default(), |backend| {
        Flaky::new(backend, move |call| {
            if call != "remove_unused" {
                return Fault::None;
            }
            let call = calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            [Fault::After, Fault::None, Fault::Before, Fault::None][call % 4]
        })
    })
    .await;
    let mut gc = IdentityGc::new(own());
    let backend = node.allocator.backend();
    gc.round(backend).await.unwrap();
    let round = gc.round(backend).await.unwrap();
    assert_eq!((round.removed.len(), round.alive, round.marked.len()), (6, 0, 0));
    assert!(masters(&client).await.is_empty());
}

#[tokio::test]
async fn g12_an_old_lock_goes_by_its_revision_whatever_its_lease() {
    let etcd = etcd().await;
    let client = etcd.client();
    let node = Node::start(&etcd, "a").await;
    let labels = numbered(1);
    // Of a holder that is gone, on a lease that somebody keeps alive.
    put(&client, &format!("locks/{labels}/77"), "").await;
    let mut gc = LockGc::default();
    let (allocated, ()) = tokio::join!(node.allocate(&labels), async {
        assert_eq!(gc.round(&node.etcd).await.unwrap().removed, []);
        eventually("the second round removes it", SOON, || {
            let mut next = gc.clone();
            let backend = node.etcd.clone();
            async move {
                let round = next.round(&backend).await.unwrap();
                assert!(round.removed.is_empty() || round.oldest > Duration::ZERO, "its age is told");
                !round.removed.is_empty()
            }
        })
        .await;
    });
    assert!(allocated.unwrap().is_new);
}

#[tokio::test]
async fn one_collector_at_a_time() {
    let etcd = etcd().await;
    let _client = etcd.client();
    let nodes = [Node::start(&etcd, "a").await, Node::start(&etcd, "b").await];
    let leading = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let terms = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let stop = CancellationToken::new();
    let campaigns = nodes.iter().map(|node| {
        let (leading, terms, stop) = (leading.clone(), terms.clone(), stop.clone());
        async move {
            let lead = || {
                let (leading, terms) = (leading.clone(), terms.clone());
                async move {
                    use std::sync::atomic::Ordering::SeqCst;
                    assert_eq!(leading.fetch_add(1, SeqCst), 0, "two leaders");
                    terms.fetch_add(1, SeqCst);
                    jitter().await;
                    leading.fetch_sub(1, SeqCst);
                }
            };
            node.etcd.while_leading("meshgate/cluster-a/gc/", &stop, lead).await;
        }
    });
    tokio::join!(join_all(campaigns), async {
        let enough = || async { terms.load(std::sync::atomic::Ordering::SeqCst) > 10 };
        eventually("terms of office", SOON, enough).await;
        stop.cancel();
    });
}
