//! What a store must do for the allocator. Etcd is one; a store of another kind implements this and nothing else.

use std::borrow::Cow;
use std::time::SystemTime;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{AllocError, Key};
use crate::identity::NumericIdentity;

/// A lock on one label set, held by this process.
///
/// Holding is never assumed: every call that takes a lock proves within the store, in the same step as its write, that the
/// lock is still held, and answers [`AllocError::LockLost`] having written nothing if it is not (G8). A lock that is
/// dropped without [`Self::unlock`] is never renewed again and ends with its lease.
pub trait Lock: Send + Sync {
    /// Gives it back. If that cannot be confirmed, the lock ends by itself within its time to live (G6).
    fn unlock(self) -> impl Future<Output = ()> + Send;
}

/// What a write that creates only what is absent did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// It is written, at that revision of the store.
    Yes(i64),
    /// The number stands for other labels already, or for these; nothing is written.
    NumberTaken,
}

/// What an attempt did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It is written, at that revision of the store.
    Done(i64),
    /// Somebody refers to these labels by this number already: a reference to it is what is wanted. Nothing is written.
    InUseAs(NumericIdentity),
    /// The number stands for other labels. Nothing is written.
    NumberTaken,
    /// The number stands for nothing any more. Nothing is written.
    NumberGone,
    /// Somebody holds or waits for a lock that must be respected, or this backend has no way without lock. Nothing is
    /// written.
    Locked,
}

/// How [`Backend::update`] treats this node's reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// It may be there: writes it only if its value or its lease is not ours.
    IfDifferent,
    /// It is known to be gone: writes it only if it is still absent.
    Missing,
}

/// What [`Backend::update`] had to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Updated {
    /// The number's record was missing.
    pub master: bool,
    /// Our reference was missing, had another value, or hung on another lease than it should.
    pub slave: bool,
    /// The store's revision at which both are there.
    pub revision: i64,
}

/// What a store can say of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendStatus {
    /// In a line, for people.
    pub text: String,
    /// Leases held for references.
    pub leases: usize,
    /// References that hang on them.
    pub leased_keys: usize,
    /// Leases lost since start.
    pub lost_leases: u64,
}

/// A record of a number in the store, as the garbage collector sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterRecord {
    /// The number.
    pub number: NumericIdentity,
    /// The label set, as stored.
    pub labels: Box<str>,
    /// Changes whenever anybody writes the record.
    pub revision: i64,
}

/// What removing an unused record did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Removed,
    /// Somebody refers to it.
    InUse,
    /// It, or a lock on it, was touched meanwhile. Nothing is removed.
    Touched,
    /// It was gone before.
    Gone,
}

/// A lock as the garbage collector sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRecord {
    /// Its key.
    pub path: String,
    /// Changes whenever anybody writes it.
    pub revision: i64,
    /// Whether it expires by itself, were it not renewed.
    pub leased: bool,
}

