//! The pure core: what a list-and-watch shows becomes versions of a cluster, and nothing here does I/O.
//!
//! Three rules of DESIGN.md ("State of one peer") live here. A first list is published as its pages arrive, and withdrawn if
//! it breaks off. A list on top of a complete version is staged and published whole; if it breaks off, nothing happened. The
//! events of one step are published together, so that one revision of the store is never seen in parts.

use std::sync::Arc;

use super::admission::{Admission, Reject, RejectReason};
use super::audit::{Audit, Extent};
use super::outsiders::Outsiders;
use super::rejects::RejectTally;
use crate::identity::{ClusterId, NumericIdentity};
use crate::kvstore::{Event, KeyValue, Position, Step};
use crate::view::{ClusterBuilder, ClusterView, Effect, SourcePosition};

/// What the view must be told.
#[derive(Clone, Debug, Default)]
pub enum Publication {
    /// Nothing: no subscriber could tell a difference.
    #[default]
    None,
    /// The next version.
    Publish(Arc<ClusterView>),
    /// All that was shown of a first list that broke off.
    Withdraw(ClusterId),
}

/// What changed, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Upserts that added or changed an entry.
    pub upserted: u64,
    /// Upserts of what was there already.
    pub unchanged: u64,
    /// Entries removed: deleted, refused, or absent from a list.
    pub removed: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.upserted += other.upserted;
        self.unchanged += other.unchanged;
        self.removed += other.removed;
    }
}

/// What a step did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// For the view.
    pub publication: Publication,
    /// What of it changed; a staged list counts when it is published.
    pub counts: Counts,
    /// What was refused.
    pub rejects: RejectTally,
}

/// One cluster in step with one prefix.
#[derive(Debug)]
pub struct Mirror {
    prefix: Vec<u8>,
    admission: Admission,
    builder: ClusterBuilder,
    /// The last complete version that was handed out. A list that breaks off goes back to it.
    base: Option<Arc<ClusterView>>,
    list: Option<List>,
    /// What the store holds beside that; shared with an audit under way.
    outsiders: Arc<Outsiders>,
    /// Something was written again since the last publication, which has the revision before.
    renewed: bool,
    /// A watch goes on behind a stale version: what it brings is staged until it has brought all.
    catching_up: bool,
}

/// A list that is running.
#[derive(Debug, Default)]
struct List {
    /// Counted, not published.
    staged: Counts,
    /// Something of a first list was published.
    shown: bool,
    /// Those that belong to the base.
    outsiders_before: Arc<Outsiders>,
}

impl Mirror {
    /// Mirrors the keys behind `prefix` into versions of `builder`'s cluster.
    #[must_use]
    pub fn new(prefix: Vec<u8>, admission: Admission, builder: ClusterBuilder) -> Self {
        Self {
            prefix,
            admission,
            builder,
            base: None,
            list: None,
            outsiders: Arc::default(),
            renewed: false,
            catching_up: false,
        }
    }

    /// Begins from a complete version that is published already, so that the first list is one on top of it.
    #[must_use]
    pub fn on_top_of(mut self, version: Arc<ClusterView>) -> Self {
        self.builder.reset_to(&version);
        self.base = Some(version);
        self.outsiders = Arc::new(Outsiders::unknown());
        self
    }

