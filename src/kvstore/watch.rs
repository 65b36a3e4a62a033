//! One watch on one stream: whole revisions, signs of life, or a typed reason why there is nothing more.

use etcd_client::proto::{PbEvent, PbWatchResponse};
use etcd_client::{ResponseHeader, WatchClient, WatchOptions, WatchRequestSender, WatchResponseStream};
use futures_util::FutureExt as _;
use tokio::time::{Instant, timeout_at};

use super::error::of_cancel_reason;
use super::pulse::{Due, Pulse};
use super::session::STILL_COMING;
use super::{Event, KeyValue, Session, SessionError};

/// What one message of etcd's, put together from its fragments, may hold. Etcd sends at most 1,000 revisions in one.
const MAX_JOINED: usize = 256 << 20;

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Whole revisions, in order.
    Events(Vec<Event>),
    /// Everything up to this revision was sent.
    Progress(i64),
    /// An answer to our question: a sign of life and no more.
    Alive,
    /// The start revision is compacted.
    Compacted,
    /// The server ended the watch or the stream, politely.
    Ended(String),
}

/// An open, confirmed watch.
#[derive(Debug)]
pub struct Watch {
    session: Session,
    key: Vec<u8>,
    /// Kept although nothing may be sent: some servers end the stream without it.
    requests: WatchRequestSender,
    responses: WatchResponseStream,
    assembly: Assembly,
    pulse: Pulse,
    /// What had come over the connection when there was a sign of life last.
    read: u64,
    /// The session's revision when the first question was asked that is not answered yet.
    known_when_asked: Option<i64>,
    /// The member stands behind what we know; a linearizable read will tell whether the whole store does.
    in_doubt: bool,
    /// What the confirmation itself brought: etcd confirms some watches that it cancels in the same breath.
    first: Option<Heard>,
}

/// Opens a watch of a key, or of all up to `end`, and waits for the confirmation.
pub(super) async fn open(
    mut client: WatchClient,
    session: Session,
    key: &[u8],
    end: Option<Vec<u8>>,
    start_revision: i64,
) -> Result<Watch, SessionError> {
    // What we know of, or resume behind, the store must have.
    let known = session.revision().max(start_revision - 1);
    let mut options = WatchOptions::new().with_start_revision(start_revision).with_progress_notify().with_fragment();
    if let Some(end) = end {
        options = options.with_range(end);
    }
    let (requests, mut responses) = client.watch(key, Some(options)).await?.split();
    let first = responses
        .message()
        .await?
        .ok_or_else(|| SessionError::Unavailable("the server ended the watch before it confirmed it".to_owned()))?;
    let revision = session.check(first.header())?;
    if !first.created() {
        return Err(SessionError::NotEtcd("a watch that is not confirmed first".to_owned()));
    }
    let mut assembly = Assembly { id: first.watch_id(), ..Assembly::default() };
    let first = if first.canceled() { assembly.take(first.0)? } else { None };
    let timing = session.timing();
    Ok(Watch {
        pulse: Pulse::new(timing.progress_interval, timing.liveness, Instant::now()),
        key: key.to_vec(),
        in_doubt: first.is_none() && revision < known,
        read: session.bytes_read(),
        session,
        requests,
        responses,
        assembly,
        known_when_asked: None,
        first,
    })
}

