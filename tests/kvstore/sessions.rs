//! One session: its calls, its end.

use std::time::Duration;

use bytes::Bytes;
use etcd_client::{Compare, CompareOp, Permission, Txn, TxnOp};
use meshgate::kvstore::{Connector, Credentials, EtcdConfig, SessionError, Stage};
use tokio::time::{Instant, timeout};

use super::{Copy, PREFIX, Seen, connect, etcd, put, session_of, through, timing};
use crate::support::proxy::{Direction, Proxy};
use crate::support::{DEADLINE, EtcdOptions, EtcdServer, Pki};

#[tokio::test]
async fn reads_and_writes() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    let session = connect(etcd.config()).await;
    assert!(session.version().unwrap().starts_with("3."), "{:?}", session.version());
    assert_eq!(session.endpoint(), etcd.client_url());
    let certificate = session.certificate().unwrap();
    assert_eq!(certificate.common_name.as_deref(), Some("alpha-etcd-client"));

    assert_eq!(session.get(b"a").await.unwrap().0, None);
    let first = session.put(b"a", Bytes::from_static(b"1"), 0).await.unwrap();
    let second = session.put(b"a", Bytes::from_static(b"2"), 0).await.unwrap();
    assert_eq!(second, first + 1);
    let (entry, revision) = session.get(b"a").await.unwrap();
    let entry = entry.unwrap();
    assert_eq!((&*entry.value, entry.create_revision, entry.mod_revision), (&b"2"[..], first, second));
    assert_eq!((revision, session.revision()), (second, second));
    assert_eq!(session.get_at(b"a", first).await.unwrap().0.unwrap().value, b"1");

    assert!(session.delete(b"a").await.unwrap());
    assert!(!session.delete(b"a").await.unwrap());
    for key in ["p/1", "p/2", "p/3", "p0"] {
        session.put(key.as_bytes(), Bytes::new(), 0).await.unwrap();
    }
    let page = session.range_page(b"p/", b"p0", 2, 0, true).await.unwrap();
    assert_eq!(page.entries.iter().map(|entry| &*entry.key).collect::<Vec<_>>(), [b"p/1", b"p/2"]);
    assert!(page.more);
    assert_eq!(session.delete_prefix(b"p/").await.unwrap(), 3);
    assert!(session.get(b"p0").await.unwrap().0.is_some());

    let create = || {
        let absent = Compare::create_revision("t", CompareOp::Equal, 0);
        Txn::new().when([absent]).and_then([TxnOp::put("t", "1", None)])
    };
    assert!(session.txn(create()).await.unwrap().succeeded());
    assert!(!session.txn(create()).await.unwrap().succeeded());
}

#[tokio::test]
async fn leases() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    let session = connect(etcd.config()).await;
    let lease = session.lease_grant(60).await.unwrap();
    session.put(b"l", Bytes::new(), lease).await.unwrap();
    assert_eq!(session.get(b"l").await.unwrap().0.unwrap().lease, lease);
    assert_eq!(session.lease_keep_alive(lease).await.unwrap(), 60);
    session.lease_revoke(lease).await.unwrap();
    assert_eq!(session.get(b"l").await.unwrap().0, None);
    assert_eq!(session.lease_keep_alive(lease).await.unwrap_err(), SessionError::LeaseNotFound);
    assert_eq!(session.put(b"l", Bytes::new(), lease).await.unwrap_err(), SessionError::LeaseNotFound);
    assert!(session.get(b"l").await.is_ok(), "the session is none the worse");
}

/// A channel that dials again could reach another etcd without a word.
#[tokio::test]
async fn a_session_is_one_connection() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    let proxy = Proxy::to(etcd.port()).await;
    let session = connect(through(etcd.config(), proxy.port())).await;
    proxy.cut();
    let over = timeout(DEADLINE, session.closed()).await.expect("it is noticed");
    assert_eq!(over.reason(), "connection-lost", "{over}");
    for _ in 0..3 {
        assert_eq!(session.get(b"a").await.unwrap_err(), over);
    }
    assert_eq!(proxy.accepted(), 1);
}

#[tokio::test]
async fn the_end_of_an_etcd_is_noticed_at_once() {
    let pki = Pki::temporary().unwrap();
    let mut etcd = etcd(&pki, "alpha").await;
    let session = connect(etcd.config()).await;
    etcd.kill().unwrap();
    let over = timeout(Duration::from_secs(5), session.closed()).await.expect("it is noticed");
    assert!(matches!(over, SessionError::ConnectionLost(_)), "{over:?}");
    assert!(over.is_retryable());
}

