//! The calls that the allocator makes of etcd, in keys and bytes: conditional transactions, lists, leases, waiting for a
//! delete. Every call has a deadline of its own, so that none can hang.

use std::time::Duration;

use etcd_client::proto::{PbTxnOpResponse, PbTxnResponse};
use etcd_client::{
    Client, Compare as EtcdCompare, CompareOp, GetOptions, PutOptions, Txn as EtcdTxn, TxnOp, WatchOptions,
};
use tokio::time::timeout;

use super::limit::{Limiter, RateLimits};
use crate::kvstore::{KeyValue, SessionError};

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

/// The etcd that the allocator writes to; cheap to clone.
#[derive(Clone)]
pub struct Store {
    client: Client,
    call: Duration,
    limiter: Limiter,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("call", &self.call).finish_non_exhaustive()
    }
}

impl Store {
    /// Over that client; no call takes longer than `call`.
    #[must_use]
    pub fn new(client: Client, call: Duration) -> Self {
        Self { client, call, limiter: Limiter::new(RateLimits::default()) }
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

    /// Runs a transaction. After a lost connection or a missed deadline its outcome is unknown.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn txn(&self, txn: Txn) -> Result<TxnAnswer, SessionError> {
        let mut kv = self.client.kv_client();
        let answer = self.within("a transaction", kv.txn(txn.into_etcd())).await?;
        Ok(txn_answer(answer.0))
    }

    /// Reads one key.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn get(&self, key: &str) -> Result<Option<KeyValue>, SessionError> {
        let mut kv = self.client.kv_client();
        let mut answer = self.within("a read", kv.get(key, None)).await?;
        Ok(answer.0.kvs.pop().map(key_value))
    }

    /// Reads everything that begins so, all at one revision, which is returned too.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn list(&self, prefix: &str) -> Result<(Vec<KeyValue>, i64), SessionError> {
        let mut kv = self.client.kv_client();
        let (mut entries, mut revision, mut from) = (Vec::new(), 0, prefix.as_bytes().to_vec());
        loop {
            let options = GetOptions::new().with_range(prefix_end(prefix)).with_limit(PAGE).with_revision(revision);
            let answer = self.within("a list", kv.get(from, Some(options))).await?.0;
            if revision == 0 {
                revision = answer.header.as_ref().map_or(0, |header| header.revision);
            }
            entries.extend(answer.kvs.into_iter().map(key_value));
            match entries.last() {
                Some(last) if answer.more => from = [last.key.as_slice(), b"\0"].concat(),
                _ => return Ok((entries, revision)),
            }
        }
    }

    /// Writes one key, under a lease or (0) without.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn put(&self, key: &str, value: Vec<u8>, lease: i64) -> Result<i64, SessionError> {
        let put = Op::Put { key: key.to_owned(), value, lease };
        self.txn(Txn { then: vec![put], ..Txn::default() }).await.map(|answer| answer.revision)
    }

    /// Deletes one key; its absence is no error.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn delete(&self, key: &str) -> Result<(), SessionError> {
        self.txn(Txn { then: vec![Op::Delete(key.to_owned())], ..Txn::default() }).await.map(drop)
    }

    /// Asks for a lease of `ttl`; what etcd gave, and for how long.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn grant(&self, ttl: Duration) -> Result<(i64, Duration), SessionError> {
        let mut leases = self.client.lease_client();
        let seconds = i64::try_from(ttl.as_secs().max(1)).unwrap_or(i64::MAX);
        let answer = self.within("the grant of a lease", leases.grant(seconds, None)).await?;
        Ok((answer.0.id, Duration::from_secs(answer.0.ttl.unsigned_abs())))
    }

    /// Renews a lease for its whole time.
    ///
    /// # Errors
    /// [`SessionError::LeaseNotFound`] if it is gone, and any other.
    pub async fn renew(&self, lease: i64) -> Result<(), SessionError> {
        let mut leases = self.client.lease_client();
        // An exchange of its own, closed after the answer: what happens to it, or to the lease, concerns no other lease
        // (G5). With at most 1,000 keys a lease and minutes between renewals, that is a stream every few seconds at most.
        self.within("the renewal of a lease", leases.keep_alive(lease)).await.map(drop)
    }

    /// Ends a lease and deletes what hangs on it.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn revoke(&self, lease: i64) -> Result<(), SessionError> {
        let mut leases = self.client.lease_client();
        self.within("the revocation of a lease", leases.revoke(lease)).await.map(drop)
    }

    /// Waits until the key is deleted at or after `revision`. The caller bounds the wait.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn deleted(&self, key: &[u8], revision: i64) -> Result<(), SessionError> {
        let mut watches = self.client.watch_client();
        let options = WatchOptions::new().with_start_revision(revision);
        let mut stream = self.within("a watch", watches.watch(key, Some(options))).await?;
        loop {
            let Some(answer) = stream.message().await.map_err(|error| classify(&error))? else {
                return Err(SessionError::ConnectionLost("the watch ended".to_owned()));
            };
            if answer.canceled() {
                return Err(SessionError::Compacted);
            }
            // 1 is a delete. (The library's own reading of the type panics on a number that it does not know.)
            if answer.events().iter().any(|event| event.0.r#type == 1) {
                return Ok(());
            }
        }
    }

    async fn within<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, SessionError> {
        let _in_flight = self.limiter.admit().await;
        match timeout(self.call, call).await {
            Ok(answer) => answer.map_err(|error| classify(&error)),
            Err(_) => Err(SessionError::Deadline(what)),
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

/// Codes alone cannot be trusted: the death of a connection comes as `Unknown`.
fn classify(error: &etcd_client::Error) -> SessionError {
    use tonic::Code;
    let status = match error {
        etcd_client::Error::GRpcStatus(status) => status,
        etcd_client::Error::LeaseKeepAliveError(text) if text.contains("lease not found") => {
            return SessionError::LeaseNotFound;
        }
        other => return SessionError::ConnectionLost(other.to_string()),
    };
    let text = status.message();
    match status.code() {
        Code::NotFound if text.contains("requested lease not found") => SessionError::LeaseNotFound,
        Code::PermissionDenied | Code::Unauthenticated => SessionError::Denied(text.to_owned()),
        Code::OutOfRange if text.contains("compacted") => SessionError::Compacted,
        Code::Unavailable | Code::Unknown
            if text.starts_with("etcdserver: ") || text == "context deadline exceeded" =>
        {
            SessionError::Unavailable(text.to_owned())
        }
        Code::Unavailable | Code::Unknown | Code::Cancelled => SessionError::ConnectionLost(text.to_owned()),
        Code::ResourceExhausted if text.contains("too many requests") => SessionError::Unavailable(text.to_owned()),
        _ => SessionError::Other(text.to_owned()),
    }
}
