//! The next version of a cluster: one writer, copy on write.

use std::sync::Arc;

use super::{ClusterView, Interner, SourcePosition};
use crate::identity::{ClusterId, ClusterName, IdentityRange, NumericIdentity};

/// What an upsert did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The number was free.
    Added,
    /// The number had other labels.
    Modified,
    /// The number had these labels already: nothing changes, no subscriber hears of it.
    Unchanged,
}

/// Why an entry cannot be held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The number is outside the range the builder was made for.
    #[error("identity {0} is outside the range of its cluster")]
    OutOfRange(NumericIdentity),
}

/// Builds successive versions of one cluster. [`Self::build`] costs the pages changed since the last one.
#[derive(Debug)]
pub struct ClusterBuilder {}

impl ClusterBuilder {
    /// An empty cluster, state `Listing`.
    #[must_use]
    pub fn new(_interner: Interner, _name: ClusterName, _id: ClusterId, _range: IdentityRange) -> Self {
        unimplemented!("skeleton")
    }

    /// Adds or replaces. An entry with the same key string is kept as it is (revision included).
    ///
    /// # Errors
    /// [`BuildError::OutOfRange`].
    pub fn upsert(
        &mut self,
        _number: NumericIdentity,
        _key_string: &str,
        _revision: i64,
    ) -> Result<Effect, BuildError> {
        unimplemented!("skeleton")
    }

    /// Removes; whether it was there.
    pub fn remove(&mut self, _number: NumericIdentity) -> bool {
        unimplemented!("skeleton")
    }

    /// Begins a full re-list on top of what is held: from now on upserts (changed or not) mark their number as seen.
    pub fn begin_relist(&mut self) {
        unimplemented!("skeleton")
    }

    /// Ends a re-list: removes what was not seen, returns how many that were.
    pub fn finish_relist(&mut self) -> usize {
        unimplemented!("skeleton")
    }

    /// Goes back to a published version (an aborted re-list, unpublished changes).
    pub fn reset_to(&mut self, _version: &ClusterView) {
        unimplemented!("skeleton")
    }

    /// Removes everything and the position; state `Listing`.
    pub fn clear(&mut self) {
        unimplemented!("skeleton")
    }

    /// Marks the version complete up to `position`.
    pub fn set_synced(&mut self, _position: SourcePosition) {
        unimplemented!("skeleton")
    }

    /// Whether anything but the position differs from what was last built.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        unimplemented!("skeleton")
    }

    /// Freezes the current state as a version.
    pub fn build(&mut self) -> Arc<ClusterView> {
        unimplemented!("skeleton")
    }
}
