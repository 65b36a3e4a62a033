//! The records of our own cluster: what the store tells, and what our allocator knows before or better.
//!
//! Two things can be true that the mirror has not been told: the store confirmed an allocation of ours, and the watch is
//! still on its way; a record that is in use here was deleted, and is being written again. Both are *held* on top of the
//! mirror's latest version, so that an allocation is seen at once, and a record in use never goes. What is held ends when the
//! store has told the same. The mirror itself, and its audits, know nothing of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::allocator::{Inserted, Key, Masters, RecordListener, Vanished};
use crate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters, NumericIdentity};
use crate::telemetry::StatusBoard;
use crate::view::{Change, ClusterBuilder, ClusterView, Identity, Interner, SourcePosition, View, diff};

/// The allocator's picture of our own cluster's records, and what the view shows of them; cheap to clone.
#[derive(Clone, Debug)]
pub struct OwnRecords(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    id: ClusterId,
    view: View,
    board: StatusBoard,
    name: ClusterName,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Builds what is shown.
    builder: ClusterBuilder,
    /// What the mirror published last, once that was complete.
    told: Option<Arc<ClusterView>>,
    held: BTreeMap<NumericIdentity, Held>,
}

/// A record that is shown though the mirror does not have it.
#[derive(Debug)]
struct Held {
    identity: Identity,
    until: Until,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// The store has told everything up to this revision, at which the record was there.
    Told(i64),
    /// It was written again, or given up.
    Repaired,
}

impl OwnRecords {
    /// None yet.
    #[must_use]
    pub fn new(
        name: ClusterName,
        id: ClusterId,
        width: MaxConnectedClusters,
        interner: Interner,
        view: View,
        board: StatusBoard,
    ) -> Self {
        let builder = ClusterBuilder::new(interner, name.clone(), id, IdentityRange::of(id, width));
        let state = State { builder, told: None, held: BTreeMap::new() };
        Self(Arc::new(Shared { id, view, board, name, state: Mutex::new(state) }))
    }

    /// The mirror has a new version.
    pub(super) fn told(&self, version: Arc<ClusterView>, allocator: &dyn RecordListener) {
        let mut state = self.state();
        if !version.is_synced() {
            // Nothing is allocated, hence held, before the first list is complete.
            return self.show(version);
        }
        let Some(before) = state.told.replace(Arc::clone(&version)) else {
            let numbers = version.iter().map(Identity::number).collect();
            // Shown first: whoever waits for the list wants to find what is in it.
            self.show(version);
            return allocator.listed(numbers);
        };
        state.take_changes(&before, &version, allocator);
        state.let_go(&before, &version, allocator);
        let shown = state.joined(version);
        self.show(shown);
    }

    /// Everything up to there is shown.
    pub(super) fn applied(&self, position: SourcePosition) {
        self.0.view.apply(self.0.id, position);
    }

    /// A first list broke off.
    pub(super) fn withdraw(&self) {
        self.0.view.withdraw(self.0.id);
    }

