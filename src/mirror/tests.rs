//! The mirror against hand-made steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Admission, Counts, Mirror, Outcome, Publication, RejectReason, layout};
use crate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters, NumericIdentity};
use crate::kvstore::{Event, KeyValue, ListKind, Position, Step};
use crate::view::{ClusterBuilder, ClusterView, Interner, SyncState};

const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;
const ETCD: u64 = 0xfeed;

/// The cluster `blue`, ID 2, and what a subscriber would know of it.
struct Rig {
    mirror: Mirror,
    shown: Option<Arc<ClusterView>>,
    revision: i64,
}

impl Rig {
    fn new() -> Self {
        let id = ClusterId::new(2, WIDTH).unwrap();
        let name = ClusterName::new("blue").unwrap();
        let range = IdentityRange::of(id, WIDTH);
        let builder = ClusterBuilder::new(Interner::new(), name.clone(), id, range);
        let admission = Admission::peer(range, name);
        Self { mirror: Mirror::new(layout::state_ids().into(), admission, builder), shown: None, revision: 100 }
    }

    fn see(&mut self, publication: &Publication) {
        match publication {
            Publication::None => {}
            Publication::Publish(version) => self.shown = Some(Arc::clone(version)),
            Publication::Withdraw(id) => {
                assert_eq!(id.get(), 2);
                self.shown = None;
            }
        }
    }

    fn apply(&mut self, step: Step) -> Outcome {
        let outcome = self.mirror.apply(step);
        self.see(&outcome.publication);
        outcome
    }

    fn break_off(&mut self) {
        let publication = self.mirror.break_off();
        self.see(&publication);
    }

    fn position(&mut self) -> Position {
        self.revision += 1;
        Position { etcd_cluster_id: ETCD, revision: self.revision }
    }

    fn page(&mut self, entries: &[(&str, &str)]) -> Outcome {
        let revision = self.revision;
        self.apply(Step::Page(entries.iter().map(|(suffix, app)| entry(suffix, &key_string(app), revision)).collect()))
    }

    fn list(&mut self, pages: &[&[(&str, &str)]]) -> Outcome {
        self.apply(Step::ListStarted(ListKind::First));
        for page in pages {
            self.page(page);
        }
        let position = self.position();
        self.apply(Step::Listed(position))
    }

    fn events(&mut self, events: Vec<Event>) -> Outcome {
        let position = self.position();
        self.apply(Step::Events(events, position))
    }

    fn put(&mut self, suffix: &str, value: &[u8]) -> Outcome {
        self.events(vec![put(suffix, value)])
    }

    /// What is shown: number → key string.
    fn folded(&self) -> BTreeMap<u32, String> {
        let shown = self.shown.iter().flat_map(|version| version.iter());
        shown.map(|identity| (identity.number().get(), identity.key_string())).collect()
    }
}

fn key_string(app: &str) -> Vec<u8> {
    format!("k8s:app={app};k8s:io.cilium.k8s.policy.cluster=blue;").into_bytes()
}

fn entry(suffix: &str, value: &[u8], mod_revision: i64) -> KeyValue {
    let key = format!("{}{suffix}", layout::state_ids()).into_bytes();
    KeyValue { key, value: value.to_vec(), mod_revision, create_revision: mod_revision, lease: 0 }
}

fn put(suffix: &str, value: &[u8]) -> Event {
    Event::Put(entry(suffix, value, 7))
}

fn delete(suffix: &str) -> Event {
    Event::Delete { key: format!("{}{suffix}", layout::state_ids()).into_bytes(), mod_revision: 7 }
}

fn expect(entries: &[(u32, &str)]) -> BTreeMap<u32, String> {
    entries.iter().map(|&(number, app)| (number, String::from_utf8(key_string(app)).unwrap())).collect()
}

fn only_reject(outcome: &Outcome) -> (RejectReason, u64) {
    let counts: Vec<_> = outcome.rejects.counts().collect();
    assert_eq!(counts.len(), 1, "{counts:?}");
    counts[0]
}

#[test]
fn a_first_list_is_shown_as_it_comes_and_synced_when_complete() {
    let mut rig = Rig::new();
    rig.apply(Step::ListStarted(ListKind::First));
    assert!(rig.shown.is_none());
    rig.page(&[("131073", "a")]);
    assert_eq!(rig.folded(), expect(&[(131_073, "a")]));
    assert_eq!(rig.shown.as_ref().unwrap().state(), SyncState::Listing);
    rig.page(&[("131074", "b")]);
    let position = rig.position();
    rig.apply(Step::Listed(position));
    let shown = rig.shown.clone().unwrap();
    assert_eq!(rig.folded(), expect(&[(131_073, "a"), (131_074, "b")]));
    assert_eq!((shown.state(), shown.position().unwrap().revision), (SyncState::Synced, position.revision));
}

