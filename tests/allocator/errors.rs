//! Each way in which an allocation fails is told by its name; those that other files do not provoke in passing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Permission, PermissionType};
use meshgate::allocator::Paths;
use meshgate::allocator::backend::{Backend as _, Update};
use meshgate::identity::NumericIdentity;
use meshgate::kvstore::{Credentials, EtcdConfig};
use tokio::time::Instant;

use super::flaky::{Fault, Flaky};
use super::support::*;
use crate::support::{EtcdOptions, EtcdServer, eventually};

#[tokio::test]
async fn another_writer_that_does_not_let_go_is_told_as_such() {
    let etcd = etcd().await;
    let client = etcd.client();
    // A record that nobody uses, and a collector that has its lock and does not get on.
    let number = NumericIdentity::new(327_700);
    put(&client, &format!("id/{number}"), numbered(1).as_str()).await;
    let lock = format!("{}1", Paths::new(BASE, "a").unwrap().gc_locks(number));
    client.kv_client().put(lock.as_str(), "", None).await.unwrap();
    let node = Node::start_with(&etcd, "a", Setup { attempts: 2, ..Setup::default() }).await;
    let error = node.allocate(&numbered(1)).await.unwrap_err();
    assert_eq!((error.reason(), error.is_retryable()), ("another-writer", true), "{error}");
    assert!(slaves(&client).await.is_empty(), "nothing of it is left");
    client.kv_client().delete(lock.as_str(), None).await.unwrap();
    assert_eq!(node.allocate(&numbered(1)).await.unwrap().number, number);
}

#[tokio::test]
async fn a_number_that_stands_for_other_labels_is_told_as_such() {
    let etcd = etcd().await;
    let client = etcd.client();
    let node = Node::start_with(&etcd, "a", Setup { sync: Duration::from_millis(50), ..Setup::default() }).await;
    let number = node.allocate(&numbered(1)).await.unwrap().number;
    put(&client, &format!("id/{number}"), "k8s:foreign=1;").await;
    delete(&client, &format!("value/{}/a", numbered(1))).await;
    eventually("it is found", SOON, async || node.metrics.conflicts() > 0).await;
    let error = node.etcd.update(number, &numbered(1), Update::IfDifferent, None).await.unwrap_err();
    assert_eq!((error.reason(), error.is_retryable()), ("conflict", false), "{error}");
    assert!(error.to_string().contains(&number.to_string()), "{error}");
}

#[tokio::test]
async fn a_store_that_does_not_let_us_write_is_told_as_such() {
    let etcd = etcd().await;
    let mut auth = etcd.client().auth_client();
    auth.user_add("root", "root", None).await.unwrap();
    auth.user_grant_role("root", "root").await.unwrap();
    auth.user_add("reader", "secret", None).await.unwrap();
    auth.role_add("reader").await.unwrap();
    let everything = Permission::new(PermissionType::Read, "cilium/").with_prefix();
    auth.role_grant_permission("reader", everything).await.unwrap();
    auth.user_grant_role("reader", "reader").await.unwrap();
    auth.auth_enable().await.unwrap();
    let credentials = Credentials { username: "reader".to_owned(), password: "secret".to_owned() };
    let node = Node::start(&EtcdConfig { credentials: Some(credentials), ..etcd.config() }, "a").await;
    let begin = Instant::now();
    let error = node.allocate(&numbered(1)).await.unwrap_err();
    assert_eq!((error.reason(), error.is_retryable()), ("refused", false), "{error}");
    assert!(begin.elapsed() < SOON / 2, "there is no point in trying again");
}

#[tokio::test]
async fn an_allocator_that_has_stopped_says_so() {
    let etcd = etcd().await;
    let node = Node::start(&etcd, "a").await;
    node.allocate(&numbered(1)).await.unwrap();
    let allocator = node.allocator.clone();
    node.stop().await;
    let error = allocator.allocate(&numbered(2), Instant::now() + SOON).await.unwrap_err();
    assert_eq!((error.reason(), error.is_retryable()), ("shutting-down", true), "{error}");
}

#[tokio::test]
async fn a14_what_the_store_finds_too_large_is_asked_once() {
    // Smaller than what we refuse up front, which stays below every etcd's own limit.
    let options = EtcdOptions::plain("small").in_memory().args(["--max-request-bytes=20000"]);
    let etcd = EtcdServer::start(options).await.unwrap();
    let client = etcd.client();
    let attempts = Arc::new(AtomicUsize::new(0));
    let told = attempts.clone();
    let node = Node::start_on(&etcd, "a", Setup::default(), |backend| {
        Flaky::new(backend, move |call| {
            told.fetch_add(usize::from(call.starts_with("try_") || call == "lock"), Ordering::SeqCst);
            Fault::None
        })
    })
    .await;
    let error = node.allocate(&key(&format!("k8s:k={};", "x".repeat(8_000)))).await.unwrap_err();
    assert_eq!((error.reason(), error.is_retryable()), ("refused", false), "{error}");
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    assert!(dump(&client, BASE).await.is_empty(), "no record, no reference, no lock");
    assert_eq!(node.allocator.status().await.free, 65_536, "no number is lost");
}
