//! One connection to one etcd incarnation; the only way to call it, so that every response header is checked.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{Client, DeleteOptions, GetOptions, KvClient, PutOptions, ResponseHeader, Txn, TxnResponse};
use tokio::time::{Instant, timeout};

use super::connect::told_by;
use super::types::end_of_prefix;
use super::watch::{self, Watch};
use super::wire::Fate;
use super::{KeyValue, RangePage, Reads, SessionError, Timing};
use crate::tls::CertFacts;

/// Answers and watch messages may be this large: a page of 16,384 identities is 7 MB, and one value of etcd's is no larger
/// than its request limit of 1.5 MiB.
const DECODE_LIMIT: usize = 64 << 20;

/// What takes the longer the more there is to read: its deadline grows where it is missed.
pub(super) const A_PAGE: &str = "a page";
pub(super) const A_WATCH: &str = "a watch";

/// When and why a session ended. Outlives the session, so that the next connection can be made wiser.
#[derive(Debug)]
pub(super) struct Ending {
    began: Instant,
    fate: Arc<Fate>,
    /// The first error that made it useless, and how long it had lived.
    verdict: OnceLock<(SessionError, Duration)>,
}

impl Ending {
    pub(super) fn new(fate: Arc<Fate>) -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), fate, verdict: OnceLock::new() })
    }

    pub(super) fn verdict(&self) -> Option<&(SessionError, Duration)> {
        self.verdict.get()
    }

    /// Ends the session for good; what it returns is the first error that did.
    pub(super) fn end(&self, error: SessionError) -> SessionError {
        let (verdict, _) = self.verdict.get_or_init(|| (told_by(&self.fate, error), self.began.elapsed()));
        self.fate.gone().cancel();
        verdict.clone()
    }
}

/// What a session is made of, before the first call.
pub(super) struct Opening {
    pub(super) client: Client,
    pub(super) endpoint: String,
    pub(super) address: SocketAddr,
    pub(super) certificate: Option<CertFacts>,
    pub(super) timing: Timing,
    pub(super) ending: Arc<Ending>,
}

impl Opening {
    /// A linearizable read: it shows that the etcd has a quorum and lets us in, and its header fixes the cluster ID.
    pub(super) async fn first_call(self, probe: &[u8]) -> Result<Session, SessionError> {
        let Self { client, endpoint, address, certificate, timing, ending } = self;
        let kv = client.kv_client().max_decoding_message_size(DECODE_LIMIT);
        let (mut reader, mut maintenance) = (kv.clone(), client.maintenance_client());
        let (answer, status) = tokio::join!(
            within("the first read", timing.call, reader.get(probe, Some(GetOptions::new().with_keys_only()))),
            within("the version", timing.call, maintenance.status()),
        );
        let answer = answer?;
        let header = answer.header().ok_or_else(no_header)?;
        // The version is for people; an etcd that will not tell it is none the worse.
        let version = status.ok().map(|status| status.version().to_owned()).filter(|version| !version.is_empty());
        Ok(Session(Arc::new(Inner {
            etcd_cluster_id: header.cluster_id(),
            revision: AtomicI64::new(header.revision()),
            client,
            kv,
            endpoint,
            address,
            version,
            certificate,
            timing,
            ending,
        })))
    }
}

/// A live session; cheap to clone. The first wrong header ends it: every later call fails with the same error.
#[derive(Clone, Debug)]
pub struct Session(Arc<Inner>);

struct Inner {
    client: Client,
    kv: KvClient,
    endpoint: String,
    address: SocketAddr,
    version: Option<String>,
    certificate: Option<CertFacts>,
    etcd_cluster_id: u64,
    /// Highest revision in any header.
    revision: AtomicI64,
    timing: Timing,
    ending: Arc<Ending>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("endpoint", &self.endpoint)
            .field("etcd_cluster_id", &format_args!("{:x}", self.etcd_cluster_id))
            .field("revision", &self.revision)
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

impl Session {
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

