//! Leases of references: capped, replaced when lost, kept to.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use futures_util::future::join_all;
use meshgate::allocator::etcd::{EtcdTerms, LeaseTerms};
use tokio::time::Instant;

use super::support::{BASE, Node, SOON, Setup, etcd, numbered, put, size, slaves};
use crate::support::eventually;

/// Path, lease and revision of each reference.
async fn references(client: &Client) -> BTreeMap<String, (i64, i64)> {
    let prefix = format!("{BASE}/value/");
    let answer = client.kv_client().get(prefix, Some(GetOptions::new().with_prefix())).await.unwrap();
    (answer.kvs().iter())
        .map(|entry| (entry.key_str().unwrap().to_owned(), (entry.lease(), entry.mod_revision())))
        .collect()
}

fn capped(max_keys: usize) -> Setup {
    let references = LeaseTerms { max_keys, ..LeaseTerms::REFERENCES };
    Setup { terms: EtcdTerms { references, ..EtcdTerms::default() }, ..Setup::default() }
}

#[tokio::test]
async fn g02_a_lost_lease_is_replaced_wherever_it_is_found_lost_and_its_keys_return() {
    let etcd = etcd().await;
    let client = etcd.client();
    let node = Node::start_with(&etcd, "a", capped(20)).await;
    for n in 0..50 {
        node.allocate(&numbered(n)).await.unwrap();
    }
    fastrand::seed(3);
    for round in 0..10 {
        let leases: HashSet<_> = references(&client).await.values().map(|(lease, _)| *lease).collect();
        assert!(!leases.contains(&0));
        for lease in leases.into_iter().filter(|_| fastrand::bool()) {
            client.lease_client().revoke(lease).await.unwrap();
        }
        // Some operation finds out. (So would the next renewal.)
        for n in 0..60 {
            node.allocate(&numbered(1000 * (round + 1) + n)).await.unwrap();
            node.release(&numbered(1000 * (round + 1) + n)).await.unwrap();
        }
        node.allocator.sync().await;
        assert_eq!(slaves(&client).await.len(), 50, "round {round}");
    }
}

/// No operation, no sync: the renewal finds it out, and it comes after a thirtieth to a twentieth of the lease's time.
#[tokio::test]
async fn g02_the_keys_of_a_revoked_lease_are_back_within_5_s_without_an_operation() {
    let etcd = etcd().await;
    let client = etcd.client();
    let references = LeaseTerms { ttl: Duration::from_mins(1), max_keys: 20 };
    let setup = Setup { terms: EtcdTerms { references, ..EtcdTerms::default() }, ..Setup::default() };
    let node = Node::start_with(&etcd, "a", setup).await;
    for n in 0..50 {
        node.allocate(&numbered(n)).await.unwrap();
    }
    for round in 0..5 {
        let before = self::references(&client).await;
        let leases: HashSet<_> = before.values().map(|(lease, _)| *lease).collect();
        let revoked: HashSet<_> = leases.into_iter().take(round % 3 + 1).collect();
        for &lease in &revoked {
            client.lease_client().revoke(lease).await.unwrap();
        }
        eventually("all are back", Duration::from_secs(5), || async { self::references(&client).await.len() == 50 })
            .await;
        for (path, (lease, revision)) in self::references(&client).await {
            assert!(!revoked.contains(&lease), "{path} hangs on a lease that is gone");
            assert_eq!(before[&path].1 == revision, !revoked.contains(&before[&path].0), "{path}");
        }
    }
}

#[tokio::test]
async fn g02_leases_that_all_die_at_once_are_not_asked_for_in_a_hot_loop() {
    let etcd = etcd().await;
    let client = etcd.client();
    let node = Node::start(&etcd, "a").await;
    let mut seen = HashSet::new();
    let until = Instant::now() + Duration::from_secs(3);
    let killing = async {
        while Instant::now() < until {
            for lease in client.lease_client().leases().await.unwrap().leases() {
                seen.insert(lease.id());
                let _ = client.lease_client().revoke(lease.id()).await;
            }
            tokio::task::yield_now().await;
        }
    };
    let labels = numbered(1);
    let (result, ()) = tokio::join!(node.allocate(&labels), killing);
    assert!(seen.len() < 15, "{} leases in 3 s", seen.len());
    drop(result);
    eventually("it recovers", SOON, || async { node.allocate(&numbered(2)).await.is_ok() }).await;
}

#[tokio::test]
async fn g04_the_loss_of_a_lease_touches_only_what_hangs_on_it() {
    let etcd = etcd().await;
    let client = etcd.client();
    let all = 5_000;
    let cap = LeaseTerms::REFERENCES.max_keys;
    let node = Node::start_with(&etcd, "a", capped(cap)).await;
    let keys: Vec<_> = (0..all).map(numbered).collect();
    for keys in keys.chunks(100) {
        join_all(keys.iter().map(|key| async { node.allocate(key).await.unwrap() })).await;
    }
    let before = references(&client).await;
    let mut on_lease: BTreeMap<i64, usize> = BTreeMap::new();
    for (lease, _) in before.values() {
        *on_lease.entry(*lease).or_default() += 1;
    }
    assert!(on_lease.len() >= 5 && on_lease.values().all(|&keys| keys <= cap), "{on_lease:?}");
    let (&lost, _) = on_lease.iter().next().unwrap();
    client.lease_client().revoke(lost).await.unwrap();
    node.etcd.reference_leases().not_found(lost);
    eventually("all are back", SOON, || async { references(&client).await.len() == all }).await;
    let after = references(&client).await;
    for (path, (lease, revision)) in &before {
        assert_eq!(after[path].1 == *revision, *lease != lost, "{path}");
    }
}

