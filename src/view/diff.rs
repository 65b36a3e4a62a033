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

impl Change<'_> {
    /// The number that the entry is about.
    #[must_use]
    pub fn number(&self) -> NumericIdentity {
        match self {
            Self::Upserted(identity) => identity.number(),
            Self::Removed(number) => *number,
        }
    }
}

/// The net and disjoint difference, ascending by number: what was changed and changed back is not in it. Costs what the two
/// do not share. `None` is the empty cluster. Both must be versions of one cluster (same name and ID): of others the caller
/// says that all of one is gone and all of the other is new.
pub fn diff<'a>(old: Option<&'a ClusterView>, new: &'a ClusterView) -> impl Iterator<Item = Change<'a>> {
    diff_after(old, new, None)
}

/// The part of [`diff`] behind the number `after`: how a difference that is told in parts goes on where it paused.
pub fn diff_after<'a>(
    old: Option<&'a ClusterView>,
    new: &'a ClusterView,
    after: Option<NumericIdentity>,
) -> impl Iterator<Item = Change<'a>> {
    static NOTHING: Pages = Pages::new();
    debug_assert!(
        old.is_none_or(|old| old.id == new.id && old.name == new.name),
        "a difference is between versions of one cluster"
    );
    let from = after.map_or(0, |after| (after.get() + 1).saturating_sub(new.range.min()));
    Pages::differing_leaves(old.map_or(&NOTHING, |old| &old.pages), &new.pages, from).flatten().filter_map(|pair| {
        match pair {
            (Some(old), Some(new)) => (old != new).then_some(Change::Upserted(new)),
            (None, Some(new)) => Some(Change::Upserted(new)),
            (Some(old), None) => Some(Change::Removed(old.number())),
            (None, None) => None,
        }
    })
}
