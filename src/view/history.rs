//! Recent versions of every cluster, for subscribers that come back: bounded by memory and by age.
//!
//! A version enters when another one takes its place. Versions share what did not change, so what one costs is what its
//! successor replaced; that is estimated from the number of changes between the two.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::cluster::{ClusterView, SourcePosition};
use super::diff::diff;
use crate::identity::ClusterId;

/// What a version costs beside its changes: its roots of pages and of the index, and its place here.
const VERSION_BYTES: usize = 2 << 10;
/// What one change keeps alive: the replaced entry of about eight labels, and its part of a leaf and a branch in both tables.
const CHANGE_BYTES: usize = 1 << 10;
/// How often versions that nobody replaces are looked at for their age, in parts of the greatest age.
const SWEEPS_PER_AGE: u32 = 16;

/// How much history is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Bytes, as estimated, of all clusters together.
    pub memory: usize,
    /// Time since the version was replaced.
    pub age: Duration,
}

impl Default for HistoryLimits {
    /// Ten minutes outlast the restart of a node. 64 MiB hold twenty thousand single changes: those ten minutes at 35 a second.
    fn default() -> Self {
        Self { memory: 64 << 20, age: Duration::from_mins(10) }
    }
}

/// What tells the contents of one version from those of any other of the same cluster, in any process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contents {
    /// The etcd that it was read from.
    pub etcd_cluster_id: u64,
    /// Number of identities.
    pub count: u64,
    /// Checksum over them.
    pub checksum: u64,
}

impl Contents {
    /// Those of a version that has a position.
    #[must_use]
    pub fn of(version: &ClusterView) -> Option<Self> {
        let SourcePosition { etcd_cluster_id, .. } = version.told()?;
        Some(Self { etcd_cluster_id, count: version.len() as u64, checksum: version.checksum() })
    }
}

/// How much history is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistorySize {
    /// Versions beside the current ones.
    pub versions: usize,
    /// Bytes, as estimated.
    pub bytes: usize,
    /// Versions that were dropped before their age, because memory ran out.
    pub evicted: u64,
}

/// A version that was replaced.
#[derive(Debug)]
struct Kept {
    contents: Contents,
    replaced: Instant,
    bytes: usize,
    version: Arc<ClusterView>,
}

/// The versions that were replaced, and how far each cluster's source was followed.
#[derive(Debug)]
pub(super) struct History {
    limits: HistoryLimits,
    clusters: BTreeMap<ClusterId, VecDeque<Kept>>,
    applied: BTreeMap<ClusterId, SourcePosition>,
    size: HistorySize,
    swept: Instant,
}

impl History {
    pub(super) fn new(limits: HistoryLimits) -> Self {
        Self {
            limits,
            clusters: BTreeMap::new(),
            applied: BTreeMap::new(),
            size: HistorySize::default(),
            swept: Instant::now(),
        }
    }

    pub(super) fn size(&self) -> HistorySize {
        self.size
    }

    /// `after` took the place of `before`.
    pub(super) fn replaced(&mut self, before: &Arc<ClusterView>, after: Option<&Arc<ClusterView>>) {
        let id = before.id();
        let goes_on = after.filter(|after| after.name() == before.name() && after.range() == before.range());
        let Some(after) = goes_on else {
            // Drained, or another cluster's ID now: nobody may lean on the old one.
            self.forget(id);
            return;
        };
        if !before.is_synced() || !after.is_synced() {
            return;
        }
        let Some(contents) = Contents::of(before) else { return };
        let now = Instant::now();
        let bytes = VERSION_BYTES + CHANGE_BYTES * diff(Some(before), after).count();
        let kept = Kept { contents, replaced: now, bytes, version: Arc::clone(before) };
        self.clusters.entry(id).or_default().push_back(kept);
        self.size.versions += 1;
        self.size.bytes += bytes;
        self.trim(now);
    }

    fn forget(&mut self, id: ClusterId) {
        for kept in self.clusters.remove(&id).unwrap_or_default() {
            self.size.versions -= 1;
            self.size.bytes -= kept.bytes;
        }
        self.applied.remove(&id);
    }

    /// Drops what is too old, and then the oldest until the rest fits.
    fn trim(&mut self, now: Instant) {
        if now.duration_since(self.swept) >= self.limits.age / SWEEPS_PER_AGE {
            self.swept = now;
            let ids: Vec<_> = self.clusters.keys().copied().collect();
            for id in ids {
                while self.oldest(id).is_some_and(|replaced| now.duration_since(replaced) > self.limits.age) {
                    self.drop_oldest(id);
                }
            }
        }
        while self.size.bytes > self.limits.memory {
            let oldest = self.clusters.iter().filter_map(|(id, kept)| Some((kept.front()?.replaced, *id))).min();
            let Some((_, id)) = oldest else { return };
            self.drop_oldest(id);
            self.size.evicted += 1;
        }
    }

    fn oldest(&self, id: ClusterId) -> Option<Instant> {
        Some(self.clusters.get(&id)?.front()?.replaced)
    }

    fn drop_oldest(&mut self, id: ClusterId) {
        let Some(versions) = self.clusters.get_mut(&id) else { return };
        if let Some(kept) = versions.pop_front() {
            self.size.versions -= 1;
            self.size.bytes -= kept.bytes;
        }
        if versions.is_empty() {
            self.clusters.remove(&id);
        }
    }

    /// The newest replaced version with these contents.
    pub(super) fn find(&self, id: ClusterId, contents: &Contents) -> Option<Arc<ClusterView>> {
        let now = Instant::now();
        let versions = self.clusters.get(&id)?.iter().rev();
        let mut young = versions.take_while(|kept| now.duration_since(kept.replaced) <= self.limits.age);
        Some(Arc::clone(&young.find(|kept| kept.contents == *contents)?.version))
    }

    /// The source was followed up to there; whether that is news.
    pub(super) fn apply(&mut self, id: ClusterId, position: SourcePosition) -> bool {
        self.applied.insert(id, position) != Some(position)
    }

    pub(super) fn applied(&self, id: ClusterId) -> Option<SourcePosition> {
        self.applied.get(&id).copied()
    }
}