#[tokio::test]
async fn g04_the_number_of_leases_stays_bounded() {
    let etcd = etcd().await;
    let node = Node::start_with(&etcd, "a", capped(50)).await;
    let rounds = size("MESHGATE_LEASE_ROUNDS", 100_000);
    let labels: Vec<_> = (0..120).map(numbered).collect();
    for round in 0..rounds / 120 {
        join_all(labels.iter().map(|key| async { node.allocate(key).await.unwrap() })).await;
        let (leases, keys) = node.etcd.reference_leases().counts();
        assert!(leases <= 5 && keys == 120, "round {round}: {leases} leases, {keys} keys");
        join_all(labels.iter().map(|key| async { node.release(key).await.unwrap() })).await;
    }
    let (leases, keys) = node.etcd.reference_leases().counts();
    assert!(leases <= 5 && keys == 0, "{leases} leases, {keys} keys");
    let client = etcd.client();
    let there = async || client.lease_client().leases().await.unwrap().leases().len();
    eventually("the store has no more", SOON, || async { there().await <= 6 }).await;
}

#[tokio::test]
async fn many_waiters_share_one_grant() {
    let etcd = etcd().await;
    let client = etcd.client();
    let node = Node::start(&etcd, "a").await;
    let keys: Vec<_> = (0..200).map(numbered).collect();
    let all = join_all(keys.iter().map(|key| node.allocate(key))).await;
    assert!(all.into_iter().all(|one| one.is_ok()));
    // One for references; the other is for locks, which nobody needed.
    assert!(client.lease_client().leases().await.unwrap().leases().len() <= 2);
    assert_eq!(node.etcd.reference_leases().counts(), (1, 200));
}

#[tokio::test]
async fn g05_the_end_of_one_lease_does_not_hold_up_the_others() {
    let etcd = etcd().await;
    let client = etcd.client();
    let ttl = Duration::from_secs(3);
    let references = LeaseTerms { ttl, max_keys: 10 };
    let setup = Setup { terms: EtcdTerms { references, ..EtcdTerms::default() }, ..Setup::default() };
    let node = Node::start_with(&etcd, "a", setup).await;
    for n in 0..30 {
        node.allocate(&numbered(n)).await.unwrap();
    }
    let before = self::references(&client).await;
    let lost = before.values().next().unwrap().0;
    client.lease_client().revoke(lost).await.unwrap();
    // Found out by its own renewal, which answers with a time to live of 0.
    let losses = node.etcd.reference_leases().losses();
    eventually("it is noticed", ttl, || async { *losses.borrow() == 1 }).await;
    eventually("its keys are back", SOON, || async { self::references(&client).await.len() == 30 }).await;
    // Two lifetimes: time is what this is about.
    tokio::time::sleep(ttl * 2).await;
    let after = self::references(&client).await;
    for (path, (lease, revision)) in &before {
        assert_eq!(after[path].1 == *revision, *lease != lost, "{path}");
    }
    assert_eq!(*losses.borrow(), 1);
}

#[tokio::test]
async fn g05_leases_are_renewed_well_before_their_end() {
    let etcd = etcd().await;
    let client = etcd.client();
    let references = LeaseTerms { ttl: Duration::from_secs(2), ..LeaseTerms::REFERENCES };
    let setup = Setup { terms: EtcdTerms { references, ..EtcdTerms::default() }, ..Setup::default() };
    let node = Node::start_with(&etcd, "a", setup).await;
    node.allocate(&numbered(1)).await.unwrap();
    let before = self::references(&client).await;
    // Three lifetimes: time is what this is about.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(self::references(&client).await, before, "neither lost nor written again");
    assert_eq!(*node.etcd.reference_leases().losses().borrow(), 0);
}

#[tokio::test]
async fn sync_takes_keys_back_from_foreign_leases() {
    let etcd = etcd().await;
    let client = etcd.client();
    let node = Node::start(&etcd, "a").await;
    let number = node.allocate(&numbered(1)).await.unwrap().number;
    let before = references(&client).await;
    put(&client, &format!("value/{}/a", numbered(1)), &number.to_string()).await;
    assert_eq!(references(&client).await.values().next().unwrap().0, 0);
    node.allocator.sync().await;
    let lease = |references: &BTreeMap<String, (i64, i64)>| references.values().next().unwrap().0;
    assert_eq!(lease(&references(&client).await), lease(&before));
    let settled = references(&client).await;
    node.allocator.sync().await;
    assert_eq!(references(&client).await, settled, "nothing to do, nothing written");
}
