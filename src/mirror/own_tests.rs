//! Our own records against hand-made versions and an allocator that uses what it is told to use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use super::own::OwnRecords;
use crate::allocator::{Inserted, Key, Masters, RecordListener, Vanished};
use crate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters, NumericIdentity};
use crate::telemetry::StatusBoard;
use crate::view::{ClusterBuilder, Contents, Interner, SourcePosition, View};

const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;
const BASE: u32 = 5 << 16;

/// An allocator, as far as the store is told to it.
#[derive(Default)]
struct Told {
    in_use: Mutex<BTreeSet<u32>>,
    heard: Mutex<Vec<String>>,
}

impl Told {
    fn use_numbers(&self, numbers: &[u32]) {
        *self.in_use.lock().unwrap() = numbers.iter().copied().collect();
    }

    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }

    fn hear(&self, what: &str, number: NumericIdentity) {
        self.heard.lock().unwrap().push(format!("{what} {}", number.get() - BASE));
    }
}

impl RecordListener for Told {
    fn listed(&self, numbers: Vec<NumericIdentity>) {
        for number in numbers {
            self.hear("listed", number);
        }
    }

    fn appeared(&self, number: NumericIdentity) {
        self.hear("appeared", number);
    }

    fn vanished(&self, number: NumericIdentity) -> Vanished {
        self.hear("vanished", number);
        let used = self.in_use.lock().unwrap().contains(&(number.get() - BASE));
        if used { Vanished::Protected } else { Vanished::Gone }
    }
}

struct Rig {
    /// The mirror's.
    builder: ClusterBuilder,
    records: OwnRecords,
    view: View,
    board: StatusBoard,
    allocator: Told,
    id: ClusterId,
    etcd: u64,
}

impl Rig {
    /// Complete at revision 100, with these records.
    fn new(records: &[(u32, &str)]) -> Self {
        let id = ClusterId::new(5, WIDTH).unwrap();
        let name = ClusterName::new("us").unwrap();
        let (interner, view, board) = (Interner::new(), View::new(WIDTH, id), StatusBoard::default());
        let builder = ClusterBuilder::new(interner.clone(), name.clone(), id, IdentityRange::of(id, WIDTH));
        let own = OwnRecords::new(name, id, WIDTH, interner, view.clone(), board.clone());
        let mut rig = Self { builder, records: own, view, board, allocator: Told::default(), id, etcd: 1 };
        rig.tell(records, &[], 100);
        rig.allocator.heard();
        rig
    }

    /// The mirror's next version.
    fn tell(&mut self, put: &[(u32, &str)], deleted: &[u32], revision: i64) {
        for (number, labels) in put {
            self.builder.upsert(NumericIdentity::new(BASE + number), labels, revision).unwrap();
        }
        for number in deleted {
            self.builder.remove(NumericIdentity::new(BASE + number));
        }
        self.builder.set_synced(SourcePosition { etcd_cluster_id: self.etcd, revision });
        self.records.told(self.builder.build(), &self.allocator);
    }

    fn insert(&self, number: u32, labels: &str, revision: i64) -> Inserted {
        self.records.insert(NumericIdentity::new(BASE + number), &Key::parse(labels).unwrap(), revision)
    }

    /// What subscribers see.
    fn shown(&self) -> BTreeMap<u32, String> {
        let mesh = self.view.load();
        let shown = mesh.cluster(self.id).unwrap();
        let contents: BTreeMap<_, _> = shown.iter().map(|one| (one.number().get() - BASE, one.key_string())).collect();
        let status = &self.board.snapshot()["us"];
        assert_eq!((status.identities, status.checksum), (contents.len() as u64, shown.checksum()));
        contents
    }

    fn position(&self) -> Option<i64> {
        self.view.load().cluster(self.id).unwrap().position().map(|position| position.revision)
    }
}

fn contents(records: &[(u32, &str)]) -> BTreeMap<u32, String> {
    records.iter().map(|&(number, labels)| (number, labels.to_owned())).collect()
}

const A: &str = "k8s:a=1;";
const B: &str = "k8s:b=1;";

