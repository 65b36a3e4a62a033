//! The view against plain maps: whatever happens, look-ups, differences and checksum are those of the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters, NumericIdentity};

const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;

fn cluster_id(id: u32) -> ClusterId {
    ClusterId::new(id, WIDTH).unwrap()
}

fn builder_of(interner: &Interner, name: &str, id: u32) -> ClusterBuilder {
    let id = cluster_id(id);
    ClusterBuilder::new(interner.clone(), ClusterName::new(name).unwrap(), id, IdentityRange::of(id, WIDTH))
}

fn number(offset: u16) -> NumericIdentity {
    NumericIdentity::new((5 << 16) + u32::from(offset))
}

fn position(revision: i64) -> SourcePosition {
    SourcePosition { etcd_cluster_id: 7, revision }
}

type Model = BTreeMap<NumericIdentity, String>;

fn contents(view: &ClusterView) -> Model {
    view.iter().map(|identity| (identity.number(), identity.key_string())).collect()
}

/// Everything that must hold between a version and its model.
fn check(view: &ClusterView, model: &Model) {
    assert_eq!(contents(view), *model);
    assert_eq!(view.len(), model.len());
    let checksum = model.iter().fold(0u64, |sum, (number, key)| sum.wrapping_add(contribution(*number, key)));
    assert_eq!(view.checksum(), checksum);
    for (number, key) in model {
        assert_eq!(view.get(*number).map(Identity::key_string).as_deref(), Some(key.as_str()));
        let highest = model.iter().rev().find(|(_, other)| *other == key).map(|(number, _)| *number);
        assert_eq!(view.lookup(key).map(Identity::number), highest);
    }
}

fn check_diff(old: &ClusterView, old_model: &Model, new: &ClusterView, new_model: &Model) {
    let mut folded = old_model.clone();
    let mut last = None;
    for change in diff(Some(old), new) {
        let number = match change {
            Change::Upserted(identity) => {
                let key = identity.key_string();
                assert_ne!(old_model.get(&identity.number()), Some(&key), "an unchanged entry is in the difference");
                folded.insert(identity.number(), key);
                identity.number()
            }
            Change::Removed(number) => {
                assert!(folded.remove(&number).is_some(), "removed what was not there");
                number
            }
        };
        assert!(last < Some(number), "numbers ascend, so that none is there twice");
        last = Some(number);
    }
    assert_eq!(folded, *new_model);
    // Told in parts, the difference is the same, wherever the parts end.
    let whole: Vec<_> = diff(Some(old), new).map(|change| change.number()).collect();
    for (at, after) in whole.iter().enumerate() {
        assert!(
            diff_after(Some(old), new, Some(*after)).map(|change| change.number()).eq(whole[at + 1..].iter().copied())
        );
    }
}

#[derive(Clone, Debug)]
enum Op {
    Upsert(u16, u8, u8),
    Remove(u16),
    Build,
    Relist(Vec<(u16, u8, u8)>),
    AbortedRelist(Vec<(u16, u8, u8)>),
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    // Few numbers in one leaf, some across leaves and branches, and both ends of the range.
    let offset = prop_oneof![0u16..40, Just(0), Just(u16::MAX), (0u16..64).prop_map(|n| n * 1024), any::<u16>()];
    let entry = (offset.clone(), 0u8..6, 0u8..4);
    prop_oneof![
        12 => entry.clone().prop_map(|(n, a, b)| Op::Upsert(n, a, b)),
        6 => offset.prop_map(Op::Remove),
        4 => Just(Op::Build),
        1 => proptest::collection::vec(entry.clone(), 0..40).prop_map(Op::Relist),
        1 => proptest::collection::vec(entry, 0..40).prop_map(Op::AbortedRelist),
        1 => Just(Op::Clear),
    ]
}

fn key(a: u8, b: u8) -> String {
    format!("k8s:app=a{a};k8s:io.cilium.k8s.policy.cluster=five;k8s:tier=t{b};")
}