    /// Whether a complete version was ever published.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.base.is_some()
    }

    /// The state as it would be published now.
    #[must_use]
    pub fn current(&self) -> &ClusterView {
        self.builder.current()
    }

    /// Whether the last publication is what is held to the last revision, which an audit compares.
    #[must_use]
    pub fn is_published(&self) -> bool {
        !self.renewed && self.list.is_none() && !self.catching_up
    }

    /// What is mirrored.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// From now on the same cluster's entries are behind another prefix, which the next list reads; what is held stays until
    /// that list is complete.
    pub fn move_to(&mut self, prefix: Vec<u8>) {
        self.prefix = prefix;
    }

    /// A comparison of the state, which must be complete up to some revision, with the store's keys as of that one.
    #[must_use]
    pub fn audit(&self, extent: Extent) -> Audit {
        // Without a count of what was refused, a brief audit would not see that something is gone.
        let extent = if self.outsiders.count().is_some() { extent } else { Extent::Whole };
        let version = self.builder.current().clone();
        Audit::new(version, Arc::clone(&self.outsiders), self.prefix.clone(), self.admission.clone(), extent)
    }

    /// Takes one step of the list-and-watch.
    pub fn apply(&mut self, step: Step) -> Outcome {
        match step {
            Step::ListStarted(_) => self.list_started(),
            Step::Page(entries) => self.page(&entries),
            Step::Listed(position) => self.listed(position),
            Step::Events(events, position) => self.events(&events, position),
            Step::Resumed(_) if self.current().is_stale() => {
                self.catching_up = true;
                Outcome::default()
            }
            // A position alone is no news: a token that names an older one stands for the same contents.
            Step::Resumed(_) | Step::Progress(_) | Step::Restarting(..) => Outcome::default(),
        }
    }

    /// The watch that was resumed behind a stale version has brought all up to `position`: from here on it is in step.
    pub fn caught_up(&mut self, position: Position) -> Publication {
        self.catching_up = false;
        self.builder.set_synced(source_position(position));
        self.publish(false)
    }

    /// The session is over, or the list is of no use any more: undoes a list that is not complete.
    pub fn break_off(&mut self) -> Publication {
        if std::mem::take(&mut self.catching_up) {
            // As far as it came it is true, and newer than what is shown.
            return self.publish(false);
        }
        let Some(list) = self.list.take() else { return Publication::None };
        self.outsiders = list.outsiders_before;
        if let Some(base) = &self.base {
            self.builder.reset_to(base);
            return Publication::None;
        }
        let id = self.builder.current().id();
        self.builder.clear();
        if list.shown { Publication::Withdraw(id) } else { Publication::None }
    }

    fn list_started(&mut self) -> Outcome {
        // A list that is begun again within a session (compaction) was broken off.
        let publication = self.break_off();
        if let Some(base) = &mut self.base {
            // Equal for everyone but an audit: revisions may have risen since it was published.
            *base = self.builder.build();
            self.builder.begin_relist();
        }
        self.list = Some(List { outsiders_before: std::mem::take(&mut self.outsiders), ..List::default() });
        Outcome { publication, ..Outcome::default() }
    }

    fn page(&mut self, entries: &[KeyValue]) -> Outcome {
        let mut outcome = Outcome::default();
        // The rest of a list that was broken off would be taken for the whole.
        let Some(mut list) = self.list.take() else { return outcome };
        for entry in entries {
            self.put(entry, &mut outcome);
        }
        if self.base.is_some() {
            list.staged.add(std::mem::take(&mut outcome.counts));
        } else if self.builder.is_dirty() {
            list.shown = true;
            outcome.publication = Publication::Publish(self.builder.build());
        }
        self.list = Some(list);
        outcome
    }

    fn listed(&mut self, position: Position) -> Outcome {
        let Some(list) = self.list.take() else { return Outcome::default() };
        let mut counts = list.staged;
        counts.removed += self.builder.finish_relist() as u64;
        self.builder.set_synced(source_position(position));
        // The same contents from another etcd are another position, which tokens name.
        let moved = self.base.as_ref().and_then(|base| base.position()).map(|position| position.etcd_cluster_id)
            != Some(position.etcd_cluster_id);
        Outcome { publication: self.publish(moved), counts, rejects: RejectTally::default() }
    }

    fn events(&mut self, events: &[Event], position: Position) -> Outcome {
        let mut outcome = Outcome::default();
        for event in events {
            match event {
                Event::Put(entry) => self.put(entry, &mut outcome),
                Event::Delete { key, .. } => self.delete(key, &mut outcome),
            }
        }
        if self.catching_up {
            self.builder.set_stale(source_position(position));
        } else {
            self.builder.set_synced(source_position(position));
            outcome.publication = self.publish(false);
        }
        outcome
    }

    fn publish(&mut self, even_if_equal: bool) -> Publication {
        if !even_if_equal && !self.builder.is_dirty() {
            return Publication::None;
        }
        let version = self.builder.build();
        self.base = Some(Arc::clone(&version));
        self.renewed = false;
        Publication::Publish(version)
    }

    fn put(&mut self, entry: &KeyValue, outcome: &mut Outcome) {
        let number = match self.admission.number(self.suffix(&entry.key)) {
            Ok(number) => number,
            Err(reject) => {
                Arc::make_mut(&mut self.outsiders).misname(&entry.key);
                return outcome.rejects.add(&entry.key, &reject);
            }
        };
        let upserted = self.admission.key_string(&entry.value).and_then(|key_string| {
            // The builder's own limit is above any sane one of ours.
            let too_long = |_| Reject::new(RejectReason::TooLong);
            self.builder.upsert(number, key_string, entry.mod_revision).map_err(too_long)
        });
        match upserted {
            Ok(Effect::Modified) => outcome.counts.upserted += 1,
            Ok(Effect::Unchanged) => {
                outcome.counts.unchanged += 1;
                self.renewed |= self.builder.take_renewed();
            }
            Ok(Effect::Added) => {
                outcome.counts.upserted += 1;
                self.readmit(number);
            }
            Err(reject) => {
                Arc::make_mut(&mut self.outsiders).refuse(number, entry.mod_revision);
                outcome.rejects.add(&entry.key, &reject);
                // Whatever the number stood for, it does so no longer.
                self.remove(number, outcome);
            }
        }
    }

    fn delete(&mut self, key: &[u8], outcome: &mut Outcome) {
        match self.admission.number(self.suffix(key)) {
            Ok(number) => {
                self.remove(number, outcome);
                self.readmit(number);
            }
            Err(reject) => {
                Arc::make_mut(&mut self.outsiders).forget_misnamed(key);
                outcome.rejects.add(key, &reject);
            }
        }
    }

    /// The number's value is refused no longer.
    fn readmit(&mut self, number: NumericIdentity) {
        if self.outsiders.refused_at(number).is_some() {
            Arc::make_mut(&mut self.outsiders).readmit(number);
        }
    }

    fn remove(&mut self, number: NumericIdentity, outcome: &mut Outcome) {
        outcome.counts.removed += u64::from(self.builder.remove(number));
    }

    fn suffix<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        key.strip_prefix(self.prefix.as_slice()).unwrap_or(key)
    }
}

pub(super) const fn source_position(position: Position) -> SourcePosition {
    SourcePosition { etcd_cluster_id: position.etcd_cluster_id, revision: position.revision }
}
