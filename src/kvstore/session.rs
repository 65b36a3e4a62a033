//! One connection to one etcd incarnation; the only way to call it, so that every response header is checked.

use bytes::Bytes;

use super::SessionError;

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// Full key.
    pub key: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
    /// Revision of its last change.
    pub mod_revision: i64,
    /// Revision of its creation.
    pub create_revision: i64,
    /// Lease attached, 0 for none.
    pub lease: i64,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Written.
    Put(KeyValue),
    /// Gone.
    Delete {
        /// Full key.
        key: Vec<u8>,
        /// Revision of the delete.
        mod_revision: i64,
    },
}

/// Where in a store a watcher stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The etcd's cluster ID.
    pub etcd_cluster_id: u64,
    /// Everything up to this revision is applied.
    pub revision: i64,
}

/// A live session; cheap to clone.
#[derive(Clone, Debug)]
pub struct Session {}

impl Session {
    /// The etcd's cluster ID.
    #[must_use]
    pub fn etcd_cluster_id(&self) -> u64 {
        unimplemented!("skeleton")
    }
    /// Highest revision seen in any header.
    #[must_use]
    pub fn revision(&self) -> i64 {
        unimplemented!("skeleton")
    }
    /// The endpoint in use.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        unimplemented!("skeleton")
    }
    /// The etcd version, where it told one.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        unimplemented!("skeleton")
    }
    /// Reads one key, linearizably; also the revision of the answer.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn get(&self, _key: &[u8]) -> Result<(Option<KeyValue>, i64), SessionError> {
        unimplemented!("skeleton")
    }
    /// Writes one key without a lease.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn put(&self, _key: &[u8], _value: Bytes) -> Result<i64, SessionError> {
        unimplemented!("skeleton")
    }
}
