//! The steps that a real Cilium was taken through (`tests/golden/remote_watch_steps.json`), taken by a real peer over mTLS.
//!
//! After each step our picture must be Cilium's, but where we differ on purpose; those cases are in [`deviate`], and nowhere
//! else. Cilium's superfluous events (unchanged upserts, deletes of the unknown) leave no trace in a picture.

use etcd_client::{Txn, TxnOp};
use meshgate::telemetry::ClusterState;
use serde::Deserialize;

use super::proxy::Proxy;
use super::{Contents, DEADLINE, Rig, Store, assert_same};
use crate::support::fill::Cluster;
use crate::support::{Pki, eventually};

#[derive(Deserialize)]
struct Golden {
    remote_cluster_name: String,
    remote_cluster_id: u32,
    id_base: u32,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    name: String,
    ops: Option<Vec<Op>>,
    events: Option<Vec<Event>>,
    log: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Op {
    #[serde(rename = "op")]
    kind: String,
    key: String,
    value: String,
    value_b64: Option<String>,
}

#[derive(Deserialize)]
struct Event {
    id: u32,
    r#type: String,
    #[serde(default)]
    labels: Vec<String>,
}

/// The value of the one step that is not text.
const BINARY: &[u8] = b"\xff\xfek8s:app=bin;k8s:io.cilium.k8s.policy.cluster=remote;";
const BINARY_BASE64: &str = "//5rOHM6YXBwPWJpbjtrOHM6aW8uY2lsaXVtLms4cy5wb2xpY3kuY2x1c3Rlcj1yZW1vdGU7";

impl Op {
    fn value(&self) -> &[u8] {
        match self.value_b64.as_deref() {
            None => self.value.as_bytes(),
            Some(encoded) => {
                assert_eq!(encoded, BINARY_BASE64);
                BINARY
            }
        }
    }
}

/// Folds Cilium's events into the picture its subscriber has.
fn fold(picture: &mut Contents, events: &[Event]) {
    for event in events {
        match event.r#type.as_str() {
            // A label without a value is told without its `=`.
            "upsert" => {
                let stored = |label: &String| format!("{label}{};", if label.contains('=') { "" } else { "=" });
                picture.insert(event.id, event.labels.iter().map(stored).collect());
            }
            "delete" => {
                picture.remove(&event.id);
            }
            other => panic!("{other}"),
        }
    }
}

/// Where we differ on purpose: what Cilium's picture must be changed by to be ours, and how many entries more than Cilium
/// complains about we refuse.
fn deviate(step: &str, picture: &mut Contents) -> i64 {
    match step {
        // Cilium passes over the number 0 without a word.
        "initial list with invalid entries and a duplicate key" => 1,
        // `00` is zero to Cilium; it is put and deleted.
        "id zero" => 2,
        // A refused update withdraws what was known; Cilium shows the old labels until it restarts (R19).
        "modify: now without cluster label" => {
            picture.remove(&131_082).unwrap();
            0
        }
        // `000131094` is no path of an identity: neither its put nor its delete touches 131094.
        "leading zeros alias" => {
            picture.insert(131_094, "k8s:app=canon;k8s:io.cilium.k8s.policy.cluster=remote;".into());
            2
        }
        // Nor is `id131095`. It is not below the prefix, so it is not even refused.
        "sibling of the prefix without a slash" => {
            picture.remove(&131_095).unwrap();
            0
        }
        "sibling prefix idx/" => -1,
        // What is not UTF-8 could not be given back as it was.
        "binary value" => {
            picture.remove(&131_103).unwrap();
            1
        }
        _ => 0,
    }
}

/// A number that no step uses, by which we know that everything before it has been seen.
const MARKER: u32 = 190_000;

