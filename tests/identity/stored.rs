//! Label sets as allocators of two nodes stored them, and the store's own contents.

use meshgate::identity::{
    ClusterId, IdentityRange, LabelRef, MaxConnectedClusters, NumericIdentity, ReservedIdentities, Scope, labels_of,
    parts_of, render_key_string, sorted_key_string,
};
use serde::Deserialize;

use super::{Label, golden, owned};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    cluster_id: u32,
    cluster_name: String,
    node_suffix: String,
    sets: Vec<Set>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    name: String,
    labels_input: Vec<Label>,
    labels_sorted: Vec<Label>,
    labels_model: Vec<String>,
    sorted_list: String,
    get_key: String,
    decoded_labels: Vec<Label>,
    decoded_get_key: String,
    round_trips: bool,
    scope: String,
    reserved_id: Option<u32>,
    id: u32,
    #[expect(dead_code, reason = "whether this allocation created the number is the allocator's")]
    new: bool,
    master_key: Option<String>,
    slave_key: Option<String>,
}

fn nodes() -> [Node; 2] {
    [golden("identities_node_a.json"), golden("identities_node_b.json")]
}

fn refs(labels: &[Label]) -> impl Iterator<Item = LabelRef<'_>> + Clone {
    labels.iter().map(Label::as_ref)
}

#[test]
fn a_label_set_is_stored_as_cilium_stores_it() {
    for set in nodes().into_iter().flat_map(|node| node.sets) {
        assert_eq!(sorted_key_string(refs(&set.labels_input)), set.get_key, "{}", set.name);
        assert_eq!(render_key_string(refs(&set.labels_sorted)), set.sorted_list, "{}", set.name);
        let shown: Vec<_> = refs(&set.labels_sorted).map(|label| label.to_string()).collect();
        assert_eq!(shown, set.labels_model, "{}", set.name);
    }
}

#[test]
fn a_key_string_is_read_back_as_cilium_reads_it() {
    for set in nodes().into_iter().flat_map(|node| node.sets) {
        let decoded = owned(labels_of(&set.get_key));
        assert_eq!(decoded, set.decoded_labels, "{}", set.name);
        assert_eq!(render_key_string(labels_of(&set.get_key)), set.decoded_get_key, "{}", set.name);
        // A `;` in a value comes back as another label: in the store nothing tells the two apart.
        let round_trips = decoded == set.labels_sorted && set.decoded_get_key == set.get_key;
        assert_eq!(round_trips, set.round_trips, "{}", set.name);
        assert_eq!(set.round_trips, !set.name.starts_with("semicolon-"), "{}", set.name);
    }
}

#[test]
fn a_label_set_gets_its_number_from_where_cilium_takes_it() {
    let reserved = ReservedIdentities::default();
    for node in nodes() {
        assert_eq!(node.cluster_name, "cluster-a");
        let cluster = ClusterId::new(node.cluster_id, MaxConnectedClusters::C255).unwrap();
        let range = IdentityRange::of(cluster, MaxConnectedClusters::C255);
        for set in &node.sets {
            let number = NumericIdentity::new(set.id);
            let scope = Scope::of_labels(refs(&set.labels_input));
            assert_eq!(scope.as_str(), set.scope, "{}", set.name);
            let reserved_id = reserved.by_labels(refs(&set.labels_input));
            assert_eq!(reserved_id.map(NumericIdentity::get), set.reserved_id, "{}", set.name);

            let allocated = reserved.needs_global_identity(refs(&set.labels_input));
            assert_eq!(allocated, set.master_key.is_some(), "{}", set.name);
            if allocated {
                assert!(range.contains(number), "{}", set.name);
            } else {
                assert_eq!(reserved_id.unwrap_or(number), number, "{}", set.name);
                assert!(reserved_id.is_some() || number.scope() == Some(scope), "{}", set.name);
            }
        }
    }
}

#[test]
fn the_store_s_keys_are_made_of_number_and_key_string() {
    for node in nodes() {
        for set in &node.sets {
            let (Some(master), Some(slave)) = (&set.master_key, &set.slave_key) else { continue };
            assert_eq!(
                *master,
                format!("cilium/state/identities/v1/id/{}", NumericIdentity::new(set.id)),
                "{}",
                set.name
            );
            let joined = format!("cilium/state/identities/v1/value/{}/{}", set.get_key, node.node_suffix);
            if set.name == "dotdot-path-in-value" {
                // Cilium cleans the path, and the labels before `..` are gone from it; the master key has them all.
                assert_ne!(*slave, joined);
            } else {
                assert_eq!(slave.replace("//", "/"), joined.replace("//", "/"), "{}", set.name);
            }
        }
    }
}

#[derive(Deserialize)]
struct Dump {
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    key: String,
    value: String,
}

#[test]
fn what_stands_in_the_store_is_canonical() {
    let cluster = ClusterId::new(5, MaxConnectedClusters::C255).unwrap();
    let range = IdentityRange::of(cluster, MaxConnectedClusters::C255);
    let dump: Dump = golden("etcd_alloc.json");
    let mut seen = 0;
    for entry in &dump.entries {
        let Some(id) = entry.key.strip_prefix("cilium/state/identities/v1/id/") else { continue };
        seen += 1;
        assert!(range.contains(NumericIdentity::parse_canonical(id.as_bytes()).unwrap()), "{id}");
        for part in parts_of(&entry.value) {
            // `k8s:cmd=a;b;` of the set `semicolon-in-value`.
            assert_eq!(part.is_stored_form(), part.text != "b", "{}", part.text);
        }
        let sorted = sorted_key_string(labels_of(&entry.value));
        // A `;` in a value also puts its tail out of order.
        assert_eq!(sorted == entry.value, !entry.value.contains("k8s:cmd=a;"), "{}", entry.value);
    }
    assert_eq!(seen, 24);
}
