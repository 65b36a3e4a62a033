//! What a Cilium that watches a peer's store accepts and refuses, entry by entry: `remote_watch_steps.json`.
//!
//! The judge here puts this room's checks in the order in which Cilium applies them. Where it decides otherwise on
//! purpose, [`overrides`] says so by the step's name.

use std::collections::BTreeMap;

use meshgate::identity::{
    ClusterId, ClusterLabelError, IdentityRange, LabelRef, MaxConnectedClusters, NumericIdentity, check_cluster_label,
    key_string_from_bytes, labels_of, render_key_string,
};
use serde::Deserialize;
use serde_json::Value;

use super::golden;

const PREFIX: &str = "cilium/state/identities/v1/id/";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Watch {
    remote_cluster_name: String,
    remote_cluster_id: u32,
    id_base: u32,
    steps: Vec<Step>,
}

/// Only what an entry alone decides; the rest of a step is about the watch.
#[derive(Debug, Deserialize)]
struct Step {
    name: String,
    ops: Option<Vec<Op>>,
    log: Option<Vec<String>>,
    events: Option<Vec<Event>>,
    #[serde(default)]
    lookup_by_id: BTreeMap<u32, Option<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Op {
    op: String,
    key: String,
    value: String,
    value_b64: Option<Value>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Event {
    r#type: String,
    id: u32,
    #[serde(default)]
    labels: Vec<String>,
}

impl Op {
    fn value(&self) -> Vec<u8> {
        match &self.value_b64 {
            None => self.value.clone().into_bytes(),
            // The one such value: two bytes that are never UTF-8, then labels.
            Some(value) => {
                assert_eq!(value, "//5rOHM6YXBwPWJpbjtrOHM6aW8uY2lsaXVtLms4cy5wb2xpY3kuY2x1c3Rlcj1yZW1vdGU7");
                b"\xff\xfek8s:app=bin;k8s:io.cilium.k8s.policy.cluster=remote;".to_vec()
            }
        }
    }
}

/// The number of an acceptable entry, or the line that Cilium logs for what this room finds wrong with it.
fn judge(op: &Op, suffix: &str, cluster: &str, id: ClusterId) -> Result<NumericIdentity, String> {
    let number = NumericIdentity::parse_canonical(suffix.as_bytes())
        .map_err(|_| format!("warning: Invalid key (error=Cannot parse key suffix \"{suffix}\")"))?;
    let is_put = op.op == "put";
    let value = op.value();
    if is_put && value.is_empty() {
        return Err("error: Received a key with an empty value".into());
    }
    let invalid = |error: String| format!("warning: Skipping event for invalid identity (error={error})");
    if !IdentityRange::of(id, MaxConnectedClusters::C255).contains(number) {
        return Err(invalid(format!("ID {number} does not belong to the allocation range of cluster ID {id}")));
    }
    if is_put {
        let key_string = key_string_from_bytes(&value).map_err(|error| error.reason().to_owned())?;
        check_cluster_label(labels_of(key_string), cluster).map_err(|error| {
            invalid(match error {
                ClusterLabelError::Missing => "could not find expected label io.cilium.k8s.policy.cluster".into(),
                ClusterLabelError::WrongSource { got } => {
                    format!("unexpected source for cluster label: got {got}, expected k8s")
                }
                ClusterLabelError::WrongCluster { got } => {
                    format!("unexpected cluster name: got {got}, expected {cluster}")
                }
            })
        })?;
    }
    Ok(number)
}

/// What a step logs, and what Cilium would have had to log for our judgement: (taken away, put in its place).
fn overrides(step: &str) -> (&'static [&'static str], &'static [&'static str]) {
    const ALIAS: &str = "warning: Invalid key (error=Cannot parse key suffix \"000131094\")";
    const DOUBLE_ZERO: &str = "warning: Invalid key (error=Cannot parse key suffix \"00\")";
    match step {
        // Cilium passes over the ID 0 in silence; we count it.
        "initial list with invalid entries and a duplicate key" => (
            &[],
            &["warning: Skipping event for invalid identity (error=ID 0 does not belong to the allocation range of \
               cluster ID 2)"],
        ),
        // WIRE.md: no leading zero. The same silence.
        "id zero" => (&[], &[DOUBLE_ZERO, DOUBLE_ZERO]),
        // WIRE.md: no leading zero. Cilium takes the alias for the number, and its deletion for the number's.
        "leading zeros alias" => (&[], &[ALIAS, ALIAS]),
        // Cilium's IDs have 64 bits until they are checked.
        "uint64 max" => (
            &["warning: Skipping event for invalid identity (error=ID 18446744073709551615 does not belong to the \
               allocation range of cluster ID 2)"],
            &["warning: Invalid key (error=Cannot parse key suffix \"18446744073709551615\")"],
        ),
        // Issue: what is not UTF-8 is an error of that one entry.
        "binary value" => (&[], &["not_utf8"]),
        // Cilium lists the prefix without its slash; these are keys beside ours, not below it.
        "sibling prefix idx/" => (&["warning: Invalid key (error=Cannot parse key suffix \"x/131096\")"], &[]),
        _ => (&[], &[]),
    }
}

