//! Pictures on disk: a restart loses nothing, and says nothing that is not so (M7).

use std::path::Path;
use std::time::Duration;

use meshgate::peer::{KeepSettings, PeerSettings};
use meshgate::picture::PictureStore;
use meshgate::telemetry::{ClusterState, ClusterStatus};
use tempfile::TempDir;

use super::{DEADLINE, Rig, Store, Told, WIDTH, assert_same};
use crate::support::proxy::Proxy;
use crate::support::{Pki, eventually};

/// Pictures in that directory, kept soon after every change.
pub(super) fn keeping(directory: &Path) -> impl FnOnce(&mut PeerSettings) {
    let store = PictureStore::open(directory).unwrap();
    move |settings| {
        settings.keep =
            KeepSettings { store: Some(store), interval: Duration::from_millis(50), ..settings.keep.clone() };
    }
}

/// A process that has synced the peer and kept its picture.
async fn kept(directory: &Path, store: &Store) {
    let rig = Rig::with(keeping(directory));
    rig.write(&store.cluster.name, &store.yaml());
    rig.until_state(&store.cluster.name, ClusterState::Synced).await;
    rig.until(&store.cluster.name, "is kept", |status| status.picture_kept.is_some()).await;
    rig.stop().await;
}

fn file(directory: &Path) -> std::path::PathBuf {
    directory.join("blue.picture")
}

fn is_in_step(status: &ClusterStatus) -> bool {
    status.state == ClusterState::Synced && !status.stale && status.unavailable_since.is_none()
}

fn sample(rig: &Rig, series: &str) -> Option<String> {
    let scrape = rig.metrics.scrape();
    scrape.lines().find_map(|line| Some(line.strip_prefix(series)?.trim().to_owned()))
}

