//! Static stability, end to end: the binary is killed, comes back while a peer is away, and loses nothing.

use std::net::SocketAddr;
use std::time::Duration;

use meshgate::api::pb;
use meshgate::client::{ClientOptions, ClientSecurity, Event, Subscription, Update};
use meshgate::identity::{ClusterName, MaxConnectedClusters};
use meshgate::picture::{Fit, PictureStore};
use meshgate::view::Interner;
use nix::sys::signal::Signal;
use tokio::time::timeout;

use super::binary::Process;
use super::{SOON, Store, directory, flags, page, write_config};
use crate::support::fill::Contents;
use crate::support::{Pki, eventually};

async fn subscribe(addr: SocketAddr) -> Subscription {
    let options = ClientOptions { address: addr.to_string(), security: ClientSecurity::Plaintext };
    Subscription::open(options, pb::SubscribeRequest::default()).await.unwrap()
}

/// The next update that `pick` wants.
async fn next<T>(subscription: &mut Subscription, what: &str, pick: impl Fn(Update) -> Option<T>) -> T {
    let following = async {
        loop {
            match subscription.next().await {
                Event::Update(update) => {
                    if let Some(picked) = pick(update) {
                        return picked;
                    }
                }
                Event::Disconnected { why, .. } => panic!("{what}: {why}"),
            }
        }
    };
    timeout(SOON, following).await.unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"))
}

fn told(subscription: &Subscription, cluster: &str) -> Contents {
    let identities = subscription.mesh().get(cluster).into_iter().flat_map(|cluster| &cluster.identities);
    identities.map(|(number, entry)| (*number, entry.key_string())).collect()
}

#[tokio::test]
async fn m07_a_gateway_that_is_killed_comes_back_with_a_peer_that_is_away() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::temporary().unwrap());
    let (a, mut b) = tokio::join!(Store::start(&pki, "a", 1, 10), Store::start(&pki, "b", 2, 500));
    let (peers, state) = (directory(dir.path(), &[&b]), dir.path().join("state"));
    let state_flag = format!("--state-dir={}", state.display());
    let args =
        flags(&write_config(dir.path(), "etcd.yaml", &a.etcd), &[&peers, &state_flag, "--peer-readiness-wait=10m"]);
    // Killed whenever it comes, in the middle of a write as well as before and after: there is a whole picture, or none yet.
    for after in [0, 1, 2, 4, 8, 16].map(Duration::from_millis) {
        let mut process = Process::start(&args);
        eventually("the peer is synced", SOON, || async {
            page(process.http, "/metrics").await.1.contains("meshgate_cluster_ready{cluster=\"b\"} 1\n")
        })
        .await;
        tokio::time::sleep(after).await;
        process.signal(Signal::SIGKILL);
        process.block_on_exit_by_signal();
        let store = PictureStore::open(&state).unwrap();
        let fit =
            Fit { name: ClusterName::new("b").unwrap(), width: MaxConnectedClusters::C255, max_key_string: 16_384 };
        let picture = store.load(&fit, &Interner::new()).unwrap();
        assert!(picture.is_none_or(|picture| picture.version.len() == 500));
    }
    let mut process = Process::start(&args);
    eventually("the picture is kept", SOON, || async {
        page(process.http, "/metrics").await.1.contains("result=\"kept\"}")
    })
    .await;
    let mut second = super::binary::command(&args);
    let refused = second.output().unwrap();
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("error: state-dir: the directory ") && errors.contains("is in use by another gateway"),
        "{errors}"
    );
    process.signal(Signal::SIGKILL);
    process.block_on_exit_by_signal();

    b.etcd.kill().unwrap();
    let process = Process::start(&args);
    eventually("ready without the peer, since it is known", SOON, || async {
        page(process.http, "/readyz").await.0 == 200
    })
    .await;
    let mut subscription = subscribe(process.grpc).await;
    let stale = next(&mut subscription, "all synced", |update| match update {
        Update::AllSynced { left_out, stale } if left_out.is_empty() => Some(stale),
        _ => None,
    })
    .await;
    assert_eq!(stale, ["b"]);
    assert_eq!(told(&subscription, "b"), b.contents);
    assert!(subscription.mesh()["b"].stale && !subscription.mesh()["a"].stale);

    b.etcd.restart().await.unwrap();
    next(&mut subscription, "it is in step", |update| match update {
        Update::Confirmed { cluster } => (cluster == "b").then_some(()),
        Update::Changed { .. } | Update::Removed { .. } => panic!("nothing changed: {update:?}"),
        _ => None,
    })
    .await;
    assert!(!subscription.mesh()["b"].stale);
    assert_eq!(told(&subscription, "b"), b.contents);
}
