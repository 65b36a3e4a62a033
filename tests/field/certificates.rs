//! Certificates over time, by way of a peer's files.

use std::path::Path;
use std::time::{Duration, SystemTime};

use meshgate::telemetry::ClusterState;
use tokio::time::sleep;

use crate::peer::{Rig, Store, mount, timing};
use crate::support::proxy::Proxy;
use crate::support::{CertFiles, CertSpec, Pki};

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// The file of a peer with these certificates.
fn yaml(port: u16, ca: &Path, files: &CertFiles) -> String {
    format!(
        "endpoints: ['https://127.0.0.1:{port}']\ntrusted-ca-file: {}\ncert-file: {}\nkey-file: {}\n",
        ca.display(),
        files.cert.display(),
        files.key.display()
    )
}

/// A new certificate beside the old key, for longer than a session waits to be replaced: what works goes on working.
#[tokio::test(flavor = "multi_thread")]
async fn t01_a_pair_that_does_not_match_costs_no_session() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let spec = CertSpec::client("rotated");
    let files = pki.issue(&spec.clone().not_after(SystemTime::now() + Duration::from_hours(1))).unwrap();
    let rig = Rig::with(|settings| {
        settings.timing = timing();
        settings.timing.replace_wait = Duration::from_millis(500);
    });
    rig.write("blue", &yaml(proxy.port(), &files.ca, &files));
    rig.until_state("blue", ClusterState::Synced).await;
    let first = rig.status("blue").unwrap();
    rig.subscriber.clear().await;
    let old_key = text(&files.key);
    pki.issue(&spec).unwrap();
    let new_key = text(&files.key);
    std::fs::write(&files.key, old_key).unwrap();
    rig.until("blue", "says what is wrong", |status| {
        status.last_error.as_ref().is_some_and(|error| error.reason == "certificate-key-mismatch")
    })
    .await;
    // Much longer than it takes to give up hope for the new pair.
    sleep(Duration::from_secs(2)).await;
    let status = rig.status("blue").unwrap();
    assert_eq!((status.state, status.since), (ClusterState::Synced, first.since), "no drop");
    store.put_app(2, "b").await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b")])).await;
    // Not even a cut ends it: the last good pair connects again.
    let session = rig.status("blue").unwrap().session;
    proxy.cut();
    rig.until("blue", "is back", |status| status.session > session && status.state == ClusterState::Synced).await;
    let (session, expires) = (rig.status("blue").unwrap().session, first.certificate_expires);
    assert_eq!(rig.status("blue").unwrap().certificate_expires, expires);
    std::fs::write(&files.key, new_key).unwrap();
    rig.until("blue", "presents the new pair", |status| {
        status.session > session && status.state == ClusterState::Synced && status.certificate_expires > expires
    })
    .await;
    assert_eq!(rig.subscriber.log().await.len(), 1, "but for the change itself, nothing was heard");
    rig.stop().await;
}

/// From one CA to another, by way of a bundle of both, as the kubelet swaps files: nobody notices.
#[tokio::test(flavor = "multi_thread")]
async fn t01_a_ca_is_replaced_by_way_of_a_bundle_of_both() {
    let (old, new) = (Pki::temporary().unwrap(), Pki::temporary().unwrap());
    let store = Store::new(&old, "blue", 2, &["a"]).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    // The etcd reads its own certificate anew for each handshake, and goes on trusting the old CA for clients.
    let client = old.issue(&CertSpec::client("gateway")).unwrap();
    let (cert, key) = (text(&client.cert), text(&client.key));
    let yaml = format!(
        "endpoints: ['https://127.0.0.1:{}']\ntrusted-ca-file: ca.crt\ncert-file: tls.crt\nkey-file: tls.key\n",
        proxy.port()
    );
    let rig = Rig::start();
    let swap = |generation: u32, ca: &str| {
        let files = [("blue", yaml.as_str()), ("ca.crt", ca), ("tls.crt", &cert), ("tls.key", &key)];
        mount(rig.directory.path(), generation, &files);
    };
    let (old_ca, new_ca) = (text(old.ca_file()), text(new.ca_file()));
    swap(1, &old_ca);
    rig.until_state("blue", ClusterState::Synced).await;
    rig.subscriber.clear().await;
    let since = rig.status("blue").unwrap().since;
    let next_session = async |what: &str, before: u64| {
        rig.until("blue", what, |status| status.session > before && status.state == ClusterState::Synced).await;
    };
    let session = || rig.status("blue").unwrap().session;
    let before = session();
    swap(2, &format!("{old_ca}\n{new_ca}"));
    next_session("trusts both", before).await;
    // The server's new certificate, signed by the new CA, under the names of the old files.
    let issued = new.issue(&CertSpec::server("blue-etcd")).unwrap();
    std::fs::copy(issued.key, old.dir().join("blue-etcd.key")).unwrap();
    std::fs::copy(issued.cert, old.dir().join("blue-etcd.crt")).unwrap();
    let before = session();
    swap(3, &new_ca);
    next_session("trusts the new one", before).await;
    assert_eq!(rig.status("blue").unwrap().since, since, "synced all the while");
    assert_eq!(rig.status("blue").unwrap().failures, 0);
    assert!(rig.subscriber.log().await.is_empty(), "{:?}", rig.subscriber.log().await);
    // The old one is trusted no more; with the file's new contents, no TLS session of before is resumed.
    old.issue(&CertSpec::server("blue-etcd")).unwrap();
    swap(4, &format!("# the new one only\n{new_ca}"));
    proxy.cut();
    rig.until("blue", "refuses it", |status| {
        status.last_error.as_ref().is_some_and(|error| error.reason == "we-refused-theirs-unknown-issuer")
    })
    .await;
    assert_eq!(rig.shown(2), store.contents(&[(1, "a")]));
    rig.stop().await;
}

/// The product has one crypto provider, so that none can be in force by accident of a feature.
#[test]
fn t05_one_crypto_provider_is_linked() {
    let lock = text(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock"));
    let names: Vec<_> = lock.lines().filter_map(|line| line.strip_prefix("name = ")).collect();
    assert!(names.contains(&"\"ring\""));
    for other in ["\"aws-lc-rs\"", "\"aws-lc-sys\"", "\"openssl\"", "\"boring\"", "\"native-tls\""] {
        assert!(!names.contains(&other), "{other} is a second one");
    }
}
