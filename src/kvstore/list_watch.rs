//! List and watch a prefix: an explicit state machine with one step function.
//!
//! ```text
//!            ┌────────────────────────── compacted ──────────────────────────┐
//!            ▼                                                                │
//!   List ─► Listing ── last page ──► Open ── confirmed ──► Watching ──────────┤
//!    ▲        │ pinned revision       ▲                       │ ended         │
//!    └────────┘ compacted             └── after a pause ──────┘               │
//!    ▲                                                                        │
//!    └── another session: another etcd, or too far behind ────────────────────┘
//! ```
//!
//! The machine outlives sessions. What was applied stays applied; a new session to the same etcd watches on behind it, and
//! any other one lists again.

use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, ready};
use futures_util::poll;
use tokio::time::sleep;

use super::session::RangePage;
use super::watch::{Heard, Watch};
use super::{Backoff, Event, KeyValue, Position, Session, SessionError};

/// Options of one list-and-watch.
#[derive(Clone, Debug)]
pub struct ListWatchOptions {
    /// Keys a page (STACK.md: small pages cost a count of the whole rest each).
    pub page_size: i64,
    /// Beyond this many revisions behind, a list is cheaper than the watch's replay.
    pub max_replay: i64,
}

impl Default for ListWatchOptions {
    fn default() -> Self {
        Self { page_size: 4096, max_replay: 10_000 }
    }
}

/// Which list it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// Nothing is known yet.
    First,
    /// On top of what is known.
    Again,
}

/// Why the machine starts over without a new session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RestartReason {
    /// The revision is compacted: lists again.
    Compacted,
    /// The server ended or cancelled the watch: watches again from where it was.
    WatchEnded,
}

/// What a step brought.
#[derive(Clone, Debug)]
pub enum Step {
    /// A list begins; entries follow in pages.
    ListStarted(ListKind),
    /// A page, all pages at the same revision.
    Page(Vec<KeyValue>),
    /// The list is complete at this position; a watch from the next revision follows.
    Listed(Position),
    /// The watch goes on behind this position, without a list.
    Resumed(Position),
    /// Complete revisions, in order.
    Events(Vec<Event>, Position),
    /// Nothing happened up to here.
    Progress(Position),
    /// Starts over after a pause that the machine itself waits.
    Restarting(RestartReason, Duration),
}

type PageInFlight = BoxFuture<'static, Result<RangePage, SessionError>>;

enum State {
    /// A list is due.
    List,
    /// Pages are coming; the next one is under way while the caller works on this one.
    Listing { revision: i64, next: Option<PageInFlight>, etcd_cluster_id: u64 },
    /// The list is complete at this revision.
    Listed { revision: i64, etcd_cluster_id: u64 },
    /// A watch is due behind what is applied.
    Open { after_list: bool },
    /// A watch is open on the session of that epoch.
    Watching(Box<Watch>),
    /// A pause, then that.
    Pausing { pause: Duration, list: bool },
}

/// Lists a prefix, then watches it, over any number of sessions.
pub struct ListWatch {
    prefix: Vec<u8>,
    end: Vec<u8>,
    options: ListWatchOptions,
    state: State,
    /// Everything up to here was handed out, and the list before it was complete.
    applied: Option<Position>,
    /// The session that `state` belongs to.
    session: Option<Session>,
    backoff: Backoff,
}

impl std::fmt::Debug for ListWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListWatch")
            .field("prefix", &String::from_utf8_lossy(&self.prefix))
            .field("applied", &self.applied)
            .finish_non_exhaustive()
    }
}

/// Pauses between attempts on one live session.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

impl ListWatch {
    /// For all keys that begin with `prefix`.
    #[must_use]
    pub fn new(prefix: Vec<u8>, options: ListWatchOptions) -> Self {
        let end = end_of_prefix(&prefix);
        let backoff = Backoff::new(PAUSE.0, PAUSE.1);
        Self { prefix, end, options, state: State::List, applied: None, session: None, backoff }
    }

    /// Forgets the position: the next step begins a list.
    pub fn forget(&mut self) {
        self.applied = None;
        self.state = State::List;
    }

