//! Where a peer's file says that its store is, and what happens when it says something else.

use std::net::Ipv4Addr;
use std::time::Duration;

use meshgate::telemetry::ClusterState;
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::peer::{DEADLINE, Rig, Store, mount};
use crate::support::etcd::EtcdTls;
use crate::support::fill::Cluster;
use crate::support::proxy::Proxy;
use crate::support::{CertSpec, EtcdOptions, EtcdServer, Pki, eventually};

/// A file that was wrong, once corrected, is not tried any more.
#[tokio::test(flavor = "multi_thread")]
async fn p10_a_corrected_file_ends_the_attempts_at_the_wrong_address() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    // Whoever dials this one is cut off, and tries again.
    let wrong = Proxy::to(store.etcd.port()).await;
    wrong.stall(crate::support::proxy::Direction::ToClient);
    let rig = Rig::start();
    rig.write("blue", &store.yaml_through(wrong.port()));
    eventually("the wrong address is tried", DEADLINE, async || wrong.accepted() > 0).await;
    rig.write("blue", &store.yaml());
    rig.until_state("blue", ClusterState::Synced).await;
    eventually("nobody is connected to it", Duration::from_secs(1), async || wrong.open() == 0).await;
    let tried = wrong.accepted();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(wrong.accepted(), tried);
    rig.stop().await;
}

/// Two files for one cluster that differ in their extension only: the one with a cluster's name is the peer's, the other one
/// is reported.
#[tokio::test(flavor = "multi_thread")]
async fn p10_of_two_files_for_one_cluster_one_wins() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    let other = Store::new(&pki, "blue", 2, &["x", "y"]).await;
    let rig = Rig::start();
    rig.write("blue.yaml", &other.yaml());
    rig.until_refused("blue.yaml", "file-name").await;
    rig.write("blue", &store.yaml());
    rig.until_state("blue", ClusterState::Synced).await;
    assert_eq!(rig.shown(2), store.contents(&[(1, "a")]));
    rig.until_refused("blue.yaml", "file-name").await;
    rig.stop().await;
}

/// The name in the file stays the one that the certificate must be for; what it means is in the file as well.
#[tokio::test(flavor = "multi_thread")]
async fn p12_host_aliases_are_applied_live_and_the_name_is_checked() {
    let pki = Pki::temporary().unwrap();
    let name = "blue.mesh.cilium.io";
    let tls = EtcdTls {
        server: pki.issue(&CertSpec::server("blue-etcd").dns(name)).unwrap(),
        client: pki.issue(&CertSpec::client("blue-client")).unwrap(),
    };
    let options = EtcdOptions::plain("blue").with_tls(tls).in_memory();
    let store = Store { etcd: EtcdServer::start(options).await.unwrap(), cluster: Cluster::new("blue", 2) };
    store.put_app(1, "a").await;
    store.announce().await;
    let yaml = |host: &str, addresses: &str| {
        let yaml = store.yaml().replace("127.0.0.1", host);
        format!("{yaml}host-aliases:\n  {host}: [{addresses}]\n")
    };
    // Nothing listens there; the port is held, so that it stays so.
    let dead = Ipv4Addr::new(127, 0, 0, 9);
    drop(TcpListener::bind((dead, store.etcd.port())).await.unwrap());
    let rig = Rig::start();
    mount(rig.directory.path(), 1, &[("blue", &yaml(name, &dead.to_string()))]);
    rig.until("blue", "finds nobody", |status| {
        status.last_error.as_ref().is_some_and(|error| error.reason == "dial-refused")
    })
    .await;
    mount(rig.directory.path(), 2, &[("blue", &yaml(name, "127.0.0.1"))]);
    rig.until_shown(2, &store.contents(&[(1, "a")])).await;
    assert!(rig.status("blue").unwrap().endpoint.contains(name));
    // Under another name the same address is another server.
    mount(rig.directory.path(), 3, &[("blue", &yaml("red.mesh.cilium.io", "127.0.0.1"))]);
    rig.until("blue", "refuses the name", |status| {
        status.last_error.as_ref().is_some_and(|error| error.reason == "we-refused-theirs-wrong-name")
    })
    .await;
    // What is wrong with aliases is said before anybody dials.
    for bad in ["", "127.0.0.1, 127.0.0.1", "blue"] {
        mount(rig.directory.path(), 3 + 1 + u32::try_from(bad.len()).unwrap(), &[("blue", &yaml(name, bad))]);
        rig.until_refused("blue", "file-malformed").await;
    }
    assert_eq!(rig.shown(2), store.contents(&[(1, "a")]), "all the while");
    rig.stop().await;
}
