//! The calls that the allocator makes of etcd, in keys and bytes: conditional transactions, lists, leases, waiting for a
//! delete.

use std::time::Duration;

use etcd_client::proto::{PbTxnOpResponse, PbTxnResponse};
use etcd_client::{Compare as EtcdCompare, CompareOp, GetOptions, PutOptions, Txn as EtcdTxn, TxnOp};
use tokio::sync::OwnedSemaphorePermit;

use super::limit::{Limiter, RateLimits};
use super::sessions::Sessions;
use crate::kvstore::{Event, Heard, KeyValue, Session, SessionError};

/// Keys a page of a list.
const PAGE: i64 = 4096;

/// A condition of a transaction. Prefixes are whole ranges: the condition must hold for every key in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key does not exist.
    Absent(String),
    /// The key exists.
    Exists(String),
    /// No key begins so. (etcd compares an empty range as one key of create revision 0.)
    NoneBelow(String),
    /// The key was created at that revision.
    Created(String, i64),
    /// The key was last changed at that revision.
    Modified(String, i64),
    /// The key exists with that value.
    Value(String, Vec<u8>),
    /// At least one key begins so, and all that do have that value.
    AllBelow(String, Vec<u8>),
    /// At least one key begins so, and none that does has that value.
    NoneBelowIs(String, Vec<u8>),
    /// The key hangs on that lease.
    Lease(String, i64),
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes, under a lease or (0) without.
    Put {
        /// The key.
        key: String,
        /// Its value.
        value: Vec<u8>,
        /// The lease, 0 for none.
        lease: i64,
    },
    /// Deletes a key.
    Delete(String),
    /// Reads a key.
    Get(String),
    /// Reads what begins so.
    List(String),
    /// Reads the key with the lowest create revision of those that begin so.
    Oldest(String),
    /// A transaction within.
    Txn(Txn),
}

/// If all of `when` hold, then `then`, otherwise `or_else`, at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// Conditions.
    pub when: Vec<Compare>,
    /// Done if all hold.
    pub then: Vec<Op>,
    /// Done otherwise.
    pub or_else: Vec<Op>,
}

/// What one operation answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A write or a delete of so many keys.
    Changed(i64),
    /// What was read.
    Read(Vec<KeyValue>),
    /// A transaction within.
    Txn(TxnAnswer),
}

/// What a transaction answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnAnswer {
    /// Whether the conditions held.
    pub succeeded: bool,
    /// The store's revision: of the write, if there was one.
    pub revision: i64,
    /// One a operation done.
    pub answers: Vec<Answer>,
}

impl TxnAnswer {
    /// What the `n`-th operation read; nothing if it was no read.
    #[must_use]
    pub fn read(&self, n: usize) -> &[KeyValue] {
        match self.answers.get(n) {
            Some(Answer::Read(entries)) => entries,
            _ => &[],
        }
    }

    /// The transaction within that was the `n`-th operation.
    #[must_use]
    pub fn within(&self, n: usize) -> Option<&Self> {
        match self.answers.get(n) {
            Some(Answer::Txn(answer)) => Some(answer),
            _ => None,
        }
    }
}

/// The etcd that the allocator writes to; cheap to clone. Goes through whatever session there is; where there is none, a call
/// waits for one within its own deadline.
#[derive(Clone, Debug)]
pub struct Store {
    sessions: Sessions,
    /// Longest wait for a session.
    patience: Duration,
    limiter: Limiter,
}

impl Store {
    /// Over those sessions. A call waits no longer than `patience` for one, and its answer no longer than the session's
    /// timing says.
    #[must_use]
    pub fn new(sessions: Sessions, patience: Duration) -> Self {
        Self { sessions, patience, limiter: Limiter::new(RateLimits::default()) }
    }

    /// The same, within those limits.
    #[must_use]
    pub fn with_limits(mut self, limits: RateLimits) -> Self {
        self.limiter = Limiter::new(limits);
        self
    }

    /// What keeps to the limits.
    #[must_use]
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    async fn session(&self) -> Result<(Session, Option<OwnedSemaphorePermit>), SessionError> {
        let in_flight = self.limiter.admit().await;
        let session = self.sessions.current(self.patience).await?;
        Ok((session, in_flight))
    }

