//! Users, passwords and roles of the peer's etcd: what is denied, what expires, and how often that is tried.

use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Permission};
use meshgate::telemetry::{ClusterState, ClusterStatus};
use tokio::time::sleep;

use crate::peer::{DEADLINE, Rig, Store, Told, timing};
use crate::support::etcd::EtcdTls;
use crate::support::fill::{Cluster, HEARTBEAT_KEY};
use crate::support::proxy::Proxy;
use crate::support::{CertSpec, EtcdOptions, EtcdServer, Pki, eventually};

/// The shortest pause after a denial; a minute by default.
const SLOW: Duration = Duration::from_secs(1);

fn denied(status: &ClusterStatus) -> bool {
    status.state == ClusterState::Denied
        && status.last_error.as_ref().is_some_and(|error| error.reason == "permission-denied" && !error.hint.is_empty())
}

/// Waits some time, and says how many connections were made in it.
async fn attempts(proxy: &Proxy, time: Duration) -> u64 {
    let before = proxy.accepted();
    sleep(time).await;
    proxy.accepted() - before
}

/// A plain etcd whose `root` and `peer` have passwords, with a token's life; a client of root, and a peer's file.
async fn with_passwords(store: &Store, role: &[Permission]) -> Client {
    let mut auth = store.etcd.client().auth_client();
    auth.user_add("root", "root", None).await.unwrap();
    auth.role_add("root").await.unwrap();
    auth.user_grant_role("root", "root").await.unwrap();
    auth.user_add("peer", "secret", None).await.unwrap();
    auth.role_add("remote").await.unwrap();
    for permission in role {
        auth.role_grant_permission("remote", permission.clone()).await.unwrap();
    }
    auth.user_grant_role("peer", "remote").await.unwrap();
    auth.auth_enable().await.unwrap();
    as_root(store).await
}

async fn as_root(store: &Store) -> Client {
    let options = ConnectOptions::new().with_user("root", "root");
    Client::connect([store.etcd.client_url()], Some(options)).await.unwrap()
}

/// Exactly what a peer needs (WIRE.md has the keys).
fn narrow(cluster: &Cluster) -> Vec<Permission> {
    vec![
        Permission::read(HEARTBEAT_KEY),
        Permission::read(cluster.config_key()),
        Permission::read(cluster.canary_key()),
        Permission::read(cluster.identity_prefix()).with_prefix(),
    ]
}

async fn plain_store(args: &[&str]) -> Store {
    let options = EtcdOptions::plain("blue").in_memory().args(args.iter().copied());
    let store = Store { etcd: EtcdServer::start(options).await.unwrap(), cluster: Cluster::new("blue", 2) };
    store.put_app(1, "a").await;
    store.announce().await;
    store
}

fn yaml(port: u16, password: &str) -> String {
    format!("endpoints: ['http://127.0.0.1:{port}']\nusername: peer\npassword: {password}\n")
}

