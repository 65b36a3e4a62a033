//! Sessions end and begin; what is shown changes only by what changed.

use std::sync::Arc;

use meshgate::telemetry::ClusterState;

use super::{DEADLINE, Rig, Store, Told, mount};
use crate::support::fill::Cluster;
use crate::support::proxy::Proxy;
use crate::support::{Pki, eventually};

/// What a subscriber hears of the differences between `a, b, c` and `a, c, d` of a peer.
fn b_for_d(store: &Store) -> [Told; 2] {
    let name = store.cluster.name.clone();
    [Told::Removed(name.clone(), store.number(2)), Told::Upserted(name, store.number(4), store.key_string("d"))]
}

#[tokio::test(flavor = "multi_thread")]
async fn r01_a_reconnect_drops_exactly_what_is_gone() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b", "c"]).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml_through(proxy.port()));
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b"), (3, "c")])).await;
    rig.until_state("blue", ClusterState::Synced).await;

    proxy.cut_off();
    rig.until_state("blue", ClusterState::Reconnecting).await;
    assert_eq!(rig.shown(2).len(), 3, "what is known stays");
    store.delete_app(2).await;
    store.put_app(4, "d").await;
    rig.subscriber.clear().await;
    proxy.restore();
    rig.until_shown(2, &store.contents(&[(1, "a"), (3, "c"), (4, "d")])).await;
    rig.until_state("blue", ClusterState::Synced).await;
    for told in b_for_d(&store) {
        assert!(rig.subscriber.log().await.contains(&told), "{told:?}");
    }
    assert_eq!(rig.subscriber.log().await.len(), 2, "nothing of what did not change: {:?}", rig.subscriber.log().await);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r01_the_same_if_the_history_is_compacted_meanwhile() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b", "c"]).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml_through(proxy.port()));
    rig.until_state("blue", ClusterState::Synced).await;
    proxy.cut_off();
    rig.until_state("blue", ClusterState::Reconnecting).await;
    store.delete_app(2).await;
    store.put_app(4, "d").await;
    let mut kv = store.etcd.client().kv_client();
    let revision = kv.get("x", None).await.unwrap().header().unwrap().revision();
    kv.compact(revision, None).await.unwrap();
    rig.subscriber.clear().await;
    proxy.restore();
    rig.until_shown(2, &store.contents(&[(1, "a"), (3, "c"), (4, "d")])).await;
    let mut log = rig.subscriber.log().await;
    log.sort_by_key(|told| matches!(told, Told::Upserted(..)));
    assert_eq!(log, b_for_d(&store), "one list, told as its difference");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r02_a_list_again_that_breaks_off_changes_nothing() {
    let pki = Pki::temporary().unwrap();
    // Long labels, so that the bytes of a page outweigh everything else that a session reads.
    let long = |app: &str| format!("{app}-{}", "x".repeat(10_000));
    let apps: Vec<String> = (1..=10).map(|n| long(&format!("app{n}"))).collect();
    let apps: Vec<&str> = apps.iter().map(String::as_str).collect();
    let store = Store::new(&pki, "blue", 2, &apps).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml_through(proxy.port()));
    rig.until_state("blue", ClusterState::Synced).await;
    let before = rig.version(2).unwrap();
    assert_eq!(before.len(), 10);

    proxy.cut_off();
    rig.until_state("blue", ClusterState::Reconnecting).await;
    let changed = long("changed");
    store.put_app(1, &changed).await;
    store.delete_app(10).await;
    let mut kv = store.etcd.client().kv_client();
    let revision = kv.get("x", None).await.unwrap().header().unwrap().revision();
    kv.compact(revision, None).await.unwrap();
    rig.subscriber.clear().await;
    let failures = rig.status("blue").unwrap().failures;
    // The first of five pages and some of the second: nowhere near the whole list.
    proxy.restore();
    proxy.cut_off_after(45_000);
    eventually("the cut", DEADLINE, async || proxy.is_cut_off()).await;
    rig.until("blue", "has noticed", |status| status.failures > failures && status.state == ClusterState::Reconnecting)
        .await;
    assert!(Arc::ptr_eq(&before, &rig.version(2).unwrap()), "the view is the very same");
    assert!(rig.subscriber.log().await.is_empty(), "{:?}", rig.subscriber.log().await);

    proxy.restore();
    rig.until("blue", "is synced", |status| status.state == ClusterState::Synced && status.identities == 9).await;
    let name = "blue".to_owned();
    let expected = [
        Told::Upserted(name.clone(), store.number(1), store.key_string(&changed)),
        Told::Removed(name, store.number(10)),
    ];
    assert!(rig.subscriber.log().await == expected, "exactly one change and one removal");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_list_that_breaks_off_is_withdrawn() {
    let pki = Pki::temporary().unwrap();
    let apps: Vec<String> = (1..=10).map(|n| format!("app{n}-{}", "x".repeat(10_000))).collect();
    let apps: Vec<&str> = apps.iter().map(String::as_str).collect();
    let store = Store::new(&pki, "blue", 2, &apps).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    proxy.restore();
    proxy.cut_off_after(60_000);
    let rig = Rig::start();
    rig.write("blue", &store.yaml_through(proxy.port()));
    eventually("the cut", DEADLINE, async || proxy.is_cut_off()).await;
    rig.until("blue", "has noticed", |status| status.failures > 0).await;
    eventually("the withdrawal", DEADLINE, async || rig.version(2).is_none()).await;
    assert_eq!(rig.status("blue").unwrap().identities, 0);
    proxy.restore();
    rig.until("blue", "is synced", |status| status.state == ClusterState::Synced && status.identities == 10).await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r11_an_etcd_that_starts_empty_means_nothing_until_its_canary_is_there() {
    let pki = Pki::temporary().unwrap();
    let mut store = Store::new(&pki, "blue", 2, &["a", "b", "c"]).await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml());
    rig.until_state("blue", ClusterState::Synced).await;
    let before = rig.version(2).unwrap();
    store.etcd.recreate().await.unwrap();
    store.put(&store.cluster.config_key(), store.cluster.config_json()).await;
    rig.until_state("blue", ClusterState::AwaitingCanary).await;
    assert!(Arc::ptr_eq(&before, &rig.version(2).unwrap()), "no deletes");
    rig.subscriber.clear().await;
    store.put_app(1, "a").await;
    store.put_app(3, "c").await;
    store.announce().await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (3, "c")])).await;
    assert_eq!(rig.subscriber.log().await, [Told::Removed("blue".into(), store.number(2))]);
    rig.stop().await;
}

