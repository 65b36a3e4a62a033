//! Replicas of a peer's store that are etcds of their own, behind one address.

use std::sync::{Arc, Mutex};

use meshgate::telemetry::ClusterState;
use tokio_util::task::AbortOnDropHandle;

use crate::peer::{Contents, DEADLINE, Rig, Store, Told};
use crate::support::proxy::Proxy;
use crate::support::{Pki, eventually};

/// Every version of a cluster that is shown, from when it is complete.
struct Versions {
    seen: Arc<Mutex<Vec<Contents>>>,
    _task: AbortOnDropHandle<()>,
}

impl Versions {
    fn of(rig: &Rig, id: u16) -> Self {
        let seen: Arc<Mutex<Vec<Contents>>> = Arc::default();
        let (view, log) = (rig.view.clone(), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            let mut changes = view.changes();
            loop {
                changes.mark_unchanged();
                let mesh = view.load();
                let shown = mesh.clusters().find(|cluster| cluster.id().get() == id);
                let entries = shown.into_iter().flat_map(|cluster| cluster.iter());
                log.lock().unwrap().push(entries.map(|entry| (entry.number().get(), entry.key_string())).collect());
                if changes.changed().await.is_err() {
                    return;
                }
            }
        });
        Self { seen, _task: AbortOnDropHandle::new(task) }
    }

    fn seen(&self) -> Vec<Contents> {
        self.seen.lock().unwrap().clone()
    }
}

/// Two stores of one cluster: numbers 1 to 3 in the one, 2 to 4 in the other, 3 with other labels.
async fn replicas(pki: &Pki) -> (Store, Store, Contents, Contents) {
    let one = Store::new(pki, "blue", 2, &["a", "b", "c"]).await;
    let other = Store::new(pki, "blue", 2, &[]).await;
    for (n, app) in [(2, "b"), (3, "changed"), (4, "d")] {
        other.put_app(n, app).await;
    }
    // Far ahead, so that a revision of the one means something in the other.
    for _ in 0..200 {
        other.put("elsewhere", "x").await;
    }
    let here = one.contents(&[(1, "a"), (2, "b"), (3, "c")]);
    let there = other.contents(&[(2, "b"), (3, "changed"), (4, "d")]);
    (one, other, here, there)
}

#[tokio::test(flavor = "multi_thread")]
async fn r05_a_switch_to_another_replica_is_told_as_its_difference_and_shown() {
    let pki = Pki::temporary().unwrap();
    let (one, other, here, there) = replicas(&pki).await;
    let proxy = Proxy::to(one.etcd.port()).await;
    let rig = Rig::start();
    rig.write("blue", &one.yaml_through(proxy.port()));
    rig.until_state("blue", ClusterState::Synced).await;
    let first = rig.status("blue").unwrap().etcd_cluster_id;
    let versions = Versions::of(&rig, 2);
    for round in 0..4 {
        rig.subscriber.clear().await;
        let to = if round % 2 == 0 { (&other, &there) } else { (&one, &here) };
        proxy.retarget(to.0.etcd.port());
        rig.until_shown(2, to.1).await;
        let log = rig.subscriber.log().await;
        let removed: Vec<_> = log.iter().filter(|told| matches!(told, Told::Removed(..))).collect();
        let gone = if round % 2 == 0 { one.number(1) } else { one.number(4) };
        assert_eq!(removed, [&Told::Removed("blue".into(), gone)], "once, and nothing else");
        assert_eq!(log.len(), 3, "one gone, one new, one changed: {log:?}");
        rig.until("blue", "says which etcd it is", |status| {
            status.state == ClusterState::Synced && (status.etcd_cluster_id == first) == (round % 2 == 1)
        })
        .await;
        let counted = format!(r#"{{cluster="blue",reason="etcd-cluster-id-changed"}} {}"#, round + 1);
        assert!(rig.metrics.scrape().contains(&counted), "each switch is counted once");
    }
    let mixed: Vec<_> = versions.seen().into_iter().filter(|seen| *seen != here && *seen != there).collect();
    assert!(mixed.is_empty(), "{mixed:?}");
    rig.stop().await;
}

/// A balancer before two replicas gives each connection another one.
#[tokio::test(flavor = "multi_thread")]
async fn r05_a_balancer_that_alternates_never_mixes_them() {
    let pki = Pki::temporary().unwrap();
    let (one, other, here, there) = replicas(&pki).await;
    let proxy = Proxy::to(one.etcd.port()).await;
    proxy.alternate([one.etcd.port(), other.etcd.port()]);
    let rig = Rig::start();
    rig.write("blue", &one.yaml_through(proxy.port()));
    rig.until_state("blue", ClusterState::Synced).await;
    let versions = Versions::of(&rig, 2);
    for _ in 0..12 {
        let session = rig.status("blue").unwrap().session;
        proxy.cut();
        rig.until("blue", "is synced again", |status| status.session > session && status.state == ClusterState::Synced)
            .await;
        let status = rig.status("blue").unwrap();
        let shown = rig.shown(2);
        assert!(shown == here || shown == there, "{shown:?}");
        let position = rig.version(2).unwrap().position().unwrap();
        assert_eq!(status.etcd_cluster_id, position.etcd_cluster_id, "what is shown is of the etcd that is named");
    }
    let error = rig.status("blue").unwrap().last_error.unwrap();
    assert!(error.reason == "etcd-cluster-id-changed" && !error.hint.is_empty(), "{error:?}");
    let seen = versions.seen();
    assert!(seen.contains(&here) && seen.contains(&there));
    assert!(seen.iter().all(|seen| *seen == here || *seen == there), "{seen:?}");
    // Where it has come to rest, it follows.
    let now = if rig.shown(2) == here { &one } else { &other };
    now.put_app(9, "new").await;
    eventually("it follows", DEADLINE, async || rig.shown(2).contains_key(&one.number(9))).await;
    rig.stop().await;
}
