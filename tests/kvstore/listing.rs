//! Lists of real etcds while things change.

use std::time::Duration;

use futures_util::FutureExt as _;
use meshgate::kvstore::{Connector, ListGate, ListKind, ListWatchOptions, RestartReason};
use tokio::time::timeout;

use super::{Copy, PREFIX, Seen, compact, connect, contents, delete, etcd, fill, put, through, timing};
use crate::support::Pki;
use crate::support::proxy::{Direction, Proxy};

/// Keys already read change, go and come while later pages are read: the watch brings it all (R3).
#[tokio::test]
async fn r03_changes_between_pages_are_not_lost() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    let client = etcd.client();
    fill(&client, 0, 10_000, "old").await;
    let session = connect(etcd.config()).await;
    let mut copy = Copy::paged(100);
    let mut page = 0;
    loop {
        match copy.step(&session).await.unwrap() {
            Seen::Page => {
                // One key of a page that is read, one of a page to come, one new, one gone, at each.
                put(&client, &format!("{PREFIX}{:06}", page * 100), "new").await;
                put(&client, &format!("{PREFIX}{:06}", 9_999 - page), "new").await;
                put(&client, &format!("{PREFIX}{:06}+", page * 50), "added").await;
                delete(&client, &format!("{PREFIX}{:06}", page * 100 + 1)).await;
                page += 1;
            }
            Seen::Listed => break,
            _ => {}
        }
    }
    assert_eq!(page, 100);
    assert_eq!(copy.published.len(), 10_000, "as of the first page");
    assert!(copy.published.values().all(|value| value == "old"), "as of the first page");
    let expected = contents(&client).await;
    while copy.published != expected {
        copy.step(&session).await.unwrap();
    }
    assert_eq!(copy.lists(), 1);
}

/// The first page's revision is compacted while later pages are read (R3): only a list from the start is right.
#[tokio::test]
async fn r03_compaction_between_pages_starts_the_list_again() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    let client = etcd.client();
    fill(&client, 0, 1_000, "old").await;
    let session = connect(etcd.config()).await;
    let mut copy = Copy::paged(10);
    copy.until(&session, Seen::Page).await;
    delete(&client, &format!("{PREFIX}000003")).await;
    put(&client, &format!("{PREFIX}000500"), "new").await;
    compact(&client).await;
    copy.until(&session, Seen::Listed).await;
    assert_eq!(copy.count(&Seen::Restarting(RestartReason::Compacted)), 1);
    assert_eq!(copy.count(&Seen::Started(ListKind::First)), 2);
    assert_eq!(copy.published, contents(&client).await);
}

/// Dropping the future of a step at any moment loses nothing.
#[tokio::test]
async fn steps_can_be_dropped_at_any_moment() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    let client = etcd.client();
    fill(&client, 0, 2_000, "old").await;
    let session = connect(etcd.config()).await;
    let mut copy = Copy::paged(50);
    let mut dropped = 0;
    let mut changed = 0;
    loop {
        // Polled once and dropped, again and again.
        if let Some(step) = copy.list_watch.step(&session).now_or_never() {
            copy.apply(step.unwrap());
        } else {
            dropped += 1;
            tokio::task::yield_now().await;
        }
        if copy.count(&Seen::Listed) == 1 && changed < 50 {
            put(&client, &format!("{PREFIX}{changed:06}"), "new").await;
            changed += 1;
        }
        if changed == 50 && copy.published == contents(&client).await {
            break;
        }
    }
    assert!(dropped > 100, "{dropped}");
    assert_eq!((copy.lists(), copy.count(&Seen::Page)), (1, 40), "{:?}", copy.seen);
}

/// A consumer that pauses in the midst of a list, and a connection that dies meanwhile (R4): the next session lists anew,
/// each time, and ends with the whole.
#[tokio::test]
async fn r04_a_paused_consumer_gets_over_a_cut() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    let client = etcd.client();
    fill(&client, 0, 50_000, "x").await;
    let proxy = Proxy::to(etcd.port()).await;
    let connector = Connector::new(through(etcd.config(), proxy.port()), timing());
    let mut copy = Copy::paged(500);
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..100 {
        let session = super::session_of(&connector).await;
        copy.until(&session, Seen::Page).await;
        proxy.cut();
        session.closed().await;
        assert_eq!(copy.until_over(&session).await.reason(), "connection-lost");
    }
    copy.until_holds(&connector, &contents(&client).await).await;
    drop(copy);
    crate::support::eventually("the tasks of dead sessions end", super::DEADLINE, async || {
        tokio::runtime::Handle::current().metrics().num_alive_tasks() <= tasks + 2
    })
    .await;
}

/// Many lists at once take turns, and none waits for one that stalls (E11, R16).
#[tokio::test]
async fn e11_lists_take_turns_and_a_stalled_one_holds_up_nobody() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    let client = etcd.client();
    fill(&client, 0, 500, "x").await;
    let proxy = Proxy::to(etcd.port()).await;
    let options = ListWatchOptions { page_size: 50, gate: ListGate::new(1), ..ListWatchOptions::default() };
    let stalled = connect(through(etcd.config(), proxy.port())).await;
    proxy.stall(Direction::ToClient);
    let mut stuck = Copy::new(options.clone());
    assert_eq!(stuck.step(&stalled).await.unwrap(), Seen::Started(ListKind::First));
    let mut others: Vec<_> = (0..10).map(|_| Copy::new(options.clone())).collect();
    let session = connect(etcd.config()).await;
    let all = others.iter_mut().map(|copy| copy.until(&session, Seen::Listed));
    timeout(super::DEADLINE, futures_util::future::join_all(all)).await.expect("the others go on");
    assert!(others.iter().all(|copy| copy.published.len() == 500));
}

/// A connection that breaks in the midst of a page, at any byte: what arrived is void, and the next session brings the whole.
#[tokio::test]
async fn a_list_that_is_cut_at_any_byte_is_begun_anew() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    fill(&etcd.client(), 0, 2_000, &"x".repeat(100)).await;
    let expected = contents(&etcd.client()).await;
    let proxy = Proxy::to(etcd.port()).await;
    let connector = Connector::new(through(etcd.config(), proxy.port()), timing());
    for round in 0..14 {
        let session = super::session_of(&connector).await;
        let mut copy = Copy::paged(200);
        proxy.cut_off_after(1 + round * 13_337);
        let error = copy.until_over(&session).await;
        assert!(proxy.is_cut_off() && error.is_retryable(), "{error}");
        assert_eq!(copy.count(&Seen::Listed), 0);
        proxy.restore();
        copy.until_holds(&connector, &expected).await;
    }
}

/// A link with latency: pages are asked for ahead, and a resumed watch costs next to nothing.
#[tokio::test]
async fn a_slow_link_is_used_sparingly() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    let client = etcd.client();
    fill(&client, 0, 2_000, &"x".repeat(300)).await;
    let proxy = Proxy::to(etcd.port()).await;
    proxy.delay(Duration::from_millis(20));
    let connector = Connector::new(through(etcd.config(), proxy.port()), timing());
    let mut copy = Copy::paged(500);
    copy.until_holds(&connector, &contents(&client).await).await;
    let listed = proxy.bytes(Direction::ToClient);
    proxy.cut();
    put(&client, &format!("{PREFIX}new"), "x").await;
    copy.until_holds(&connector, &contents(&client).await).await;
    let resumed = proxy.bytes(Direction::ToClient) - listed;
    assert!(resumed * 20 < listed, "{resumed} bytes to resume, {listed} to list");
    assert_eq!(copy.lists(), 1);
}
