//! One connection to one etcd incarnation; the only way to call it, so that every response header is checked.

mod calls;
mod renewals;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::{Client, GetOptions, KvClient, ResponseHeader};
use tokio::time::{Instant, timeout};

use self::renewals::Renewals;
use crate::kvstore::connect::told_by;
use crate::kvstore::wire::Fate;
use crate::kvstore::{SessionError, Timing};
use crate::tls::CertFacts;

/// Answers and watch messages may be this large: a page of 16,384 identities is 7 MB, and one value of etcd's is no larger
/// than its request limit of 1.5 MiB.
const DECODE_LIMIT: usize = 64 << 20;

/// What takes the longer the more there is to read: its deadline grows where it is missed.
pub(in crate::kvstore) const A_PAGE: &str = "a page";
pub(in crate::kvstore) const A_WATCH: &str = "a watch";

/// Bytes within a deadline that show that something is on its way over a slow link: far more than pings, far less than what
/// takes that long.
pub(super) const STILL_COMING: u64 = 64 << 10;

/// Deadlines that a call has while something is coming.
const PATIENCE: u32 = 4;

/// When and why a session ended. Outlives the session, so that the next connection can be made wiser.
#[derive(Debug)]
pub(in crate::kvstore) struct Ending {
    began: Instant,
    fate: Arc<Fate>,
    /// The first error that made it useless, and how long it had lived.
    verdict: OnceLock<(SessionError, Duration)>,
}

impl Ending {
    pub(in crate::kvstore) fn new(fate: Arc<Fate>) -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), fate, verdict: OnceLock::new() })
    }

    pub(in crate::kvstore) fn verdict(&self) -> Option<&(SessionError, Duration)> {
        self.verdict.get()
    }

    /// Ends the session for good; what it returns is the first error that did.
    pub(in crate::kvstore) fn end(&self, error: SessionError) -> SessionError {
        let (verdict, _) = self.verdict.get_or_init(|| (told_by(&self.fate, error), self.began.elapsed()));
        self.fate.gone().cancel();
        verdict.clone()
    }
}

/// What a session is made of, before the first call.
pub(in crate::kvstore) struct Opening {
    pub(in crate::kvstore) client: Client,
    pub(in crate::kvstore) endpoint: String,
    pub(in crate::kvstore) address: SocketAddr,
    pub(in crate::kvstore) certificate: Option<CertFacts>,
    pub(in crate::kvstore) timing: Timing,
    pub(in crate::kvstore) ending: Arc<Ending>,
}

impl Opening {
    /// A linearizable read: it shows that the etcd has a quorum and lets us in, and its header fixes the cluster ID.
    pub(in crate::kvstore) async fn first_call(self, probe: &[u8]) -> Result<Session, SessionError> {
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
            renewals: Renewals::default(),
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
    renewals: Renewals,
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

    /// Whether both are the same session.
    pub(in crate::kvstore) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(in crate::kvstore) fn timing(&self) -> &Timing {
        &self.0.timing
    }

    /// Bytes that came over the connection so far.
    pub(in crate::kvstore) fn bytes_read(&self) -> u64 {
        self.0.ending.fate.bytes_read()
    }

    pub(in crate::kvstore) fn ending(&self) -> Arc<Ending> {
        Arc::clone(&self.0.ending)
    }

    /// Checks a header's cluster ID; the header's revision.
    pub(in crate::kvstore) fn check(&self, header: Option<&ResponseHeader>) -> Result<i64, SessionError> {
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
    pub(in crate::kvstore) fn saw(&self, revision: i64) {
        self.0.revision.fetch_max(revision, Ordering::AcqRel);
    }

    /// Ends the session for good; what it returns is the first error that did.
    pub(in crate::kvstore) fn end(&self, error: SessionError) -> SessionError {
        self.0.ending.end(error)
    }

    /// Ends the session if that error is its end.
    pub(in crate::kvstore) fn judged<T>(&self, result: Result<T, SessionError>) -> Result<T, SessionError> {
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
        let answer = self.patiently(what, deadline, call).await;
        // A session that was found wrong meanwhile gives no answers, not even right ones.
        if let Some((error, _)) = self.0.ending.verdict() {
            return Err(error.clone());
        }
        Ok((self.judged(answer)?, known))
    }
}

impl Session {
    /// A call within its deadline, which begins anew, [`PATIENCE`] times, while a lot is coming: over a slow link the answer
    /// stands in line behind it, and would do so on the next session, too.
    pub(in crate::kvstore) async fn patiently<T, E: Into<SessionError>>(
        &self,
        what: &'static str,
        limit: Duration,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, SessionError> {
        let mut call = Box::pin(call);
        for _ in 0..PATIENCE {
            let read = self.bytes_read();
            match timeout(limit, &mut call).await {
                Ok(answer) => return answer.map_err(Into::into),
                Err(_) if self.bytes_read() - read >= STILL_COMING => {}
                Err(_) => break,
            }
        }
        Err(SessionError::Deadline(what))
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