/// A peer that has no canaries: the end of the list is all there is to go by.
#[tokio::test(flavor = "multi_thread")]
async fn r11_without_canaries_the_end_of_the_list_counts() {
    let pki = Pki::temporary().unwrap();
    let cluster = Cluster { synced_canaries: false, ..Cluster::new("blue", 2) };
    let mut store = Store::empty(&pki, cluster).await;
    let config = store.cluster.config_json();
    for (n, app) in [(1, "a"), (2, "b"), (3, "c")] {
        store.put_app(n, app).await;
    }
    store.put(&store.cluster.config_key(), config.clone()).await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml());
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b"), (3, "c")])).await;
    rig.subscriber.clear().await;
    store.etcd.recreate().await.unwrap();
    // Without its configuration it is not listed; then what is there counts.
    store.put_app(1, "a").await;
    store.put(&store.cluster.config_key(), config).await;
    rig.until_shown(2, &store.contents(&[(1, "a")])).await;
    let mut log = rig.subscriber.log().await;
    log.sort_by_key(|told| format!("{told:?}"));
    assert_eq!(log, [2, 3].map(|n| Told::Removed("blue".into(), store.number(n))));
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p10_another_address_of_the_same_store_deletes_nothing() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b", "c"]).await;
    let (one, other) = (Proxy::to(store.etcd.port()).await, Proxy::to(store.etcd.port()).await);
    let rig = Rig::start();
    mount(rig.directory.path(), 1, &[("blue", &store.yaml_through(one.port()))]);
    rig.until_state("blue", ClusterState::Synced).await;
    rig.subscriber.clear().await;
    let checksum = rig.version(2).unwrap().checksum();
    // As the kubelet swaps them, back and forth.
    for generation in 2..12 {
        let proxy = if generation % 2 == 0 { &other } else { &one };
        let taken = proxy.accepted();
        mount(rig.directory.path(), generation, &[("blue", &store.yaml_through(proxy.port()))]);
        eventually("a session by way of it", DEADLINE, async || proxy.accepted() > taken).await;
    }
    rig.until("blue", "is synced by way of the last", |status| {
        status.state == ClusterState::Synced && status.endpoint.contains(&one.port().to_string())
    })
    .await;
    assert_eq!(rig.version(2).unwrap().checksum(), checksum);
    assert!(rig.subscriber.log().await.is_empty(), "{:?}", rig.subscriber.log().await);
    store.put_app(4, "d").await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")])).await;
    rig.stop().await;
}
