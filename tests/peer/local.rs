//! Our own cluster: the same machinery, without anything that only a peer has.

use meshgate::identity::{ClusterId, ClusterName};
use meshgate::kvstore::ListWatchOptions;
use meshgate::mirror::{LocalCluster, LocalSettings};
use meshgate::telemetry::{ClusterState, Metrics, StatusBoard};
use meshgate::view::{Interner, View};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{Contents, DEADLINE, Store, WIDTH, timing};
use crate::support::fill::Cluster;
use crate::support::{Pki, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn the_local_cluster_is_shown_and_survives_its_etcd() {
    let pki = Pki::temporary().unwrap();
    let mut store = Store::empty(&pki, Cluster::new("us", 1)).await;
    store.put_app(1, "a").await;
    store.put(&store.cluster.identity_key(store.number(2)), "k8s:app=without-cluster-label;").await;
    store.put(&store.cluster.identity_key(2 << 16), "k8s:app=not-ours;").await;
    let id = ClusterId::new(1, WIDTH).unwrap();
    let settings = LocalSettings {
        name: ClusterName::new("us").unwrap(),
        id,
        width: WIDTH,
        etcd: store.etcd.config(),
        timing: timing().etcd,
        list_watch: ListWatchOptions::default(),
        audit_interval: meshgate::mirror::DEFAULT_AUDIT_INTERVAL,
    };
    let (view, board) = (View::new(WIDTH, id), StatusBoard::default());
    let metrics = Metrics::new(board.clone());
    let local = LocalCluster::new(settings, Interner::new(), view.clone(), board.clone(), metrics);
    let cancel = CancellationToken::new();
    let task = AbortOnDropHandle::new(tokio::spawn(local.run(cancel.clone())));
    let state = || board.snapshot()["us"].state;
    let shown = || -> Contents {
        let mesh = view.load();
        let entries = mesh.cluster(id).into_iter().flat_map(|version| version.iter());
        entries.map(|entry| (entry.number().get(), entry.key_string())).collect()
    };
    let mut expected = store.contents(&[(1, "a")]);
    expected.insert(store.number(2), "k8s:app=without-cluster-label;".into());
    eventually("synced", DEADLINE, async || state() == ClusterState::Synced).await;
    assert_eq!(shown(), expected);
    assert_eq!(board.snapshot()["us"].rejects["out-of-range"], 1);
    assert!(board.snapshot()["us"].local);

    store.etcd.kill().unwrap();
    eventually("noticed", DEADLINE, async || state() == ClusterState::Reconnecting).await;
    assert_eq!(shown(), expected, "kept");
    store.etcd.restart().await.unwrap();
    store.put_app(3, "c").await;
    expected.extend(store.contents(&[(3, "c")]));
    eventually("followed again", DEADLINE, async || shown() == expected).await;

    cancel.cancel();
    tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap();
    assert_eq!(shown(), expected, "a gateway that stops withdraws nothing");
}