    /// Runs a transaction. After a lost connection or a missed deadline its outcome is unknown.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn txn(&self, txn: Txn) -> Result<TxnAnswer, SessionError> {
        let (session, _in_flight) = self.session().await?;
        session.txn(txn.into_etcd()).await.map(|answer| txn_answer(answer.0))
    }

    /// Reads one key.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn get(&self, key: &str) -> Result<Option<KeyValue>, SessionError> {
        let (session, _in_flight) = self.session().await?;
        session.get(key.as_bytes()).await.map(|(entry, _)| entry)
    }

    /// Reads everything that begins so, all at one revision.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn list(&self, prefix: &str) -> Result<Vec<KeyValue>, SessionError> {
        let (mut entries, mut revision, mut from) = (Vec::new(), 0, prefix.as_bytes().to_vec());
        let end = prefix_end(prefix);
        loop {
            let (session, _in_flight) = self.session().await?;
            let page = session.range_page(&from, &end, PAGE, revision, false).await?;
            if revision == 0 {
                revision = page.revision;
            }
            entries.extend(page.entries);
            match entries.last() {
                Some(last) if page.more => from = [last.key.as_slice(), b"\0"].concat(),
                _ => return Ok(entries),
            }
        }
    }

    /// Writes one key, under a lease or (0) without; the revision of the write.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn put(&self, key: &str, value: String, lease: i64) -> Result<i64, SessionError> {
        let (session, _in_flight) = self.session().await?;
        session.put(key.as_bytes(), value.into(), lease).await
    }

    /// Deletes one key; its absence is no error.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn delete(&self, key: &str) -> Result<(), SessionError> {
        let (session, _in_flight) = self.session().await?;
        session.delete(key.as_bytes()).await.map(drop)
    }

    /// Asks for a lease of at least `ttl`.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn grant(&self, ttl: Duration) -> Result<i64, SessionError> {
        let (session, _in_flight) = self.session().await?;
        session.lease_grant(i64::try_from(ttl.as_secs().max(1)).unwrap_or(i64::MAX)).await
    }

    /// Renews a lease for its whole time.
    ///
    /// # Errors
    /// [`SessionError::LeaseNotFound`] if it is gone, and any other.
    pub async fn renew(&self, lease: i64) -> Result<(), SessionError> {
        self.sessions.current(self.patience).await?.lease_keep_alive(lease).await.map(drop)
    }

    /// Ends a lease and deletes what hangs on it.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn revoke(&self, lease: i64) -> Result<(), SessionError> {
        let (session, _in_flight) = self.session().await?;
        session.lease_revoke(lease).await
    }

    /// Waits until the key is deleted at or after `revision`. The caller bounds the wait.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn deleted(&self, key: &[u8], revision: i64) -> Result<(), SessionError> {
        let mut watch = self.sessions.current(self.patience).await?.watch(key, revision).await?;
        loop {
            match watch.next().await? {
                // The watch is of all keys that begin so.
                Heard::Events(events)
                    if events.iter().any(|event| matches!(event, Event::Delete { key: gone, .. } if gone == key)) =>
                {
                    return Ok(());
                }
                Heard::Events(_) | Heard::Progress(_) | Heard::Alive => {}
                Heard::Compacted => return Err(SessionError::Compacted),
                Heard::Ended(reason) => return Err(SessionError::Unavailable(reason)),
            }
        }
    }
}

impl Txn {
    fn into_etcd(self) -> EtcdTxn {
        let ops = |ops: Vec<Op>| ops.into_iter().map(Op::into_etcd).collect::<Vec<_>>();
        EtcdTxn::new()
            .when(self.when.into_iter().map(Compare::into_etcd).collect::<Vec<_>>())
            .and_then(ops(self.then))
            .or_else(ops(self.or_else))
    }
}

impl Compare {
    fn into_etcd(self) -> EtcdCompare {
        use CompareOp::{Equal, Greater, NotEqual};
        match self {
            Self::Absent(key) => EtcdCompare::create_revision(key, Equal, 0),
            Self::Exists(key) => EtcdCompare::create_revision(key, Greater, 0),
            Self::NoneBelow(prefix) => {
                let end = prefix_end(&prefix);
                EtcdCompare::create_revision(prefix, Equal, 0).with_range(end)
            }
            Self::Created(key, revision) => EtcdCompare::create_revision(key, Equal, revision),
            Self::Modified(key, revision) => EtcdCompare::mod_revision(key, Equal, revision),
            Self::Value(key, value) => EtcdCompare::value(key, Equal, value),
            Self::AllBelow(prefix, value) => {
                let end = prefix_end(&prefix);
                EtcdCompare::value(prefix, Equal, value).with_range(end)
            }
            Self::NoneBelowIs(prefix, value) => {
                let end = prefix_end(&prefix);
                EtcdCompare::value(prefix, NotEqual, value).with_range(end)
            }
            Self::Lease(key, lease) => EtcdCompare::lease(key, Equal, lease),
        }
    }
}

impl Op {
    fn into_etcd(self) -> TxnOp {
        match self {
            Self::Put { key, value, lease } => TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease))),
            Self::Delete(key) => TxnOp::delete(key, None),
            Self::Get(key) => TxnOp::get(key, None),
            Self::List(prefix) => {
                let end = prefix_end(&prefix);
                TxnOp::get(prefix, Some(GetOptions::new().with_range(end)))
            }
            Self::Oldest(prefix) => {
                use etcd_client::{SortOrder::Ascend, SortTarget::Create};
                let options = GetOptions::new().with_range(prefix_end(&prefix)).with_limit(1).with_sort(Create, Ascend);
                TxnOp::get(prefix, Some(options))
            }
            Self::Txn(txn) => TxnOp::txn(txn.into_etcd()),
        }
    }
}

/// The first key behind all that begin with `prefix`. Our prefixes are text, so no byte is 255.
fn prefix_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

fn txn_answer(answer: PbTxnResponse) -> TxnAnswer {
    let answers = answer.responses.into_iter().map(|op| match op.response {
        Some(PbTxnOpResponse::ResponseRange(range)) => Answer::Read(range.kvs.into_iter().map(key_value).collect()),
        Some(PbTxnOpResponse::ResponseDeleteRange(delete)) => Answer::Changed(delete.deleted),
        Some(PbTxnOpResponse::ResponseTxn(txn)) => Answer::Txn(txn_answer(txn)),
        Some(PbTxnOpResponse::ResponsePut(_)) => Answer::Changed(1),
        None => Answer::Changed(0),
    });
    TxnAnswer {
        succeeded: answer.succeeded,
        revision: answer.header.map_or(0, |header| header.revision),
        answers: answers.collect(),
    }
}

fn key_value(entry: etcd_client::proto::PbKeyValue) -> KeyValue {
    KeyValue {
        key: entry.key,
        value: entry.value,
        mod_revision: entry.mod_revision,
        create_revision: entry.create_revision,
        lease: entry.lease,
    }
}
