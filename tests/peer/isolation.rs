//! A broken peer is its own problem.

use std::time::Duration;

use meshgate::telemetry::{ClusterState, ClusterStatus};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::{Rig, Store, timing};
use crate::support::Pki;

#[tokio::test(flavor = "multi_thread")]
async fn r15_broken_peers_do_not_touch_a_healthy_one() {
    let (pki, strangers) = (Pki::temporary().unwrap(), Pki::temporary().unwrap());
    let healthy = Store::new(&pki, "healthy", 2, &["a", "b", "c"]).await;
    let foreign = Store::new(&strangers, "foreign", 3, &["x"]).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port_of_nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let ca = healthy.etcd.client_certs().unwrap().ca.display().to_string();
    let foreign_ca = foreign.etcd.client_certs().unwrap().ca.display().to_string();
    let rig = Rig::start();
    rig.write("bad-yaml", "endpoints: [");
    rig.write("nobody", &healthy.yaml_through(port_of_nobody));
    rig.write("silent", &healthy.yaml_through(silent.local_addr().unwrap().port()));
    // Their server's certificate is signed by a CA that our file does not name.
    rig.write("foreign", &foreign.yaml().replace(&foreign_ca, &ca));
    // Ours is signed by a CA that their server does not know.
    rig.write(
        "refusing",
        &healthy
            .yaml()
            .replace(&ca, &foreign_ca)
            .replace(&format!(":{}", healthy.etcd.port()), &format!(":{}", foreign.etcd.port())),
    );
    rig.write("healthy", &healthy.yaml());
    let began = Instant::now();
    rig.until_shown(2, &healthy.contents(&[(1, "a"), (2, "b"), (3, "c")])).await;
    rig.until_state("healthy", ClusterState::Synced).await;
    assert!(began.elapsed() < Duration::from_secs(5), "ready in 5 s");
    rig.until_refused("bad-yaml", "file-malformed").await;
    for broken in ["nobody", "silent", "foreign", "refusing"] {
        rig.until(broken, "says why", |status| {
            status.state == ClusterState::Connecting
                && status.last_error.as_ref().is_some_and(|error| !error.message.is_empty() && !error.hint.is_empty())
        })
        .await;
    }
    healthy.put_app(4, "d").await;
    rig.until_shown(2, &healthy.contents(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")])).await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r09_each_cluster_shows_what_its_own_store_holds() {
    let pki = Pki::temporary().unwrap();
    let blue = Store::new(&pki, "blue", 2, &["a", "b"]).await;
    let red = Store::new(&pki, "red", 3, &["c"]).await;
    // Red has an opinion about blue's identities, and blue about ours.
    red.put(&blue.cluster.identity_key(blue.number(9)), blue.key_string("forged")).await;
    blue.put(&blue.cluster.identity_key(1 << 16), "k8s:io.cilium.k8s.policy.cluster=us;").await;
    let rig = Rig::start();
    rig.write("blue", &blue.yaml());
    rig.write("red", &red.yaml());
    for name in ["blue", "red"] {
        rig.until_state(name, ClusterState::Synced).await;
        assert_eq!(rig.status(name).unwrap().rejects["out-of-range"], 1);
    }
    assert_eq!(rig.shown(2), blue.contents(&[(1, "a"), (2, "b")]));
    assert_eq!(rig.shown(3), red.contents(&[(1, "c")]));
    assert!(rig.version(1).is_none());
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r16_a_stopped_etcd_holds_up_neither_others_nor_the_end() {
    let pki = Pki::temporary().unwrap();
    let mut stopped = Store::new(&pki, "stopped", 2, &["a"]).await;
    let other = Store::new(&pki, "other", 3, &["b"]).await;
    let rig = Rig::start();
    rig.write("stopped", &stopped.yaml());
    rig.write("other", &other.yaml());
    rig.until_state("stopped", ClusterState::Synced).await;
    rig.until_state("other", ClusterState::Synced).await;
    stopped.etcd.stop().unwrap();
    rig.until_state("stopped", ClusterState::Reconnecting).await;
    assert_eq!(rig.shown(2), stopped.contents(&[(1, "a")]), "stale, and kept");
    other.put_app(2, "c").await;
    rig.until_shown(3, &other.contents(&[(1, "b"), (2, "c")])).await;
    let view = rig.view.clone();
    rig.stop().await;
    assert_eq!(view.load().clusters().count(), 2, "a gateway that stops drains nothing");
    stopped.etcd.cont().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn p11_waiting_for_the_configuration_has_a_deadline_of_its_own() {
    let pki = Pki::temporary().unwrap();
    let slow = Store::empty(&pki, crate::support::fill::Cluster::new("slow", 2)).await;
    let rig = Rig::with(|settings| {
        settings.timing = timing();
        settings.timing.config_wait = Duration::from_millis(200);
    });
    rig.write("slow", &slow.yaml());
    // A new session after each deadline, in the hope of a replica that has it.
    rig.until("slow", "tries again", |status| status.failures >= 3).await;
    slow.put_app(1, "a").await;
    slow.announce().await;
    rig.until_shown(2, &slow.contents(&[(1, "a")])).await;
    rig.stop().await;
}

/// Bytes that are no text: by the list and by the watch, as key and as value.
#[tokio::test]
async fn s11_bytes_that_are_not_utf8_cost_their_own_entry_and_nothing_else() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b"]).await;
    let mut kv = store.etcd.client().kv_client();
    let prefix = store.cluster.identity_prefix();
    let good = |app: &str| store.key_string(app).into_bytes();
    let bad: [(Vec<u8>, Vec<u8>); 4] = [
        (store.cluster.identity_key(store.number(70)).into(), [b"k8s:bad=\xff;", &good("x")[..]].concat()),
        // An overlong `/`.
        (store.cluster.identity_key(store.number(71)).into(), [b"k8s:bad=\xc0\xaf;", &good("x")[..]].concat()),
        ([prefix.as_bytes(), b"\xff7"].concat(), good("x")),
        ([prefix.as_bytes(), b"\x007"].concat(), good("x")),
    ];
    for (key, value) in &bad[..2] {
        kv.put(key.clone(), value.clone(), None).await.unwrap();
    }
    kv.put(bad[2].0.clone(), bad[2].1.clone(), None).await.unwrap();
    let rig = Rig::start();
    rig.write("blue", &store.yaml());
    rig.until_state("blue", ClusterState::Synced).await;
    let rejects = |status: &ClusterStatus| status.rejects.values().sum::<u64>();
    rig.until("blue", "what is bad in the list is counted", |status| rejects(status) == 3).await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b")])).await;
    // The same by the watch, and what follows is delivered.
    for (key, value) in bad.iter().map(|(key, value)| (key.clone(), [value, &b" "[..]].concat())) {
        kv.put(key, value, None).await.unwrap();
    }
    store.put_app(3, "c").await;
    rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b"), (3, "c")])).await;
    let status = rig.status("blue").unwrap();
    assert_eq!(rejects(&status), 7, "{:?}", status.rejects);
    assert!(status.reject_examples.iter().all(|example| example.key.is_ascii() && !example.key.contains('\0')));
    // A scrape is lines of text whose labels are names of ours.
    let scrape = rig.metrics.scrape();
    let series = scrape.lines().filter(|line| line.starts_with("meshgate_rejects_total{cluster=\"blue\""));
    let counted: Vec<_> = series.map(|line| line.rsplit_once(' ').unwrap()).collect();
    assert_eq!(counted.iter().map(|(_, count)| count.parse::<u64>().unwrap()).sum::<u64>(), 7);
    assert!(scrape.is_ascii(), "no byte of an entry is in a label");
    rig.stop().await;
}