#[test]
fn an_empty_store_is_synced_too() {
    let mut rig = Rig::new();
    rig.list(&[]);
    assert!(rig.shown.unwrap().is_synced());
}

#[test]
fn a_first_list_that_breaks_off_is_withdrawn() {
    let mut rig = Rig::new();
    rig.apply(Step::ListStarted(ListKind::First));
    rig.page(&[("131073", "a")]);
    rig.break_off();
    assert!(rig.shown.is_none());
    // Also if it begins again within the session.
    rig.apply(Step::ListStarted(ListKind::First));
    rig.page(&[("131074", "b")]);
    rig.apply(Step::ListStarted(ListKind::First));
    assert!(rig.shown.is_none());
    rig.page(&[("131075", "c")]);
    assert_eq!(rig.folded(), expect(&[(131_075, "c")]));
}

#[test]
fn r02_a_list_again_is_staged_and_breaking_it_off_changes_nothing() {
    let mut rig = Rig::new();
    rig.list(&[&[("131073", "a"), ("131074", "b"), ("131075", "c")]]);
    let before = rig.shown.clone().unwrap();
    rig.apply(Step::ListStarted(ListKind::Again));
    rig.page(&[("131073", "changed"), ("131076", "new")]);
    rig.break_off();
    assert!(Arc::ptr_eq(&before, rig.shown.as_ref().unwrap()), "nobody heard anything");
    assert_eq!(rig.mirror.current().checksum(), before.checksum());
    let outcome = rig.list(&[&[("131073", "changed")], &[("131075", "c")]]);
    assert_eq!(rig.folded(), expect(&[(131_073, "changed"), (131_075, "c")]));
    assert_eq!(outcome.counts, Counts { upserted: 1, unchanged: 1, removed: 1 });
}

#[test]
fn the_rest_of_a_list_that_was_broken_off_is_not_taken_for_the_whole() {
    let mut rig = Rig::new();
    rig.apply(Step::ListStarted(ListKind::First));
    rig.page(&[("131073", "a")]);
    rig.break_off();
    rig.page(&[("131074", "b")]);
    let position = rig.position();
    rig.apply(Step::Listed(position));
    assert!(rig.shown.is_none() && !rig.mirror.is_complete());
}

#[test]
fn an_equal_list_is_silent_unless_another_etcd_gave_it() {
    let mut rig = Rig::new();
    rig.list(&[&[("131073", "a")]]);
    let outcome = rig.list(&[&[("131073", "a")]]);
    assert!(matches!(outcome.publication, Publication::None));
    rig.apply(Step::ListStarted(ListKind::Again));
    rig.page(&[("131073", "a")]);
    let elsewhere = Position { etcd_cluster_id: ETCD + 1, revision: 3 };
    rig.apply(Step::Listed(elsewhere));
    assert_eq!(rig.shown.unwrap().position().unwrap().etcd_cluster_id, ETCD + 1);
}

#[test]
fn the_events_of_a_step_are_applied_in_order_and_shown_together() {
    let mut rig = Rig::new();
    rig.list(&[&[("131073", "a")]]);
    let outcome = rig.events(vec![
        put("131074", &key_string("b")),
        delete("131073"),
        delete("131074"),
        put("131074", &key_string("b2")),
        put("131075", &key_string("c")),
        delete("131075"),
    ]);
    assert!(matches!(outcome.publication, Publication::Publish(_)));
    assert_eq!(rig.folded(), expect(&[(131_074, "b2")]));
    assert_eq!(rig.shown.as_ref().unwrap().position().unwrap().revision, rig.revision);
}

#[test]
fn an_unchanged_upsert_and_an_unknown_delete_are_silent() {
    let mut rig = Rig::new();
    rig.list(&[&[("131073", "a")]]);
    let outcome = rig.put("131073", &key_string("a"));
    assert!(matches!(outcome.publication, Publication::None));
    assert_eq!(outcome.counts, Counts { unchanged: 1, ..Counts::default() });
    let outcome = rig.events(vec![delete("131099")]);
    assert!(matches!(outcome.publication, Publication::None));
    assert_eq!(outcome.counts, Counts::default());
}

