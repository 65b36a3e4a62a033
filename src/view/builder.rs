//! The next version of a cluster: one writer, copy on write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cluster::{ClusterView, SourcePosition, SyncState};
use super::entry::{Identity, Label, key_hash_of};
use super::index::Index;
use super::interner::{Interner, LabelTooLong};
use super::pages::Pages;
use crate::identity::{ClusterId, ClusterName, IdentityRange, NumericIdentity};

/// The next version's serial; 0 is that of none.
static SERIAL: AtomicU64 = AtomicU64::new(1);
/// The next generation.
static GENERATION: AtomicU64 = AtomicU64::new(1);

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
    /// A label's source or key is longer than 65,535 bytes.
    #[error("a label of identity {0} has a source or key longer than 65,535 bytes")]
    LabelTooLong(NumericIdentity),
}

/// Builds successive versions of one cluster. [`Self::build`] costs a copy of the root; what changed since the last one was
/// copied when it changed.
#[derive(Debug)]
pub struct ClusterBuilder {
    interner: Interner,
    next: ClusterView,
    /// What a running re-list has seen, a bit a number.
    seen: Option<Box<[u64]>>,
    dirty: bool,
    /// An entry was written again with the same labels.
    renewed: bool,
    /// Empty between calls; kept for its allocation.
    scratch: Vec<Label>,
    /// The same for a key string.
    text: Vec<u8>,
}

impl ClusterBuilder {
    /// An empty cluster, state `Listing`.
    #[must_use]
    pub fn new(interner: Interner, name: ClusterName, id: ClusterId, range: IdentityRange) -> Self {
        let next = ClusterView {
            name,
            id,
            range,
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
            serial: 0,
            previous: 0,
            by_list: false,
            state: SyncState::Listing,
            position: None,
            ahead: false,
            pages: Pages::default(),
            index: Index::default(),
            len: 0,
            checksum: 0,
        };
        Self { interner, next, seen: None, dirty: true, renewed: false, scratch: Vec::new(), text: Vec::new() }
    }

    /// Adds or replaces. An entry with the same labels stays equal to what it was and is no change; only its revision
    /// follows the store's, which an audit compares.
    ///
    /// # Errors
    /// [`BuildError`]; nothing is changed then.
    pub fn upsert(&mut self, number: NumericIdentity, key_string: &str, revision: i64) -> Result<Effect, BuildError> {
        let offset = self.next.offset(number).ok_or(BuildError::OutOfRange(number))?;
        // A re-list and a lease's renewal bring what is there already: that is told without touching the interner.
        let held = self.next.pages.get(offset);
        if let Some(held) = held
            && held.has_stored_form(key_string)
        {
            let renewed = (held.revision() != revision).then(|| held.at_revision(revision));
            self.keep(offset, renewed);
            return Ok(Effect::Unchanged);
        }
        let key_hash = self
            .interner
            .intern(key_string, &mut self.scratch)
            .map_err(|LabelTooLong| BuildError::LabelTooLong(number))?;
        if let Some(held) = held
            && held.key_hash() == key_hash
            && held.labels() == self.scratch
        {
            let renewed = (held.revision() != revision).then(|| held.at_revision(revision));
            self.scratch.clear();
            self.keep(offset, renewed);
            return Ok(Effect::Unchanged);
        }
        let identity = Identity::new(number, revision, key_hash, &mut self.scratch);
        Ok(self.put(offset, identity))
    }

    fn put(&mut self, offset: u32, identity: Identity) -> Effect {
        let key_hash = identity.key_hash();
        self.next.checksum = self.next.checksum.wrapping_add(identity.contribution());
        let effect = match self.next.pages.insert(offset, identity) {
            Some(replaced) => {
                self.forget(&replaced, offset);
                Effect::Modified
            }
            None => Effect::Added,
        };
        self.next.index.insert(key_hash, offset);
        self.next.len += 1;
        self.dirty = true;
        self.mark_seen(offset);
        effect
    }

    /// Adds an entry whose labels are interned already, in this builder's interner: how a kept picture comes back.
    ///
    /// # Errors
    /// The number is out of range.
    pub fn restore(&mut self, number: NumericIdentity, labels: &[Label], revision: i64) -> Result<Effect, BuildError> {
        let offset = self.next.offset(number).ok_or(BuildError::OutOfRange(number))?;
        self.scratch.clear();
        self.scratch.extend_from_slice(labels);
        let key_hash = key_hash_of(labels, &mut self.text);
        let identity = Identity::new(number, revision, key_hash, &mut self.scratch);
        Ok(self.put(offset, identity))
    }

