//! What is known of the cluster's records without asking the store, and what the allocator wants to be told of them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Key;
use crate::identity::NumericIdentity;

/// The local picture of the cluster's records: its owner is whoever follows the store (the mirror and the view). What it
/// says may be old; the allocator proves it in the store before relying on it.
pub trait Masters: Send + Sync + 'static {
    /// The number of a label set.
    fn number_of(&self, key: &Key) -> Option<NumericIdentity>;

    /// The labels of a number.
    fn labels_of(&self, number: NumericIdentity) -> Option<Box<str>>;

    /// An allocation of our own that the store confirmed at `revision`: to be seen at once, without waiting for the store to
    /// tell. What the store tells of older revisions must not undo it.
    fn insert(&self, number: NumericIdentity, key: &Key, revision: i64);

    /// A record whose delete was held back by [`Vanished::Protected`] is not wanted any more after all.
    fn forget(&self, number: NumericIdentity);
}

/// What becomes of a record that left the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vanished {
    /// It is gone: subscribers are told.
    Gone,
    /// It is in local use and is being written again: subscribers must not hear of it. If it is given up instead,
    /// [`Masters::forget`] follows.
    Protected,
}

/// A picture in two maps, for processes without a view.
#[derive(Debug, Default)]
pub struct MasterTable(Mutex<Maps>);

#[derive(Debug, Default)]
struct Maps {
    labels: HashMap<NumericIdentity, (Box<str>, i64)>,
    numbers: HashMap<Box<str>, NumericIdentity>,
}

impl MasterTable {
    /// What the store holds, at a revision.
    pub fn put(&self, number: NumericIdentity, labels: &str, revision: i64) {
        let mut maps = self.maps();
        if maps.labels.get(&number).is_some_and(|(_, known)| *known > revision) {
            return;
        }
        maps.remove(number);
        maps.numbers.insert(labels.into(), number);
        maps.labels.insert(number, (labels.into(), revision));
    }

    /// It left the store at a revision.
    pub fn remove(&self, number: NumericIdentity, revision: i64) {
        let mut maps = self.maps();
        if maps.labels.get(&number).is_some_and(|(_, known)| *known < revision) {
            maps.remove(number);
        }
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        // Every change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Maps {
    fn remove(&mut self, number: NumericIdentity) {
        if let Some((labels, _)) = self.labels.remove(&number)
            && self.numbers.get(&labels) == Some(&number)
        {
            self.numbers.remove(&labels);
        }
    }
}

impl Masters for MasterTable {
    fn number_of(&self, key: &Key) -> Option<NumericIdentity> {
        self.maps().numbers.get(key.as_str()).copied()
    }

    fn labels_of(&self, number: NumericIdentity) -> Option<Box<str>> {
        self.maps().labels.get(&number).map(|(labels, _)| labels.clone())
    }

    fn insert(&self, number: NumericIdentity, key: &Key, revision: i64) {
        self.put(number, key.as_str(), revision);
    }

    fn forget(&self, number: NumericIdentity) {
        self.maps().remove(number);
    }
}