/// Tokens live a second; nothing is asked for longer than that, and nobody notices.
#[tokio::test(flavor = "multi_thread")]
async fn e07_a_token_that_expires_is_got_over() {
    let store = plain_store(&["--auth-token-ttl=1"]).await;
    let root = with_passwords(&store, &narrow(&store.cluster)).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::with(|settings| {
        settings.timing = timing();
        // Nothing keeps the token alive in between.
        settings.timing.poll = Duration::from_mins(10);
    });
    rig.write("blue", &yaml(proxy.port(), "secret"));
    rig.until_state("blue", ClusterState::Synced).await;
    rig.subscriber.clear().await;
    sleep(Duration::from_secs(3)).await;
    // The watch that was open all the while.
    let put = async |n: u32, app: &str| {
        let (key, set) = (store.cluster.identity_key(store.number(n)), store.key_string(app));
        // Root's own token has expired as well.
        let put = async || as_root(&store).await.kv_client().put(key.clone(), set.clone(), None).await.is_ok();
        eventually("root writes", DEADLINE, put).await;
    };
    put(2, "b").await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b")])).await;
    // The next session.
    proxy.cut();
    put(3, "c").await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b"), (3, "c")])).await;
    // Any change of users makes every token invalid.
    as_root(&store).await.auth_client().user_add("another", "x", None).await.unwrap();
    put(4, "d").await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")])).await;
    let told = |n, app| Told::Upserted("blue".into(), store.number(n), store.key_string(app));
    assert_eq!(rig.subscriber.log().await, [told(2, "b"), told(3, "c"), told(4, "d")]);
    rig.until_state("blue", ClusterState::Synced).await;
    drop(root);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e07_a_wrong_password_is_no_loop() {
    let store = plain_store(&[]).await;
    with_passwords(&store, &narrow(&store.cluster)).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::with(|settings| {
        settings.timing = timing();
        settings.timing.etcd.denied_pause = SLOW;
    });
    rig.write("blue", &yaml(proxy.port(), "guess"));
    rig.until("blue", "is denied", denied).await;
    let tries = attempts(&proxy, SLOW * 4).await;
    assert!(tries <= 4, "{tries} attempts in four times the shortest pause");
    assert!(rig.version(2).is_none());
    rig.write("blue", &yaml(proxy.port(), "secret"));
    rig.until_shown(2, &store.contents(&[(1, "a")])).await;
    rig.stop().await;
}

/// Users by the name in the certificate, a role of exactly the ranges needed; then the widest of them is revoked.
#[tokio::test(flavor = "multi_thread")]
async fn t07_a_role_that_is_narrowed_while_connected_keeps_the_data() {
    let pki = Pki::temporary().unwrap();
    let tls = EtcdTls {
        server: pki.issue(&CertSpec::server("blue-etcd")).unwrap(),
        client: pki.issue(&CertSpec::client("blue-root").common_name("root")).unwrap(),
    };
    let options = EtcdOptions::plain("blue").with_tls(tls).in_memory();
    let store = Store { etcd: EtcdServer::start(options).await.unwrap(), cluster: Cluster::new("blue", 2) };
    store.put_app(1, "a").await;
    store.announce().await;
    let mut auth = store.etcd.client().auth_client();
    for user in ["root", "remote"] {
        auth.user_add(user, "unused", None).await.unwrap();
        auth.role_add(user).await.unwrap();
        auth.user_grant_role(user, user).await.unwrap();
    }
    for permission in narrow(&store.cluster) {
        auth.role_grant_permission("remote", permission).await.unwrap();
    }
    auth.auth_enable().await.unwrap();
    let files = pki.issue(&CertSpec::client("blue-gateway").common_name("remote")).unwrap();
    let proxy = Proxy::to(store.etcd.port()).await;
    let certs = store.etcd.client_certs().unwrap();
    let yaml = store
        .yaml_through(proxy.port())
        .replace(&certs.cert.display().to_string(), &files.cert.display().to_string())
        .replace(&certs.key.display().to_string(), &files.key.display().to_string());
    let rig = Rig::with(|settings| {
        settings.timing = timing();
        settings.timing.etcd.denied_pause = SLOW;
        settings.timing.audit_interval = Duration::from_millis(500);
    });
    rig.write("blue", &yaml);
    rig.until_state("blue", ClusterState::Synced).await;
    rig.until("blue", "is audited", |status| status.last_audit.is_some()).await;
    rig.subscriber.clear().await;

    let ids = store.cluster.identity_prefix();
    auth.role_revoke_permission(
        "remote",
        ids.clone(),
        Some(etcd_client::RoleRevokePermissionOptions::new().with_prefix()),
    )
    .await
    .unwrap();
    // An open watch is not asked again; whatever else asks for the range is.
    proxy.cut();
    rig.until("blue", "is denied", denied).await;
    let tries = attempts(&proxy, SLOW * 4).await;
    assert!(tries <= 4, "{tries} attempts in four times the shortest pause");
    assert_eq!(rig.shown(2), store.contents(&[(1, "a")]));
    assert!(rig.subscriber.log().await.is_empty(), "denied is not empty");

    store.put_app(2, "b").await;
    auth.role_grant_permission("remote", Permission::read(ids).with_prefix()).await.unwrap();
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b")])).await;
    rig.until_state("blue", ClusterState::Synced).await;
    rig.stop().await;
}