/// A store of *records* (number → label set, kept until collected) and *references* (a node uses a label set under a number,
/// kept while the node lives). All calls may be made at once and from many processes. An error leaves it open whether
/// anything was written, except where said otherwise; every call can be repeated.
pub trait Backend: Send + Sync + 'static {
    /// The store's lock.
    type Lock: Lock;

    /// A key string in the form that the store's keys allow.
    fn encode<'a>(&self, key: &'a Key) -> Cow<'a, str>;

    /// In one step and without a lock: creates the record and our reference if nobody refers to the labels, the number stands
    /// for nothing, and nobody holds or waits for a lock on the labels. A store that cannot do this answers
    /// [`Attempt::Locked`], and is asked with a lock.
    fn try_allocate(
        &self,
        number: NumericIdentity,
        key: &Key,
    ) -> impl Future<Output = Result<Attempt, AllocError>> + Send;

    /// In one step and without a lock: writes our reference if the number stands for these labels, everybody who refers to
    /// them does it by this number, and nobody holds or waits for a lock on the labels or the number.
    fn try_reference(
        &self,
        number: NumericIdentity,
        key: &Key,
    ) -> impl Future<Output = Result<Attempt, AllocError>> + Send;

    /// Creates the record, only if the number stands for nothing. Somebody else's having it is no error.
    fn allocate(
        &self,
        number: NumericIdentity,
        key: &Key,
        lock: Option<&Self::Lock>,
    ) -> impl Future<Output = Result<Created, AllocError>> + Send;

    /// Writes our reference, if the number stands for these labels and no collector holds its lock.
    fn acquire_reference(
        &self,
        number: NumericIdentity,
        key: &Key,
        lock: Option<&Self::Lock>,
    ) -> impl Future<Output = Result<Attempt, AllocError>> + Send;

    /// Deletes our reference if it is to this number. Its absence is no error. The caller excludes calls for the same labels.
    fn release(&self, number: NumericIdentity, key: &Key) -> impl Future<Output = Result<(), AllocError>> + Send;

    /// Writes what is missing of record and reference. Never overwrites a record of other labels: [`AllocError::Conflict`]
    /// then, and no reference is written.
    fn update(
        &self,
        number: NumericIdentity,
        key: &Key,
        how: Update,
        lock: Option<&Self::Lock>,
    ) -> impl Future<Output = Result<Updated, AllocError>> + Send;

    /// The number by which somebody refers to exactly these labels. The store itself is read, no cache.
    fn get(
        &self,
        key: &Key,
        lock: Option<&Self::Lock>,
    ) -> impl Future<Output = Result<Option<NumericIdentity>, AllocError>> + Send;

    /// The labels that a number stands for, as stored.
    fn get_by_id(&self, number: NumericIdentity) -> impl Future<Output = Result<Option<Box<str>>, AllocError>> + Send;

    /// Locks the labels. Gives up at `deadline`, leaving nothing behind.
    fn lock(&self, key: &Key, deadline: Instant) -> impl Future<Output = Result<Self::Lock, AllocError>> + Send;

    /// All records, whoever's they are.
    fn masters(&self) -> impl Future<Output = Result<Vec<MasterRecord>, AllocError>> + Send;

    /// Which of these records nobody refers to, by one look at all references. Only [`Self::remove_unused`] decides.
    fn unused(&self, records: Vec<MasterRecord>) -> impl Future<Output = Result<Vec<MasterRecord>, AllocError>> + Send;

    /// In one step: removes a record if it is as it was seen, nobody refers to its labels by its number, and nobody holds or
    /// waits for a lock on the labels or the number (A4).
    fn remove_unused(&self, record: &MasterRecord) -> impl Future<Output = Result<Removal, AllocError>> + Send;

    /// All locks, held or waited for, by anybody.
    fn locks(&self) -> impl Future<Output = Result<Vec<LockRecord>, AllocError>> + Send;

    /// Removes a lock if it is as it was seen; whether it did.
    fn remove_lock(&self, lock: &LockRecord) -> impl Future<Output = Result<bool, AllocError>> + Send;

    /// The first list of records is in: limits that hold at the start only are over.
    fn bootstrapped(&self) {}

    /// How the store is.
    fn status(&self) -> impl Future<Output = BackendStatus> + Send;

    /// Rises whenever references of ours may be gone because what keeps them in the store is gone.
    fn losses(&self) -> watch::Receiver<u64>;

    /// Whether, as far as is known, our reference to these labels is kept in the store.
    fn keeps_reference(&self, key: &Key) -> bool;

    /// How many leases, or what the store has in their place, references of ours hang on, and how many references.
    fn leases(&self) -> (usize, usize);

    /// Deletes all references of this process at once, for a shutdown that is to leave none.
    fn release_all(&self) -> impl Future<Output = Result<(), AllocError>> + Send;
}

/// The time, as the store's writers spell it.
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}
