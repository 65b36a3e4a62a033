//! Allocating and releasing, one node or two.

use std::time::Duration;

use futures_util::future::join_all;
use meshgate::allocator::backend::Backend;
use meshgate::allocator::etcd::{EtcdTerms, LeaseTerms};
use meshgate::allocator::{GcSettings, GcTimes, IdentityGc, Key, Masters, NumberRange};
use meshgate::identity::{LabelRef, labels_of};
use tokio::time::Instant;

use super::support::{BASE, Node, SOON, Setup, delete, dump, etcd, key, masters, numbered, put, size, slaves};
use crate::support::eventually;

#[tokio::test]
async fn allocates_reuses_and_releases() {
    let etcd = etcd().await;
    let client = etcd.client();
    let (a, b) = (Node::start(&etcd, "10.1.0.11").await, Node::start(&etcd, "10.1.0.12").await);
    let labels = numbered(1);
    let first = a.allocate(&labels).await.unwrap();
    assert!(first.is_new && first.first_use && (327_680..=393_215).contains(&first.number.get()));
    let again = a.allocate(&labels).await.unwrap();
    assert_eq!((again.number, again.is_new, again.first_use), (first.number, false, false));
    let other = b.allocate(&labels).await.unwrap();
    assert_eq!((other.number, other.is_new, other.first_use), (first.number, false, true));
    let number = first.number.to_string();
    assert_eq!(masters(&client).await, [(format!("{BASE}/id/{number}"), labels.to_string())]);
    assert_eq!(
        slaves(&client).await,
        ["10.1.0.11", "10.1.0.12"].map(|node| (format!("{BASE}/value/{labels}/{node}"), number.clone()))
    );
    assert_eq!(a.metrics.paths(), (1, 0), "one transaction");
    assert_eq!(b.metrics.paths(), (1, 0), "one transaction");

    assert!(!a.release(&labels).await.unwrap());
    assert!(a.release(&labels).await.unwrap());
    assert_eq!(a.release(&labels).await.unwrap_err().reason(), "not-in-use");
    assert_eq!(slaves(&client).await.len(), 1);
    assert!(b.release(&labels).await.unwrap());
    assert_eq!(
        (slaves(&client).await.len(), masters(&client).await.len()),
        (0, 1),
        "no record is deleted by a release"
    );
    let taken_up = a.allocate(&labels).await.unwrap();
    assert_eq!((taken_up.number, taken_up.is_new, taken_up.first_use), (first.number, false, true));
}

#[tokio::test]
async fn callers_of_one_label_set_share_one_flight() {
    let etcd = etcd().await;
    let client = etcd.client();
    let node = Node::start(&etcd, "n1").await;
    let labels = numbered(1);
    let all = join_all((0..50).map(|_| node.allocate(&labels))).await;
    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    assert_eq!(all.iter().filter(|allocation| allocation.is_new).count(), 1);
    assert_eq!(all.iter().filter(|allocation| allocation.first_use).count(), 1);
    assert!(all.iter().all(|allocation| allocation.number == all[0].number));
    assert_eq!(node.metrics.paths(), (1, 0), "one transaction");
    for n in 1..=50 {
        assert_eq!(node.release(&labels).await.unwrap(), n == 50);
    }
    assert!(slaves(&client).await.is_empty());
}

#[tokio::test]
async fn a01_labels_that_begin_other_labels_are_others() {
    let etcd = etcd().await;
    let client = etcd.client();
    for (longer, shorter, number) in [
        ("k8s:a=1;k8s:b=2;", "k8s:a=1;", 327_700),
        ("k8s:app.kubernetes.io/name=x;k8s:b=2;", "k8s:app.kubernetes.io/name=x;", 327_701),
        ("k8s:c=1;/n1;", "k8s:c=1;", 327_702),
    ] {
        put(&client, &format!("id/{number}"), longer).await;
        for node in ["n1", "n11", "n"] {
            put(&client, &format!("value/{longer}/{node}"), &number.to_string()).await;
        }
        let node = Node::start(&etcd, "n1").await;
        let allocation = node.allocate(&key(shorter)).await.unwrap();
        assert!(allocation.is_new && allocation.number.get() != number, "{shorter}");
        let mine = dump(&client, &format!("{BASE}/id/{number}")).await;
        assert_eq!(mine, [(format!("{BASE}/id/{number}"), longer.to_owned())]);
    }
}

