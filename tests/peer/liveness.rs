//! A peer that is connected is not yet alive, what is held is not yet right, and a session that works is not for ever.

use std::time::{Duration, SystemTime};

use meshgate::telemetry::{ClusterState, ClusterStatus};

use super::{Rig, Store};
use crate::support::fill::Cluster;
use crate::support::proxy::Proxy;
use crate::support::{CertFiles, CertSpec, EtcdServer, Pki};

const HEARTBEAT: &str = "cilium/.heartbeat";

async fn beat(store: &Store, n: u32) {
    store.put(HEARTBEAT, format!("2026-12-01T00:00:{:02}Z", n % 60)).await;
}

/// Frozen, with everything else in order (E4, M4).
#[tokio::test(flavor = "multi_thread")]
async fn e04_a_store_whose_heartbeat_stands_still_is_degraded_and_kept() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b"]).await;
    beat(&store, 1).await;
    let rig = Rig::with(|settings| settings.timing.heartbeat_timeout = Duration::from_millis(700));
    rig.write("blue", &store.yaml());
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b")])).await;
    rig.until("blue", "is noticed", |status| {
        status.last_error.as_ref().is_some_and(|error| error.reason == "heartbeat-stale")
    })
    .await;
    rig.until("blue", "is degraded on a new session", |status| {
        status.state == ClusterState::Degraded && status.session >= 2
    })
    .await;
    rig.subscriber.clear().await;
    // What does come is not ignored, and nothing is dropped.
    store.put_app(3, "c").await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b"), (3, "c")])).await;
    rig.until("blue", "is tried again", |status| status.session >= 3).await;
    assert!(rig.status("blue").unwrap().session < 6, "with growing pauses");
    beat(&store, 2).await;
    rig.until_state("blue", ClusterState::Synced).await;
    assert_eq!(rig.subscriber.log().await.len(), 1, "{:?}", rig.subscriber.log().await);
    rig.stop().await;
}

/// A configuration is watched: a change is seen at once, however rarely anything is polled (P4).
#[tokio::test(flavor = "multi_thread")]
async fn p04_the_configuration_is_watched() {
    let pki = Pki::temporary().unwrap();
    let store = Store::empty(&pki, Cluster::new("blue", 2)).await;
    let rig = Rig::with(|settings| settings.timing.poll = Duration::from_hours(1));
    rig.write("blue", &store.yaml());
    rig.until("blue", "waits for the configuration", |status| {
        status.last_error.as_ref().is_some_and(|error| error.reason == "config-missing")
    })
    .await;
    store.put_app(1, "a").await;
    store.put(&store.cluster.config_key(), store.cluster.config_json()).await;
    rig.until_state("blue", ClusterState::AwaitingCanary).await;
    store.announce().await;
    rig.until_state("blue", ClusterState::Synced).await;
    let other = Cluster::new("blue", 3);
    store.put(&store.cluster.config_key(), other.config_json()).await;
    rig.until("blue", "moves to its new ID", |status| status.cluster_id == 3).await;
    assert!(rig.version(2).is_none(), "drained");
    assert_eq!(rig.status("blue").unwrap().session, 1, "all of it on one session");
    rig.stop().await;
}

fn before(rig: &Rig) -> ClusterStatus {
    rig.status("blue").unwrap()
}

/// The state of before, without interruption, on another session.
async fn until_exchanged(rig: &Rig, before: &ClusterStatus) {
    rig.until("blue", "is on another session", |status| status.session > before.session && status.stage == "watch")
        .await;
    let after = rig.status("blue").unwrap();
    assert_eq!((after.state, after.since), (before.state, before.since), "{after:#?}");
    assert_eq!(after.failures, before.failures, "{after:#?}");
}

/// Another way to the same store: the new session stands before the old one is left (P10).
#[tokio::test(flavor = "multi_thread")]
async fn p10_a_changed_file_interrupts_nothing() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b"]).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml());
    rig.until_state("blue", ClusterState::Synced).await;
    let synced = before(&rig);
    rig.subscriber.clear().await;
    rig.write("blue", &store.yaml_through(proxy.port()));
    until_exchanged(&rig, &synced).await;

    // A file that leads nowhere takes over only when the old session has had its time; one that is mended never does.
    let synced = before(&rig);
    rig.write("blue", &store.yaml_through(1));
    rig.until("blue", "fails beside", |status| status.failures > synced.failures).await;
    assert_eq!(before(&rig).since, synced.since, "and goes on meanwhile: {:#?}", before(&rig));
    store.put_app(3, "c").await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b"), (3, "c")])).await;
    rig.write("blue", &store.yaml());
    rig.until("blue", "is on a third session", |status| status.session == 3 && status.stage == "watch").await;
    assert_eq!(before(&rig).since, synced.since);
    assert_eq!(rig.subscriber.log().await.len(), 1);
    rig.stop().await;
}

/// A certificate that lives for some seconds from now on.
fn short_lived(pki: &Pki, seconds: u64) -> CertFiles {
    let now = SystemTime::now();
    let spec = CertSpec::client("meshgate");
    pki.issue(&spec.not_before(now - Duration::from_secs(1)).not_after(now + Duration::from_secs(seconds))).unwrap()
}

fn yaml(etcd: &EtcdServer, files: &CertFiles) -> String {
    let CertFiles { cert, key, ca, .. } = files;
    let (cert, key, ca) = (cert.display(), key.display(), ca.display());
    format!("endpoints: ['{}']\ntrusted-ca-file: {ca}\ncert-file: {cert}\nkey-file: {key}\n", etcd.client_url())
}

/// Rotated in time, presented in time, and nobody notices (T1c).
#[tokio::test(flavor = "multi_thread")]
async fn t01_a_connection_is_renewed_ahead_of_its_certificate_s_end() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    let first = short_lived(&pki, 6);
    // The directory is not looked at again: the connection has to see to it by itself.
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("blue"), yaml(&store.etcd, &first)).unwrap();
    let rig = Rig::over(directory, |settings| settings.rescan = Duration::from_hours(1));
    rig.until_state("blue", ClusterState::Synced).await;
    let synced = before(&rig);
    let ends = synced.certificate_expires.expect("it is told");
    rig.subscriber.clear().await;
    rig.until("blue", "warns", |status| {
        status.last_error.as_ref().is_some_and(|error| error.reason == "certificate-expiring")
    })
    .await;
    let warned = before(&rig);
    assert!(SystemTime::now() < ends, "ahead of it");
    short_lived(&pki, 3600);
    until_exchanged(&rig, &warned).await;
    assert!(SystemTime::now() < ends, "ahead of its end");
    assert!(before(&rig).certificate_expires.unwrap() > ends);
    store.put_app(2, "b").await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b")])).await;
    assert_eq!(rig.subscriber.log().await.len(), 1);
    rig.stop().await;
}
