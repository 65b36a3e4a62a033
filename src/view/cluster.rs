//! One version of one cluster.

use super::Identity;
use crate::identity::{ClusterId, ClusterName, NumericIdentity};

/// Where in its source a version stands: valid at any gateway that reads the same etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

/// One immutable version of one cluster's identities.
#[derive(Clone, Debug)]
pub struct ClusterView {}

impl ClusterView {
    /// The cluster's name.
    #[must_use]
    pub fn name(&self) -> &ClusterName {
        unimplemented!("skeleton")
    }
    /// The cluster's ID.
    #[must_use]
    pub fn id(&self) -> ClusterId {
        unimplemented!("skeleton")
    }
    /// How complete it is.
    #[must_use]
    pub fn state(&self) -> SyncState {
        unimplemented!("skeleton")
    }
    /// Where it stands in its source, once synced.
    #[must_use]
    pub fn position(&self) -> Option<SourcePosition> {
        unimplemented!("skeleton")
    }
    /// Number of identities.
    #[must_use]
    pub fn len(&self) -> usize {
        unimplemented!("skeleton")
    }
    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Order-independent checksum of (number, key string); see [`super::contribution`].
    #[must_use]
    pub fn checksum(&self) -> u64 {
        unimplemented!("skeleton")
    }
    /// The identity of that number.
    #[must_use]
    pub fn get(&self, _number: NumericIdentity) -> Option<&Identity> {
        unimplemented!("skeleton")
    }
    /// The number of that key string; of several, the highest.
    #[must_use]
    pub fn lookup(&self, _key_string: &str) -> Option<&Identity> {
        unimplemented!("skeleton")
    }
    /// All identities, ascending by number. Resumable: `after` continues behind a number.
    pub fn iter_after(&self, _after: Option<NumericIdentity>) -> impl Iterator<Item = &Identity> {
        std::iter::empty()
    }
    /// All identities, ascending by number.
    pub fn iter(&self) -> impl Iterator<Item = &Identity> {
        self.iter_after(None)
    }
}
