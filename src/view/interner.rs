//! Labels interned across all clusters, freed when unused.
//!
//! Cluster after cluster says the same: eight labels an identity, of which seven are somebody else's too. A label is
//! stored once, and an identity holds pointers.

use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::entry::Label;
use crate::identity::{LabelRef, Part, key_hash, parts_of, render_key_string};

/// Shards keep peers that sync at the same time off each other's lock; a power of two.
const SHARDS: usize = 16;

/// The table of labels in use; cheap to clone, shared by every [`super::ClusterBuilder`].
#[derive(Clone, Debug, Default)]
pub struct Interner(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    // Seeded at random: a peer that chooses its labels cannot choose their buckets.
    hasher: RandomState,
    shards: [Mutex<HashTable<Label>>; SHARDS],
}

impl Interner {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Labels held, those included that nobody uses any more and that the next sweep frees.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether no label is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frees what nobody uses any more; returns how many labels that were. A growing table sweeps itself first, so that
    /// churn alone never makes it grow; this is for after a mass removal.
    #[expect(clippy::must_use_candidate, reason = "the number is for whoever wants it")]
    pub fn sweep(&self) -> usize {
        self.0
            .shards
            .iter()
            .map(|shard| {
                let mut shard = lock(shard);
                let before = shard.len();
                sweep(&mut shard);
                let room = shard.len() * 2;
                shard.shrink_to(room, Label::hash64);
                before - shard.len()
            })
            .sum()
    }

    /// Interns the labels of a key string into `labels` (cleared first) and returns the hash of its stored form.
    pub(super) fn intern(&self, key_string: &str, labels: &mut Vec<Label>) -> Result<u64, LabelTooLong> {
        labels.clear();
        let mut stored_len = 0;
        let mut all_stored = true;
        for part in parts_of(key_string) {
            stored_len += part.label.stored_len();
            all_stored &= part.is_stored_form();
            labels.push(self.label(part)?);
        }
        // Nearly every key string stands in the store as it would be rendered; the others are rendered. With the
        // last `;` in its place, equal lengths say that nothing stands between the parts.
        Ok(if all_stored && stored_len == key_string.len() && (key_string.is_empty() || key_string.ends_with(';')) {
            key_hash(key_string)
        } else {
            key_hash(&render_key_string(labels.iter().map(Label::parts)))
        })
    }

    /// A part that stands in stored form, as nearly all do, is interned from those bytes as they are.
    fn label(&self, part: Part<'_>) -> Result<Label, LabelTooLong> {
        let LabelRef { source, key, value } = part.label;
        let (Ok(source_len), Ok(key_len)) = (u16::try_from(source.len()), u16::try_from(key.len())) else {
            return Err(LabelTooLong);
        };
        if part.is_stored_form() {
            Ok(self.stored(source_len, key_len, part.text))
        } else {
            Ok(self.stored(source_len, key_len, &format!("{source}:{key}={value}")))
        }
    }

    /// The label that stands as `source:key=value` in `stored`, of which source and key have the given lengths; none if it
    /// does not stand so.
    #[must_use]
    pub fn restore(&self, stored: &str, source_len: u16, key_len: u16) -> Option<Label> {
        let (colon, key) = (usize::from(source_len), usize::from(key_len));
        let is_stored_form = key > 0
            && stored.as_bytes().get(colon) == Some(&b':')
            && stored.as_bytes().get(colon + 1 + key) == Some(&b'=')
            && stored.is_char_boundary(colon)
            && stored.is_char_boundary(colon + 1 + key)
            && memchr::memchr(b';', stored.as_bytes()).is_none();
        is_stored_form.then(|| self.stored(source_len, key_len, stored))
    }

    fn stored(&self, source_len: u16, key_len: u16, stored: &str) -> Label {
        let hash64 = self.0.hasher.hash_one(stored.as_bytes());
        // The table takes the low bits for the bucket and the top ones for the tag, so the kept half has to serve as both.
        #[expect(clippy::cast_possible_truncation, reason = "folded, so that no bit is lost")]
        let hash = (hash64 ^ (hash64 >> 32)) as u32;
        let mut shard = lock(&self.0.shards[hash as usize % SHARDS]);
        if let Some(label) = shard.find(spread(hash), |label| label.as_bytes() == stored.as_bytes()) {
            return label.clone();
        }
        if shard.len() == shard.capacity() {
            sweep(&mut shard);
            if shard.len() * 4 > shard.capacity() * 3 {
                let more = shard.len().max(16);
                shard.reserve(more, Label::hash64);
            }
        }
        let label = Label::new(hash, source_len, key_len, stored);
        shard.insert_unique(spread(hash), label.clone(), Label::hash64);
        label
    }
}

impl Label {
    fn hash64(&self) -> u64 {
        spread(self.hash())
    }
}

/// The 64 bits that the table wants, from the 32 that a label keeps.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The lock makes this exact: a label whose only holder is the table cannot be cloned meanwhile.
fn sweep(shard: &mut HashTable<Label>) {
    shard.retain(|label| !label.is_unused());
}

fn lock(shard: &Mutex<HashTable<Label>>) -> MutexGuard<'_, HashTable<Label>> {
    // A panic while it was held left the table whole: every change to it is one call.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A label's source or key is longer than 65,535 bytes.
#[derive(Debug)]
pub(super) struct LabelTooLong;
