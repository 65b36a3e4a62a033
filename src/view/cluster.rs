//! One version of one cluster.

use super::entry::Identity;
use super::index::Index;
use super::pages::Pages;
use crate::identity::{ClusterId, ClusterName, IdentityRange, NumericIdentity, key_hash, labels_of, render_key_string};

/// Where in its source a version stands: valid at any gateway that reads the same etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourcePosition {
    /// The etcd's own cluster ID, from its response headers.
    pub etcd_cluster_id: u64,
    /// The revision up to which everything is applied.
    pub revision: i64,
}

/// How complete a version is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncState {
    /// A first list is running: entries are there, not all of them; nothing may be concluded from an absence.
    Listing,
    /// Complete up to its position.
    Synced,
    /// Complete up to its position, but read from a picture that an earlier process kept: the source was not reached since,
    /// and may be far ahead.
    Stale,
}

/// One immutable version of one cluster's identities.
#[derive(Clone, Debug)]
pub struct ClusterView {
    pub(super) name: ClusterName,
    pub(super) id: ClusterId,
    pub(super) range: IdentityRange,
    pub(super) generation: u64,
    pub(super) serial: u64,
    pub(super) previous: u64,
    pub(super) by_list: bool,
    pub(super) state: SyncState,
    pub(super) position: Option<SourcePosition>,
    /// More is shown than the source has told up to there.
    pub(super) ahead: bool,
    pub(super) pages: Pages,
    pub(super) index: Index,
    pub(super) len: usize,
    pub(super) checksum: u64,
}

impl ClusterView {
    /// The cluster's name.
    #[must_use]
    pub fn name(&self) -> &ClusterName {
        &self.name
    }

    /// The cluster's ID.
    #[must_use]
    pub fn id(&self) -> ClusterId {
        self.id
    }

    /// The numbers it may hold.
    #[must_use]
    pub fn range(&self) -> IdentityRange {
        self.range
    }

    /// Names the list that it is a state of, within the process: a cluster that begins anew (after a first list that broke
    /// off, after a drain) has another.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Names this version within the process: no two that were built have the same.
    #[must_use]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether this is the very next version that was built on `before`.
    #[must_use]
    pub fn follows(&self, before: &Self) -> bool {
        self.previous == before.serial
    }

    /// Whether a list on top of an earlier version led here, rather than events: what it found gone was gone unseen.
    #[must_use]
    pub fn is_by_list(&self) -> bool {
        self.by_list
    }

    /// How complete it is.
    #[must_use]
    pub fn state(&self) -> SyncState {
        self.state
    }

    /// Whether it is complete up to its position, stale or not.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        matches!(self.state, SyncState::Synced | SyncState::Stale)
    }

    /// Whether it is complete, but as of an earlier process.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.state == SyncState::Stale
    }

    /// Where it stands in its source, once synced. Nowhere while it shows allocations of our own that the source has not
    /// told yet: it is no state of the source then.
    #[must_use]
    pub fn position(&self) -> Option<SourcePosition> {
        self.position.filter(|_| !self.ahead)
    }

    /// Up to where everything that the source told is in it, whatever else is.
    #[must_use]
    pub fn told(&self) -> Option<SourcePosition> {
        self.position
    }

    /// Number of identities.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Order-independent checksum of (number, key string): the sum modulo 2^64 of [`super::contribution`].
    #[must_use]
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// The identity of that number.
    #[must_use]
    pub fn get(&self, number: NumericIdentity) -> Option<&Identity> {
        self.pages.get(self.offset(number)?)
    }

    /// The identity of that key string, which need not be in stored form; of several, the one with the highest number.
    #[must_use]
    pub fn lookup(&self, key_string: &str) -> Option<&Identity> {
        self.lookup_stored(key_string).or_else(|| {
            let stored = render_key_string(labels_of(key_string));
            (stored != key_string).then(|| self.lookup_stored(&stored))?
        })
    }

    fn lookup_stored(&self, key_string: &str) -> Option<&Identity> {
        let candidates = self.index.candidates(key_hash(key_string));
        candidates.filter_map(|offset| self.pages.get(offset)).find(|identity| identity.has_stored_form(key_string))
    }

    /// All identities with that key string, which must be in stored form; the highest number first. Several are another
    /// writer's mistake.
    pub fn having<'a>(&'a self, key_string: &'a str) -> impl Iterator<Item = &'a Identity> {
        let candidates = self.index.candidates(key_hash(key_string));
        candidates
            .filter_map(|offset| self.pages.get(offset))
            .filter(move |identity| identity.has_stored_form(key_string))
    }

    /// All identities, ascending by number.
    pub fn iter(&self) -> impl Iterator<Item = &Identity> {
        self.pages.iter_from(0)
    }

    /// The identities behind `after`, ascending by number: how a snapshot goes on where it paused.
    pub fn iter_after(&self, after: Option<NumericIdentity>) -> impl Iterator<Item = &Identity> {
        let from = after.map_or(0, |after| (after.get() + 1).saturating_sub(self.range.min()));
        self.pages.iter_from(from)
    }

    pub(super) fn offset(&self, number: NumericIdentity) -> Option<u32> {
        self.range.contains(number).then(|| number.get() - self.range.min())
    }
}
