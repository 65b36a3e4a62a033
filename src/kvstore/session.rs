//! One connection to one etcd incarnation; the only way to call it, so that every response header is checked.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{Client, DeleteOptions, GetOptions, KvClient, PutOptions, ResponseHeader, Txn, TxnResponse};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::watch::{self, Heard, Watch};
use super::{SessionError, Timing};

/// Answers and watch messages may be this large: a page of 16,384 identities is 7 MB, and etcd itself sends no more than
/// its request limit in one value.
pub(super) const DECODE_LIMIT: usize = 64 << 20;

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
}

/// Where in a store a watcher stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The etcd's cluster ID.
    pub etcd_cluster_id: u64,
    /// Everything up to this revision is applied.
    pub revision: i64,
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct RangePage {
    /// The entries, ascending by key.
    pub entries: Vec<KeyValue>,
    /// Whether more follow behind the last one.
    pub more: bool,
    /// The store's revision as of the answer: for a first page, the one to pin the next ones to.
    pub revision: i64,
}

/// A live session; cheap to clone. The first wrong header ends it: every later call fails with the same error.
#[derive(Clone, Debug)]
pub struct Session(Arc<Inner>);

struct Inner {
    client: Client,
    kv: KvClient,
    endpoint: String,
    version: Option<String>,
    etcd_cluster_id: u64,
    /// Highest revision in any header.
    revision: AtomicI64,
    timing: Timing,
    verdict: OnceLock<SessionError>,
    ended: CancellationToken,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("endpoint", &self.endpoint)
            .field("etcd_cluster_id", &format_args!("{:x}", self.etcd_cluster_id))
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Makes the first call, a linearizable read of `probe`: it shows that the etcd has a quorum and lets us in, and its
    /// header fixes the cluster ID.
    pub(super) async fn open(
        client: Client,
        endpoint: String,
        probe: &[u8],
        timing: Timing,
    ) -> Result<Self, SessionError> {
        let mut kv = client.kv_client().max_decoding_message_size(DECODE_LIMIT);
        let options = GetOptions::new().with_keys_only();
        let answer = deadline("the first read", timing.call, kv.get(probe, Some(options))).await?;
        let header = answer.header().ok_or_else(|| SessionError::NotEtcd("an answer without a header".to_owned()))?;
        let (etcd_cluster_id, revision) = (header.cluster_id(), header.revision());
        // The version is for people; an etcd (or a proxy) that will not tell it is none the worse.
        let version = match deadline("the version", timing.call, client.maintenance_client().status()).await {
            Ok(status) => Some(status.version().to_owned()),
            Err(error) if error.ends_session() => return Err(error),
            Err(_) => None,
        };
        Ok(Self(Arc::new(Inner {
            client,
            kv,
            endpoint,
            version,
            etcd_cluster_id,
            revision: AtomicI64::new(revision),
            timing,
            verdict: OnceLock::new(),
            ended: CancellationToken::new(),
        })))
    }

    /// The etcd's cluster ID.
    #[must_use]
    pub fn etcd_cluster_id(&self) -> u64 {
        self.0.etcd_cluster_id
    }