impl Watch {
    /// The next thing heard. A quiet watch is asked for a sign of life; one that shows none ends the session. Dropping the
    /// future loses nothing.
    ///
    /// # Errors
    /// The session is over, or etcd refuses the watch.
    pub async fn next(&mut self) -> Result<Heard, SessionError> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        loop {
            if self.in_doubt {
                // Ends the session if the store is behind; a member that only lags will catch up, and send.
                self.session.get(&self.key).await?;
                self.in_doubt = false;
            }
            let until = match self.pulse.due(Instant::now()) {
                Due::At(until) => until,
                Due::Ask => {
                    self.ask();
                    continue;
                }
                Due::GiveUp => {
                    // What arrived while nobody polled counts; ask it before the clock.
                    match self.responses.message().now_or_never() {
                        Some(message) => {
                            if let Some(heard) = self.take(message)? {
                                return Ok(heard);
                            }
                        }
                        None if self.is_coming() => self.pulse.heard(Instant::now()),
                        None => return Err(self.session.end(SessionError::Silent(self.session.timing().liveness))),
                    }
                    continue;
                }
            };
            let Ok(message) = timeout_at(until, self.responses.message()).await else { continue };
            if let Some(heard) = self.take(message)? {
                return Ok(heard);
            }
        }
    }

    /// Whether so much has come since the last sign of life that a large message is on its way over a slow link, which would
    /// be no nearer to its end on the next session. Of a dead etcd nothing comes; of what may stand between us, pings.
    fn is_coming(&mut self) -> bool {
        let read = self.session.bytes_read();
        let coming = read - self.read >= STILL_COMING;
        self.read = read;
        coming
    }

    /// A question that finds no room in the queue is one that is not answered: the deadline decides.
    fn ask(&mut self) {
        self.pulse.asked(Instant::now());
        self.known_when_asked.get_or_insert(self.session.revision());
        let _ = self.requests.request_progress().now_or_never();
    }

    fn take(
        &mut self,
        message: Result<Option<etcd_client::WatchResponse>, etcd_client::Error>,
    ) -> Result<Option<Heard>, SessionError> {
        let Some(message) = self.session.judged(message.map_err(SessionError::from))? else {
            return Ok(Some(Heard::Ended("the server ended the stream".to_owned())));
        };
        self.pulse.heard(Instant::now());
        self.read = self.session.bytes_read();
        let revision = self.session.check(message.header())?;
        let heard = self.assembly.take(message.0);
        let heard = self.session.judged(heard)?;
        if heard == Some(Heard::Alive) {
            self.in_doubt = self.known_when_asked.is_some_and(|known| revision < known);
        }
        self.known_when_asked = None;
        self.session.saw(revision);
        Ok(heard)
    }
}

/// Puts fragments together. One revision may be cut, so nothing is handed out before the last fragment.
#[derive(Debug, Default)]
struct Assembly {
    id: i64,
    parts: Vec<Event>,
    bytes: usize,
}

impl Assembly {
    fn take(&mut self, message: PbWatchResponse) -> Result<Option<Heard>, SessionError> {
        if message.canceled {
            if message.compact_revision != 0 {
                return Ok(Some(Heard::Compacted));
            }
            return match of_cancel_reason(&message.cancel_reason) {
                Some(SessionError::Compacted) => Ok(Some(Heard::Compacted)),
                Some(refusal) => Err(refusal),
                None => Ok(Some(Heard::Ended(message.cancel_reason))),
            };
        }
        if message.watch_id != self.id || message.created {
            // On etcd 3.4 the answer to a question may overtake events (etcd-io/etcd#15220): it is no position.
            return Ok(Some(Heard::Alive));
        }
        if message.events.is_empty() && !message.fragment && self.parts.is_empty() {
            return Ok(Some(Heard::Progress(message.header.map_or(0, |header| ResponseHeader(header).revision()))));
        }
        for event in message.events {
            self.bytes += event.kv.as_ref().map_or(0, |kv| kv.key.len() + kv.value.len());
            self.parts.push(typed(event)?);
        }
        if self.bytes > MAX_JOINED {
            return Err(SessionError::TooLarge(format!("a watch message of more than {MAX_JOINED} bytes")));
        }
        if message.fragment {
            return Ok(None);
        }
        self.bytes = 0;
        Ok(Some(Heard::Events(std::mem::take(&mut self.parts))))
    }
}

