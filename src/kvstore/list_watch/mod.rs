//! List and watch a prefix: an explicit state machine with one step function.
//!
//! ```text
//!                       ┌──────────── compacted ────────────┐
//!          list         ▼   last page            confirmed  │
//!   Start ─────────► Listing ────────► Listed ─► Opening ─► Watching
//!     │ ▲ resume        │ compacted               ▲ │          │ ended
//!     │ └───────────────│─────────────────────────│─┘compacted │
//!     ├─────────────────│─────────────────────────┘            │
//!     │ older than what is applied?   Pausing ◄────────────────┘
//!     └──► Confirming ──► Opening, or Listing, forgetting what is applied
//! ```
//!
//! The machine outlives sessions: each one begins at `Start`, and so does the same one after a pause. What was applied stays
//! applied; the same etcd is watched on behind it if that is cheaper than a list, and any other one is listed again.

mod page;
mod plan;

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, sleep_until};

use self::page::{PageInFlight, Question};
pub(super) use self::plan::{NextPage, next_page};
use self::plan::{Plan, plan};
use super::types::end_of_prefix;
use super::{Backoff, Event, Heard, KeyReader, KeyValue, ListGate, Position, Reads, Session, SessionError, Watch};

/// Options of one list-and-watch.
#[derive(Clone, Debug)]
pub struct ListWatchOptions {
    /// Keys a page (STACK.md: small pages cost a count of the whole rest each). Halved where a page is larger than our
    /// limit.
    pub page_size: i64,
    /// From whom pages are read.
    pub reads: Reads,
    /// Beyond this many revisions behind, a list is cheaper than the watch's replay.
    pub max_replay: i64,
    /// Bounds the pages in flight of all list-and-watches whose options are clones of these.
    pub gate: ListGate,
}

impl Default for ListWatchOptions {
    fn default() -> Self {
        Self { page_size: 8192, reads: Reads::default(), max_replay: 10_000, gate: ListGate::default() }
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
    /// What the watch would have to hold at once is too large: lists again.
    TooLarge,
    /// The server ended or cancelled the watch: watches again from where it was.
    WatchEnded,
}

/// What a step brought.
#[derive(Clone, Debug)]
pub enum Step {
    /// A list begins; entries follow in pages. A list that was under way is void.
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

enum State {
    /// On a session of which nothing was asked yet: resume or list.
    Start,
    /// The store looked older than what was applied there: wait, then read again.
    Confirming(Position, BoxFuture<'static, Result<i64, SessionError>>),
    /// Pages are coming, the next one already while the caller works on this one.
    Listing { page: PageInFlight, revision: i64 },
    /// The last page is handed out.
    Listed(Position),
    /// A watch is asked for, behind what is applied.
    Opening { opening: BoxFuture<'static, Result<Watch, SessionError>>, resumed: Option<Position> },
    /// A watch is open.
    Watching(Box<Watch>),
    /// Over again, by listing or by whatever `Start` decides.
    Pausing { until: Instant, list: bool },
}

/// Pauses between attempts on one live session.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// Lists a prefix, then watches it, over any number of sessions.
pub struct ListWatch {
    prefix: Vec<u8>,
    options: ListWatchOptions,
    state: State,
    /// Everything up to here was handed out, and the list before it was complete.
    applied: Option<Position>,
    /// Whether a list was ever complete.
    listed: bool,
    /// The session that `state` belongs to.
    session: Option<Session>,
    backoff: Backoff,
}

impl fmt::Debug for ListWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListWatch")
            .field("prefix", &String::from_utf8_lossy(&self.prefix))
            .field("state", &self.state.name())
            .field("applied", &self.applied)
            .finish_non_exhaustive()
    }
}

impl State {
    const fn name(&self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Confirming(..) => "confirming",
            Self::Listing { .. } => "listing",
            Self::Listed(_) => "listed",
            Self::Opening { .. } => "opening",
            Self::Watching(_) => "watching",
            Self::Pausing { .. } => "pausing",
        }
    }
}

impl ListWatch {
    /// For all keys that begin with `prefix`.
    #[must_use]
    pub fn new(prefix: Vec<u8>, options: ListWatchOptions) -> Self {
        let backoff = Backoff::new(PAUSE.0, PAUSE.1);
        Self { prefix, options, state: State::Start, applied: None, listed: false, session: None, backoff }
    }