#[test]
fn r19_a_refused_update_withdraws_what_was_known() {
    let too_long = [key_string("x").as_slice(), &[b'x'; super::DEFAULT_MAX_KEY_STRING]].concat();
    for (value, reason) in [
        (&b""[..], RejectReason::EmptyValue),
        (b"k8s:app=x;", RejectReason::MissingClusterLabel),
        (b"hello world", RejectReason::MissingClusterLabel),
        (b"k8s:io.cilium.k8s.policy.cluster=red;", RejectReason::WrongClusterLabel),
        (
            b"k8s:io.cilium.k8s.policy.cluster=blue;k8s:io.cilium.k8s.policy.cluster=red;",
            RejectReason::WrongClusterLabel,
        ),
        (b"any:io.cilium.k8s.policy.cluster=blue;", RejectReason::WrongLabelSource),
        (b"io.cilium.k8s.policy.cluster=blue;", RejectReason::WrongLabelSource),
        (b"\xff\xfek8s:io.cilium.k8s.policy.cluster=blue;", RejectReason::NotUtf8),
        (&too_long, RejectReason::TooLong),
    ] {
        let mut rig = Rig::new();
        rig.list(&[&[("131073", "a")]]);
        let outcome = rig.put("131073", value);
        assert_eq!(only_reject(&outcome), (reason, 1));
        assert_eq!(rig.folded(), expect(&[]), "{reason:?}");
        let outcome = rig.put("131073", &key_string("a"));
        assert_eq!(outcome.counts.upserted, 1, "and it can come back");
    }
}

#[test]
fn a_bad_key_is_counted_and_touches_nothing() {
    let mut rig = Rig::new();
    rig.list(&[&[("131073", "a")]]);
    for (suffix, reason) in [
        ("131073/x", RejectReason::NestedPath),
        ("/131073", RejectReason::NestedPath),
        ("", RejectReason::BadNumber),
        ("000131073", RejectReason::BadNumber),
        ("+131073", RejectReason::BadNumber),
        (" 131073", RejectReason::BadNumber),
        ("0x20001", RejectReason::BadNumber),
        ("18446744073709551616", RejectReason::BadNumber),
        ("0", RejectReason::OutOfRange),
        ("131071", RejectReason::OutOfRange),
        ("196608", RejectReason::OutOfRange),
        ("16908289", RejectReason::OutOfRange),
    ] {
        for event in [put(suffix, &key_string("b")), delete(suffix)] {
            let outcome = rig.events(vec![event]);
            assert_eq!(only_reject(&outcome), (reason, 1), "{suffix}");
            assert!(matches!(outcome.publication, Publication::None));
        }
    }
    assert_eq!(rig.folded(), expect(&[(131_073, "a")]));
}

#[test]
fn a_refused_entry_of_a_list_is_absent_from_it() {
    let mut rig = Rig::new();
    rig.list(&[&[("131073", "a"), ("131074", "b")]]);
    rig.apply(Step::ListStarted(ListKind::Again));
    let outcome = rig.apply(Step::Page(vec![entry("131073", b"k8s:app=a;", 9), entry("131074", &key_string("b"), 9)]));
    assert_eq!(outcome.rejects.total(), 1);
    assert_eq!(rig.folded().len(), 2, "staged");
    let position = rig.position();
    rig.apply(Step::Listed(position));
    assert_eq!(rig.folded(), expect(&[(131_074, "b")]));
}

#[test]
fn many_rejects_leave_few_examples_and_no_long_ones() {
    let mut rig = Rig::new();
    let long = "x".repeat(5_000);
    let entries = (0..1_000).map(|_| entry(&long, b"v\xff", 7)).collect();
    rig.apply(Step::ListStarted(ListKind::First));
    let outcome = rig.apply(Step::Page(entries));
    assert_eq!(outcome.rejects.total(), 1_000);
    assert_eq!(outcome.rejects.examples().len(), super::rejects::MAX_EXAMPLES);
    assert!(outcome.rejects.examples().iter().all(|example| example.key.len() < 200 && example.detail.len() < 200));
}

#[test]
fn p04_another_prefix_is_listed_on_top_of_what_is_held() {
    let mut rig = Rig::new();
    rig.list(&[&[("131073", "a"), ("131074", "b")]]);
    let before = rig.shown.clone().unwrap();
    let cache = layout::cached_ids(&ClusterName::new("blue").unwrap());
    rig.mirror.move_to(cache.clone().into());
    rig.apply(Step::ListStarted(ListKind::First));
    let moved = |number: u32, app| KeyValue {
        key: format!("{cache}{number}").into(),
        value: key_string(app),
        mod_revision: 9,
        create_revision: 9,
        lease: 1,
    };
    rig.apply(Step::Page(vec![moved(131_073, "a"), moved(131_074, "b")]));
    let position = rig.position();
    let outcome = rig.apply(Step::Listed(position));
    assert!(matches!(outcome.publication, Publication::None), "a net difference of zero");
    assert!(Arc::ptr_eq(&before, rig.shown.as_ref().unwrap()));
}