    /// Puts an identity of another version of this cluster in place of whatever its number stands for.
    ///
    /// # Errors
    /// [`BuildError::OutOfRange`].
    pub fn hold(&mut self, identity: Identity) -> Result<(), BuildError> {
        let offset = self.next.offset(identity.number()).ok_or(BuildError::OutOfRange(identity.number()))?;
        self.put(offset, identity);
        Ok(())
    }

    /// Removes; whether it was there.
    pub fn remove(&mut self, number: NumericIdentity) -> bool {
        self.next.offset(number).is_some_and(|offset| self.remove_offset(offset))
    }

    fn remove_offset(&mut self, offset: u32) -> bool {
        let Some(removed) = self.next.pages.remove(offset) else { return false };
        self.forget(&removed, offset);
        self.dirty = true;
        true
    }

    /// Takes an entry that left the table out of everything that is derived from it.
    fn forget(&mut self, identity: &Identity, offset: u32) {
        self.next.index.remove(identity.key_hash(), offset);
        self.next.checksum = self.next.checksum.wrapping_sub(identity.contribution());
        self.next.len -= 1;
    }

    /// Nobody could tell a difference, so nothing becomes dirty.
    fn keep(&mut self, offset: u32, renewed: Option<Identity>) {
        if let Some(renewed) = renewed {
            self.renewed = true;
            self.next.pages.insert(offset, renewed);
        }
        self.mark_seen(offset);
    }

    fn mark_seen(&mut self, offset: u32) {
        if let Some(seen) = &mut self.seen {
            seen[offset as usize / 64] |= 1 << (offset % 64);
        }
    }

    /// Begins a full list on top of what is held: from now on upserts, changed or not, mark their number as seen.
    pub fn begin_relist(&mut self) {
        let numbers = (self.next.range.max() - self.next.range.min()) as usize + 1;
        self.seen = Some(vec![0; numbers.div_ceil(64)].into_boxed_slice());
    }

    /// Ends a list: removes what was not seen, returns how many that were. 0 where none was begun.
    pub fn finish_relist(&mut self) -> usize {
        let Some(seen) = self.seen.take() else { return 0 };
        self.next.by_list = true;
        let min = self.next.range.min();
        let gone: Vec<u32> = self
            .next
            .iter()
            .map(|identity| identity.number().get() - min)
            .filter(|&offset| seen[offset as usize / 64] & (1 << (offset % 64)) == 0)
            .collect();
        for &offset in &gone {
            self.remove_offset(offset);
        }
        self.next.pages.shrink();
        self.next.index.shrink();
        gone.len()
    }

    /// Goes back to a published version: a list that broke off, changes that must not be seen.
    pub fn reset_to(&mut self, version: &ClusterView) {
        self.seen = None;
        self.next = version.clone();
        self.next.by_list = false;
        self.dirty = false;
    }

    /// Removes everything, the position too, and begins a new generation; state `Listing`.
    pub fn clear(&mut self) {
        self.seen = None;
        self.next = ClusterView {
            name: self.next.name.clone(),
            id: self.next.id,
            range: self.next.range,
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
            serial: self.next.serial,
            previous: 0,
            by_list: false,
            state: SyncState::Listing,
            position: None,
            ahead: false,
            pages: Pages::default(),
            index: Index::default(),
            len: 0,
            checksum: 0,
        };
        self.dirty = true;
    }

    /// Marks the version complete up to `position`.
    pub fn set_synced(&mut self, position: SourcePosition) {
        self.complete(SyncState::Synced, position);
    }

    /// The same, as of an earlier process.
    pub fn set_stale(&mut self, position: SourcePosition) {
        self.complete(SyncState::Stale, position);
    }

    fn complete(&mut self, state: SyncState, position: SourcePosition) {
        self.dirty |= self.next.state != state;
        self.next.state = state;
        self.next.position = Some(position);
    }

    /// Whether the revision of an entry rose, and nothing else of it changed, since this was asked last.
    pub fn take_renewed(&mut self) -> bool {
        std::mem::take(&mut self.renewed)
    }

    /// Marks the versions from here on, until another one is gone back to, as showing more than their source does at any
    /// position.
    pub fn set_ahead(&mut self) {
        self.next.ahead = true;
    }

    /// Whether anything but the position differs from what was last built.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// The state as it would be built now.
    #[must_use]
    pub fn current(&self) -> &ClusterView {
        &self.next
    }

    /// Freezes the current state as a version.
    pub fn build(&mut self) -> Arc<ClusterView> {
        self.dirty = false;
        self.next.previous = self.next.serial;
        self.next.serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let version = Arc::new(self.next.clone());
        self.next.by_list = false;
        version
    }
}