    /// Forgets the position: the next step begins a list.
    pub fn forget(&mut self) {
        self.applied = None;
        self.state = State::Start;
    }

    /// What is held is complete up to `position`, known from elsewhere: goes on behind it where that store is found.
    pub fn continue_from(&mut self, position: Position) {
        self.applied = Some(position);
        self.listed = true;
        self.state = State::Start;
    }

    /// Lets go of the session, which would live on otherwise. What is applied stays applied.
    pub fn leave(&mut self) {
        self.session = None;
        self.state = State::Start;
    }

    /// What is applied so far.
    #[must_use]
    pub const fn applied(&self) -> Option<Position> {
        self.applied
    }

    /// Reads the prefix's keys, in the same turn as all lists.
    #[must_use]
    pub fn keys(&self, session: &Session) -> KeyReader {
        KeyReader::new(session.clone(), self.prefix.clone(), self.options.gate.clone())
    }

    /// The next thing that happens. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The session is over (or useless); step on with a new one.
    pub async fn step(&mut self, session: &Session) -> Result<Step, SessionError> {
        if !self.session.as_ref().is_some_and(|known| known.is(session)) {
            // What was under way belonged to the old one.
            self.session = Some(session.clone());
            self.state = State::Start;
        }
        loop {
            match self.advance(session).await {
                Ok(Some(step)) => return Ok(step),
                Ok(None) => {}
                Err(error) => {
                    self.session = None;
                    self.state = State::Start;
                    return Err(session.end(error));
                }
            }
        }
    }

