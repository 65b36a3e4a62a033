//! What a store holds that the view does not: known, so that an audit can tell what was refused from what was missed.

use std::collections::{BTreeMap, HashSet};

use twox_hash::XxHash3_64;

use crate::identity::NumericIdentity;

/// Keys that name no identity of the cluster are remembered up to this many; a peer could write any number of them.
const MAX_MISNAMED: usize = 4096;

/// The refused keys of one prefix.
#[derive(Clone, Debug, Default)]
pub(super) struct Outsiders {
    /// Numbers whose value was refused, and the revision of that value. Bounded by the cluster's range.
    refused: BTreeMap<NumericIdentity, i64>,
    misnamed: Misnamed,
    /// What was refused before is not known: the version came from elsewhere than a list.
    pub(super) unknown: bool,
}

/// Keys that name no identity of the cluster, by hash.
#[derive(Clone, Debug)]
enum Misnamed {
    Known(HashSet<u64>),
    TooMany,
}

impl Default for Misnamed {
    fn default() -> Self {
        Self::Known(HashSet::new())
    }
}

impl Outsiders {
    /// Of a version that comes from elsewhere than a list.
    pub(super) fn unknown() -> Self {
        Self { unknown: true, ..Self::default() }
    }

    pub(super) fn refuse(&mut self, number: NumericIdentity, revision: i64) {
        self.refused.insert(number, revision);
    }

    pub(super) fn refused_at(&self, number: NumericIdentity) -> Option<i64> {
        self.refused.get(&number).copied()
    }

    /// The number's value was accepted, or is gone.
    pub(super) fn readmit(&mut self, number: NumericIdentity) {
        self.refused.remove(&number);
    }

    pub(super) fn misname(&mut self, key: &[u8]) {
        if let Misnamed::Known(keys) = &mut self.misnamed {
            keys.insert(XxHash3_64::oneshot(key));
            if keys.len() > MAX_MISNAMED {
                self.misnamed = Misnamed::TooMany;
            }
        }
    }

    /// Whether the key is known as one; true of all where they are too many to remember.
    pub(super) fn is_misnamed(&self, key: &[u8]) -> bool {
        match &self.misnamed {
            Misnamed::Known(keys) => keys.contains(&XxHash3_64::oneshot(key)),
            Misnamed::TooMany => true,
        }
    }

    pub(super) fn forget_misnamed(&mut self, key: &[u8]) {
        if let Misnamed::Known(keys) = &mut self.misnamed {
            keys.remove(&XxHash3_64::oneshot(key));
        }
    }

    /// All of them, ascending.
    pub(super) fn refused(&self) -> impl Iterator<Item = (NumericIdentity, i64)> {
        self.refused.iter().map(|(&number, &revision)| (number, revision))
    }

    /// How many keys they are, where that is known.
    pub(super) fn count(&self) -> Option<u64> {
        match &self.misnamed {
            _ if self.unknown => None,
            Misnamed::Known(keys) => Some((self.refused.len() + keys.len()) as u64),
            Misnamed::TooMany => None,
        }
    }
}
