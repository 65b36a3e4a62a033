//! One watch on one stream: what etcd sends, as whole revisions or a typed reason why there is nothing.

use std::time::Duration;

use etcd_client::{WatchClient, WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream};
use tokio::time::{Instant, timeout_at};

use super::{Event, KeyValue, Session, SessionError};

/// An open, confirmed watch. Keeps the sending half: some servers end the stream without it.
#[derive(Debug)]
pub(super) struct Watch {
    id: i64,
    /// Revision in the confirmation's header: where the member that serves the watch stands.
    pub(super) created_at: i64,
    requests: WatchRequestSender,
    responses: WatchResponseStream,
    /// Parts of a message that etcd cut up; applied when the last one is there.
    parts: Vec<Event>,
    heard: Instant,
    asked: Instant,
    /// The confirmation, whose header the session has yet to see.
    first: Option<WatchResponse>,
}

/// What came.
#[derive(Debug)]
pub(super) enum Heard {
    /// Whole revisions, in order.
    Events(Vec<Event>),
    /// Everything up to this revision was sent.
    Progress(i64),
    /// The start revision is compacted.
    Compacted,
    /// The server ended the watch or the stream, politely.
    Ended(String),
}

/// Opens a watch and waits for the confirmation.
pub(super) async fn open(
    mut client: WatchClient,
    from: &[u8],
    end: &[u8],
    start_revision: i64,
) -> Result<Watch, SessionError> {
    let options =
        WatchOptions::new().with_range(end).with_start_revision(start_revision).with_progress_notify().with_fragment();
    let (requests, mut responses) = client.watch(from, Some(options)).await?.split();
    let first = responses.message().await?;
    let Some(first) = first.filter(WatchResponse::created) else {
        return Err(SessionError::NotEtcd("a watch that is not confirmed first".to_owned()));
    };
    let now = Instant::now();
    Ok(Watch {
        id: first.watch_id(),
        created_at: first.header().map_or(0, |header| header.revision()),
        requests,
        responses,
        parts: Vec::new(),
        heard: now,
        asked: now,
        first: Some(first),
    })
}

impl Watch {
    /// The next thing heard. A quiet watch is asked for a sign of life. Dropping the future loses nothing.
    pub(super) async fn next(&mut self, session: &Session) -> Result<Heard, SessionError> {
        let timing = session.timing();
        if let Some(first) = self.first.take() {
            session.check(first.header())?;
            // Refused in the same breath.
            if first.canceled() {
                return Ok(canceled(&first));
            }
        }
        loop {
            let next_question = self.asked.max(self.heard) + timing.progress_interval;
            let dead = self.heard + timing.liveness;
            let message = match timeout_at(next_question.min(dead), self.responses.message()).await {
                Ok(message) => message,
                Err(_) if Instant::now() >= dead => return Err(session.end(SessionError::Silent(timing.liveness))),
                Err(_) => {
                    self.asked = Instant::now();
                    self.ask(timing.progress_interval).await;
                    continue;
                }
            };
            let Some(message) = session.judged(message.map_err(SessionError::from))? else {
                return Ok(Heard::Ended("the server ended the stream".to_owned()));
            };
            self.heard = Instant::now();
            let revision = session.check(message.header())?;
            if let Some(heard) = self.take(message, revision, session) {
                return Ok(heard);
            }
        }
    }

    /// A question that cannot be sent is one that is not answered: the deadline decides.
    async fn ask(&mut self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.requests.request_progress()).await;
    }

    fn take(&mut self, message: WatchResponse, revision: i64, session: &Session) -> Option<Heard> {
        let message = message.0;
        if message.canceled {
            return Some(if message.compact_revision != 0 {
                Heard::Compacted
            } else {
                Heard::Ended(message.cancel_reason)
            });
        }
        session.saw(revision);
        if message.watch_id != self.id {
            // The answer to our own question. On etcd 3.4 it may overtake events (etcd-io/etcd#15220), so it is a sign of
            // life and no more.
            return None;
        }
        if message.events.is_empty() && !message.fragment && self.parts.is_empty() {
            return Some(Heard::Progress(revision));
        }
        // An event without a key says nothing; an event of a kind we do not know is no delete.
        self.parts.extend(message.events.into_iter().filter_map(|event| {
            let kv = event.kv?;
            match event.r#type {
                0 => Some(Event::Put(KeyValue {
                    mod_revision: kv.mod_revision,
                    create_revision: kv.create_revision,
                    lease: kv.lease,
                    key: kv.key,
                    value: kv.value,
                })),
                1 => Some(Event::Delete { mod_revision: kv.mod_revision, key: kv.key }),
                _ => None,
            }
        }));
        if message.fragment {
            return None;
        }
        Some(Heard::Events(std::mem::take(&mut self.parts)))
    }
}

fn canceled(message: &WatchResponse) -> Heard {
    if message.compact_revision() != 0 { Heard::Compacted } else { Heard::Ended(message.cancel_reason().to_owned()) }
}
