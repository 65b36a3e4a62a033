//! The net difference between two versions of one cluster.

use super::cluster::ClusterView;
use super::entry::Identity;
use super::pages::Pages;
use crate::identity::NumericIdentity;

/// One entry of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// New, or with other labels.
    Upserted(&'a Identity),
    /// Gone.
    Removed(NumericIdentity),
}

/// The net and disjoint difference, ascending by number: what was changed and changed back is not in it. Costs what the two
/// do not share. `None` is the empty cluster. Both must be versions of one cluster (same name and ID): of others the caller
/// says that all of one is gone and all of the other is new.
pub fn diff<'a>(old: Option<&'a ClusterView>, new: &'a ClusterView) -> impl Iterator<Item = Change<'a>> {
    static NOTHING: Pages = Pages::new();
    debug_assert!(
        old.is_none_or(|old| old.id == new.id && old.name == new.name),
        "a difference is between versions of one cluster"
    );
    Pages::differing_leaves(old.map_or(&NOTHING, |old| &old.pages), &new.pages).flatten().filter_map(
        |pair| match pair {
            (Some(old), Some(new)) => (old != new).then_some(Change::Upserted(new)),
            (None, Some(new)) => Some(Change::Upserted(new)),
            (Some(old), None) => Some(Change::Removed(old.number())),
            (None, None) => None,
        },
    )
}
