//! The persistent table of a cluster: number → identity, shared between versions, copied on write.
//!
//! Three levels: a root of branches, a branch of [`WIDTH`] leaves, a leaf of [`WIDTH`] consecutive numbers. A leaf holds
//! only what is there (a bitmap and a dense list), so a sparse cluster costs what it holds. One change copies one leaf, one
//! branch and the root: about 130 pointers in a full cluster of 65,536, and only the first time after a version was frozen.

use std::sync::Arc;

use super::entry::Identity;

/// Numbers a leaf, leaves a branch. Copying a leaf touches the reference count of each entry in it, which is why it is not
/// wider; what a leaf costs beside its entries is why it is not narrower.
pub(super) const WIDTH: u32 = 32;

const PER_BRANCH: u32 = WIDTH * WIDTH;

/// Offset of a number in its cluster's range → identity.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    branches: Vec<Option<Arc<Branch>>>,
}

type Branch = [Option<Arc<Leaf>>; WIDTH as usize];

/// Up to [`WIDTH`] entries: bit n of `present` says that number n of the leaf is there; `entries` holds those, ascending.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaf {
    present: u32,
    entries: Vec<Identity>,
}

impl Leaf {
    fn get(&self, bit: u32) -> Option<&Identity> {
        (self.present & (1 << bit) != 0).then(|| &self.entries[self.rank(bit)])
    }

    /// How many entries stand before `bit`.
    fn rank(&self, bit: u32) -> usize {
        (self.present & ((1 << bit) - 1)).count_ones() as usize
    }

    fn starting_at(&self, bit: u32) -> &[Identity] {
        &self.entries[self.rank(bit)..]
    }
}

impl Pages {
    pub(super) const fn new() -> Self {
        Self { branches: Vec::new() }
    }

    pub(super) fn get(&self, offset: u32) -> Option<&Identity> {
        let branch = self.branches.get((offset / PER_BRANCH) as usize)?.as_ref()?;
        branch[(offset % PER_BRANCH / WIDTH) as usize].as_ref()?.get(offset % WIDTH)
    }

    /// Puts an entry in its place; returns what stood there.
    pub(super) fn insert(&mut self, offset: u32, identity: Identity) -> Option<Identity> {
        let root = (offset / PER_BRANCH) as usize;
        if self.branches.len() <= root {
            self.branches.resize(root + 1, None);
        }
        let branch = Arc::make_mut(self.branches[root].get_or_insert_default());
        let leaf = Arc::make_mut(branch[(offset % PER_BRANCH / WIDTH) as usize].get_or_insert_default());
        let bit = offset % WIDTH;
        let rank = leaf.rank(bit);
        if leaf.present & (1 << bit) != 0 {
            return Some(std::mem::replace(&mut leaf.entries[rank], identity));
        }
        leaf.present |= 1 << bit;
        leaf.entries.insert(rank, identity);
        None
    }

    /// Takes an entry out, and with it every leaf and branch that is empty then.
    pub(super) fn remove(&mut self, offset: u32) -> Option<Identity> {
        self.get(offset)?;
        let slot = self.branches.get_mut((offset / PER_BRANCH) as usize)?;
        let branch = Arc::make_mut(slot.as_mut()?);
        let leaf_slot = &mut branch[(offset % PER_BRANCH / WIDTH) as usize];
        let leaf = Arc::make_mut(leaf_slot.as_mut()?);
        let bit = offset % WIDTH;
        let removed = leaf.entries.remove(leaf.rank(bit));
        leaf.present &= !(1 << bit);
        if leaf.present == 0 {
            *leaf_slot = None;
            if branch.iter().all(Option::is_none) {
                *slot = None;
            }
        }
        Some(removed)
    }

    /// Gives back what growing left over in leaves that no other version shares.
    pub(super) fn shrink(&mut self) {
        for branch in self.branches.iter_mut().flatten().filter_map(Arc::get_mut) {
            for leaf in branch.iter_mut().flatten().filter_map(Arc::get_mut) {
                leaf.entries.shrink_to_fit();
            }
        }
    }

    /// All entries from `offset` on, ascending.
    pub(super) fn iter_from(&self, offset: u32) -> impl Iterator<Item = &Identity> {
        let (first_branch, first_leaf) = ((offset / PER_BRANCH) as usize, (offset % PER_BRANCH / WIDTH) as usize);
        let bit = offset % WIDTH;
        self.branches
            .iter()
            .enumerate()
            .skip(first_branch)
            .filter_map(|(at, branch)| Some((at, branch.as_ref()?)))
            .flat_map(move |(branch_at, branch)| {
                let skip = if branch_at == first_branch { first_leaf } else { 0 };
                branch.iter().enumerate().skip(skip).filter_map(|(at, leaf)| Some((at, leaf.as_ref()?))).flat_map(
                    move |(leaf_at, leaf)| {
                        let is_first = branch_at == first_branch && leaf_at == first_leaf;
                        leaf.starting_at(if is_first { bit } else { 0 })
                    },
                )
            })
    }

    /// The leaves in which two tables differ, side by side, ascending, from `offset` on; what the two share is skipped
    /// unread.
    pub(super) fn differing_leaves<'a>(
        old: &'a Self,
        new: &'a Self,
        offset: u32,
    ) -> impl Iterator<Item = LeafPair<'a>> {
        let (first_branch, first_leaf) = ((offset / PER_BRANCH) as usize, (offset % PER_BRANCH / WIDTH) as usize);
        let bit = offset % WIDTH;
        (first_branch..old.branches.len().max(new.branches.len())).flat_map(move |branch_at| {
            let old_branch = old.branches.get(branch_at).and_then(Option::as_ref);
            let new_branch = new.branches.get(branch_at).and_then(Option::as_ref);
            let end = if same_arc(old_branch, new_branch) { 0 } else { WIDTH as usize };
            let start = if branch_at == first_branch { first_leaf } else { 0 };
            (start..end).filter_map(move |leaf_at| {
                let old_leaf = old_branch.and_then(|branch| branch[leaf_at].as_ref());
                let new_leaf = new_branch.and_then(|branch| branch[leaf_at].as_ref());
                let is_first = branch_at == first_branch && leaf_at == first_leaf;
                let bit = if is_first { bit } else { 0 };
                (!same_arc(old_leaf, new_leaf)).then(|| LeafPair::new(old_leaf, new_leaf, bit))
            })
        })
    }
}

fn same_arc<T>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}

/// Two versions of one leaf, walked number by number.
pub(super) struct LeafPair<'a> {
    old: Option<&'a Leaf>,
    new: Option<&'a Leaf>,
    /// Numbers of either that are still to be looked at.
    left: u32,
}

impl<'a> LeafPair<'a> {
    fn new(old: Option<&'a Arc<Leaf>>, new: Option<&'a Arc<Leaf>>, from_bit: u32) -> Self {
        let (old, new) = (old.map(Arc::as_ref), new.map(Arc::as_ref));
        let present = |leaf: Option<&Leaf>| leaf.map_or(0, |leaf| leaf.present);
        Self { old, new, left: (present(old) | present(new)) & (u32::MAX << from_bit) }
    }
}

impl<'a> Iterator for LeafPair<'a> {
    type Item = (Option<&'a Identity>, Option<&'a Identity>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let bit = self.left.trailing_zeros();
        self.left &= self.left - 1;
        Some((self.old.and_then(|leaf| leaf.get(bit)), self.new.and_then(|leaf| leaf.get(bit))))
    }
}