    /// Highest revision seen in any header.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.0.revision.load(Ordering::Acquire)
    }

    /// The endpoint in use.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.0.endpoint
    }

    /// The etcd version, where it told one.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.0.version.as_deref()
    }

    /// Whether both are the same session.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn timing(&self) -> &Timing {
        &self.0.timing
    }

    /// Resolves when the session is over: a header was wrong or the connection was found dead.
    #[must_use]
    pub fn closed(&self) -> WaitForCancellationFutureOwned {
        self.0.ended.clone().cancelled_owned()
    }

    /// Reads one key, linearizably; also the revision of the answer.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn get(&self, key: &[u8]) -> Result<(Option<KeyValue>, i64), SessionError> {
        let mut kv = self.kv()?;
        let (mut answer, known) = self.call("a read", kv.get(key, None)).await?;
        let revision = self.check_current(answer.header(), known)?;
        Ok((answer.take_kvs().into_iter().next().map(key_value), revision))
    }

    /// One page of `[from, end)`, at `revision` if that is not 0. Linearizable.
    ///
    /// # Errors
    /// Any [`SessionError`]; [`SessionError::Compacted`] where `revision` is.
    pub async fn range_page(
        &self,
        from: &[u8],
        end: &[u8],
        limit: i64,
        revision: i64,
        keys_only: bool,
    ) -> Result<RangePage, SessionError> {
        let mut kv = self.kv()?;
        let mut options = GetOptions::new().with_range(end).with_limit(limit).with_revision(revision);
        if keys_only {
            options = options.with_keys_only();
        }
        let (mut answer, known) = self.call("a page", kv.get(from, Some(options))).await?;
        let revision = self.check_current(answer.header(), known)?;
        Ok(RangePage { more: answer.more(), entries: answer.take_kvs().into_iter().map(key_value).collect(), revision })
    }

    /// Writes one key, under a lease unless that is 0; the revision of the write.
    ///
    /// # Errors
    /// Any [`SessionError`]. After a lost connection or a deadline the outcome is unknown.
    pub async fn put(&self, key: &[u8], value: Bytes, lease: i64) -> Result<i64, SessionError> {
        let mut kv = self.kv()?;
        let options = PutOptions::new().with_lease(lease);
        let (answer, known) = self.call("a write", kv.put(key, value, Some(options))).await?;
        self.check_current(answer.header(), known)
    }

    /// Deletes one key; whether it was there.
    ///
    /// # Errors
    /// Any [`SessionError`]. After a lost connection or a deadline the outcome is unknown.
    pub async fn delete(&self, key: &[u8]) -> Result<bool, SessionError> {
        let mut kv = self.kv()?;
        let (answer, known) = self.call("a delete", kv.delete(key, None::<DeleteOptions>)).await?;
        self.check_current(answer.header(), known)?;
        Ok(answer.deleted() > 0)
    }

    /// Runs a transaction.
    ///
    /// # Errors
    /// Any [`SessionError`]. After a lost connection or a deadline the outcome is unknown.
    pub async fn txn(&self, txn: Txn) -> Result<TxnResponse, SessionError> {
        let mut kv = self.kv()?;
        let (answer, known) = self.call("a transaction", kv.txn(txn)).await?;
        self.check_current(answer.header(), known)?;
        Ok(answer)
    }

    /// Grants a lease of `ttl` seconds; its ID.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn lease_grant(&self, ttl: i64) -> Result<i64, SessionError> {
        self.alive()?;
        let mut lease = self.0.client.lease_client();
        let (answer, _) = self.call("a lease", lease.grant(ttl, None)).await?;
        self.check(answer.header())?;
        Ok(answer.id())
    }

    /// Ends a lease and deletes its keys.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn lease_revoke(&self, id: i64) -> Result<(), SessionError> {
        self.alive()?;
        let mut lease = self.0.client.lease_client();
        let (answer, _) = self.call("the end of a lease", lease.revoke(id)).await?;
        self.check(answer.header())?;
        Ok(())
    }

    /// Renews a lease for its whole time. An exchange of its own: what happens to one lease concerns no other.
    ///
    /// # Errors
    /// [`SessionError::LeaseNotFound`] if it is gone, and any other.
    pub async fn lease_keep_alive(&self, id: i64) -> Result<(), SessionError> {
        self.alive()?;
        let mut lease = self.0.client.lease_client();
        self.call("the renewal of a lease", lease.keep_alive(id)).await.map(drop)
    }

    /// Waits until a key is deleted at or after `revision`. The caller bounds the wait.
    ///
    /// # Errors
    /// Any [`SessionError`]; [`SessionError::Compacted`] where `revision` is.
    pub async fn deleted(&self, key: &[u8], revision: i64) -> Result<(), SessionError> {
        let end = [key, b"\0"].concat();
        let mut watch = self.watch(key, &end, revision).await?;
        loop {
            match watch.next(self).await? {
                Heard::Events(events) if events.iter().any(|event| matches!(event, Event::Delete { .. })) => {
                    return Ok(());
                }
                Heard::Events(_) | Heard::Progress(_) => {}
                Heard::Compacted => return Err(SessionError::Compacted),
                Heard::Ended(reason) => return Err(SessionError::Unavailable(reason)),
            }
        }
    }

    /// Watches `[from, end)` from `start_revision` on; resolves when the etcd has confirmed it.
    pub(super) async fn watch(&self, from: &[u8], end: &[u8], start_revision: i64) -> Result<Watch, SessionError> {
        self.alive()?;
        let client = self.0.client.watch_client().max_decoding_message_size(DECODE_LIMIT);
        let opened =
            deadline("a watch", self.0.timing.watch_created, watch::open(client, from, end, start_revision)).await;
        self.judged(opened)
    }

    /// Checks a header's cluster ID; the header's revision.
    pub(super) fn check(&self, header: Option<&ResponseHeader>) -> Result<i64, SessionError> {
        let Some(header) = header else {
            return Err(self.end(SessionError::NotEtcd("an answer without a header".to_owned())));
        };
        if header.cluster_id() != self.0.etcd_cluster_id {
            let (expected, found) = (self.0.etcd_cluster_id, header.cluster_id());
            return Err(self.end(SessionError::ClusterIdChanged { expected, found }));
        }
        Ok(header.revision())
    }

    /// As [`Self::check`], for a linearizable answer to a question asked when `known` was the highest revision seen: the
    /// store has that revision still, or it went back in time.
    fn check_current(&self, header: Option<&ResponseHeader>, known: i64) -> Result<i64, SessionError> {
        let found = self.check(header)?;
        if found < known {
            return Err(self.end(SessionError::RevisionWentBack { known, found }));
        }
        self.saw(found);
        Ok(found)
    }

    pub(super) fn saw(&self, revision: i64) {
        self.0.revision.fetch_max(revision, Ordering::AcqRel);
    }

    /// Ends the session for good; the error is the first one that did.
    pub(super) fn end(&self, error: SessionError) -> SessionError {
        let verdict = self.0.verdict.get_or_init(|| error).clone();
        self.0.ended.cancel();
        verdict
    }

    /// Whether an error is the session's end, noted.
    pub(super) fn judged<T>(&self, result: Result<T, SessionError>) -> Result<T, SessionError> {
        result.map_err(|error| if error.ends_session() { self.end(error) } else { error })
    }

    fn alive(&self) -> Result<(), SessionError> {
        match self.0.verdict.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn kv(&self) -> Result<KvClient, SessionError> {
        self.alive()?;
        Ok(self.0.kv.clone())
    }

    /// A unary call within its deadline, and the revision known when it was made.
    async fn call<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<(T, i64), SessionError> {
        let known = self.revision();
        let answer = deadline(what, self.0.timing.call, call).await;
        Ok((self.judged(answer)?, known))
    }
}

pub(super) async fn deadline<T, E: Into<SessionError>>(
    what: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, SessionError> {
    match timeout(limit, call).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(SessionError::Deadline(what)),
    }
}

pub(super) fn key_value(kv: etcd_client::KeyValue) -> KeyValue {
    let (mod_revision, create_revision, lease) = (kv.mod_revision(), kv.create_revision(), kv.lease());
    let (key, value) = kv.into_key_value();
    KeyValue { key, value, mod_revision, create_revision, lease }
}