/// A peer that is away, shown as it was; then it is back, with `change` made meanwhile.
async fn restart(store: &Store, change: impl AsyncFnOnce(&Store)) -> (Rig, (Proxy, TempDir), Vec<Told>) {
    let state = tempfile::tempdir().unwrap();
    kept(state.path(), store).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    proxy.cut_off();
    let rig = Rig::with(keeping(state.path()));
    rig.write("blue", &store.yaml_through(proxy.port()));
    let before = store.contents(&[(1, "a"), (2, "b"), (3, "c")]);
    rig.until_shown(2, &before).await;
    rig.until("blue", "is stale, and says why", |status| {
        status.stale && status.last_error.is_some() && status.state == ClusterState::Connecting
    })
    .await;
    let status = rig.status("blue").unwrap();
    assert!(!status.synced_once && status.unavailable_since.is_some() && status.cluster_id == 2, "{status:?}");
    assert!(rig.version(2).unwrap().is_stale());
    assert_eq!(sample(&rig, r#"meshgate_cluster_stale{cluster="blue"}"#).unwrap(), "1");
    assert_eq!(sample(&rig, r#"meshgate_pictures_total{cluster="blue",result="restored"}"#).unwrap(), "1");
    rig.subscriber.clear().await;

    change(store).await;
    proxy.restore();
    rig.until("blue", "is in step", is_in_step).await;
    assert!(!rig.version(2).unwrap().is_stale());
    let log = rig.subscriber.log().await;
    (rig, (proxy, state), log)
}

fn lists(rig: &Rig) -> Option<String> {
    sample(rig, r#"meshgate_sync_duration_seconds_count{cluster="blue",kind="again"}"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn m07_a_dead_peer_is_shown_as_it_was_and_its_return_is_exactly_the_difference() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b", "c"]).await;
    let (rig, _around, log) = restart(&store, async |store| {
        store.delete_app(2).await;
        store.put_app(1, "other").await;
        store.put_app(1, "a").await;
        store.put_app(3, "changed").await;
    })
    .await;
    let (name, key_string) = ("blue".to_owned(), store.key_string("changed"));
    let expected = [Told::Removed(name.clone(), store.number(2)), Told::Upserted(name, store.number(3), key_string)];
    assert_same("the difference", &log, &expected.to_vec());
    assert_eq!(lists(&rig).unwrap(), "0", "the watch went on where the picture was");
    eventually("the audit of what was kept", DEADLINE, async || {
        sample(&rig, r#"meshgate_audits_total{cluster="blue",result="clean"}"#).is_some_and(|clean| clean != "0")
    })
    .await;
    assert_eq!(rig.status("blue").unwrap().audit_repairs, 0);
    store.put_app(4, "d").await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (3, "changed"), (4, "d")])).await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m07_the_same_by_a_list_if_the_history_is_compacted() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b", "c"]).await;
    let (rig, _around, log) = restart(&store, async |store| {
        store.delete_app(2).await;
        store.put_app(3, "changed").await;
        let mut kv = store.etcd.client().kv_client();
        let revision = kv.get("x", None).await.unwrap().header().unwrap().revision();
        kv.compact(revision, None).await.unwrap();
    })
    .await;
    let (name, key_string) = ("blue".to_owned(), store.key_string("changed"));
    let expected = [Told::Removed(name.clone(), store.number(2)), Told::Upserted(name, store.number(3), key_string)];
    assert_same("the difference", &log, &expected.to_vec());
    assert_eq!(lists(&rig).unwrap(), "1");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m07_a_peer_that_did_not_change_is_confirmed_without_a_word() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b", "c"]).await;
    let (rig, _around, log) = restart(&store, async |_| ()).await;
    assert!(log.is_empty(), "{log:?}");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m07_a_process_that_is_killed_leaves_the_last_picture() {
    let (pki, state) = (Pki::temporary().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::new(&pki, "blue", 2, &["a", "b", "c"]).await;
    let rig = Rig::with(keeping(state.path()));
    rig.write("blue", &store.yaml());
    rig.until_state("blue", ClusterState::Synced).await;
    store.put_app(4, "d").await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")])).await;
    eventually("all four are kept", DEADLINE, async || {
        let bytes = std::fs::read(file(state.path())).unwrap_or_default();
        bytes.windows(9).any(|window| window == b"k8s:app=d")
    })
    .await;
    // No goodbye; and the next write was cut short.
    drop(rig);
    let torn = state.path().join(".blue.picture.new");
    std::fs::write(&torn, [0; 7]).unwrap();
    let proxy = Proxy::to(store.etcd.port()).await;
    proxy.cut_off();
    let free = || PictureStore::open(state.path());
    eventually("the directory is free again", DEADLINE, async || free().is_ok()).await;
    assert!(!torn.exists());
    let rig = Rig::with(keeping(state.path()));
    rig.write("blue", &store.yaml_through(proxy.port()));
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")])).await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m07_a_damaged_or_foreign_picture_is_set_aside_and_reported() {
    let (pki, state) = (Pki::temporary().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::new(&pki, "blue", 2, &["a", "b", "c"]).await;
    kept(state.path(), &store).await;
    let whole = std::fs::read(file(state.path())).unwrap();
    // The last byte of the format's version, and one in the middle.
    for at in [11, whole.len() / 2] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(file(state.path()), &damaged).unwrap();
        let proxy = Proxy::to(store.etcd.port()).await;
        proxy.cut_off();
        let rig = Rig::with(keeping(state.path()));
        rig.write("blue", &store.yaml_through(proxy.port()));
        rig.until("blue", "says so", |status| {
            status.picture_trouble.as_ref().is_some_and(|trouble| trouble.contains("set aside as"))
        })
        .await;
        assert!(rig.version(2).is_none() && !rig.status("blue").unwrap().stale);
        assert_eq!(std::fs::read(state.path().join("blue.picture.damaged-1")).unwrap(), damaged);
        assert_eq!(sample(&rig, r#"meshgate_pictures_total{cluster="blue",result="damaged"}"#).unwrap(), "1");
        proxy.restore();
        rig.until("blue", "is in step and kept anew", |status| is_in_step(status) && status.picture_kept.is_some())
            .await;
        assert_eq!(rig.status("blue").unwrap().picture_trouble, None);
        rig.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_is_removed_leaves_no_picture() {
    let (pki, state) = (Pki::temporary().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    let rig = Rig::with(keeping(state.path()));
    rig.write("blue", &store.yaml());
    rig.until("blue", "is kept", |status| status.picture_kept.is_some()).await;
    assert!(file(state.path()).exists());
    rig.remove("blue");
    eventually("all of it is gone", DEADLINE, async || rig.status("blue").is_none()).await;
    assert!(!file(state.path()).exists());
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_that_no_file_names_goes_after_a_while() {
    let (pki, state) = (Pki::temporary().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    kept(state.path(), &store).await;
    let red = Store::new(&pki, "red", 3, &["b"]).await;
    kept(state.path(), &red).await;
    let keep = keeping(state.path());
    let rig = Rig::with(|settings| {
        keep(settings);
        settings.keep.orphans_after = Duration::from_millis(500);
    });
    rig.write("red", &red.yaml());
    eventually("the orphan is gone", DEADLINE, async || !file(state.path()).exists()).await;
    assert!(state.path().join("red.picture").exists());
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m07_a_picture_is_not_shown_under_an_id_that_is_not_to_be_had() {
    let (pki, state) = (Pki::temporary().unwrap(), tempfile::tempdir().unwrap());
    let mut store = Store::new(&pki, "blue", 2, &["a"]).await;
    kept(state.path(), &store).await;
    let refused = |status: &ClusterStatus| {
        status.picture_trouble.as_ref().is_some_and(|trouble| trouble.contains("cluster ID 2")) && !status.stale
    };
    // Ours by now.
    let keep = keeping(state.path());
    let rig = Rig::with(|settings| {
        keep(settings);
        settings.us.id = meshgate::identity::ClusterId::new(2, WIDTH).unwrap();
    });
    rig.write("blue", "endpoints: [");
    rig.until("blue", "is not shown", refused).await;
    assert!(rig.version(2).is_none());
    rig.stop().await;
    assert!(file(state.path()).exists(), "a wrong setting destroys nothing");

    // Another peer's by now.
    let red = Store::new(&pki, "red", 2, &["x"]).await;
    let rig = Rig::with(keeping(state.path()));
    rig.write("red", &red.yaml());
    rig.until_state("red", ClusterState::Synced).await;
    rig.write("blue", "endpoints: [");
    rig.until("blue", "is not shown", refused).await;
    assert_eq!(rig.shown(2), red.contents(&[(1, "x")]));
    rig.stop().await;
    std::fs::remove_file(state.path().join("red.picture")).unwrap();

    // The peer itself has another one by now: the old entries go before the new ones come.
    store.delete_app(1).await;
    store.cluster = crate::support::fill::Cluster::new("blue", 3);
    store.put_app(1, "new").await;
    store.announce().await;
    let rig = Rig::with(keeping(state.path()));
    rig.write("blue", &store.yaml());
    rig.until_shown(3, &store.contents(&[(1, "new")])).await;
    rig.until("blue", "is in step", is_in_step).await;
    let log = rig.subscriber.log().await;
    assert!(matches!(&log[..], [Told::Upserted(..), Told::Removed(..), Told::Upserted(..)]), "{log:?}");
    rig.stop().await;
}