proptest! {
    #[test]
    fn any_history_is_that_of_a_map(ops in proptest::collection::vec(op(), 1..120)) {
        let interner = Interner::new();
        let mut builder = builder_of(&interner, "five", 5);
        let mut model = Model::new();
        let mut versions = vec![(builder.build(), model.clone())];
        for op in ops {
            match op {
                Op::Upsert(n, a, b) => {
                    let expected = match model.insert(number(n), key(a, b)) {
                        None => Effect::Added,
                        Some(before) if before == key(a, b) => Effect::Unchanged,
                        Some(_) => Effect::Modified,
                    };
                    prop_assert_eq!(builder.upsert(number(n), &key(a, b), 1), Ok(expected));
                }
                Op::Remove(n) => prop_assert_eq!(builder.remove(number(n)), model.remove(&number(n)).is_some()),
                Op::Build => versions.push((builder.build(), model.clone())),
                Op::Relist(entries) => {
                    builder.begin_relist();
                    let mut listed = Model::new();
                    for (n, a, b) in entries {
                        builder.upsert(number(n), &key(a, b), 1).unwrap();
                        listed.insert(number(n), key(a, b));
                    }
                    let gone = model.keys().filter(|number| !listed.contains_key(number)).count();
                    prop_assert_eq!(builder.finish_relist(), gone);
                    model = listed;
                }
                Op::AbortedRelist(entries) => {
                    let (published, published_model) = versions.last().unwrap();
                    builder.reset_to(published);
                    builder.begin_relist();
                    for (n, a, b) in entries {
                        builder.upsert(number(n), &key(a, b), 1).unwrap();
                    }
                    builder.reset_to(published);
                    model = published_model.clone();
                }
                Op::Clear => {
                    builder.clear();
                    model.clear();
                }
            }
            check(builder.current(), &model);
        }
        versions.push((builder.build(), model));
        // Versions are immutable: each still is what it was when it was built, and any two differ by what they differ by.
        for (view, model) in &versions {
            check(view, model);
        }
        for (old, old_model) in &versions {
            for (new, new_model) in &versions {
                check_diff(old, old_model, new, new_model);
            }
        }
    }

    #[test]
    fn iteration_goes_on_where_it_paused(offsets in proptest::collection::btree_set(any::<u16>(), 0..200), after in any::<u16>()) {
        let mut builder = builder_of(&Interner::new(), "five", 5);
        for &offset in &offsets {
            builder.upsert(number(offset), "k8s:a=b;", 1).unwrap();
        }
        let view = builder.build();
        let behind: Vec<_> = view.iter_after(Some(number(after))).map(Identity::number).collect();
        let expected: Vec<_> = offsets.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded)).map(|&n| number(n)).collect();
        prop_assert_eq!(behind, expected);
    }
}

#[test]
fn another_form_of_the_same_labels_is_unchanged_and_found() {
    let mut builder = builder_of(&Interner::new(), "five", 5);
    assert_eq!(builder.upsert(number(1), "k8s:app;k8s:b=c", 1), Ok(Effect::Added));
    assert_eq!(builder.upsert(number(1), "k8s:app=;k8s:b=c;", 2), Ok(Effect::Unchanged));
    assert_eq!(builder.upsert(number(1), "k8s:app;;k8s:b=c;", 3), Ok(Effect::Unchanged));
    assert_eq!(builder.upsert(number(1), ";k8s:app=;k8s:b=c", 4), Ok(Effect::Unchanged));
    let view = builder.build();
    let identity = view.get(number(1)).unwrap();
    assert_eq!((identity.key_string().as_str(), identity.revision()), ("k8s:app=;k8s:b=c;", 4));
    assert_eq!(view.checksum(), contribution(number(1), "k8s:app=;k8s:b=c;"));
    for form in ["k8s:app=;k8s:b=c;", "k8s:app;k8s:b=c"] {
        assert_eq!(view.lookup(form).map(Identity::number), Some(number(1)), "{form}");
    }
    let parts = identity.labels()[1].parts();
    assert_eq!((parts.source, parts.key, parts.value), ("k8s", "b", "c"));
}

#[test]
fn a_number_outside_the_range_is_refused_and_changes_nothing() {
    let mut builder = builder_of(&Interner::new(), "five", 5);
    for outside in [0, (5 << 16) - 1, 6 << 16, u32::MAX] {
        let outside = NumericIdentity::new(outside);
        assert_eq!(builder.upsert(outside, "k8s:a=b;", 1), Err(BuildError::OutOfRange(outside)));
        assert!(!builder.remove(outside));
        assert_eq!(builder.current().get(outside), None);
    }
    assert!(builder.current().is_empty());
}

#[test]
fn versions_share_what_did_not_change() {
    let mut builder = builder_of(&Interner::new(), "five", 5);
    for offset in 0..10_000u16 {
        builder.upsert(number(offset), &key(0, 0), 1).unwrap();
    }
    let old = builder.build();
    builder.upsert(number(77), &key(1, 1), 2).unwrap();
    let new = builder.build();
    let untouched = number(5_000);
    assert!(old.get(untouched).unwrap().same(new.get(untouched).unwrap()));
    assert_eq!(diff(Some(&old), &new).count(), 1);
    // Only the leaf of 77 is read.
    assert_eq!(super::pages::Pages::differing_leaves(&old.pages, &new.pages, 0).count(), 1);
}