#[test]
fn the_allocator_is_told_after_the_first_list_and_of_each_change() {
    let mut rig = Rig::new(&[]);
    rig.tell(&[(1, A), (2, B)], &[], 101);
    assert_eq!(rig.allocator.heard(), ["appeared 1", "appeared 2"]);
    rig.tell(&[], &[2], 102);
    assert_eq!(rig.allocator.heard(), ["vanished 2"]);
    let found = rig.records.numbers_of(&Key::parse(A).unwrap());
    assert_eq!(found, [NumericIdentity::new(BASE + 1)]);
    assert_eq!(rig.records.labels_of(found[0]).as_deref(), Some(A));
    assert_eq!(rig.records.labels_of(NumericIdentity::new(1)), None);
}

#[test]
fn a_partial_first_list_is_shown_and_not_told() {
    let mut rig = Rig::new(&[]);
    let interner = Interner::new();
    rig.records = OwnRecords::new(
        ClusterName::new("us").unwrap(),
        rig.id,
        WIDTH,
        interner.clone(),
        rig.view.clone(),
        rig.board.clone(),
    );
    let range = IdentityRange::of(rig.id, WIDTH);
    rig.builder = ClusterBuilder::new(interner, ClusterName::new("us").unwrap(), rig.id, range);
    rig.builder.upsert(NumericIdentity::new(BASE + 1), A, 7).unwrap();
    rig.records.told(rig.builder.build(), &rig.allocator);
    assert_eq!((rig.shown(), rig.allocator.heard()), (contents(&[(1, A)]), Vec::new()));
    rig.tell(&[(2, B)], &[], 9);
    assert_eq!(rig.allocator.heard(), ["listed 1", "listed 2"]);
}

#[test]
fn an_allocation_is_shown_at_once_and_the_watch_adds_nothing() {
    let mut rig = Rig::new(&[]);
    let mut changes = rig.view.changes();
    assert_eq!(rig.insert(1, A, 101), Inserted::Seen);
    assert_eq!(rig.shown(), contents(&[(1, A)]));
    assert_eq!(rig.position(), None, "the store was not there yet");
    let contents_of_token = Contents::of(rig.view.load().cluster(rig.id).unwrap()).unwrap();
    assert_eq!((contents_of_token.etcd_cluster_id, contents_of_token.count), (1, 1), "a token names what is shown");
    assert_eq!(rig.records.numbers_of(&Key::parse(A).unwrap()).len(), 1);
    changes.borrow_and_update();
    let before = rig.view.load();
    rig.tell(&[(1, A)], &[], 101);
    let after = rig.view.load();
    let (before, after) = (before.cluster(rig.id).unwrap(), after.cluster(rig.id).unwrap());
    assert_eq!(crate::view::diff(Some(before), after).count(), 0, "no change for subscribers");
    assert_eq!(rig.position(), Some(101));
    // What is known already is shown by the mirror's version alone.
    assert_eq!(rig.insert(1, A, 105), Inserted::Seen);
    assert_eq!(rig.position(), Some(101));
}

#[test]
fn news_of_older_revisions_does_not_undo_an_allocation() {
    let mut rig = Rig::new(&[(2, B)]);
    rig.allocator.use_numbers(&[1]);
    assert_eq!(rig.insert(1, A, 110), Inserted::Seen);
    rig.tell(&[], &[2], 105);
    assert_eq!((rig.shown(), rig.position()), (contents(&[(1, A)]), None));
    assert_eq!(rig.allocator.heard(), ["vanished 2"]);
    // The number stood for other labels before; then those left, and ours came.
    rig.tell(&[(1, B)], &[], 106);
    assert_eq!(rig.shown(), contents(&[(1, A)]));
    rig.tell(&[], &[1], 107);
    assert_eq!(rig.shown(), contents(&[(1, A)]));
    assert_eq!(rig.allocator.heard(), ["appeared 1"], "it is in the store at revision 110");
    rig.tell(&[(1, A), (3, B)], &[], 111);
    assert_eq!((rig.shown(), rig.position()), (contents(&[(1, A), (3, B)]), Some(111)));
}

