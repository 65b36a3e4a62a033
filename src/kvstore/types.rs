//! What this room hands out: keys, values, changes, positions.

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

impl Event {
    /// The revision that made it.
    #[must_use]
    pub const fn mod_revision(&self) -> i64 {
        match self {
            Self::Put(KeyValue { mod_revision, .. }) | Self::Delete { mod_revision, .. } => *mod_revision,
        }
    }

    /// The key that changed.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put(KeyValue { key, .. }) | Self::Delete { key, .. } => key,
        }
    }
}

/// Where in a store a watcher stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The etcd's cluster ID.
    pub etcd_cluster_id: u64,
    /// Everything up to this revision is applied.
    pub revision: i64,
}

/// From whom pages of a list are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// As new as anything that the store has confirmed: the member asks its leader.
    #[default]
    Linearizable,
    /// What the member at hand has. If that is older than what is known of the store, it is read linearizably after all.
    Serializable,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangePage {
    /// The entries, ascending by key.
    pub entries: Vec<KeyValue>,
    /// Whether more follow behind the last one.
    pub more: bool,
    /// The store's revision as of the answer, whatever revision was asked for: of a first page, the one to pin the next
    /// ones to.
    pub revision: i64,
}

/// Moves the bytes out of what the client library holds.
impl From<etcd_client::KeyValue> for KeyValue {
    fn from(kv: etcd_client::KeyValue) -> Self {
        let (mod_revision, create_revision, lease) = (kv.mod_revision(), kv.create_revision(), kv.lease());
        let (key, value) = kv.into_key_value();
        Self { key, value, mod_revision, create_revision, lease }
    }
}

impl From<etcd_client::proto::PbKeyValue> for KeyValue {
    fn from(kv: etcd_client::proto::PbKeyValue) -> Self {
        let (mod_revision, create_revision, lease) = (kv.mod_revision, kv.create_revision, kv.lease);
        Self { key: kv.key, value: kv.value, mod_revision, create_revision, lease }
    }
}

/// The first key behind all that begin with `prefix`; `\0` (no end) where there is none.
pub(super) fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_prefixes() {
        assert_eq!(end_of_prefix(b"cilium/state/"), b"cilium/state0");
        assert_eq!(end_of_prefix(b"a\xff\xff"), b"b");
        assert_eq!(end_of_prefix(b"\xff"), b"\0");
        assert_eq!(end_of_prefix(b""), b"\0");
    }
}