#[test]
fn what_an_earlier_task_showed_is_the_base_of_the_next_list() {
    let mut rig = Rig::new();
    rig.list(&[&[("131073", "a"), ("131074", "b")]]);
    let base = rig.shown.clone().unwrap();
    let mut next = Rig::new();
    next.mirror = next.mirror.on_top_of(Arc::clone(&base));
    next.shown = Some(base);
    next.apply(Step::ListStarted(ListKind::First));
    next.page(&[("131074", "b")]);
    assert_eq!(next.folded().len(), 2, "staged");
    let position = next.position();
    next.apply(Step::Listed(position));
    assert_eq!(next.folded(), expect(&[(131_074, "b")]));
}

/// A mirror on top of `a` and `b`, which an earlier process kept.
fn stale() -> Rig {
    let mut rig = Rig::new();
    rig.list(&[&[("131073", "a"), ("131074", "b")]]);
    let known = rig.shown.take().unwrap();
    let mut builder = ClusterBuilder::new(Interner::new(), known.name().clone(), known.id(), known.range());
    for identity in known.iter() {
        builder.upsert(identity.number(), &identity.key_string(), identity.revision()).unwrap();
    }
    builder.set_stale(known.position().unwrap());
    let version = builder.build();
    let mut next = Rig::new();
    next.mirror = next.mirror.on_top_of(Arc::clone(&version));
    next.shown = Some(version);
    next
}

#[test]
fn m07_what_a_watch_missed_behind_a_stale_version_is_told_at_once() {
    let mut rig = stale();
    let position = rig.position();
    rig.apply(Step::Resumed(position));
    rig.events(vec![put("131075", &key_string("c")), delete("131074")]);
    rig.put("131073", &key_string("other"));
    rig.put("131073", &key_string("a"));
    assert_eq!(rig.folded(), expect(&[(131_073, "a"), (131_074, "b")]), "staged");
    let position = rig.position();
    let publication = rig.mirror.caught_up(position);
    rig.see(&publication);
    assert_eq!(rig.folded(), expect(&[(131_073, "a"), (131_075, "c")]));
    let shown = rig.shown.clone().unwrap();
    assert_eq!((shown.state(), shown.position().unwrap().revision), (SyncState::Synced, position.revision));
    rig.put("131075", &key_string("d"));
    assert_eq!(rig.folded(), expect(&[(131_073, "a"), (131_075, "d")]), "live from then on");
}

#[test]
fn m07_a_stale_version_becomes_fresh_though_nothing_changed() {
    for by_list in [false, true] {
        let mut rig = stale();
        if by_list {
            rig.list(&[&[("131073", "a"), ("131074", "b")]]);
        } else {
            let position = rig.position();
            rig.apply(Step::Resumed(position));
            let publication = rig.mirror.caught_up(position);
            rig.see(&publication);
        }
        assert_eq!(rig.shown.unwrap().state(), SyncState::Synced);
    }
}

#[test]
fn m07_a_watch_that_breaks_off_while_it_catches_up_leaves_what_it_brought() {
    let mut rig = stale();
    let position = rig.position();
    rig.apply(Step::Resumed(position));
    rig.put("131075", &key_string("c"));
    rig.break_off();
    let shown = rig.shown.clone().unwrap();
    assert_eq!(shown.state(), SyncState::Stale, "true as far as it goes, but not in step");
    assert_eq!(rig.folded(), expect(&[(131_073, "a"), (131_074, "b"), (131_075, "c")]));
    // A list that breaks off on top of it goes back to there.
    rig.apply(Step::ListStarted(ListKind::Again));
    rig.page(&[("131073", "a")]);
    rig.break_off();
    assert!(Arc::ptr_eq(&shown, rig.shown.as_ref().unwrap()));
    rig.list(&[&[("131073", "a"), ("131075", "c")]]);
    assert_eq!(rig.folded(), expect(&[(131_073, "a"), (131_075, "c")]));
    assert_eq!(rig.shown.unwrap().state(), SyncState::Synced);
}

#[test]
fn our_own_entries_need_no_cluster_label() {
    let id = ClusterId::new(2, WIDTH).unwrap();
    let admission = Admission::local(IdentityRange::of(id, WIDTH));
    assert_eq!(admission.key_string(b"k8s:app=x;"), Ok("k8s:app=x;"));
    assert_eq!(admission.number(b"131073"), Ok(NumericIdentity::new(131_073)));
    assert_eq!(admission.number(b"65537").unwrap_err().reason, RejectReason::OutOfRange);
}