#[test]
fn a_peer_s_entries_are_judged_as_by_cilium() {
    let watch: Watch = golden("remote_watch_steps.json");
    let cluster = ClusterId::new(watch.remote_cluster_id, MaxConnectedClusters::C255).unwrap();
    assert_eq!(IdentityRange::of(cluster, MaxConnectedClusters::C255).min(), watch.id_base);
    let mut without_writes = Vec::new();
    for step in &watch.steps {
        let ops = step.ops.as_deref().unwrap_or_default();
        if ops.is_empty() {
            without_writes.push(&*step.name);
            continue;
        }
        let mut ours = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            let Some(suffix) = op.key.strip_prefix(PREFIX) else { continue };
            match judge(op, suffix, &watch.remote_cluster_name, cluster) {
                Err(line) => ours.push(line),
                Ok(number) if op.op == "put" => {
                    let last = !ops[index + 1..].iter().any(|later| later.key == op.key);
                    accepted_as_by_cilium(step, number, &op.value, last);
                }
                Ok(_) => {}
            }
        }
        let (away, instead) = overrides(&step.name);
        let mut theirs = step.log.clone().unwrap_or_default();
        theirs.retain(|line| !away.contains(&&**line));
        theirs.extend(instead.iter().map(|&line| line.to_owned()));
        ours.sort();
        theirs.sort();
        assert_eq!(ours, theirs, "{}", step.name);
    }
    // These are the mirror's: they say nothing of a single entry.
    assert_eq!(
        without_writes,
        [
            "txn: delete one, create another",
            "watch context cancelled (disconnect)",
            "reconnect under the same name (while away: 131105 deleted, 131076 relabelled, 131106 added, 131100 lost its \
             cluster label)",
            "reconnect, list entries received but list-done not yet",
            "that watch cancelled before list-done (an older cache of the same name is registered)",
            "RemoveRemoteIdentities",
        ]
    );
}

fn accepted_as_by_cilium(step: &Step, number: NumericIdentity, key_string: &str, last: bool) {
    let upsert = Event {
        r#type: "upsert".into(),
        id: number.get(),
        labels: labels_of(key_string).map(|label| label.to_string()).collect(),
    };
    let events = step.events.as_deref().unwrap_or_default();
    assert!(events.contains(&upsert), "{}: {upsert:?}", step.name);
    // In that step Cilium has just deleted the number by its alias.
    if last
        && step.name != "leading zeros alias"
        && let Some(known) = step.lookup_by_id.get(&number.get())
    {
        assert_eq!(*known, Some(render_key_string(labels_of(key_string))), "{}", step.name);
    }
}

#[test]
fn every_label_with_the_key_is_checked_and_the_first_wrong_one_reported() {
    let check = |key_string: &'static str| check_cluster_label(labels_of(key_string), "remote");
    assert_eq!(check("k8s:io.cilium.k8s.policy.cluster=remote;"), Ok(()));
    assert_eq!(check(""), Err(ClusterLabelError::Missing));
    assert_eq!(
        check("k8s:io.cilium.k8s.policy.cluster=remote;any:io.cilium.k8s.policy.cluster=other;"),
        Err(ClusterLabelError::WrongSource { got: "any".into() })
    );
    assert_eq!(
        check("k8s:io.cilium.k8s.policy.cluster=other;any:io.cilium.k8s.policy.cluster=remote;"),
        Err(ClusterLabelError::WrongCluster { got: "other".into() })
    );
    // What a peer wrote cannot break a log line.
    let error = check_cluster_label([LabelRef::parse("k8s:io.cilium.k8s.policy.cluster=a\nb")], "remote").unwrap_err();
    assert!(!error.to_string().contains('\n'));
}
