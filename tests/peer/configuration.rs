//! What a peer says about itself: awaited, believed, and followed when it changes.

use std::sync::Arc;

use meshgate::telemetry::ClusterState;

use super::proxy::Proxy;
use super::{DEADLINE, Rig, Store, Told};
use crate::support::fill::{BadEntry, Cluster, HEARTBEAT_KEY};
use crate::support::{Pki, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn p04_a_missing_configuration_is_awaited() {
    let pki = Pki::temporary().unwrap();
    let store = Store::empty(&pki, Cluster::new("blue", 2)).await;
    store.put_app(1, "a").await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml());
    rig.until("blue", "waits", |status| {
        status.state == ClusterState::ReadingConfig
            && status.last_error.as_ref().is_some_and(|error| error.reason == "config-missing")
    })
    .await;
    assert!(rig.version(2).is_none());
    store.announce().await;
    rig.until_shown(2, &store.contents(&[(1, "a")])).await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p04_a_lost_or_broken_configuration_changes_nothing() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b"]).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml_through(proxy.port()));
    rig.until_state("blue", ClusterState::Synced).await;
    let before = rig.version(2).unwrap();
    rig.subscriber.clear().await;
    for (broken, reason) in [(None, "config-missing"), (Some("{"), "config-malformed")] {
        match broken {
            None => store.delete(&store.cluster.config_key()).await,
            Some(json) => store.put(&store.cluster.config_key(), json).await,
        }
        let noticed = |error: &meshgate::telemetry::LastError| error.reason == reason;
        rig.until("blue", "is concerned", |status| status.last_error.as_ref().is_some_and(noticed)).await;
        assert_eq!(rig.status("blue").unwrap().state, ClusterState::Synced, "a live session goes on");
        proxy.cut();
        proxy.restore();
        rig.until_state("blue", ClusterState::ReadingConfig).await;
        assert!(Arc::ptr_eq(&before, &rig.version(2).unwrap()), "nothing is dropped or renumbered");
        store.announce().await;
        rig.until_state("blue", ClusterState::Synced).await;
    }
    assert!(rig.subscriber.log().await.is_empty(), "{:?}", rig.subscriber.log().await);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p04_a_move_to_the_cache_has_no_net_effect() {
    let pki = Pki::temporary().unwrap();
    let mut store = Store::new(&pki, "blue", 2, &["a", "b", "c"]).await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml());
    rig.until_state("blue", ClusterState::Synced).await;
    rig.subscriber.clear().await;
    store.cluster = Cluster::new("blue", 2).cached();
    for (n, app) in [(1, "a"), (2, "b"), (3, "c")] {
        store.put_app(n, app).await;
    }
    store.announce().await;
    // Known to have moved once a change in the cache is seen.
    store.put_app(4, "d").await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")])).await;
    assert_eq!(rig.subscriber.log().await, [Told::Upserted("blue".into(), store.number(4), store.key_string("d"))]);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p04_a_changed_canary_policy_syncs_again_without_a_net_effect() {
    let pki = Pki::temporary().unwrap();
    let mut store = Store::new(&pki, "blue", 2, &["a", "b", "c"]).await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml());
    rig.until_state("blue", ClusterState::Synced).await;
    rig.subscriber.clear().await;
    for announced in [false, true] {
        let lists = |rig: &Rig| {
            let scrape = rig.metrics.scrape();
            let series = r#"meshgate_sync_duration_seconds_count{cluster="blue",kind="again"} "#;
            scrape.lines().find_map(|line| line.strip_prefix(series)).unwrap().parse::<u64>().unwrap()
        };
        let before = lists(&rig);
        store.cluster.synced_canaries = announced;
        store.announce().await;
        eventually("another list", DEADLINE, async || lists(&rig) > before).await;
        rig.until_state("blue", ClusterState::Synced).await;
    }
    assert_eq!(rig.subscriber.log().await, []);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cached_cluster_is_read_from_the_cache_of_its_name() {
    let pki = Pki::temporary().unwrap();
    let store = Store::empty(&pki, Cluster::new("blue", 2).cached()).await;
    store.put_app(1, "a").await;
    // Another cluster's cache, and the state of whoever owns the etcd: neither is blue's.
    let red = Cluster::new("red", 3).cached();
    store.put(&red.identity_key(3 << 16), "k8s:io.cilium.k8s.policy.cluster=red;").await;
    store.put(&Cluster::new("blue", 2).identity_key(store.number(2)), store.key_string("stray")).await;
    store.announce().await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml());
    rig.until_state("blue", ClusterState::Synced).await;
    assert_eq!(rig.shown(2), store.contents(&[(1, "a")]));
    assert_eq!(rig.status("blue").unwrap().rejects.len(), 0);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_is_awaited_if_it_was_announced() {
    let pki = Pki::temporary().unwrap();
    let store = Store::empty(&pki, Cluster::new("blue", 2)).await;
    store.put_app(1, "a").await;
    store.put(&store.cluster.config_key(), store.cluster.config_json()).await;
    let without = Store::empty(&pki, Cluster { synced_canaries: false, ..Cluster::new("red", 3) }).await;
    without.put_app(1, "x").await;
    without.put(&without.cluster.config_key(), without.cluster.config_json()).await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml());
    rig.write("red", &without.yaml());
    rig.until_shown(3, &without.contents(&[(1, "x")])).await;
    rig.until_state("blue", ClusterState::AwaitingCanary).await;
    rig.until("blue", "says why", |status| {
        status.last_error.as_ref().is_some_and(|error| error.reason == "canary-missing")
    })
    .await;
    assert!(rig.version(2).is_none());
    store.announce().await;
    rig.until_shown(2, &store.contents(&[(1, "a")])).await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_entries_are_counted_shown_and_harm_nothing() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml());
    rig.until_state("blue", ClusterState::Synced).await;
    for (bad, n) in BadEntry::ALL.into_iter().zip(100..) {
        let (key, value) = bad.entry(&store.cluster, store.number(n));
        store.put(&key, value).await;
    }
    store.put_app(2, "b").await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b")])).await;
    let status = rig.status("blue").unwrap();
    let counted: u64 = status.rejects.values().sum();
    assert_eq!(counted, BadEntry::ALL.len() as u64, "{:?}", status.rejects);
    assert!(!status.reject_examples.is_empty() && status.reject_examples.len() <= 5);
    let scrape = rig.metrics.scrape();
    for (reason, count) in status.rejects {
        let line = format!(r#"meshgate_rejects_total{{cluster="blue",reason="{reason}"}} {count}"#);
        assert!(scrape.contains(&line), "no {line}");
    }
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_metrics_tell_where_a_peer_stands() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b", "c"]).await;
    store.put(HEARTBEAT_KEY, "2026-11-30T21:37:03Z").await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml());
    rig.until("blue", "has a heartbeat", |status| status.last_heartbeat.is_some()).await;
    rig.until_state("blue", ClusterState::Synced).await;
    let status = rig.status("blue").unwrap();
    let version = rig.version(2).unwrap();
    assert_eq!((status.cluster_id, status.identities, status.checksum), (2, 3, version.checksum()));
    assert_eq!(status.etcd_cluster_id, version.position().unwrap().etcd_cluster_id);
    assert!(status.synced_once && !status.local && status.revision > 0);
    assert!(status.endpoint.contains(&store.etcd.port().to_string()));
    assert_eq!(humantime::format_rfc3339_seconds(status.last_heartbeat.unwrap()).to_string(), "2026-11-30T21:37:03Z");
    store.put_app(4, "d").await;
    rig.until("blue", "has an event", |status| status.last_event.is_some()).await;
    let scrape = rig.metrics.scrape();
    for line in [
        r#"meshgate_peers{state="synced"} 1"#,
        r#"meshgate_identities{cluster="blue"} 4"#,
        r#"meshgate_events_total{cluster="blue",kind="upsert"} 4"#,
        r#"meshgate_sync_duration_seconds_count{cluster="blue",kind="first"} 1"#,
    ] {
        assert!(scrape.contains(line), "no {line} in\n{scrape}");
    }
    rig.stop().await;
}
