//! The directory's effect on running peers.

use meshgate::telemetry::ClusterState;

use super::proxy::Proxy;
use super::{DEADLINE, Rig, Store, mount};
use crate::support::{Pki, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn p02_the_same_bytes_again_are_no_news() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::start();
    let yaml = store.yaml_through(proxy.port());
    mount(rig.directory.path(), 1, &[("blue", &yaml)]);
    rig.until_state("blue", ClusterState::Synced).await;
    for generation in 2..12 {
        mount(rig.directory.path(), generation, &[("blue", &yaml)]);
    }
    // A peer that comes later shows that the directory has been looked at since.
    mount(rig.directory.path(), 12, &[("blue", &yaml), ("bad", "endpoints: [")]);
    rig.until_state("bad", ClusterState::Refused).await;
    assert_eq!(proxy.accepted(), 1, "no second connection");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t01_a_renewed_certificate_is_a_change() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::start();
    let certs = store.etcd.client_certs().unwrap();
    let mut yaml = store.yaml_through(proxy.port());
    for (file, name) in [(&certs.ca, "ca.crt"), (&certs.cert, "blue.crt"), (&certs.key, "blue.key")] {
        std::fs::copy(file, rig.path(name)).unwrap();
        yaml = yaml.replace(&file.display().to_string(), &rig.path(name).display().to_string());
    }
    rig.write("blue", &yaml);
    rig.until_state("blue", ClusterState::Synced).await;
    rig.subscriber.clear().await;
    // Another byte, the same meaning: PEM allows text between its blocks.
    let mut pem = std::fs::read(rig.path("ca.crt")).unwrap();
    pem.extend(b"\n# renewed\n");
    std::fs::write(rig.path("ca.crt"), pem).unwrap();
    eventually("a new session", DEADLINE, async || proxy.accepted() == 2).await;
    rig.until_state("blue", ClusterState::Synced).await;
    assert!(rig.subscriber.log().await.is_empty(), "subscribers notice nothing");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r21_a_file_that_breaks_keeps_the_data_and_one_that_is_mended_goes_on() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml());
    rig.until_state("blue", ClusterState::Synced).await;
    rig.write("blue", "endpoints: [");
    rig.until_refused("blue", "file-malformed").await;
    assert_eq!(rig.shown(2).len(), 1);
    store.put_app(2, "b").await;
    rig.write("blue", &store.yaml());
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b")])).await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p07_a_misnamed_file_is_shown_until_it_goes() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    let rig = Rig::start();
    rig.write("Blue.yaml", &store.yaml());
    rig.write("us", &store.yaml());
    rig.write("blue", &store.yaml());
    rig.until_refused("Blue.yaml", "file-name").await;
    rig.until_state("blue", ClusterState::Synced).await;
    assert!(rig.status("us").is_none(), "our own cluster's file is not a peer's");
    rig.remove("Blue.yaml");
    eventually("it is forgotten", DEADLINE, async || rig.status("Blue.yaml").is_none()).await;
    rig.stop().await;
}