    /// The address behind it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The etcd version, where it told one.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.0.version.as_deref()
    }

    /// The certificate that we presented.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertFacts> {
        self.0.certificate.as_ref()
    }

    /// Ends the session for a reason that it cannot know; returns why it is over, which may be another one. The next
    /// connection begins with another endpoint, where there is one.
    #[must_use]
    pub fn give_up(&self, reason: SessionError) -> SessionError {
        self.end(reason)
    }

    /// Resolves when the session is over, with the reason. A dead connection is noticed at once where the network tells, and
    /// by pings while a watch is open.
    pub async fn closed(&self) -> SessionError {
        self.0.ending.fate.gone().cancelled().await;
        self.end(gone())
    }

    /// Reads one key, linearizably; also the revision of the answer.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn get(&self, key: &[u8]) -> Result<(Option<KeyValue>, i64), SessionError> {
        self.get_at(key, 0).await
    }

    /// Reads one key as of an older revision; also the current revision.
    ///
    /// # Errors
    /// Any [`SessionError`]; [`SessionError::Compacted`] where `revision` is.
    pub async fn get_at(&self, key: &[u8], revision: i64) -> Result<(Option<KeyValue>, i64), SessionError> {
        let mut kv = self.kv()?;
        let options = GetOptions::new().with_revision(revision);
        let (mut answer, known) = self.call("a read", kv.get(key, Some(options))).await?;
        let current = self.check_current(answer.header(), known)?;
        Ok((answer.take_kvs().into_iter().next().map(KeyValue::from), current))
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
        let asked = kv.get(from, Some(options));
        let (mut answer, known) = self.call_within(A_PAGE, self.0.timing.page, asked).await?;
        let revision = self.check_current(answer.header(), known)?;
        Ok(RangePage {
            more: answer.more(),
            entries: answer.take_kvs().into_iter().map(KeyValue::from).collect(),
            revision,
        })
    }

    /// One page of a list; see [`Reads`].
    ///
    /// # Errors
    /// As [`Self::range_page`].
    pub async fn list_page(
        &self,
        from: &[u8],
        end: &[u8],
        limit: i64,
        revision: i64,
        reads: Reads,
    ) -> Result<RangePage, SessionError> {
        if reads == Reads::Serializable
            && let Some(page) = self.member_page(from, end, limit, revision).await?
        {
            return Ok(page);
        }
        self.range_page(from, end, limit, revision, false).await
    }

    /// One page as the member at hand has it, unless that is behind what we know.
    async fn member_page(
        &self,
        from: &[u8],
        end: &[u8],
        limit: i64,
        revision: i64,
    ) -> Result<Option<RangePage>, SessionError> {
        let mut kv = self.kv()?;
        let options = GetOptions::new().with_range(end).with_limit(limit).with_revision(revision).with_serializable();
        let asked = kv.get(from, Some(options));
        let (mut answer, known) = match self.call_within(A_PAGE, self.0.timing.page, asked).await {
            // A revision that the member does not have yet.
            Err(SessionError::Other(_)) => return Ok(None),
            answer => answer?,
        };
        let revision = self.check(answer.header())?;
        if revision < known {
            return Ok(None);
        }
        self.saw(revision);
        let entries = answer.take_kvs().into_iter().map(KeyValue::from).collect();
        Ok(Some(RangePage { more: answer.more(), entries, revision }))
    }

    /// The keys behind `prefix`, without their values, that were written after the revision `since`, as of `revision`; and
    /// how many keys there were in all. Linearizable.
    ///
    /// # Errors
    /// Any [`SessionError`]; [`SessionError::Compacted`] where `revision` is.
    pub async fn keys_written_since(
        &self,
        prefix: &[u8],
        since: i64,
        revision: i64,
    ) -> Result<(Vec<KeyValue>, u64), SessionError> {
        let mut kv = self.kv()?;
        let options = GetOptions::new()
            .with_range(end_of_prefix(prefix))
            .with_keys_only()
            .with_min_mod_revision(since + 1)
            .with_revision(revision);
        let asked = kv.get(prefix, Some(options));
        let (mut answer, known) = self.call_within(A_PAGE, self.0.timing.page, asked).await?;
        self.check_current(answer.header(), known)?;
        let count = u64::try_from(answer.count()).unwrap_or_default();
        Ok((answer.take_kvs().into_iter().map(KeyValue::from).collect(), count))
    }

    /// Writes one key, under a lease unless that is 0; the revision of the write.
    ///
    /// # Errors
    /// Any [`SessionError`]; see [`SessionError::outcome_is_unknown`].
    pub async fn put(&self, key: &[u8], value: Bytes, lease: i64) -> Result<i64, SessionError> {
        let mut kv = self.kv()?;
        let options = PutOptions::new().with_lease(lease);
        let (answer, known) = self.call("a write", kv.put(key, value, Some(options))).await?;
        self.check_current(answer.header(), known)
    }

    /// Deletes one key; whether it was there.
    ///
    /// # Errors
    /// Any [`SessionError`]; see [`SessionError::outcome_is_unknown`].
    pub async fn delete(&self, key: &[u8]) -> Result<bool, SessionError> {
        Ok(self.delete_range(key, None).await? > 0)
    }

    /// Deletes all keys that begin with `prefix`; how many there were.
    ///
    /// # Errors
    /// Any [`SessionError`]; see [`SessionError::outcome_is_unknown`].
    pub async fn delete_prefix(&self, prefix: &[u8]) -> Result<i64, SessionError> {
        self.delete_range(prefix, Some(DeleteOptions::new().with_range(end_of_prefix(prefix)))).await
    }

    async fn delete_range(&self, key: &[u8], options: Option<DeleteOptions>) -> Result<i64, SessionError> {
        let mut kv = self.kv()?;
        let (answer, known) = self.call("a delete", kv.delete(key, options)).await?;
        self.check_current(answer.header(), known)?;
        Ok(answer.deleted())
    }

    /// Runs a transaction. Read the answer's raw fields (`.0`): `op_responses()` panics at an answer that is not etcd's.
    ///
    /// # Errors
    /// Any [`SessionError`]; see [`SessionError::outcome_is_unknown`].
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
        let mut leases = self.0.client.lease_client();
        let (answer, _) = self.call("a lease", leases.grant(ttl, None)).await?;
        self.check(answer.header())?;
        Ok(answer.id())
    }

    /// Ends a lease and deletes its keys.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn lease_revoke(&self, id: i64) -> Result<(), SessionError> {
        self.alive()?;
        let mut leases = self.0.client.lease_client();
        let (answer, _) = self.call("the end of a lease", leases.revoke(id)).await?;
        self.check(answer.header())?;
        Ok(())
    }

    /// Renews a lease; the seconds that it has from now on.
    ///
    /// # Errors
    /// Any [`SessionError`]; [`SessionError::LeaseNotFound`] where it is gone.
    pub async fn lease_keep_alive_once(&self, id: i64) -> Result<i64, SessionError> {
        self.alive()?;
        let mut leases = self.0.client.lease_client();
        let renewed = async {
            // Opening asks once and keeps the answer's header to itself; the second answer is one that can be checked.
            let (mut keeper, mut answers) = leases.keep_alive(id).await?;
            keeper.keep_alive().await?;
            answers.message().await
        };
        let (answer, _) = self.call("the renewal of a lease", renewed).await?;
        let answer = answer.ok_or_else(|| self.end(gone()))?;
        self.check(answer.header())?;
        if answer.ttl() > 0 { Ok(answer.ttl()) } else { Err(SessionError::LeaseNotFound) }
    }

    /// Watches all keys that begin with `prefix`, from `start_revision` on (0: from now on); resolves when etcd has
    /// confirmed it.
    ///
    /// # Errors
    /// Any [`SessionError`]; a compacted start shows later, as [`super::Heard::Compacted`].
    pub async fn watch(&self, prefix: &[u8], start_revision: i64) -> Result<Watch, SessionError> {
        self.open_watch(prefix, Some(end_of_prefix(prefix)), start_revision).await
    }

    /// The same of one key.
    ///
    /// # Errors
    /// As [`Self::watch`].
    pub async fn watch_key(&self, key: &[u8], start_revision: i64) -> Result<Watch, SessionError> {
        self.open_watch(key, None, start_revision).await
    }

    async fn open_watch(&self, key: &[u8], end: Option<Vec<u8>>, start_revision: i64) -> Result<Watch, SessionError> {
        self.alive()?;
        let client = self.0.client.watch_client().max_decoding_message_size(DECODE_LIMIT);
        let opening = watch::open(client, self.clone(), key, end, start_revision);
        let opened = within(A_WATCH, self.0.timing.watch_created, opening).await;
        self.judged(opened)
    }

    /// Whether both are the same session.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn timing(&self) -> &Timing {
        &self.0.timing
    }

    pub(super) fn ending(&self) -> Arc<Ending> {
        Arc::clone(&self.0.ending)
    }

    /// Checks a header's cluster ID; the header's revision.
    pub(super) fn check(&self, header: Option<&ResponseHeader>) -> Result<i64, SessionError> {
        let Some(header) = header else { return Err(self.end(no_header())) };
        if header.cluster_id() != self.0.etcd_cluster_id {
            let (expected, found) = (self.0.etcd_cluster_id, header.cluster_id());
            return Err(self.end(SessionError::ClusterIdChanged { expected, found }));
        }
        Ok(header.revision())
    }

    /// As [`Self::check`], for a linearizable answer to a question asked when `known` was the highest revision seen: the
    /// store has that revision still, or it went back in time. Not compared with what is known by now: another question,
    /// asked later, may have been answered earlier.
    fn check_current(&self, header: Option<&ResponseHeader>, known: i64) -> Result<i64, SessionError> {
        let found = self.check(header)?;
        if found < known {
            return Err(self.end(SessionError::RevisionWentBack { known, found }));
        }
        self.saw(found);
        Ok(found)
    }

    /// The store has, or had, that revision: linearizable answers from now on must not be below it.
    pub(super) fn saw(&self, revision: i64) {
        self.0.revision.fetch_max(revision, Ordering::AcqRel);
    }

    /// Ends the session for good; what it returns is the first error that did.
    pub(super) fn end(&self, error: SessionError) -> SessionError {
        self.0.ending.end(error)
    }

    /// Ends the session if that error is its end.
    pub(super) fn judged<T>(&self, result: Result<T, SessionError>) -> Result<T, SessionError> {
        result.map_err(|error| if error.ends_session() { self.end(error) } else { error })
    }

    fn alive(&self) -> Result<(), SessionError> {
        if let Some((error, _)) = self.0.ending.verdict() {
            return Err(error.clone());
        }
        if self.0.ending.fate.gone().is_cancelled() { Err(self.end(gone())) } else { Ok(()) }
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
        self.call_within(what, self.0.timing.call, call).await
    }

    async fn call_within<T>(
        &self,
        what: &'static str,
        deadline: Duration,
        call: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<(T, i64), SessionError> {
        let known = self.revision();
        let answer = within(what, deadline, call).await;
        // A session that was found wrong meanwhile gives no answers, not even right ones.
        if let Some((error, _)) = self.0.ending.verdict() {
            return Err(error.clone());
        }
        Ok((self.judged(answer)?, known))
    }
}

fn no_header() -> SessionError {
    SessionError::NotEtcd("an answer without a header".to_owned())
}

fn gone() -> SessionError {
    SessionError::ConnectionLost("the connection ended".to_owned())
}

async fn within<T, E: Into<SessionError>>(
    what: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, SessionError> {
    // A gRPC call's future is kilobytes, and whoever awaits it would carry them along.
    match timeout(limit, Box::pin(call)).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(SessionError::Deadline(what)),
    }
}
