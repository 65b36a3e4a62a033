//! What exists a million times: one label, one identity. Both are one pointer to one allocation.

use std::fmt;

use triomphe::ThinArc;
use twox_hash::XxHash3_64;

use crate::identity::{LabelRef, NumericIdentity, contribution_of_hash};

/// An interned label; cheap to clone, equal to another of the same [`super::Interner`] exactly if it is the same pointer.
#[derive(Clone)]
pub struct Label(ThinArc<LabelHeader, u8>);

pub(super) struct LabelHeader {
    /// Of the bytes, by the interner's hasher: kept so that its table grows without reading the labels.
    pub(super) hash: u32,
    source_len: u16,
    key_len: u16,
}

impl Label {
    /// `stored` is `source:key=value`, of which source and key have the given lengths.
    pub(super) fn new(hash: u32, source_len: u16, key_len: u16, stored: &str) -> Self {
        Self(ThinArc::from_header_and_slice(LabelHeader { hash, source_len, key_len }, stored.as_bytes()))
    }

    pub(super) fn hash(&self) -> u32 {
        self.0.header.header.hash
    }

    /// Whether only the interner still holds it.
    pub(super) fn is_unused(&self) -> bool {
        ThinArc::strong_count(&self.0) == 1
    }

    /// `source:key=value`, the stored form without its final `;`, as bytes (always UTF-8).
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0.slice
    }

    /// `source:key=value`: the stored form without its final `;`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // A label is made from a `&str` and never changes, so this cannot fail.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// Its parts.
    #[must_use]
    pub fn parts(&self) -> LabelRef<'_> {
        let LabelHeader { source_len, key_len, .. } = self.0.header.header;
        let (source_len, key_len) = (usize::from(source_len), usize::from(key_len));
        let text = self.as_str();
        LabelRef {
            source: &text[..source_len],
            key: &text[source_len + 1..source_len + 1 + key_len],
            value: &text[source_len + key_len + 2..],
        }
    }

    fn same(&self, other: &Self) -> bool {
        std::ptr::addr_eq(&raw const *self.0, &raw const *other.0)
    }
}

impl PartialEq for Label {
    fn eq(&self, other: &Self) -> bool {
        self.same(other) || self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Label {}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The hash of the key string that these labels make; `text` is room for it.
pub(super) fn key_hash_of(labels: &[Label], text: &mut Vec<u8>) -> u64 {
    text.clear();
    for label in labels {
        text.extend_from_slice(label.as_bytes());
        text.push(b';');
    }
    XxHash3_64::oneshot(text)
}

/// One identity: immutable, cheap to clone.
#[derive(Clone)]
pub struct Identity(ThinArc<EntryHeader, Label>);

struct EntryHeader {
    /// XXH3-64 of the key string: the index finds the entry by it, the checksum is made of it.
    key_hash: u64,
    revision: i64,
    number: NumericIdentity,
}

impl Identity {
    /// Takes the labels out of `labels`, whose allocation the caller keeps.
    pub(super) fn new(number: NumericIdentity, revision: i64, key_hash: u64, labels: &mut Vec<Label>) -> Self {
        Self(ThinArc::from_header_and_iter(EntryHeader { key_hash, revision, number }, labels.drain(..)))
    }

    /// The same number and labels, written again.
    pub(super) fn at_revision(&self, revision: i64) -> Self {
        let EntryHeader { key_hash, number, .. } = self.0.header.header;
        let labels = self.labels().iter().cloned();
        Self(ThinArc::from_header_and_iter(EntryHeader { key_hash, revision, number }, labels))
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> NumericIdentity {
        self.0.header.header.number
    }

    /// Its labels in stored order.
    #[must_use]
    pub fn labels(&self) -> &[Label] {
        &self.0.slice
    }

    /// The `mod_revision` of the store key it came from; 0 where there is none.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.0.header.header.revision
    }

    /// Its key string, rendered.
    #[must_use]
    pub fn key_string(&self) -> String {
        let mut text = String::with_capacity(self.labels().iter().map(|label| label.as_bytes().len() + 1).sum());
        for label in self.labels() {
            text.push_str(label.as_str());
            text.push(';');
        }
        text
    }

    /// Whether `key_string`, if it is in stored form, is this entry's. A `false` says nothing about other forms.
    #[must_use]
    pub fn has_stored_form(&self, key_string: &str) -> bool {
        let mut rest = key_string.as_bytes();
        for label in self.labels() {
            let Some(behind) = rest.strip_prefix(label.as_bytes()).and_then(|rest| rest.strip_prefix(b";")) else {
                return false;
            };
            rest = behind;
        }
        rest.is_empty()
    }

    pub(super) fn key_hash(&self) -> u64 {
        self.0.header.header.key_hash
    }

    /// What it adds to its cluster's checksum, see [`super::contribution`].
    #[must_use]
    pub fn contribution(&self) -> u64 {
        contribution_of_hash(self.number(), self.key_hash())
    }

    /// The very same allocation: nothing was changed or re-created.
    pub(super) fn same(&self, other: &Self) -> bool {
        std::ptr::addr_eq(&raw const *self.0, &raw const *other.0)
    }

    pub(super) fn same_labels(&self, other: &Self) -> bool {
        self.key_hash() == other.key_hash() && self.labels() == other.labels()
    }
}

/// Equal in what subscribers see: number and labels. The revision is not part of it.
impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.same(other) || (self.number() == other.number() && self.same_labels(other))
    }
}

impl Eq for Identity {}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.number(), self.labels())
    }
}

// What exists 16.7 million times at most is one pointer, and so is its absence.
const _: () = assert!(size_of::<Option<Identity>>() == size_of::<usize>());
const _: () = assert!(size_of::<Label>() == size_of::<usize>());
const _: () = assert!(size_of::<EntryHeader>() == 24);
const _: () = assert!(size_of::<LabelHeader>() == 8);