    /// The next thing that happens. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The session is over (or useless); step on with a new one.
    pub async fn step(&mut self, session: &Session) -> Result<Step, SessionError> {
        self.board(session);
        loop {
            match &mut self.state {
                State::List => {
                    let kind = if self.applied.is_some() { ListKind::Again } else { ListKind::First };
                    let next = page(session, self.prefix.clone(), self.end.clone(), self.options.page_size, 0);
                    let etcd_cluster_id = session.etcd_cluster_id();
                    self.state = State::Listing { revision: 0, next: Some(next), etcd_cluster_id };
                    return Ok(Step::ListStarted(kind));
                }
                State::Listing { revision, next, etcd_cluster_id } => {
                    let Some(in_flight) = next.as_mut() else {
                        let (revision, etcd_cluster_id) = (*revision, *etcd_cluster_id);
                        self.state = State::Listed { revision, etcd_cluster_id };
                        continue;
                    };
                    let answer = in_flight.await;
                    *next = None;
                    let answer = match answer {
                        Ok(answer) => answer,
                        Err(SessionError::Compacted) => {
                            let pause = self.backoff.next_delay();
                            self.state = State::Pausing { pause, list: true };
                            return Ok(Step::Restarting(RestartReason::Compacted, pause));
                        }
                        Err(error) => return Err(self.lost(error)),
                    };
                    // All pages at the revision of the first one; what happens meanwhile is the watch's.
                    if *revision == 0 {
                        *revision = answer.revision;
                    }
                    if let Some(last) = answer.entries.last().filter(|_| answer.more) {
                        let from = [last.key.as_slice(), b"\0"].concat();
                        let mut asked = page(session, from, self.end.clone(), self.options.page_size, *revision);
                        // Polled once, the question is on its way while the caller works on this page.
                        if let Poll::Ready(answer) = poll!(asked.as_mut()) {
                            asked = Box::pin(ready(answer));
                        }
                        *next = Some(asked);
                    }
                    return Ok(Step::Page(answer.entries));
                }
                State::Listed { revision, etcd_cluster_id } => {
                    let position = Position { etcd_cluster_id: *etcd_cluster_id, revision: *revision };
                    self.applied = Some(position);
                    self.backoff.reset();
                    self.state = State::Open { after_list: true };
                    return Ok(Step::Listed(position));
                }
                State::Open { after_list } => {
                    let after_list = *after_list;
                    let Some(position) = self.applied else {
                        self.state = State::List;
                        continue;
                    };
                    let watch = match session.watch(&self.prefix, &self.end, position.revision + 1).await {
                        Ok(watch) => watch,
                        Err(error) => return Err(self.lost(error)),
                    };
                    if watch.created_at < position.revision {
                        // A member that lags, or a store that was put back: a linearizable read tells, and ends the session
                        // if it is the latter.
                        session.saw(position.revision);
                        if let Err(error) = session.get(&self.prefix).await {
                            return Err(self.lost(error));
                        }
                    }
                    self.state = State::Watching(Box::new(watch));
                    if !after_list {
                        return Ok(Step::Resumed(position));
                    }
                }
                State::Watching(watch) => {
                    let heard = match watch.next(session).await {
                        Ok(heard) => heard,
                        Err(error) => return Err(self.lost(error)),
                    };
                    if let Some(step) = self.heard(heard, session.etcd_cluster_id()) {
                        return Ok(step);
                    }
                }
                State::Pausing { pause, list } => {
                    // A dropped future waits anew: a pause too long is no harm.
                    sleep(*pause).await;
                    self.state = if *list { State::List } else { State::Open { after_list: false } };
                }
            }
        }
    }

    /// On a new session: what belonged to the old one is over. What is applied decides how to go on.
    fn board(&mut self, session: &Session) {
        if self.session.as_ref().is_some_and(|known| known.is(session)) {
            return;
        }
        self.session = Some(session.clone());
        self.state = match self.applied {
            Some(position) if position.etcd_cluster_id == session.etcd_cluster_id() => {
                // What we applied, the store must have; a first answer that is older may be a restored backup.
                let behind = session.revision() - position.revision;
                if (0..=self.options.max_replay).contains(&behind) {
                    State::Open { after_list: false }
                } else {
                    State::List
                }
            }
            _ => State::List,
        };
    }

    fn lost(&mut self, error: SessionError) -> SessionError {
        self.session = None;
        error
    }

    fn heard(&mut self, heard: Heard, etcd_cluster_id: u64) -> Option<Step> {
        match heard {
            Heard::Events(events) => {
                let revision = events.last().map(Event::mod_revision)?;
                let position = self.advance(etcd_cluster_id, revision);
                self.backoff.reset();
                Some(Step::Events(events, position))
            }
            Heard::Progress(revision) => Some(Step::Progress(self.advance(etcd_cluster_id, revision))),
            Heard::Compacted => {
                let pause = self.backoff.next_delay();
                self.state = State::Pausing { pause, list: true };
                Some(Step::Restarting(RestartReason::Compacted, pause))
            }
            Heard::Ended(why) => {
                let pause = self.backoff.next_delay();
                tracing::debug!(%why, "watch ended by the server");
                self.state = State::Pausing { pause, list: false };
                Some(Step::Restarting(RestartReason::WatchEnded, pause))
            }
        }
    }

    fn advance(&mut self, etcd_cluster_id: u64, revision: i64) -> Position {
        let known = self.applied.map_or(0, |position| position.revision);
        let position = Position { etcd_cluster_id, revision: revision.max(known) };
        self.applied = Some(position);
        position
    }
}

fn page(session: &Session, from: Vec<u8>, end: Vec<u8>, limit: i64, revision: i64) -> PageInFlight {
    let session = session.clone();
    Box::pin(async move { session.range_page(&from, &end, limit, revision, false).await })
}

/// The first key behind all that begin with `prefix`; `\0` (no end) where there is none.
fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}