/// The client library's own accessor panics at kinds that it does not know.
fn typed(event: PbEvent) -> Result<Event, SessionError> {
    let Some(kv) = event.kv else { return Err(SessionError::NotEtcd("an event without a key".to_owned())) };
    match event.r#type {
        0 => Ok(Event::Put(KeyValue::from(kv))),
        1 => Ok(Event::Delete { key: kv.key, mod_revision: kv.mod_revision }),
        kind => Err(SessionError::NotEtcd(format!("an event of the unknown kind {kind}"))),
    }
}

#[cfg(test)]
mod tests {
    use etcd_client::proto::{PbKeyValue, PbResponseHeader};

    use super::*;

    fn put(key: &str, mod_revision: i64) -> PbEvent {
        let kv = PbKeyValue { key: key.into(), value: b"v".to_vec(), mod_revision, ..PbKeyValue::default() };
        PbEvent { r#type: 0, kv: Some(kv), prev_kv: None }
    }

    fn message(events: Vec<PbEvent>, fragment: bool) -> PbWatchResponse {
        let header = PbResponseHeader { revision: 99, ..PbResponseHeader::default() };
        PbWatchResponse { header: Some(header), watch_id: 7, events, fragment, ..PbWatchResponse::default() }
    }

    fn revisions(heard: Option<Heard>) -> Vec<i64> {
        match heard {
            Some(Heard::Events(events)) => events.iter().map(Event::mod_revision).collect(),
            other => panic!("no events: {other:?}"),
        }
    }

    #[test]
    fn fragments_are_handed_out_with_the_last_one() {
        let mut assembly = Assembly { id: 7, ..Assembly::default() };
        assert_eq!(assembly.take(message(vec![put("a", 1), put("b", 2)], true)), Ok(None));
        assert_eq!(assembly.take(message(vec![put("c", 2)], true)), Ok(None));
        // What comes for somebody else in between changes nothing.
        let other = PbWatchResponse { watch_id: -1, ..message(vec![], false) };
        assert_eq!(assembly.take(other), Ok(Some(Heard::Alive)));
        assert_eq!(revisions(assembly.take(message(vec![put("d", 3)], false)).unwrap()), [1, 2, 2, 3]);
        assert_eq!(revisions(assembly.take(message(vec![put("e", 4)], false)).unwrap()), [4]);
    }

    #[test]
    fn an_empty_last_fragment_is_no_progress() {
        let mut assembly = Assembly { id: 7, ..Assembly::default() };
        assert_eq!(assembly.take(message(vec![put("a", 1)], true)), Ok(None));
        assert_eq!(revisions(assembly.take(message(vec![], false)).unwrap()), [1]);
        assert_eq!(assembly.take(message(vec![], false)), Ok(Some(Heard::Progress(99))));
    }

    #[test]
    fn what_etcd_never_sends_is_an_error() {
        let take = |event| Assembly { id: 7, ..Assembly::default() }.take(message(vec![event], false));
        let unknown = take(PbEvent { r#type: 9, ..put("a", 1) }).unwrap_err();
        assert_eq!((unknown.reason(), unknown.is_retryable()), ("not-etcd", false));
        assert_eq!(take(PbEvent { kv: None, ..put("a", 1) }).unwrap_err().reason(), "not-etcd");
    }

    #[test]
    fn cancelled() {
        let cancel = |compact_revision, reason: &str| {
            let cancel_reason = reason.to_owned();
            let message = PbWatchResponse { canceled: true, compact_revision, cancel_reason, ..message(vec![], false) };
            Assembly { id: 7, ..Assembly::default() }.take(message)
        };
        assert_eq!(cancel(5, ""), Ok(Some(Heard::Compacted)));
        assert_eq!(cancel(0, ""), Ok(Some(Heard::Ended(String::new()))));
        let denied = cancel(0, "rpc error: code = PermissionDenied desc = etcdserver: permission denied");
        assert_eq!(denied.unwrap_err().reason(), "permission-denied");
    }
}
