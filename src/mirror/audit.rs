//! The audit: what is held is compared with the keys of the store, so that nothing silently diverges.
//!
//! Pure: a version that is complete up to some revision in, keys as of the same revision in, findings out. A whole audit
//! reads all keys without their values. A brief one, after a watch was resumed, reads those written since, and the count of
//! all: if the state was right where the watch went on, that proves as much, for a few bytes.

use std::sync::Arc;

use super::admission::Admission;
use super::outsiders::Outsiders;
use crate::identity::NumericIdentity;
use crate::kvstore::KeyValue;
use crate::view::{ClusterView, Identity};

/// Differences told apart in the log; the counts tell of the rest.
const MAX_EXAMPLES: usize = 5;

/// How much an audit reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All keys.
    Whole,
    /// The keys written after that revision, at which the state is taken for right.
    Since(i64),
}

/// Differences between a store and what is held of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// In the store only.
    pub missing: u64,
    /// Held only.
    pub surplus: u64,
    /// In both, as of different revisions.
    pub outdated: u64,
    /// What is missing may have been refused by an earlier process: a list will tell.
    pub unsure: bool,
    /// The first few, in words.
    pub examples: Vec<String>,
}

impl Findings {
    /// Whether there are none.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.missing == 0 && self.surplus == 0 && self.outdated == 0
    }

    /// Whether something went wrong for sure.
    #[must_use]
    pub const fn is_divergence(&self) -> bool {
        self.surplus > 0 || self.outdated > 0 || (self.missing > 0 && !self.unsure)
    }

    fn example(&mut self, say: impl FnOnce() -> String) {
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.push(say());
        }
    }
}

/// A comparison under way.
#[derive(Clone, Debug)]
pub struct Audit {
    version: ClusterView,
    outsiders: Arc<Outsiders>,
    prefix: Vec<u8>,
    admission: Admission,
    extent: Extent,
    /// Numbers that the store holds, a bit each; of a whole audit only.
    seen: Box<[u64]>,
    findings: Findings,
}

impl Audit {
    pub(super) fn new(
        version: ClusterView,
        outsiders: Arc<Outsiders>,
        prefix: Vec<u8>,
        admission: Admission,
        extent: Extent,
    ) -> Self {
        let (range, unsure) = (version.range(), outsiders.unknown);
        let words = match extent {
            Extent::Whole => ((range.max() - range.min()) as usize + 1).div_ceil(64),
            Extent::Since(_) => 0,
        };
        Self {
            version,
            outsiders,
            prefix,
            admission,
            extent,
            seen: vec![0; words].into_boxed_slice(),
            findings: Findings { unsure, ..Findings::default() },
        }
    }

    /// How much it has to be shown.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// Compares keys of the store, as of the version's revision. In any order, each once.
    pub fn look_at(&mut self, keys: &[KeyValue]) {
        for entry in keys {
            let suffix = entry.key.strip_prefix(self.prefix.as_slice()).unwrap_or(&entry.key);
            let Ok(number) = self.admission.number(suffix) else {
                // It names no identity of the cluster, whatever its value; but it is counted.
                if self.extent != Extent::Whole && !self.outsiders.is_misnamed(&entry.key) {
                    self.findings.missing += 1;
                    self.findings.example(|| format!("the key {}", entry.key.escape_ascii()));
                }
                continue;
            };
            self.mark_seen(number);
            let held = self.version.get(number).map(Identity::revision);
            let known = held.or_else(|| self.outsiders.refused_at(number));
            match known {
                Some(revision) if revision == entry.mod_revision => {}
                Some(revision) => {
                    self.findings.outdated += 1;
                    let found = entry.mod_revision;
                    self.findings.example(|| format!("{number} is of revision {found}, not {revision}"));
                }
                None => {
                    self.findings.missing += 1;
                    let found = entry.mod_revision;
                    self.findings.example(|| format!("{number} is there since revision {found}"));
                }
            }
        }
    }

    /// The findings; `count` is the number of all keys, of a brief audit.
    #[must_use]
    pub fn finish(mut self, count: Option<u64>) -> Findings {
        match self.extent {
            Extent::Whole => self.left_over(),
            Extent::Since(_) => {
                let expected = self.outsiders.count().map(|outsiders| self.version.len() as u64 + outsiders);
                if let (Some(expected), Some(count)) = (expected, count)
                    && self.findings.is_clean()
                    && expected != count
                {
                    self.findings.missing = count.saturating_sub(expected);
                    self.findings.surplus = expected.saturating_sub(count);
                    self.findings.example(|| format!("{count} keys, not {expected}"));
                }
            }
        }
        self.findings
    }

    fn left_over(&mut self) {
        let outsiders = Arc::clone(&self.outsiders);
        let version = self.version.clone();
        let held = version.iter().map(Identity::number);
        for number in held.chain(outsiders.refused().map(|(number, _)| number)) {
            if !self.is_seen(number) {
                self.findings.surplus += 1;
                self.findings.example(|| format!("{number} is not there"));
            }
        }
    }

    fn mark_seen(&mut self, number: NumericIdentity) {
        let offset = (number.get() - self.version.range().min()) as usize;
        if let Some(word) = self.seen.get_mut(offset / 64) {
            *word |= 1 << (offset % 64);
        }
    }

    fn is_seen(&self, number: NumericIdentity) -> bool {
        let offset = (number.get() - self.version.range().min()) as usize;
        self.seen.get(offset / 64).is_some_and(|word| word & (1 << (offset % 64)) != 0)
    }
}
