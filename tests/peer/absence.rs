//! How long a peer's absence is borne, by one clock for every cause (R14, R21).

use std::time::{Duration, SystemTime};

use etcd_client::proto::PbWatchResponse;
use meshgate::identity::{ClusterId, ClusterName};
use meshgate::kvstore::ListWatchOptions;
use meshgate::mirror::{DEFAULT_AUDIT_INTERVAL, LocalCluster, LocalSettings};
use meshgate::picture::PictureStore;
use meshgate::telemetry::{ClusterState, ClusterStatus, Metrics, StatusBoard};
use meshgate::view::{Interner, View};
use tokio_util::sync::CancellationToken;

use super::pictures::keeping;
use super::{DEADLINE, Rig, Store, Told, WIDTH, timing};
use crate::support::fake_etcd::{FakeEtcd, header, holding};
use crate::support::proxy::Proxy;
use crate::support::{Pki, eventually};

fn with_ttl(ttl: Duration) -> Rig {
    Rig::with(|settings| settings.keep.ttl = Some(ttl))
}

/// Out of step for at least that long.
fn absent_for(time: Duration) -> impl Fn(&ClusterStatus) -> bool {
    move |status| status.unavailable_since.is_some_and(|since| since.elapsed().unwrap_or_default() >= time)
}

fn is_in_step(status: &ClusterStatus) -> bool {
    status.state == ClusterState::Synced && status.unavailable_since.is_none() && !status.revoked
}

