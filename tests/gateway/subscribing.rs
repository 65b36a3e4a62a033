//! The whole path: real etcds over mutual TLS, the gateway, a subscriber over mutual TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use meshgate::api::pb;
use meshgate::client::{ClientOptions, ClientSecurity, Event, Subscription, Update};
use nix::sys::signal::Signal;
use tokio::time::timeout;

use super::binary::Process;
use super::{SOON, Store, directory, flags, page, start, stop, until_ready, write_config};
use crate::support::fill::{Contents, LabelMix};
use crate::support::{CertFiles, CertSpec, Pki, eventually};

/// The flags of a listener with a certificate of that CA.
fn tls_flags(pki: &Pki, dir: &Path) -> [String; 3] {
    install(pki, dir);
    [("cert", "tls.crt"), ("key", "tls.key"), ("client-ca", "ca.crt")]
        .map(|(flag, file)| format!("--tls-{flag}={}", dir.join(file).display()))
}

/// Writes a listener's certificate of that CA, over one that may be there.
fn install(pki: &Pki, dir: &Path) {
    let CertFiles { cert, key, ca } = pki.issue(&CertSpec::server("gateway")).unwrap();
    for (from, to) in [(cert, "tls.crt"), (key, "tls.key"), (ca, "ca.crt")] {
        std::fs::copy(from, dir.join(to)).unwrap();
    }
}

fn client(pki: &Pki, addr: SocketAddr) -> ClientOptions {
    let CertFiles { cert, key, ca } = pki.issue(&CertSpec::client("subscriber")).unwrap();
    ClientOptions {
        address: addr.to_string(),
        security: ClientSecurity::MutualTls { ca, cert, key, server_name: None },
    }
}

/// Follows the subscription until what it was told satisfies `done`.
async fn follow(subscription: &mut Subscription, what: &str, done: impl Fn(&Subscription, &Update) -> bool) {
    let following = async {
        loop {
            match subscription.next().await {
                Event::Update(update) if done(subscription, &update) => return,
                Event::Update(_) => {}
                Event::Disconnected { why, .. } => panic!("{what}: {why}"),
            }
        }
    };
    timeout(SOON, following).await.unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"));
}

fn told(subscription: &Subscription, cluster: &str) -> Contents {
    let cluster = subscription.mesh().get(cluster);
    let identities = cluster.iter().flat_map(|cluster| &cluster.identities);
    identities.map(|(number, entry)| (*number, entry.key_string())).collect()
}

#[tokio::test]
async fn a_subscriber_sees_both_clusters_and_every_change() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::temporary().unwrap());
    let (a, mut b) = tokio::join!(Store::start(&pki, "a", 1, 300), Store::start(&pki, "b", 2, 200));
    let peers = directory(dir.path(), &[&b]);
    let [cert, key, ca] = tls_flags(&pki, dir.path());
    let running = start(&write_config(dir.path(), "etcd.yaml", &a.etcd), &[&peers, &cert, &key, &ca]).await;

    let request = pb::SubscribeRequest::default();
    let mut subscription = Subscription::open(client(&pki, running.grpc_addr), request).await.unwrap();
    follow(
        &mut subscription,
        "everything is synced",
        |_, update| matches!(update, Update::AllSynced { left_out, .. } if left_out.is_empty()),
    )
    .await;
    assert_eq!(told(&subscription, "a"), a.contents);
    assert_eq!(told(&subscription, "b"), b.contents);
    assert!(page(running.http_addr, "/metrics").await.1.contains("meshgate_subscribers 1\n"));

    let (gone, changed) = (*b.contents.keys().next().unwrap(), *b.contents.keys().nth(1).unwrap());
    let other = LabelMix::new("b", 2).key_string(1_000_000);
    b.contents.remove(&gone);
    b.contents.insert(changed, other.clone());
    let mut store = b.etcd.client().kv_client();
    store.delete(b.cluster.identity_key(gone), None).await.unwrap();
    store.put(b.cluster.identity_key(changed), other, None).await.unwrap();
    follow(&mut subscription, "both changes came", |so_far, _| told(so_far, "b") == b.contents).await;

    std::fs::remove_file(dir.path().join("peers/b")).unwrap();
    follow(&mut subscription, "the peer is gone", |so_far, _| !so_far.mesh().contains_key("b")).await;
    assert_eq!(told(&subscription, "a"), a.contents);

    running.shutdown();
    follow(
        &mut subscription,
        "the stream says goodbye",
        |_, update| matches!(update, Update::GoAway(goodbye) if goodbye.reason() == pb::GoAwayReason::Shutdown),
    )
    .await;
    stop(running).await;
}