#[tokio::test]
async fn a03_exhaustion_is_told_and_passes() {
    let etcd = etcd().await;
    let client = etcd.client();
    let setup = Setup { numbers: (327_680, 327_687), ..Setup::default() };
    let node = Node::start_with(&etcd, "n1", setup).await;
    for n in 0..8 {
        assert!(node.allocate(&numbered(n)).await.unwrap().is_new);
    }
    let error = node.allocate(&numbered(8)).await.unwrap_err();
    assert_eq!((error.reason(), error.is_retryable()), ("exhausted", true));
    let status = node.allocator.status().await;
    assert_eq!((status.numbers, status.free, status.used), (8, 0, 8));
    let masters = masters(&client).await;
    assert!(masters.iter().all(|(path, _)| (327_680..=327_687).any(|number| *path == format!("{BASE}/id/{number}"))));
    let (path, _) = masters.iter().find(|(_, labels)| *labels == numbered(3).as_str()).unwrap();
    node.release(&numbered(3)).await.unwrap();
    assert_eq!(node.allocate(&numbered(8)).await.unwrap_err().reason(), "exhausted", "not collected yet");
    let range = NumberRange::new(setup.numbers.0, setup.numbers.1, 0).unwrap();
    let mut gc = IdentityGc::new(GcSettings::new(range));
    gc.round(&node.etcd).await.unwrap();
    assert_eq!(gc.round(&node.etcd).await.unwrap().removed.len(), 1);
    eventually("the number is free", SOON, || async { node.allocator.status().await.free == 1 }).await;
    assert_eq!(format!("{BASE}/id/{}", node.allocate(&numbered(8)).await.unwrap().number), *path);
}

#[tokio::test]
async fn a03_numbers_of_a_gateway_that_is_gone_return_when_its_references_have() {
    let etcd = etcd().await;
    let numbers = (327_680, 327_687);
    let references = LeaseTerms { ttl: Duration::from_secs(2), ..LeaseTerms::REFERENCES };
    let terms = EtcdTerms { references, ..EtcdTerms::default() };
    let gone = Node::start_with(&etcd, "gone", Setup { numbers, terms, ..Setup::default() }).await;
    for n in 0..8 {
        gone.allocate(&numbered(n)).await.unwrap();
    }
    let node = Node::start_with(&etcd, "n1", Setup { numbers, ..Setup::default() }).await;
    assert_eq!(node.allocate(&numbered(8)).await.unwrap_err().reason(), "exhausted");
    gone.kill().await;
    let range = NumberRange::new(numbers.0, numbers.1, 0).unwrap();
    let mut gc = IdentityGc::new(GcSettings::new(range));
    let mut removed = 0;
    while removed < 8 {
        let round = gc.round(&node.etcd).await.unwrap();
        assert!(slaves(&etcd.client()).await.len() <= 8 - removed, "nothing goes before its reference");
        removed += round.removed.len();
    }
    eventually("all are free", SOON, || async { node.allocator.status().await.free == 8 }).await;
    assert!(node.allocate(&numbered(8)).await.unwrap().is_new);
}

