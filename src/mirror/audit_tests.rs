//! An audit sees exactly what went wrong: random histories, of which some events are withheld.

use std::collections::BTreeMap;

use super::audit::{Extent, Findings};
use super::{Admission, Mirror, layout};
use crate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters};
use crate::kvstore::{Event, KeyValue, ListKind, Position, Step};
use crate::view::{ClusterBuilder, Interner};

const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;

/// A store, what of it the mirror was told, and the mirror.
struct Rig {
    store: BTreeMap<Vec<u8>, (Vec<u8>, i64)>,
    /// Key → revision of the last event that was told.
    told: BTreeMap<Vec<u8>, i64>,
    revision: i64,
    mirror: Mirror,
    random: fastrand::Rng,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let (id, name) = (ClusterId::new(2, WIDTH).unwrap(), ClusterName::new("blue").unwrap());
        let range = IdentityRange::of(id, WIDTH);
        let builder = ClusterBuilder::new(Interner::new(), name.clone(), id, range);
        let mirror = Mirror::new(layout::state_ids().into(), Admission::peer(range, name), builder);
        let (store, told) = (BTreeMap::new(), BTreeMap::new());
        Self { store, told, revision: 10, mirror, random: fastrand::Rng::with_seed(seed) }
    }

    fn position(&self) -> Position {
        Position { etcd_cluster_id: 1, revision: self.revision }
    }

    fn key(&mut self) -> Vec<u8> {
        let name = match self.random.u8(..10) {
            0 => "131073x".to_owned(),
            1 => "9".to_owned(),
            _ => (131_073 + self.random.u32(..12)).to_string(),
        };
        format!("{}{name}", layout::state_ids()).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        match self.random.u8(..8) {
            0 => b"k8s:app=x;".to_vec(),
            n => format!("k8s:app={n};k8s:io.cilium.k8s.policy.cluster=blue;").into_bytes(),
        }
    }

    /// One change of the store; whether the mirror hears of it.
    fn change(&mut self, tell: bool) {
        self.revision += 1;
        let (key, value) = (self.key(), self.value());
        let event = if self.random.u8(..3) == 0 {
            if self.store.remove(&key).is_none() {
                return;
            }
            Event::Delete { key: key.clone(), mod_revision: self.revision }
        } else {
            self.store.insert(key.clone(), (value.clone(), self.revision));
            Event::Put(entry(key.clone(), value, self.revision))
        };
        if tell {
            match &event {
                Event::Put(_) => self.told.insert(key, self.revision),
                Event::Delete { .. } => self.told.remove(&key),
            };
            let position = self.position();
            self.mirror.apply(Step::Events(vec![event], position));
        }
    }

    fn list(&mut self, complete: bool) {
        self.mirror.apply(Step::ListStarted(ListKind::Again));
        let page = self.store.iter().map(|(key, (value, revision))| entry(key.clone(), value.clone(), *revision));
        let page: Vec<_> = page.collect();
        self.mirror.apply(Step::Page(page));
        if complete {
            self.mirror.apply(Step::Listed(self.position()));
            self.told = self.store.iter().map(|(key, (_, revision))| (key.clone(), *revision)).collect();
        } else {
            self.mirror.break_off();
        }
    }

    fn audit(&self, extent: Extent) -> Findings {
        let mut audit = self.mirror.audit(extent);
        assert_eq!(audit.extent(), extent);
        let since = match extent {
            Extent::Whole => 0,
            Extent::Since(since) => since,
        };
        for (key, (_, revision)) in self.store.iter().filter(|(_, (_, revision))| *revision > since) {
            audit.look_at(&[entry(key.clone(), Vec::new(), *revision)]);
        }
        audit.finish(Some(self.store.len() as u64))
    }

    /// Whether what was told differs from what is, in keys that can be identities or in any.
    fn differs(&self, any: bool) -> bool {
        let counts = |key: &[u8]| any || key.len() == layout::state_ids().len() + 6;
        let now = self.store.iter().map(|(key, (_, revision))| (key, *revision));
        let now: Vec<_> = now.filter(|(key, _)| counts(key)).collect();
        let told: Vec<_> =
            self.told.iter().map(|(key, revision)| (key, *revision)).filter(|(key, _)| counts(key)).collect();
        now != told
    }
}

fn entry(key: Vec<u8>, value: Vec<u8>, mod_revision: i64) -> KeyValue {
    KeyValue { key, value, mod_revision, create_revision: mod_revision, lease: 0 }
}

#[test]
fn e08_an_audit_finds_what_was_withheld_and_nothing_else() {
    for seed in 0..400 {
        let mut rig = Rig::new(seed);
        (0..rig.random.usize(..30)).for_each(|_| rig.change(false));
        rig.list(true);
        for _ in 0..rig.random.usize(..4) {
            (0..rig.random.usize(..20)).for_each(|_| rig.change(true));
            let complete = rig.random.bool();
            rig.list(complete);
        }
        assert_eq!(rig.audit(Extent::Whole), Findings::default(), "seed {seed}");
        let since = rig.revision;
        for _ in 0..rig.random.usize(..20) {
            let tell = rig.random.u8(..6) > 0;
            rig.change(tell);
        }
        let (whole, brief) = (rig.audit(Extent::Whole), rig.audit(Extent::Since(since)));
        assert_eq!(whole.is_clean(), !rig.differs(false), "seed {seed}: {whole:?}");
        // A brief one goes by the count of all keys, so it notices even what no identity can hang on. But of a name that
        // no identity can have it does not compare revisions.
        if rig.differs(false) {
            assert!(!brief.is_clean(), "seed {seed}: {brief:?}");
        }
        if !rig.differs(true) {
            assert_eq!(brief, Findings::default(), "seed {seed}");
        }
        rig.list(true);
        assert_eq!(rig.audit(Extent::Since(since)), Findings::default(), "seed {seed}: a list repairs");
    }
}

#[test]
fn what_an_earlier_process_refused_is_no_divergence() {
    let mut rig = Rig::new(1);
    rig.store.insert(format!("{}131073", layout::state_ids()).into_bytes(), (b"k8s:app=x;".to_vec(), 5));
    rig.list(true);
    let version = std::sync::Arc::new(rig.mirror.current().clone());
    let mut later = Rig::new(2);
    later.mirror = later.mirror.on_top_of(version);
    later.store = rig.store;
    let mut audit = later.mirror.audit(Extent::Since(rig.revision));
    assert_eq!(audit.extent(), Extent::Whole, "too little is known for a brief one");
    for (key, (_, revision)) in &later.store {
        audit.look_at(&[entry(key.clone(), Vec::new(), *revision)]);
    }
    let findings = audit.finish(None);
    assert!(!findings.is_clean() && !findings.is_divergence(), "{findings:?}");
    assert!(Findings { surplus: 1, ..findings }.is_divergence());
}