    /// Under the lock, so that versions are shown in the order in which they were made.
    fn show(&self, version: Arc<ClusterView>) {
        self.0.board.update(self.0.name.as_str(), |status| {
            status.identities = version.len() as u64;
            status.checksum = version.checksum();
        });
        self.0.view.publish(version);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before anything can panic.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Tells the allocator what the store did, and holds what must not go.
    fn take_changes(&mut self, before: &ClusterView, version: &ClusterView, allocator: &dyn RecordListener) {
        let position = position_of(version);
        for change in diff(Some(before), version) {
            match change {
                Change::Upserted(identity) => allocator.appeared(identity.number()),
                Change::Removed(number) => {
                    // It was there again at a revision that the store has not come to yet.
                    let newer = |held: &Held| matches!(held.until, Until::Told(revision) if revision > position);
                    if self.held.get(&number).is_some_and(newer) {
                        continue;
                    }
                    if allocator.vanished(number) == Vanished::Protected
                        && let Some(identity) = before.get(number)
                    {
                        self.held.insert(number, Held { identity: identity.clone(), until: Until::Repaired });
                    }
                }
            }
        }
    }

    /// Lets go of what the store has told itself by now.
    fn let_go(&mut self, before: &ClusterView, version: &ClusterView, allocator: &dyn RecordListener) {
        let position = position_of(version);
        let etcd = |version: &ClusterView| version.position().map(|position| position.etcd_cluster_id);
        // Revisions of another etcd say nothing about this one's.
        let other_etcd = etcd(before) != etcd(version);
        self.held.retain(|&number, held| {
            match (version.get(number), held.until) {
                (Some(told), Until::Told(revision)) => {
                    return !(revision <= position || other_etcd || *told == held.identity);
                }
                (Some(_), Until::Repaired) => return false,
                (None, Until::Told(revision)) if revision > position && !other_etcd => return true,
                (None, Until::Repaired) => return true,
                (None, Until::Told(_)) => {}
            }
            // It came and went between two versions.
            held.until = Until::Repaired;
            allocator.vanished(number) == Vanished::Protected
        });
    }

    /// That version with what is held.
    fn joined(&mut self, version: Arc<ClusterView>) -> Arc<ClusterView> {
        if self.held.is_empty() {
            return version;
        }
        self.builder.reset_to(&version);
        for held in self.held.values() {
            self.builder.hold(held.identity.clone()).ok();
        }
        self.builder.set_ahead();
        self.builder.build()
    }
}

fn position_of(version: &ClusterView) -> i64 {
    version.position().map_or(0, |position| position.revision)
}

impl Masters for OwnRecords {
    fn numbers_of(&self, key: &Key) -> Vec<NumericIdentity> {
        self.0.view.read(|mesh| {
            let Some(cluster) = mesh.cluster(self.0.id) else { return Vec::new() };
            let mut found: Vec<_> =
                cluster.having(key.as_str()).map(|identity| (identity.revision(), identity.number())).collect();
            found.sort_unstable_by(|a, b| b.cmp(a));
            found.into_iter().map(|(_, number)| number).collect()
        })
    }

    fn labels_of(&self, number: NumericIdentity) -> Option<Box<str>> {
        self.0.view.read(|mesh| Some(mesh.cluster(self.0.id)?.get(number)?.key_string().into()))
    }

    fn insert(&self, number: NumericIdentity, key: &Key, revision: i64) -> Inserted {
        let mut state = self.state();
        let State { builder, told: Some(told), held } = &mut *state else { return Inserted::Seen };
        let known = told.get(number);
        if known.is_some_and(|known| known.has_stored_form(key.as_str())) {
            return Inserted::Seen;
        }
        let until = match known {
            _ if revision > position_of(told) => Until::Told(revision),
            // The number has got other labels since, and the store is right.
            Some(_) => return Inserted::Seen,
            None => Until::Repaired,
        };
        let inserted = if until == Until::Repaired { Inserted::Left } else { Inserted::Seen };
        if let Some(held) = held.get_mut(&number).filter(|held| held.identity.has_stored_form(key.as_str())) {
            held.until = until;
            return inserted;
        }
        if held.is_empty() {
            builder.reset_to(told);
        }
        // Cannot fail: the allocator hands out numbers of our range only, and refuses labels of such a length.
        if let Err(error) = builder.upsert(number, key.as_str(), revision) {
            tracing::error!(%error, "an allocation of our own cannot be shown");
            return inserted;
        }
        builder.set_ahead();
        let shown = builder.build();
        if let Some(identity) = shown.get(number) {
            held.insert(number, Held { identity: identity.clone(), until });
        }
        self.show(shown);
        inserted
    }

    fn forget(&self, number: NumericIdentity) {
        let mut state = self.state();
        if state.held.get(&number).is_some_and(|held| held.until == Until::Repaired)
            && let Some(told) = state.told.clone()
        {
            state.held.remove(&number);
            let shown = state.joined(told);
            self.show(shown);
        }
    }
}
