//! The net difference between two versions of one cluster.

use super::{ClusterView, Identity};
use crate::identity::NumericIdentity;

/// One entry of a diff.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// New, or with other labels.
    Upserted(&'a Identity),
    /// Gone.
    Removed(NumericIdentity),
}

/// Net and disjoint difference, ascending by number; skips all that the two share. `None` is the empty cluster.
/// Versions of clusters of another name or ID have nothing in common: the caller treats them as removed and added.
pub fn diff<'a>(_old: Option<&'a ClusterView>, _new: &'a ClusterView) -> impl Iterator<Item = Change<'a>> {
    std::iter::empty()
}