#[tokio::test(flavor = "multi_thread")]
async fn the_steps_of_a_real_cilium() {
    let golden: Golden = serde_json::from_str(include_str!("../golden/remote_watch_steps.json")).unwrap();
    let pki = Pki::temporary().unwrap();
    let cluster = Cluster::new(&golden.remote_cluster_name, golden.remote_cluster_id);
    assert_eq!(*cluster.numbers().start(), golden.id_base);
    let store = Store::empty(&pki, cluster).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::start();
    let (initial, live) = golden.steps.split_first().unwrap();
    run(&store, initial.ops.as_deref().unwrap()).await;
    store.announce().await;
    rig.write("remote", &store.yaml_through(proxy.port()));

    let (mut expected, mut refused) = (Contents::new(), 0);
    let away = live.iter().position(|step| step.name.contains("(disconnect)")).unwrap();
    for (n, step) in std::iter::once(initial).chain(&live[..away]).enumerate() {
        if !std::ptr::eq(step, initial) {
            run(&store, step.ops.as_deref().unwrap_or_default()).await;
        }
        if step.name == "txn: delete one, create another" {
            let id = |number| format!("cilium/state/identities/v1/id/{number}");
            let created = "k8s:app=t;k8s:io.cilium.k8s.policy.cluster=remote;";
            let both = [TxnOp::delete(id(131_104), None), TxnOp::put(id(131_105), created, None)];
            store.etcd.client().kv_client().txn(Txn::new().and_then(both)).await.unwrap();
        }
        fold(&mut expected, step.events.as_deref().unwrap_or_default());
        let more = deviate(&step.name, &mut expected);
        refused += i64::try_from(step.log.as_ref().map_or(0, Vec::len)).unwrap() + more;
        let marker = store.key_string(&format!("marker-{n}"));
        store.put(&store.cluster.identity_key(MARKER), marker.clone()).await;
        eventually(&step.name, DEADLINE, async || rig.shown(2).get(&MARKER) == Some(&marker)).await;
        // The first list may show the marker before the entries behind it.
        rig.until_state("remote", ClusterState::Synced).await;
        let mut shown = rig.shown(2);
        shown.remove(&MARKER);
        assert_same(&step.name, &shown, &expected);
        let status = rig.status("remote").unwrap();
        let counted: u64 = status.rejects.values().sum();
        assert_eq!(i64::try_from(counted).unwrap(), refused, "{}: {:?}", step.name, status.rejects);
    }
    store.delete(&store.cluster.identity_key(MARKER)).await;
    rig.until_shown(2, &expected).await;

    // Disconnected, changed, reconnected: Cilium repeats everything, we tell the difference.
    let before = rig.version(2).unwrap();
    proxy.cut();
    rig.until_state("remote", ClusterState::Reconnecting).await;
    let id = |number: u32| store.cluster.identity_key(number);
    store.delete(&id(131_105)).await;
    store.put(&id(131_076), store.key_string("one-changed")).await;
    store.put(&id(131_106), store.key_string("new")).await;
    store.put(&id(131_100), "k8s:app=nt;").await;
    assert!(std::sync::Arc::ptr_eq(&before, &rig.version(2).unwrap()), "nothing happens while it is away");
    rig.subscriber.clear().await;
    proxy.restore();
    let reconnected = &live[away + 1];
    fold(&mut expected, reconnected.events.as_deref().unwrap());
    for ours in ["sibling of the prefix without a slash", "binary value"] {
        deviate(ours, &mut expected);
    }
    rig.until_shown(2, &expected).await;
    assert_eq!(rig.subscriber.log().await.len(), 4, "{:?}", rig.subscriber.log().await);

    // The file is removed: all of it goes.
    rig.remove("remote");
    eventually("the drain", DEADLINE, async || rig.version(2).is_none() && rig.status("remote").is_none()).await;
    rig.stop().await;
}

async fn run(store: &Store, ops: &[Op]) {
    for op in ops {
        match op.kind.as_str() {
            "put" => store.put(&op.key, op.value()).await,
            "delete" => store.delete(&op.key).await,
            other => panic!("{other}"),
        }
    }
}
