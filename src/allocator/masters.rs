//! What is known of the cluster's records without asking the store, and what the allocator wants to be told of them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Key;
use crate::identity::NumericIdentity;

/// The local picture of the cluster's records: its owner is whoever follows the store (the mirror and the view). What it
/// says may be old; the allocator proves it in the store before relying on it.
pub trait Masters: Send + Sync + 'static {
    /// The numbers of a label set, the likeliest first. Mostly one; more where duplicates were made, or where the picture
    /// holds one that is gone beside the one that followed it.
    fn numbers_of(&self, key: &Key) -> Vec<NumericIdentity>;

    /// The labels of a number.
    fn labels_of(&self, number: NumericIdentity) -> Option<Box<str>>;

    /// The record of an allocation of our own, which the store confirmed at `revision`: to be seen at once, without waiting
    /// for the store to tell. What the store tells of older revisions must not undo it.
    fn insert(&self, number: NumericIdentity, key: &Key, revision: i64) -> Inserted;

    /// A record whose delete was held back by [`Vanished::Protected`] is not wanted any more after all.
    fn forget(&self, number: NumericIdentity);
}

/// What is known of a record whose allocation is told to the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Inserted {
    /// It is seen.
    Seen,
    /// The store has told already that it left after that revision. It is held back as by [`Vanished::Protected`], and has
    /// to be written again.
    Left,
}

/// What the follower of the store tells the allocator.
pub trait RecordListener: Send + Sync + 'static {
    /// The store listed all records of the cluster for the first time, or anew: these numbers are in use.
    fn listed(&self, numbers: Vec<NumericIdentity>);

    /// A record appeared in the store, or changed.
    fn appeared(&self, number: NumericIdentity);

    /// A record left the store.
    #[must_use]
    fn vanished(&self, number: NumericIdentity) -> Vanished;
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
    /// The latest last.
    numbers: HashMap<Box<str>, Vec<NumericIdentity>>,
}

impl MasterTable {
    /// What the store holds, at a revision.
    pub fn put(&self, number: NumericIdentity, labels: &str, revision: i64) {
        let mut maps = self.maps();
        if maps.labels.get(&number).is_some_and(|(_, known)| *known > revision) {
            return;
        }
        maps.remove(number);
        maps.numbers.entry(labels.into()).or_default().push(number);
        maps.labels.insert(number, (labels.into(), revision));
    }

    /// It left the store at a revision.
    pub fn remove(&self, number: NumericIdentity, revision: i64) {
        let mut maps = self.maps();
        if maps.labels.get(&number).is_some_and(|(_, known)| *known < revision) {
            maps.remove(number);
        }
    }

    /// A list at a revision told all there is: what it did not tell, and was not written since, is gone.
    pub fn retain(&self, revision: i64, listed: impl Fn(NumericIdentity) -> bool) {
        let mut maps = self.maps();
        let gone: Vec<_> = (maps.labels.iter())
            .filter(|(number, (_, known))| *known <= revision && !listed(**number))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
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
        let Some((labels, _)) = self.labels.remove(&number) else { return };
        if let Some(numbers) = self.numbers.get_mut(&labels) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.numbers.remove(&labels);
            }
        }
    }
}

impl Masters for MasterTable {
    fn numbers_of(&self, key: &Key) -> Vec<NumericIdentity> {
        self.maps().numbers.get(key.as_str()).map(|numbers| numbers.iter().rev().copied().collect()).unwrap_or_default()
    }

    fn labels_of(&self, number: NumericIdentity) -> Option<Box<str>> {
        self.maps().labels.get(&number).map(|(labels, _)| labels.clone())
    }

    fn insert(&self, number: NumericIdentity, key: &Key, revision: i64) -> Inserted {
        self.put(number, key.as_str(), revision);
        Inserted::Seen
    }

    fn forget(&self, number: NumericIdentity) {
        self.maps().remove(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An allocation that the store confirmed is known from then on, whatever the store tells of the time before it.
    #[test]
    fn what_was_inserted_outlives_late_news_of_its_forerunner() {
        let (table, key) = (MasterTable::default(), Key::parse("k8s:a=1;").unwrap());
        let [first, second] = [7, 8].map(NumericIdentity::new);
        assert_eq!(table.insert(second, &key, 200), Inserted::Seen);
        table.put(first, key.as_str(), 99);
        assert_eq!(table.numbers_of(&key), [first, second]);
        table.remove(first, 150);
        table.put(second, key.as_str(), 199);
        assert_eq!(table.numbers_of(&key), [second]);
        table.remove(second, 180);
        assert_eq!(table.numbers_of(&key), [second], "it left before it came again");
        table.remove(second, 201);
        assert_eq!(table.numbers_of(&key), []);
    }
}