#[tokio::test]
async fn every_call_has_a_deadline() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    let proxy = Proxy::to(etcd.port()).await;
    let session = connect(through(etcd.config(), proxy.port())).await;
    proxy.stall(Direction::ToClient);
    let asked = Instant::now();
    let (read, write, watch) =
        tokio::join!(session.get(b"a"), session.put(b"a", Bytes::new(), 0), session.watch(b"a", 0));
    assert!(asked.elapsed() < timing().call * 2, "{:?}", asked.elapsed());
    assert_eq!(read.unwrap_err(), SessionError::Deadline("a read"));
    assert!(write.unwrap_err().outcome_is_unknown());
    assert_eq!(watch.unwrap_err().reason(), "deadline");
    proxy.flow();
    assert!(session.get(b"a").await.is_ok(), "slow is not dead");
}

/// As an operator sets up a peer's access: one user with a role of exactly the ranges needed (T7).
#[tokio::test]
async fn t07_a_narrow_role_suffices_and_a_wrong_password_is_told() {
    let etcd = EtcdServer::start(EtcdOptions::plain("alpha").in_memory()).await.unwrap();
    let client = etcd.client();
    put(&client, &format!("{PREFIX}1"), "one").await;
    let mut auth = client.auth_client();
    auth.user_add("root", "root", None).await.unwrap();
    auth.role_add("root").await.unwrap();
    auth.user_grant_role("root", "root").await.unwrap();
    auth.user_add("peer", "secret", None).await.unwrap();
    auth.role_add("remote").await.unwrap();
    for permission in [Permission::read("cilium/.heartbeat"), Permission::read(PREFIX).with_prefix()] {
        auth.role_grant_permission("remote", permission).await.unwrap();
    }
    auth.user_grant_role("peer", "remote").await.unwrap();
    let with = |password: &str| EtcdConfig {
        credentials: Some(Credentials { username: "peer".into(), password: password.into() }),
        ..etcd.config()
    };
    // Who need not log in yet may come in with a password all the same.
    drop(connect(with("secret")).await);
    auth.auth_enable().await.unwrap();

    let session = connect(with("secret")).await;
    let mut copy = Copy::paged(10);
    copy.until(&session, Seen::Listed).await;
    assert_eq!(copy.published.len(), 1);
    let denied = session.get(b"other").await.unwrap_err();
    assert_eq!((denied.reason(), denied.is_retryable()), ("permission-denied", false));
    assert_eq!(session.watch(b"other", 1).await.unwrap_err().reason(), "permission-denied");

    let error = Connector::new(with("guess"), timing()).connect(&|_, _| {}).await.unwrap_err();
    assert_eq!((error.stage(), error.reason(), error.is_retryable()), (Stage::FirstCall, "permission-denied", false));
    let error = Connector::new(etcd.config(), timing()).connect(&|_, _| {}).await.unwrap_err();
    assert_eq!(error.reason(), "permission-denied", "{error}");
    let probe = Connector::new(with("secret"), timing()).with_probe_key("other");
    assert_eq!(probe.connect(&|_, _| {}).await.unwrap_err().reason(), "permission-denied");
}

/// A token is tied to the users and roles of when it was made (E7).
#[tokio::test]
async fn e07_a_change_of_users_costs_one_new_session() {
    let etcd = EtcdServer::start(EtcdOptions::plain("alpha").in_memory()).await.unwrap();
    let mut auth = etcd.client().auth_client();
    auth.user_add("root", "root", None).await.unwrap();
    auth.role_add("root").await.unwrap();
    auth.user_grant_role("root", "root").await.unwrap();
    auth.auth_enable().await.unwrap();
    let credentials = Some(Credentials { username: "root".into(), password: "root".into() });
    let connector = Connector::new(EtcdConfig { credentials, ..etcd.config() }, timing());
    let session = session_of(&connector).await;
    session.put(b"a", Bytes::new(), 0).await.unwrap();

    let client = etcd_client::Client::connect(
        [etcd.client_url()],
        Some(etcd_client::ConnectOptions::new().with_user("root", "root")),
    );
    client.await.unwrap().auth_client().user_add("another", "x", None).await.unwrap();
    let again = match session.get(b"a").await {
        Ok(_) => session,
        Err(error) => {
            assert_eq!((error.reason(), error.is_retryable()), ("auth-expired", true), "{error}");
            session_of(&connector).await
        }
    };
    assert!(again.get(b"a").await.unwrap().0.is_some());
}