#[test]
fn a06_a_deleted_record_in_use_is_never_seen_to_go() {
    let mut rig = Rig::new(&[(1, A), (2, B)]);
    rig.allocator.use_numbers(&[1]);
    rig.tell(&[], &[1, 2], 101);
    assert_eq!(rig.shown(), contents(&[(1, A)]), "what is not in use goes");
    assert_eq!(rig.allocator.heard(), ["vanished 1", "vanished 2"]);
    // It was written again.
    assert_eq!(rig.insert(1, A, 102), Inserted::Seen);
    rig.tell(&[(1, A)], &[], 102);
    assert_eq!((rig.shown(), rig.position()), (contents(&[(1, A)]), Some(102)));
    // Deleted again, and given up this time.
    rig.tell(&[], &[1], 103);
    assert_eq!(rig.shown(), contents(&[(1, A)]));
    rig.records.forget(NumericIdentity::new(BASE + 1));
    assert_eq!((rig.shown(), rig.position()), (contents(&[]), Some(103)));
}

#[test]
fn a06_a_record_that_came_and_went_between_two_looks_is_protected_too() {
    let mut rig = Rig::new(&[]);
    rig.allocator.use_numbers(&[1]);
    assert_eq!(rig.insert(1, A, 101), Inserted::Seen);
    rig.tell(&[(2, B)], &[], 102);
    assert_eq!(rig.allocator.heard(), ["appeared 2", "vanished 1"]);
    assert_eq!(rig.shown(), contents(&[(1, A), (2, B)]));
    // The store told of its end before the allocation's answer was here.
    assert_eq!(rig.insert(3, "k8s:c=1;", 102), Inserted::Left);
    assert_eq!(rig.shown(), contents(&[(1, A), (2, B), (3, "k8s:c=1;")]));
    rig.allocator.use_numbers(&[]);
    assert_eq!(rig.insert(1, A, 103), Inserted::Seen);
    rig.tell(&[(4, "k8s:d=1;")], &[], 104);
    assert_eq!(rig.shown(), contents(&[(2, B), (3, "k8s:c=1;"), (4, "k8s:d=1;")]), "not in use any more");
}

#[test]
fn what_the_store_says_of_a_number_wins_over_what_is_held() {
    let mut rig = Rig::new(&[(1, A)]);
    rig.allocator.use_numbers(&[1]);
    rig.tell(&[], &[1], 101);
    rig.tell(&[(1, B)], &[], 102);
    assert_eq!((rig.shown(), rig.position()), (contents(&[(1, B)]), Some(102)), "a conflict is shown as it is");
    assert_eq!(rig.insert(1, A, 101), Inserted::Seen);
    assert_eq!(rig.shown(), contents(&[(1, B)]));
}

#[test]
fn another_etcd_ends_what_waits_for_a_revision() {
    let mut rig = Rig::new(&[]);
    rig.allocator.use_numbers(&[1]);
    for (number, labels) in [(1, A), (2, B)] {
        assert_eq!(rig.insert(number, labels, 500), Inserted::Seen);
    }
    rig.etcd = 2;
    rig.tell(&[], &[], 7);
    assert_eq!(rig.allocator.heard(), ["vanished 1", "vanished 2"]);
    assert_eq!(rig.shown(), contents(&[(1, A)]), "what is in use is being written again");
    rig.tell(&[(1, A)], &[], 8);
    assert_eq!((rig.shown(), rig.position()), (contents(&[(1, A)]), Some(8)));
}

#[test]
fn of_two_records_of_one_label_set_the_later_is_the_likelier() {
    let mut rig = Rig::new(&[(9, A)]);
    rig.tell(&[(3, A)], &[], 120);
    let numbers = rig.records.numbers_of(&Key::parse(A).unwrap());
    assert_eq!(numbers, [3, 9].map(|number| NumericIdentity::new(BASE + number)));
    let _shared: Arc<dyn Masters> = Arc::new(rig.records.clone());
}
