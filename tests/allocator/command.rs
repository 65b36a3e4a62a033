//! `meshgate gc`, and what our cluster says of itself.

use std::time::Duration;

use meshgate::allocator::etcd::{Presence, SessionKeeper, Store};
use meshgate::identity::{ClusterId, ClusterName, MaxConnectedClusters};
use meshgate::kvstore::Timing;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::support::{BASE, SOON, dump, etcd, masters, put};
use crate::support::{EtcdServer, eventually};

async fn gc(etcd: &EtcdServer, args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("etcd.yaml");
    std::fs::write(&file, etcd.config_yaml() + "insecure-transport: true\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_meshgate"))
        .arg("gc")
        .args(["--cluster-name=cluster-a", "--cluster-id=5", "--plaintext", "--listen=127.0.0.1:0"])
        .arg(format!("--kvstore-opt=etcd.config={}", file.display()))
        .args(args)
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn gc_shows_what_it_would_delete_and_why_and_deletes_it() {
    let etcd = etcd().await;
    let client = etcd.client();
    for (number, labels) in [(327_690, "k8s:a=1;"), (327_691, "k8s:a=2;"), (327_692, "k8s:a=2;"), (70_000, "k8s:b=1;")]
    {
        put(&client, &format!("id/{number}"), labels).await;
    }
    put(&client, "value/k8s:a=2;/10.1.0.11", "327692").await;
    let before = masters(&client).await;
    let shown = gc(&etcd, &["--dry-run"]).await;
    assert!(shown.contains("3 identities of cluster-a, 2 unused"), "{shown}");
    assert!(shown.contains("would delete 327690  nobody refers to it  k8s:a=1;"), "{shown}");
    assert!(shown.contains("would delete 327691  its labels are in use as 327692  k8s:a=2;"), "{shown}");
    assert_eq!(masters(&client).await, before);
    let shown = gc(&etcd, &["--wait=0s"]).await;
    assert!(shown.contains("2 deleted, 1 stay"), "{shown}");
    let left: Vec<_> = masters(&client).await.into_iter().map(|(path, _)| path).collect();
    assert_eq!(left, [format!("{BASE}/id/327692"), format!("{BASE}/id/70000")]);
}

#[tokio::test]
async fn gc_takes_away_locks_that_nobody_gives_up() {
    let etcd = etcd().await;
    let client = etcd.client();
    let lock = format!("{BASE}/locks/k8s:a=1;/1");
    put(&client, "locks/k8s:a=1;/1", "").await;
    let shown = gc(&etcd, &["--dry-run"]).await;
    assert!(shown.contains("1 locks held"), "{shown}");
    assert!(shown.contains(&format!("would delete {lock}  if it is unchanged in 1m")), "{shown}");
    assert_eq!(dump(&client, BASE).await.len(), 1);
    let shown = gc(&etcd, &["--wait=0s"]).await;
    assert!(shown.contains(&format!("deleted {lock}\n1 locks deleted, 0 stay")), "{shown}");
    assert!(dump(&client, BASE).await.is_empty());
}

#[tokio::test]
async fn our_cluster_is_announced_and_announced_again() {
    let etcd = etcd().await;
    let client = etcd.client();
    let width = MaxConnectedClusters::C255;
    let presence = Presence {
        name: ClusterName::new("cluster-a").unwrap(),
        id: ClusterId::new(5, width).unwrap(),
        width,
        prefix: BASE.to_owned(),
        interval: Duration::from_mins(1),
    };
    let (keeper, sessions) = SessionKeeper::new(etcd.config(), Timing::default());
    let store = Store::new(sessions, Duration::from_secs(5));
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(keeper.run(stop.clone()));
    let announced = async || {
        let keys = dump(&client, "cilium/").await.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        keys == ["cilium/.heartbeat", "cilium/cluster-config/cluster-a", &format!("cilium/synced/cluster-a/{BASE}")]
    };
    {
        let first = stop.child_token();
        let writing = presence.assert(&store, first.clone());
        tokio::join!(writing, async {
            eventually("it is announced", SOON, &announced).await;
            first.cancel();
        });
    }
    let leases = client.lease_client().leases().await.unwrap();
    for lease in leases.leases() {
        client.lease_client().revoke(lease.id()).await.unwrap();
    }
    assert!(!announced().await);
    tasks.spawn(async move { presence.assert(&store, stop).await });
    eventually("it is announced again", SOON, &announced).await;
}
