//! Starting, killing, stopping, restarting.

use std::path::PathBuf;
use std::time::Duration;

use etcd_client::Client;
use tokio::time::timeout;

use crate::support::etcd::EtcdTls;
use crate::support::{EtcdCluster, EtcdOptions, EtcdServer, Pki, eventually};

const SOON: Duration = Duration::from_secs(20);

async fn value(client: &Client, key: &str) -> Option<Vec<u8>> {
    let answer = timeout(Duration::from_secs(2), client.kv_client().get(key, None)).await.ok()?.ok()?;
    answer.kvs().first().map(|kv| kv.value().to_vec())
}

async fn cluster_id(client: &Client) -> u64 {
    client.kv_client().get("x", None).await.unwrap().header().unwrap().cluster_id()
}

#[tokio::test]
async fn serves_over_mtls_and_refuses_strangers() {
    let pki = Pki::temporary().unwrap();
    let etcd = EtcdServer::start(EtcdOptions::mtls("alpha", &pki).unwrap()).await.unwrap();
    let client = etcd.client();
    client.kv_client().put("k", "v", None).await.unwrap();
    assert_eq!(value(&client, "k").await.unwrap(), b"v");
    assert!(etcd.client_url().starts_with("https://127.0.0.1:"));

    // A plain client, and one whose certificate another CA signed.
    let plain = Client::connect([format!("http://127.0.0.1:{}", etcd.port())], None).await.unwrap();
    assert_eq!(value(&plain, "k").await, None);
    let strangers = Pki::temporary().unwrap();
    let stranger = EtcdOptions::mtls("stranger", &strangers).unwrap();
    let beta = EtcdOptions::mtls("beta", &pki).unwrap();
    let tls = EtcdTls { client: stranger.tls().unwrap().client.clone(), ..beta.tls().unwrap().clone() };
    let other = EtcdServer::start(beta.with_tls(tls));
    assert!(timeout(Duration::from_millis(500), other).await.is_err(), "it let a stranger in");

    let other = EtcdServer::start(EtcdOptions::mtls("gamma", &pki).unwrap()).await.unwrap();
    assert_ne!(cluster_id(&other.client()).await, cluster_id(&client).await, "two etcds are two clusters");
}

#[tokio::test]
async fn keeps_data_over_a_restart_and_loses_them_when_recreated() {
    let mut etcd = EtcdServer::start(EtcdOptions::plain("alpha").in_memory()).await.unwrap();
    let client = etcd.client();
    client.kv_client().put("k", "v", None).await.unwrap();
    let (url, id) = (etcd.client_url(), cluster_id(&client).await);

    etcd.kill().unwrap();
    assert_eq!(value(&client, "k").await, None);
    etcd.restart().await.unwrap();
    assert_eq!(value(&client, "k").await.unwrap(), b"v", "the same client, without another dial by the caller");
    assert_eq!(cluster_id(&client).await, id);

    etcd.recreate().await.unwrap();
    assert_eq!(value(&client, "k").await, None);
    assert_ne!(cluster_id(&client).await, id);
    assert_eq!(etcd.client_url(), url);
}

#[tokio::test]
async fn a_stopped_one_is_silent_until_it_goes_on() {
    let mut etcd = EtcdServer::start(EtcdOptions::plain("alpha")).await.unwrap();
    let client = etcd.client();
    client.kv_client().put("k", "v", None).await.unwrap();
    etcd.stop().unwrap();
    // On a busy machine its threads stop some moments after the signal, so a first answer may still come.
    let is_silent = || async { timeout(Duration::from_millis(300), client.kv_client().get("k", None)).await.is_err() };
    eventually("it falls silent", SOON, is_silent).await;
    etcd.cont().unwrap();
    eventually("it answers again", SOON, || async { value(&client, "k").await.is_some() }).await;
}

#[tokio::test]
async fn leaves_neither_process_nor_files() {
    let base = tempfile::tempdir().unwrap();
    let mut etcd = EtcdServer::start(EtcdOptions::plain("alpha").data_in(base.path())).await.unwrap();
    let proc = PathBuf::from(format!("/proc/{}", etcd.pid().unwrap()));
    assert!(proc.exists());
    // The hardest case: a stopped process does not die of a SIGTERM.
    etcd.stop().unwrap();
    drop(etcd);
    assert!(!proc.exists());
    assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn says_what_etcd_said_when_it_does_not_start() {
    let refused =
        EtcdServer::start(EtcdOptions::plain("alpha").args(["--election-timeout=1"])).await.unwrap_err().to_string();
    assert!(refused.contains("election-timeout"), "{refused}");
}

#[tokio::test]
async fn a_cluster_survives_the_loss_of_a_member() {
    let mut cluster = EtcdCluster::start(3, &EtcdOptions::plain("mesh").in_memory()).await.unwrap();
    let client = cluster.members()[1].client();
    client.kv_client().put("k", "v", None).await.unwrap();
    assert_eq!(cluster.config().endpoints.len(), 3);
    cluster.member(0).kill().unwrap();
    eventually("the others go on", SOON, || async { value(&client, "k").await.is_some() }).await;
    cluster.member(0).restart().await.unwrap();
    assert_eq!(value(&cluster.members()[0].client(), "k").await.unwrap(), b"v");
}