    /// One transition; every state is waited for without losing anything if the future is dropped.
    #[expect(clippy::too_many_lines, reason = "all transitions at one place, in their order")]
    async fn advance(&mut self, session: &Session) -> Result<Option<Step>, SessionError> {
        match &mut self.state {
            State::Start => {
                let store = Position { etcd_cluster_id: session.etcd_cluster_id(), revision: session.revision() };
                match plan(self.applied, store, self.options.max_replay) {
                    Plan::List => return Ok(Some(self.list(session))),
                    Plan::Resume(position) => self.resume(session, position),
                    Plan::Confirm(position) => {
                        let (session, key) = (session.clone(), self.prefix.clone());
                        let pause = self.backoff.next_delay();
                        let look_again = async move {
                            sleep(pause).await;
                            Ok(session.get(&key).await?.1)
                        };
                        self.state = State::Confirming(position, Box::pin(look_again));
                    }
                }
                Ok(None)
            }
            State::Confirming(position, revision) => {
                let (position, revision) = (*position, revision.await?);
                if revision >= position.revision {
                    self.resume(session, position);
                    return Ok(None);
                }
                tracing::warn!(known = position.revision, found = revision, "the store went back in time");
                // Not even after an interrupted list may a watch begin there: the number has come to mean something else.
                self.applied = None;
                Ok(Some(self.list(session)))
            }
            State::Listing { page, revision } => {
                let answer = match page.answer().await {
                    Ok(answer) => answer,
                    Err(SessionError::Compacted) => return Ok(Some(self.pause(RestartReason::Compacted))),
                    Err(SessionError::TooLarge(_)) if page.question.limit > 1 => {
                        self.options.page_size = page.question.limit / 2;
                        let question = Question { limit: self.options.page_size, ..page.question.clone() };
                        *page = PageInFlight::ask(session, &self.options.gate, question);
                        return Ok(None);
                    }
                    Err(error) => return Err(error),
                };
                // All pages at the revision of the first one; what happens meanwhile is the watch's.
                let revision = if *revision == 0 { answer.revision } else { *revision };
                let last_key = answer.entries.last().map(|last| last.key.as_slice());
                self.state = match next_page(&page.question.from, last_key, answer.more) {
                    NextPage::From(from) => {
                        let question =
                            Question { from, revision, limit: self.options.page_size, ..page.question.clone() };
                        State::Listing { page: PageInFlight::ask(session, &self.options.gate, question), revision }
                    }
                    NextPage::None => State::Listed(Position { etcd_cluster_id: session.etcd_cluster_id(), revision }),
                    NextPage::Impossible(why) => return Err(SessionError::NotEtcd(why.to_owned())),
                };
                Ok(Some(Step::Page(answer.entries)))
            }
            State::Listed(position) => {
                let position = *position;
                self.applied = Some(position);
                self.listed = true;
                let (session, prefix) = (session.clone(), self.prefix.clone());
                let opening = Box::pin(async move { session.watch(&prefix, position.revision + 1).await });
                self.state = State::Opening { opening, resumed: None };
                Ok(Some(Step::Listed(position)))
            }
            State::Opening { opening, resumed } => {
                let watch = match opening.await {
                    Ok(watch) => watch,
                    // Known before the watch began: a list at once is all that helps.
                    Err(SessionError::Compacted) => return Ok(Some(self.list(session))),
                    Err(error) => return Err(error),
                };
                let resumed = *resumed;
                self.state = State::Watching(Box::new(watch));
                Ok(resumed.map(Step::Resumed))
            }
            State::Watching(watch) => {
                let heard = match watch.next().await {
                    Ok(heard) => heard,
                    Err(SessionError::TooLarge(_)) => return Ok(Some(self.pause(RestartReason::TooLarge))),
                    Err(error) => return Err(error),
                };
                Ok(match heard {
                    Heard::Events(events) => {
                        self.backoff.reset();
                        let revision = events.iter().map(Event::mod_revision).max().unwrap_or_default();
                        let position = self.advance_to(session, revision);
                        Some(Step::Events(events, position))
                    }
                    Heard::Progress(revision) => {
                        self.backoff.reset();
                        Some(Step::Progress(self.advance_to(session, revision)))
                    }
                    Heard::Alive => {
                        self.backoff.reset();
                        None
                    }
                    Heard::Compacted => Some(self.pause(RestartReason::Compacted)),
                    Heard::Ended(why) => {
                        tracing::debug!(%why, "the server ended a watch");
                        Some(self.pause(RestartReason::WatchEnded))
                    }
                })
            }
            State::Pausing { until, list } => {
                sleep_until(*until).await;
                if *list {
                    return Ok(Some(self.list(session)));
                }
                self.state = State::Start;
                Ok(None)
            }
        }
    }

    /// Begins a list. What is applied stays valid until the list is complete.
    fn list(&mut self, session: &Session) -> Step {
        let (from, end) = (self.prefix.clone(), end_of_prefix(&self.prefix));
        let question = Question { from, end, limit: self.options.page_size, revision: 0, reads: self.options.reads };
        self.state = State::Listing { page: PageInFlight::ask(session, &self.options.gate, question), revision: 0 };
        Step::ListStarted(if self.listed { ListKind::Again } else { ListKind::First })
    }

    /// Watches behind a position. Etcd says only some time after it confirmed a watch that its start is compacted, and
    /// "resumed" should not be taken back: a read at that position tells before.
    fn resume(&mut self, session: &Session, position: Position) {
        let (session, prefix) = (session.clone(), self.prefix.clone());
        let opening = async move {
            session.get_at(&prefix, position.revision).await?;
            session.watch(&prefix, position.revision + 1).await
        };
        self.state = State::Opening { opening: Box::pin(opening), resumed: Some(position) };
    }

    fn pause(&mut self, reason: RestartReason) -> Step {
        let pause = self.backoff.next_delay();
        self.state = State::Pausing { until: Instant::now() + pause, list: reason != RestartReason::WatchEnded };
        Step::Restarting(reason, pause)
    }

    fn advance_to(&mut self, session: &Session, revision: i64) -> Position {
        let known = self.applied.map_or(0, |position| position.revision);
        let position = Position { etcd_cluster_id: session.etcd_cluster_id(), revision: revision.max(known) };
        self.applied = Some(position);
        position
    }
}
