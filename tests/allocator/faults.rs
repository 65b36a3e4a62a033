//! Calls to the store that fail, before or after they took effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use meshgate::allocator::Masters;
use tokio::time::Instant;

use super::flaky::{Fault, Flaky};
use super::support::{BASE, Node, SOON, Setup, delete, etcd, masters, numbered, slaves};
use crate::support::eventually;

#[tokio::test]
async fn a06_a_record_is_written_again_however_often_that_fails() {
    let etcd = etcd().await;
    let client = etcd.client();
    let failures = Arc::new(AtomicUsize::new(0));
    let told = failures.clone();
    let node = Node::start_on(&etcd, "a", Setup::default(), |backend| {
        Flaky::new(backend, move |call| {
            let fails = call == "update" && told.fetch_add(1, Ordering::SeqCst) < 3;
            if fails { Fault::Before } else { Fault::None }
        })
    })
    .await;
    let number = node.allocate(&numbered(1)).await.unwrap().number;
    eventually("the watch is there", SOON, || async { node.records.labels_of(number).is_some() }).await;
    delete(&client, &format!("id/{number}")).await;
    eventually("it is back", SOON, || async { masters(&client).await.len() == 1 }).await;
    assert_eq!(failures.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn a06_a_repair_ends_when_the_record_is_not_used_any_more() {
    let etcd = etcd().await;
    let client = etcd.client();
    let calls = Arc::new(AtomicUsize::new(0));
    let told = calls.clone();
    let node = Node::start_on(&etcd, "a", Setup::default(), |backend| {
        Flaky::new(backend, move |call| {
            if call == "update" {
                told.fetch_add(1, Ordering::SeqCst);
                return Fault::Before;
            }
            Fault::None
        })
    })
    .await;
    let number = node.allocate(&numbered(1)).await.unwrap().number;
    eventually("the watch is there", SOON, || async { node.records.labels_of(number).is_some() }).await;
    delete(&client, &format!("id/{number}")).await;
    eventually("it is being repaired", SOON, || async { calls.load(Ordering::SeqCst) > 1 }).await;
    assert!(node.records.labels_of(number).is_some());
    node.release(&numbered(1)).await.unwrap();
    eventually("it is given up", SOON, || async { node.records.labels_of(number).is_none() }).await;
    assert!(masters(&client).await.is_empty() && slaves(&client).await.is_empty());
    assert_eq!(node.allocator.status().await.used, 0);
}

#[tokio::test]
async fn a12_a_use_counts_once_however_its_first_attempt_ended() {
    for fault in [Fault::Before, Fault::After] {
        let etcd = etcd().await;
        let client = etcd.client();
        let calls = AtomicUsize::new(0);
        let node = Node::start_on(&etcd, "a", Setup::default(), |backend| {
            Flaky::new(backend, move |call| {
                if call.starts_with("try_") && calls.fetch_add(1, Ordering::SeqCst) < 2 { fault } else { Fault::None }
            })
        })
        .await;
        let labels = numbered(1);
        let uses = join_all((0..2).map(|_| node.allocate(&labels))).await;
        let successes = uses.iter().filter(|result| result.is_ok()).count();
        assert_eq!(successes, 2);
        for left in (0..successes).rev() {
            assert_eq!(node.release(&labels).await.unwrap(), left == 0);
            assert_eq!(slaves(&client).await.len(), usize::from(left > 0), "{fault:?}");
        }
        assert_eq!(masters(&client).await.len(), 1, "no number is wasted on an attempt whose answer was lost");
    }
}

#[tokio::test]
async fn an_allocation_gives_up_after_so_many_attempts_and_not_after_one() {
    let etcd = etcd().await;
    let client = etcd.client();
    let calls = Arc::new(AtomicUsize::new(0));
    let told = calls.clone();
    let node = Node::start_on(&etcd, "a", Setup { attempts: 4, ..Setup::default() }, |backend| {
        Flaky::new(backend, move |call| {
            if call != "try_allocate" {
                return Fault::None;
            }
            told.fetch_add(1, Ordering::SeqCst);
            Fault::Before
        })
    })
    .await;
    let error = node.allocate(&numbered(1)).await.unwrap_err();
    assert_eq!((error.reason(), error.is_retryable()), ("backend-unavailable", true));
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    assert!(masters(&client).await.is_empty() && slaves(&client).await.is_empty());
    assert_eq!(node.allocator.status().await.free, 65_536, "no number is lost");
}

/// Whatever fails, at the end there is one record for each label set in use, each reference points at it, and nothing refers to
/// what is not in use. The seed is printed and replays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn books_and_store_agree_after_any_faults() {
    let seed: u64 = std::env::var("MESHGATE_SEED").map_or_else(|_| fastrand::u64(..), |text| text.parse().unwrap());
    println!("MESHGATE_SEED={seed}");
    fastrand::seed(seed);
    let etcd = etcd().await;
    let client = etcd.client();
    let healthy = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let setup = Setup { sync: Duration::from_millis(100), ..Setup::default() };
    let mut nodes = Vec::new();
    for name in ["a", "b"] {
        let (healthy, dice) = (healthy.clone(), std::sync::Mutex::new(fastrand::Rng::with_seed(fastrand::u64(..))));
        let plan = move |_: &'static str| match dice.lock().unwrap().u8(..10) {
            _ if healthy.load(Ordering::SeqCst) => Fault::None,
            0 => Fault::Before,
            1 => Fault::After,
            _ => Fault::None,
        };
        nodes.push(Node::start_on(&etcd, name, setup, |backend| Flaky::new(backend, plan)).await);
    }
    let scripts: Vec<_> = (0..8).map(|_| fastrand::Rng::with_seed(fastrand::u64(..))).collect();
    let users = scripts.into_iter().enumerate().map(|(user, mut dice)| {
        let node = &nodes[user % 2];
        async move {
            let mut held = Vec::new();
            for _ in 0..150 {
                if dice.bool() || held.is_empty() {
                    let n = dice.usize(..20);
                    let deadline = Instant::now() + Duration::from_millis(dice.u64(1..400));
                    if let Ok(allocation) = node.allocator.allocate(&numbered(n), deadline).await {
                        held.push((n, allocation.number));
                    }
                } else {
                    let (n, _) = held.swap_remove(dice.usize(..held.len()));
                    node.release(&numbered(n)).await.unwrap();
                }
            }
            held
        }
    });
    let held: Vec<_> = join_all(users).await;
    healthy.store(true, Ordering::SeqCst);
    let mut expected = std::collections::BTreeMap::new();
    for (user, held) in held.into_iter().enumerate() {
        for (n, number) in held {
            let path = format!("{BASE}/value/{}/{}", numbered(n), ["a", "b"][user % 2]);
            let before = expected.insert(path, number.to_string());
            assert!(before.is_none_or(|before| before == number.to_string()), "two numbers for one label set");
        }
    }
    eventually("exactly what is in use is referred to", SOON, || async {
        slaves(&client).await.into_iter().collect::<std::collections::BTreeMap<_, _>>() == expected
    })
    .await;
    let masters: std::collections::BTreeMap<_, _> = masters(&client).await.into_iter().collect();
    for (path, number) in &expected {
        let labels = &masters[&format!("{BASE}/id/{number}")];
        assert!(path.starts_with(&format!("{BASE}/value/{labels}/")), "{path} -> {number} = {labels}");
    }
}
