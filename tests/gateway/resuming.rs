//! Resume tokens over the whole path: real etcds, and gateways that come and go.

use meshgate::api::pb;
use meshgate::client::{ClientOptions, ClientSecurity, Event, Subscription, Update};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::{SOON, Store, directory, start, stop, until_ready, write_config};
use crate::support::Pki;

/// All that is told until everything is synced: what came whole, what was confirmed, and how many entries changed.
async fn until_all_synced(subscription: &mut Subscription) -> (Vec<String>, Vec<String>, usize) {
    let (mut whole, mut resumed, mut changed) = (Vec::new(), Vec::new(), 0);
    let reading = async {
        loop {
            match subscription.next().await {
                Event::Update(Update::Synced { cluster, resumed: false, .. }) => whole.push(cluster),
                Event::Update(Update::Synced { cluster, .. }) => resumed.push(cluster),
                Event::Update(Update::Changed { changes, .. }) => changed += changes.len(),
                Event::Update(Update::AllSynced { .. }) => return,
                Event::Update(_) | Event::Disconnected { .. } => {}
            }
        }
    };
    timeout(SOON, reading).await.expect("everything is synced in time");
    whole.sort();
    resumed.sort();
    (whole, resumed, changed)
}

#[tokio::test]
async fn s2_a_restarted_gateway_confirms_what_did_not_change_and_replaces_what_did() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::temporary().unwrap());
    let (a, b) = tokio::join!(Store::start(&pki, "a", 1, 200), Store::start(&pki, "b", 2, 200));
    let peers = directory(dir.path(), &[&b]);
    let local = write_config(dir.path(), "etcd.yaml", &a.etcd);
    // A port that stays the same over a restart.
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let listen = format!("--listen=127.0.0.1:{port}");
    let running = start(&local, &[&peers, &listen]).await;
    until_ready(&running).await;
    let options = ClientOptions { address: running.grpc_addr.to_string(), security: ClientSecurity::Plaintext };
    let mut subscription = Subscription::open(options, pb::SubscribeRequest::default()).await.unwrap();
    assert_eq!(until_all_synced(&mut subscription).await.0, ["a", "b"]);
    stop(running).await;

    let running = start(&local, &[&peers, &listen]).await;
    let (whole, resumed, changed) = until_all_synced(&mut subscription).await;
    assert_eq!((whole, resumed, changed), (vec![], vec!["a".to_owned(), "b".to_owned()], 0));
    stop(running).await;

    // Now something is deleted while nobody looks.
    let gone = *b.contents.keys().next().unwrap();
    b.etcd.client().kv_client().delete(b.cluster.identity_key(gone), None).await.unwrap();
    let running = start(&local, &[&peers, &listen]).await;
    let (whole, resumed, _) = until_all_synced(&mut subscription).await;
    assert_eq!((whole, resumed), (vec!["b".to_owned()], vec!["a".to_owned()]));
    assert!(!subscription.mesh()["b"].identities.contains_key(&gone));
    stop(running).await;
}