#[tokio::test]
async fn a05_a_wiped_store_is_filled_again_under_the_same_numbers() {
    let etcd = etcd().await;
    let client = etcd.client();
    let setup = Setup { sync: Duration::from_millis(500), ..Setup::default() };
    let (a, b) = (Node::start_with(&etcd, "a", setup).await, Node::start_with(&etcd, "b", setup).await);
    let held = size("MESHGATE_WIPED_KEYS", 100);
    for n in 0..held / 2 {
        b.allocate(&numbered(n)).await.unwrap();
    }
    for n in 0..held {
        a.allocate(&numbered(n)).await.unwrap();
    }
    let before = (masters(&client).await, slaves(&client).await);
    assert_eq!((before.0.len(), before.1.len()), (held, held + held / 2));
    let all = etcd_client::DeleteOptions::new().with_prefix();
    client.kv_client().delete(BASE, Some(all)).await.unwrap();
    let since = Instant::now();
    let minute = Duration::from_mins(1);
    let count = || async {
        let options = etcd_client::GetOptions::new().with_prefix().with_count_only();
        client.kv_client().get(BASE, Some(options)).await.unwrap().count()
    };
    let all = i64::try_from(before.0.len() + before.1.len()).unwrap();
    eventually("as much is back", minute, || async { count().await == all }).await;
    assert_eq!((masters(&client).await, slaves(&client).await), before);
    println!("{held} records and {} references are back after {:?}", before.1.len(), since.elapsed());
}

#[tokio::test]
async fn a05_a_foreign_record_is_never_overwritten_but_reported() {
    let etcd = etcd().await;
    let client = etcd.client();
    let setup = Setup { sync: Duration::from_millis(50), ..Setup::default() };
    let node = Node::start_with(&etcd, "a", setup).await;
    let number = node.allocate(&numbered(1)).await.unwrap().number;
    put(&client, &format!("id/{number}"), "k8s:foreign=1;").await;
    delete(&client, &format!("value/{}/a", numbered(1))).await;
    eventually("it is reported", SOON, || async { node.metrics.conflicts() > 1 }).await;
    assert_eq!(masters(&client).await, [(format!("{BASE}/id/{number}"), "k8s:foreign=1;".to_owned())]);
    assert!(slaves(&client).await.is_empty(), "no reference to what is not ours");
}

#[tokio::test]
async fn a06_a_deleted_record_in_use_returns_and_subscribers_hear_nothing() {
    let etcd = etcd().await;
    let client = etcd.client();
    let node = Node::start(&etcd, "a").await;
    let number = node.allocate(&numbered(1)).await.unwrap().number;
    eventually("the watch is there", SOON, || async { node.records.labels_of(number).is_some() }).await;
    for _ in 0..20 {
        delete(&client, &format!("id/{number}")).await;
        eventually("it is back", SOON, || async { masters(&client).await.len() == 1 }).await;
        assert!(node.records.labels_of(number).is_some(), "the picture showed its delete");
    }
    assert_eq!(masters(&client).await, [(format!("{BASE}/id/{number}"), numbered(1).to_string())]);
}

#[tokio::test]
async fn a10_odd_labels_are_stored_and_read_back_as_they_are() {
    let etcd = etcd().await;
    let (a, b) = (Node::start(&etcd, "a").await, Node::start(&etcd, "b").await);
    let long = "x".repeat(300);
    for value in ["", "a=b==c", r"back\slash", "reg.example:5000/app:v1", "köln-東京", &long] {
        let label = LabelRef { source: "k8s", key: "k", value };
        let labels = Key::from_labels([label]).unwrap();
        let number = a.allocate(&labels).await.unwrap().number;
        let other = b.allocate(&labels).await.unwrap();
        assert_eq!((other.number, other.is_new), (number, false), "{value:?}");
        let stored = b.etcd.get_by_id(number).await.unwrap().unwrap();
        assert_eq!(labels_of(&stored).collect::<Vec<_>>(), [label]);
        eventually("the watch tells it", SOON, || async { b.records.labels_of(number) == Some(stored.clone()) }).await;
    }
}

