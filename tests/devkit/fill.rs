//! What the devkit writes is byte for byte what a real Cilium wrote (`tests/golden/`), and its model of a store is true.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use meshgate::identity::MaxConnectedClusters;

use crate::support::fill::{
    BadEntry, Churn, Cluster, Contents, FillOptions, HEARTBEAT_KEY, LabelMix, Presence, fill, load, valid_contents,
};
use crate::support::{EtcdOptions, EtcdServer, eventually};

/// Key, value, and the TTL of the lease where there is one.
fn golden(file: &str) -> BTreeMap<String, (String, Option<u64>)> {
    let text = std::fs::read_to_string(format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let dump: serde_json::Value = serde_json::from_str(&text).unwrap();
    let text = |entry: &serde_json::Value, field| entry[field].as_str().unwrap().to_owned();
    (dump["entries"].as_array().unwrap().iter())
        .map(|entry| (text(entry, "key"), (text(entry, "value"), entry["lease_ttl"].as_u64())))
        .collect()
}

async fn plain(name: &str) -> (EtcdServer, Client) {
    let etcd = EtcdServer::start(EtcdOptions::plain(name).in_memory()).await.unwrap();
    let client = etcd.client();
    (etcd, client)
}

async fn dump(client: &Client) -> BTreeMap<String, (String, i64)> {
    let all = client.kv_client().get("cilium/", Some(GetOptions::new().with_prefix())).await.unwrap();
    let mut entries = BTreeMap::new();
    for kv in all.kvs() {
        let ttl = if kv.lease() == 0 {
            0
        } else {
            client.lease_client().time_to_live(kv.lease(), None).await.unwrap().granted_ttl()
        };
        entries.insert(kv.key_str().unwrap().to_owned(), (kv.value_str().unwrap().to_owned(), ttl));
    }
    entries
}

#[test]
fn cluster_configurations_are_ciliums() {
    let golden = golden("etcd_mesh.json");
    let mut mirrored = Cluster::new("cfg-cached", 9).cached();
    mirrored.width = MaxConnectedClusters::C511;
    mirrored.service_exports = Some(false);
    let mut old = Cluster::new("cfg-noexports", 300);
    old.width = MaxConnectedClusters::C511;
    old.service_exports = None;
    for cluster in [Cluster::new("cluster-a", 5), mirrored, old] {
        assert_eq!(cluster.config_json(), golden[&cluster.config_key()].0);
    }
    let mirror = Cluster::new("cluster-a", 5).cached();
    assert_eq!(mirror.config_json(), self::golden("etcd_kvstoremesh_cache.json")[&mirror.config_key()].0);
}

#[test]
fn keys_are_ciliums() {
    for (file, cluster) in [
        ("etcd_mesh.json", Cluster::new("cluster-a", 5)),
        ("etcd_kvstoremesh_cache.json", Cluster::new("cluster-a", 5).cached()),
    ] {
        let golden = golden(file);
        let synced = golden.keys().filter(|key| key.starts_with("cilium/synced/cluster-a/"));
        assert!(cluster.canary_keys().eq(synced.cloned()), "{file}");
        assert!(golden.contains_key(&cluster.canary_key()), "{file}");
        assert!(golden.contains_key(&cluster.identity_key(340_446)), "{file}");
    }
    let golden = golden("etcd_mesh.json");
    let cluster = Cluster::new("cluster-a", 5);
    let (set, _) = &golden[&cluster.identity_key(340_446)];
    assert_eq!(golden[&cluster.reference_key(set, "10.1.0.11")].0, "340446");
}

#[tokio::test]
async fn a_filled_store_looks_like_a_clusters() {
    let (_etcd, client) = plain("a").await;
    let cluster = Cluster::new("cluster-a", 5);
    let mut presence = Presence::announce(client.clone(), cluster.clone()).await.unwrap();
    let options = FillOptions {
        count: 250,
        nodes: vec!["10.1.0.11".to_owned(), "10.1.0.12".to_owned()],
        reference_lease: presence.lease(),
        ..FillOptions::default()
    };
    let contents = fill(&client, &cluster, &LabelMix::new("cluster-a", 1), &options).await.unwrap();
    assert!(!dump(&client).await.contains_key(&cluster.canary_key()), "the canary comes when all is there");
    presence.complete().await.unwrap();
    presence.renew().await.unwrap();

    let (ours, ciliums) = (dump(&client).await, golden("etcd_mesh.json"));
    for key in cluster.canary_keys().chain([HEARTBEAT_KEY.to_owned(), cluster.config_key()]) {
        let ((value, ttl), (theirs, their_ttl)) = (&ours[&key], &ciliums[&key]);
        assert_eq!(*ttl, their_ttl.map_or(0, u64::cast_signed), "{key}");
        assert_eq!(value.len(), theirs.len(), "{key}: {value}");
    }
    humantime::parse_rfc3339(&ours[HEARTBEAT_KEY].0).unwrap();
    assert_eq!(ours.len(), 2 + 5 + 250 * 3);
    assert_eq!(valid_contents(&client, &cluster).await.unwrap(), contents);
    let (number, set) = contents.first_key_value().unwrap();
    assert_eq!(ours[&cluster.identity_key(*number)], (set.clone(), 0));
    assert_eq!(ours[&cluster.reference_key(set, "10.1.0.12")], (number.to_string(), 900));
}

#[tokio::test]
async fn reads_more_than_a_page_and_leaves_out_what_is_invalid() {
    let (_etcd, client) = plain("a").await;
    let cluster = Cluster::new("cluster-a", 5).cached();
    let options = FillOptions { count: 9_000, ..FillOptions::default() };
    let mut contents = fill(&client, &cluster, &LabelMix::new("cluster-a", 1), &options).await.unwrap();
    assert_eq!(valid_contents(&client, &cluster).await.unwrap(), contents);

    let numbers: Vec<u32> = contents.keys().copied().step_by(1000).collect();
    let bad: Vec<_> = BadEntry::ALL.iter().zip(&numbers).map(|(bad, &number)| bad.entry(&cluster, number)).collect();
    for (key, _) in &bad {
        contents.retain(|&number, _| cluster.identity_key(number) != *key);
    }
    load(&client, bad, 0).await.unwrap();
    assert_eq!(valid_contents(&client, &cluster).await.unwrap(), contents);
}

#[tokio::test]
async fn the_model_of_a_churn_is_true_even_over_a_restart() {
    let (mut etcd, client) = plain("a").await;
    let (cluster, mix) = (Cluster::new("cluster-a", 5), LabelMix::new("cluster-a", 1));
    let options = FillOptions { count: 100, ..FillOptions::default() };
    let contents = fill(&client, &cluster, &mix, &options).await.unwrap();
    let churn = Churn::new(cluster.clone(), mix, contents.clone(), 42).with_bad_entries(100);
    let running = churn.start(client.clone(), 1000);
    let revision = async || client.kv_client().get("x", None).await.map_or(0, |got| got.header().unwrap().revision());
    eventually("some changes", Duration::from_secs(20), || async { revision().await > 300 }).await;
    etcd.restart().await.unwrap();
    eventually("more changes", Duration::from_secs(20), || async { revision().await > 600 }).await;
    let churn = running.stop().await.unwrap();
    assert!(churn.changes() > 500);
    assert_ne!(churn.contents(), &contents);
    assert!((70..=130).contains(&churn.contents().len()), "{}", churn.contents().len());
    assert_eq!(&valid_contents(&client, &cluster).await.unwrap(), churn.contents());
}

#[tokio::test]
async fn a_churn_is_reproducible() {
    let (mut etcd, client) = plain("a").await;
    let (cluster, mix) = (Cluster::new("cluster-a", 5), LabelMix::new("cluster-a", 1));
    let mut results: Vec<Contents> = Vec::new();
    for _ in 0..2 {
        let mut churn = Churn::new(cluster.clone(), mix.clone(), Contents::new(), 42);
        for _ in 0..100 {
            churn.step(&client).await.unwrap();
        }
        results.push(churn.contents().clone());
        etcd.recreate().await.unwrap();
    }
    assert_eq!(results[0], results[1]);
}