#[tokio::test]
async fn the_binary_says_goodbye_to_subscribers_and_ends_within_the_grace() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::temporary().unwrap());
    let a = Store::start(&pki, "a", 1, 10).await;
    let [cert, key, ca] = tls_flags(&pki, dir.path());
    let local = write_config(dir.path(), "etcd.yaml", &a.etcd);
    let mut process = Process::start(&flags(&local, &["--shutdown-grace=20s", &cert, &key, &ca]));
    eventually("it is ready", SOON, || async { page(process.http, "/readyz").await.0 == 200 }).await;

    let request = pb::SubscribeRequest::default();
    let mut subscription = Subscription::open(client(&pki, process.grpc), request).await.unwrap();
    follow(&mut subscription, "synced", |so_far, _| told(so_far, "a") == a.contents).await;
    let begin = Instant::now();
    process.signal(Signal::SIGTERM);
    follow(&mut subscription, "goodbye", |_, update| matches!(update, Update::GoAway(_))).await;
    assert_eq!(process.exit_code().await, 0);
    assert!(begin.elapsed() < Duration::from_secs(10), "nobody waits for the grace when all have left");
}

/// This test's runtime has one thread, which waits for the process: nobody answers on the subscriber's side, as if it had
/// been stopped.
#[tokio::test]
async fn a_subscriber_that_does_not_answer_is_cut_off_when_the_grace_is_over() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::temporary().unwrap());
    let a = Store::start(&pki, "a", 1, 10).await;
    let local = write_config(dir.path(), "etcd.yaml", &a.etcd);
    let mut process = Process::start(&flags(&local, &["--shutdown-grace=1s"]));
    let options = ClientOptions { address: process.grpc.to_string(), security: ClientSecurity::Plaintext };
    let mut subscription = Subscription::open(options, pb::SubscribeRequest::default()).await.unwrap();
    follow(&mut subscription, "synced", |so_far, _| told(so_far, "a") == a.contents).await;
    let begin = Instant::now();
    process.signal(Signal::SIGTERM);
    assert_eq!(process.block_on_exit(), 0);
    // Keepalive would take 15 s to notice.
    assert!(begin.elapsed() < Duration::from_secs(10), "took {:?}", begin.elapsed());
}

#[tokio::test]
async fn replaced_certificates_count_for_the_next_connection_and_broken_ones_do_not() {
    let (dir, pki, next) = (tempfile::tempdir().unwrap(), Pki::temporary().unwrap(), Pki::temporary().unwrap());
    let a = Store::start(&pki, "a", 1, 10).await;
    let [cert, key, ca] = tls_flags(&pki, dir.path());
    let running = start(&write_config(dir.path(), "etcd.yaml", &a.etcd), &[&cert, &key, &ca]).await;
    until_ready(&running).await;
    let request = pb::SubscribeRequest::default();
    let mut before = Subscription::open(client(&pki, running.grpc_addr), request.clone()).await.unwrap();

    std::fs::write(dir.path().join("tls.crt"), "broken").unwrap();
    Subscription::open(client(&pki, running.grpc_addr), request.clone()).await.unwrap();

    install(&next, dir.path());
    let options = client(&next, running.grpc_addr);
    eventually("the new certificates are in use", SOON, || async {
        Subscription::open(options.clone(), request.clone()).await.is_ok()
    })
    .await;
    follow(&mut before, "the old stream lives on", |so_far, _| told(so_far, "a") == a.contents).await;
    stop(running).await;
}