#[tokio::test]
async fn a13_allocation_waits_for_the_first_list_under_the_callers_deadline() {
    let etcd = etcd().await;
    let client = etcd.client();
    put(&client, "id/327700", numbered(1).as_str()).await;
    let mut node = Node::start_with(&etcd, "a", Setup { follow: false, ..Setup::default() }).await;
    let error = node.allocator.allocate(&numbered(1), Instant::now() + Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(error.reason(), "deadline");
    node.follow();
    let allocated = node.allocate(&numbered(1)).await;
    assert_eq!(allocated.unwrap().number.get(), 327_700, "the one that was in the store");
}

#[tokio::test]
async fn g01_nothing_is_left_of_uses_that_were_released_or_cancelled() {
    let etcd = etcd().await;
    let client = etcd.client();
    let setup = Setup { sync: Duration::from_millis(10), ..Setup::default() };
    let node = Node::start_with(&etcd, "a", setup).await;
    fastrand::seed(7);
    for round in 0..200 {
        let keys: Vec<_> = (0..5).map(|_| numbered(fastrand::usize(..50))).collect();
        let patience: Vec<_> = keys.iter().map(|_| Duration::from_micros(fastrand::u64(..2_000))).collect();
        let uses = keys.iter().zip(&patience).map(|(key, patience)| {
            let node = &node;
            let cancelled = round % 2 == 0;
            async move {
                let allocation = node.allocate(key);
                let used = if cancelled {
                    tokio::time::timeout(*patience, allocation).await.is_ok_and(|result| result.is_ok())
                } else {
                    allocation.await.is_ok()
                };
                if used {
                    node.release(key).await.unwrap();
                }
            }
        });
        join_all(uses).await;
    }
    eventually("no reference is left", SOON, || async { slaves(&client).await.is_empty() }).await;
    assert_eq!(node.allocator.status().await.local, 0);
    let numbers = NumberRange::new(setup.numbers.0, setup.numbers.1, 0).unwrap();
    let times = GcTimes { pace: Duration::ZERO, ..GcTimes::default() };
    let mut gc = IdentityGc::new(GcSettings { numbers, times });
    for _ in 0..2 {
        gc.round(&node.etcd).await.unwrap();
    }
    assert!(masters(&client).await.is_empty(), "nothing hinders the collector");
    node.stop().await;
    assert!(slaves(&client).await.is_empty());
}

#[tokio::test]
async fn g09_numbers_of_another_range_count_as_absent() {
    let etcd = etcd().await;
    let client = etcd.client();
    let first = Node::start_with(&etcd, "a", Setup { numbers: (1 << 16, (2 << 16) - 1), ..Setup::default() }).await;
    for n in 0..20 {
        first.allocate(&numbered(n)).await.unwrap();
    }
    first.stop().await;
    let second = Node::start_with(&etcd, "a", Setup { numbers: (2 << 16, (3 << 16) - 1), ..Setup::default() }).await;
    for n in 0..20 {
        let allocation = second.allocate(&numbered(n)).await.unwrap();
        assert!(allocation.is_new && allocation.number.get() >> 16 == 2);
    }
    assert_eq!(masters(&client).await.len(), 40, "old records are left to an explicit clean-up");
    let slaves = slaves(&client).await;
    assert!(slaves.len() == 20 && slaves.iter().all(|(_, number)| number.parse::<u32>().unwrap() >> 16 == 2));
}

#[tokio::test]
async fn a_clean_shutdown_keeps_references_or_releases_them_as_told() {
    let etcd = etcd().await;
    let client = etcd.client();
    let keeping = Node::start(&etcd, "a").await;
    keeping.allocate(&numbered(1)).await.unwrap();
    keeping.stop().await;
    assert_eq!(slaves(&client).await.len(), 1);
    let releasing = Node::start_with(&etcd, "a", Setup { release_on_shutdown: true, ..Setup::default() }).await;
    assert!(!releasing.allocate(&numbered(1)).await.unwrap().is_new);
    releasing.allocate(&numbered(2)).await.unwrap();
    releasing.stop().await;
    assert!(slaves(&client).await.is_empty());
}
