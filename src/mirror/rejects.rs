//! What was refused in one step: counts, and a few examples however many there were.

use super::admission::{Reject, RejectReason};

/// Examples kept of one step, and of one cluster.
pub(super) const MAX_EXAMPLES: usize = 5;

/// Bytes of a key shown in an example; a peer chooses its keys.
const MAX_KEY: usize = 120;

/// One refused entry, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Why.
    pub reason: RejectReason,
    /// The key, escaped, shortened.
    pub key: String,
    /// What was wrong.
    pub detail: String,
}

/// Counts by reason, with the last few examples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RejectTally {
    counts: [u64; RejectReason::ALL.len()],
    examples: Vec<Example>,
}

impl RejectTally {
    /// Adds one.
    pub fn add(&mut self, key: &[u8], reject: &Reject) {
        self.counts[reject.reason as usize] += 1;
        if self.examples.len() < MAX_EXAMPLES {
            let shown = &key[..key.len().min(MAX_KEY)];
            let ellipsis = if shown.len() < key.len() { "…" } else { "" };
            let key = format!("{}{ellipsis}", shown.escape_ascii());
            self.examples.push(Example { reason: reject.reason, key, detail: reject.to_string() });
        }
    }

    /// How many by reason, those that occurred only.
    pub fn counts(&self) -> impl Iterator<Item = (RejectReason, u64)> {
        RejectReason::ALL.into_iter().zip(self.counts).filter(|&(_, count)| count > 0)
    }

    /// How many in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The first few of the step.
    #[must_use]
    pub fn examples(&self) -> &[Example] {
        &self.examples
    }
}