#[test]
fn labels_are_shared_and_freed() {
    let interner = Interner::new();
    let mut one = builder_of(&interner, "five", 5);
    let mut two = builder_of(&interner, "six", 6);
    one.upsert(number(1), "k8s:a=b;k8s:c=d;", 1).unwrap();
    two.upsert(NumericIdentity::new(6 << 16), "k8s:a=b;", 1).unwrap();
    assert_eq!(interner.len(), 2);
    one.clear();
    assert_eq!((interner.sweep(), interner.len()), (1, 1));
    drop(two);
    interner.sweep();
    assert!(interner.is_empty());
}

#[test]
fn churn_does_not_grow_the_label_table() {
    let interner = Interner::new();
    let mut builder = builder_of(&interner, "five", 5);
    for round in 0..100_000u32 {
        builder.upsert(number((round % 64) as u16), &format!("k8s:a={round};"), 1).unwrap();
    }
    assert!(interner.len() < 2_000, "{} labels are held for 64 in use", interner.len());
}

#[test]
fn mesh_joins_clusters_and_follows_their_names() {
    let interner = Interner::new();
    let view = View::new(WIDTH, cluster_id(5));
    let mut changes = view.changes();
    let mut own = builder_of(&interner, "five", 5);
    own.upsert(number(1), "k8s:a=b;", 1).unwrap();
    view.publish(own.build());
    let mut peer = builder_of(&interner, "six", 6);
    let of_peer = NumericIdentity::new((6 << 16) + 9);
    let peer_key = "k8s:a=b;k8s:io.cilium.k8s.policy.cluster=six;";
    peer.upsert(of_peer, peer_key, 1).unwrap();
    view.publish(peer.build());

    let mesh = view.load();
    assert_eq!((mesh.version(), mesh.len(), *changes.borrow_and_update()), (2, 2, 2));
    assert_eq!(mesh.get(number(1)).map(Identity::number), Some(number(1)));
    assert_eq!(mesh.get(of_peer).map(Identity::number), Some(of_peer));
    assert_eq!(mesh.get(NumericIdentity::new(0x0100_0001)), None, "another scope is not in any cluster");
    assert_eq!(mesh.lookup("k8s:a=b;").map(Identity::number), Some(number(1)));
    assert_eq!(mesh.lookup(peer_key).map(Identity::number), Some(of_peer));
    assert_eq!(mesh.lookup("k8s:a=b;k8s:io.cilium.k8s.policy.cluster=seven;"), None);
    assert_eq!(mesh.cluster_named("six").map(|cluster| cluster.id()), Some(cluster_id(6)));

    // The cluster moves to another ID: it is published there, then withdrawn here; its name leads to the new place.
    let moved = builder_of(&interner, "six", 7).build();
    view.publish(moved);
    view.withdraw(cluster_id(6));
    let mesh = view.load();
    assert_eq!(mesh.cluster_named("six").map(|cluster| cluster.id()), Some(cluster_id(7)));
    assert_eq!(mesh.get(of_peer), None);
    let version = mesh.version();
    view.withdraw(cluster_id(6));
    assert_eq!(view.load().version(), version, "withdrawing nothing is no publication");
    assert!(changes.has_changed().unwrap());
}

#[test]
fn readers_see_whole_versions_while_writers_publish() {
    let interner = Interner::new();
    let view = View::new(WIDTH, cluster_id(5));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        for id in [5u32, 6] {
            let (view, stop, interner) = (view.clone(), stop.clone(), interner.clone());
            scope.spawn(move || {
                let mut builder = builder_of(&interner, if id == 5 { "five" } else { "six" }, id);
                let first = NumericIdentity::new(id << 16);
                let second = NumericIdentity::new((id << 16) + 40_000);
                let mut round = 0u32;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    round += 1;
                    builder.upsert(first, &format!("k8s:r={round};"), i64::from(round)).unwrap();
                    builder.upsert(second, &format!("k8s:r={round};"), i64::from(round)).unwrap();
                    builder.set_synced(position(i64::from(round)));
                    view.publish(builder.build());
                }
            });
        }
        let mut last = [0i64; 2];
        for _ in 0..50_000 {
            let mesh = view.load();
            for (at, cluster) in mesh.clusters().enumerate() {
                let revisions: Vec<i64> = cluster.iter().map(Identity::revision).collect();
                assert!(revisions.windows(2).all(|pair| pair[0] == pair[1]), "a torn version: {revisions:?}");
                assert_eq!(cluster.position().unwrap().revision, revisions[0]);
                if mesh.clusters().count() == 2 {
                    assert!(last[at] <= revisions[0], "a version went back");
                    last[at] = revisions[0];
                }
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