#[tokio::test(flavor = "multi_thread")]
async fn r14_a_peer_that_is_away_for_longer_than_its_time_is_withdrawn_once() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b"]).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = with_ttl(Duration::from_secs(5));
    rig.write("blue", &store.yaml_through(proxy.port()));
    rig.until("blue", "is in step", is_in_step).await;
    rig.subscriber.clear().await;

    proxy.cut_off();
    rig.until("blue", "is away for 3 s", absent_for(Duration::from_secs(3))).await;
    proxy.restore();
    rig.until("blue", "is back", is_in_step).await;
    assert!(rig.subscriber.log().await.is_empty(), "as if nothing had happened");

    proxy.cut_off();
    rig.until("blue", "is revoked", |status| status.revoked).await;
    let status = rig.status("blue").unwrap();
    assert!(absent_for(Duration::from_millis(4_900))(&status), "not before its time: {status:?}");
    rig.until("blue", "is away for 8 s", absent_for(Duration::from_secs(8))).await;
    let gone = |n| Told::Removed("blue".into(), store.number(n));
    assert_eq!(rig.subscriber.log().await, [gone(1), gone(2)], "once");
    let status = rig.status("blue").unwrap();
    assert!(status.revoked && status.identities == 0 && status.cluster_id == 0, "{status:?}");
    assert!(rig.metrics.scrape().contains("meshgate_revocations_total{cluster=\"blue\"} 1\n"));

    rig.subscriber.clear().await;
    proxy.restore();
    rig.until("blue", "is back", is_in_step).await;
    let back = |n, app| Told::Upserted("blue".into(), store.number(n), store.key_string(app));
    let mut log = rig.subscriber.log().await;
    log.sort_by_key(|told| matches!(told, Told::Upserted(_, n, _) if *n == store.number(2)));
    assert_eq!(log, [back(1, "a"), back(2, "b")]);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r14_a_peer_that_comes_and_goes_is_never_withdrawn() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b"]).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    // Three times away are longer than this, each of them is shorter.
    let rig = with_ttl(Duration::from_secs(9));
    rig.write("blue", &store.yaml_through(proxy.port()));
    rig.until("blue", "is in step", is_in_step).await;
    rig.subscriber.clear().await;
    for _ in 0..3 {
        proxy.cut_off();
        rig.until("blue", "is away for 4 s", absent_for(Duration::from_secs(4))).await;
        proxy.restore();
        rig.until("blue", "is back for 2 s", |status| {
            let since = status.since.and_then(|since| since.elapsed().ok()).unwrap_or_default();
            is_in_step(status) && since >= Duration::from_secs(2)
        })
        .await;
    }
    assert!(rig.subscriber.log().await.is_empty());
    assert!(rig.metrics.scrape().contains("meshgate_revocations_total{cluster=\"blue\"} 0\n"));
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r21_a_broken_file_is_an_absence_like_any_other() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b"]).await;
    let rig = with_ttl(Duration::from_secs(2));
    rig.write("blue", &store.yaml());
    rig.until("blue", "is in step", is_in_step).await;
    rig.subscriber.clear().await;
    rig.write("blue", "endpoints: [");
    rig.until_refused("blue", "file-malformed").await;
    let began = rig.status("blue").unwrap().unavailable_since.expect("the clock runs");
    assert_eq!(rig.shown(2).len(), 2, "what is known is kept");
    // Another cause does not begin it anew.
    rig.write("blue", "endpoints: [http://127.0.0.1:1]");
    rig.until("blue", "is another trouble", |status| {
        status.last_error.as_ref().is_some_and(|error| error.reason != "file-malformed")
    })
    .await;
    assert_eq!(rig.status("blue").unwrap().unavailable_since, Some(began));
    rig.until("blue", "is revoked", |status| status.revoked).await;
    assert_eq!(rig.status("blue").unwrap().unavailable_since, Some(began));
    assert_eq!(rig.subscriber.log().await.len(), 2);
    rig.write("blue", &store.yaml());
    rig.until("blue", "is back", is_in_step).await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r21_the_clock_goes_on_over_a_restart() {
    let (pki, state) = (Pki::temporary().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::new(&pki, "blue", 2, &["a", "b"]).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::with(keeping(state.path()));
    rig.write("blue", &store.yaml_through(proxy.port()));
    rig.until("blue", "is in step and kept", |status| is_in_step(status) && status.picture_kept.is_some()).await;
    proxy.cut_off();
    rig.until("blue", "is away for 1 s", absent_for(Duration::from_secs(1))).await;
    let began = rig.status("blue").unwrap().unavailable_since.unwrap();
    rig.stop().await;

    let with = |ttl| {
        let keep = keeping(state.path());
        let rig = Rig::with(|settings| {
            keep(settings);
            settings.keep.ttl = Some(ttl);
        });
        rig.write("blue", "endpoints: [");
        rig
    };
    let rig = with(Duration::from_hours(1));
    rig.until("blue", "is shown as it was", |status| status.stale && status.identities == 2).await;
    let goes_on = rig.status("blue").unwrap().unavailable_since.unwrap();
    let apart = began.duration_since(goes_on).unwrap_or_else(|error| error.duration());
    assert!(apart < Duration::from_millis(2), "the same moment, to the millisecond: {apart:?}");
    rig.stop().await;

    // As long as it was away in the first process alone, or a little longer: over at once, and nothing is shown.
    let rig = with(Duration::from_secs(1));
    rig.until("blue", "is revoked", |status| status.revoked).await;
    assert!(rig.subscriber.log().await.is_empty());
    eventually("the picture is gone", DEADLINE, async || !state.path().join("blue.picture").exists()).await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r14_what_was_restored_is_withdrawn_in_its_time_too() {
    let (pki, state) = (Pki::temporary().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::new(&pki, "blue", 2, &["a", "b"]).await;
    let rig = Rig::with(keeping(state.path()));
    rig.write("blue", &store.yaml());
    rig.until("blue", "is in step and kept", |status| is_in_step(status) && status.picture_kept.is_some()).await;
    rig.stop().await;
    let stopped = SystemTime::now();

    let ttl = Duration::from_secs(2);
    let keep = keeping(state.path());
    let rig = Rig::with(|settings| {
        keep(settings);
        settings.keep.ttl = Some(ttl);
    });
    rig.write("blue", "endpoints: [");
    rig.until("blue", "is stale", |status| status.stale).await;
    let began = rig.status("blue").unwrap().unavailable_since.unwrap();
    assert!(began >= stopped, "it was in step when we left");
    rig.until("blue", "is revoked", |status| status.revoked).await;
    assert!(rig.version(2).is_none() && !rig.status("blue").unwrap().stale);
    eventually("the picture is gone", DEADLINE, async || !state.path().join("blue.picture").exists()).await;
    rig.stop().await;
    drop(PictureStore::open(state.path()).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn r21_a_watch_that_ends_politely_is_no_absence() {
    const ETCD: u64 = 7;
    let key = "cilium/state/identities/v1/id/65537";
    let mut fake = FakeEtcd::start(holding(ETCD, 50, &[key])).await;
    let id = ClusterId::new(1, WIDTH).unwrap();
    let settings = LocalSettings {
        name: ClusterName::new("us").unwrap(),
        id,
        width: WIDTH,
        etcd: fake.config(),
        timing: timing().etcd,
        list_watch: ListWatchOptions::default(),
        audit_interval: DEFAULT_AUDIT_INTERVAL,
    };
    let (view, board) = (View::new(WIDTH, id), StatusBoard::default());
    let metrics = Metrics::new(board.clone());
    let local = LocalCluster::new(settings, Interner::new(), view.clone(), board.clone(), metrics);
    let stop = CancellationToken::new();
    let running = tokio::spawn(local.run(stop.clone()));
    let status = || board.snapshot().remove("us").unwrap();
    let message =
        |created| PbWatchResponse { header: header(ETCD, 50), watch_id: 3, created, ..PbWatchResponse::default() };
    let mut watch = fake.watch().await;
    watch.send(message(true)).await;
    eventually("it is in step", DEADLINE, async || is_in_step(&status())).await;
    let (since, shown) = (status().since, view.load().version());
    for _ in 0..12 {
        drop(watch);
        watch = fake.watch().await;
        assert!(is_in_step(&status()), "between two watches");
        watch.send(message(true)).await;
        // A sign of life, so that the next one is asked for at once.
        watch.send(message(false)).await;
    }
    // As many seconds of it as the entry asks for would show no more.
    assert!(is_in_step(&status()));
    assert_eq!((status().since, view.load().version()), (since, shown), "no flaps, no events");
    stop.cancel();
    running.await.unwrap();
}
