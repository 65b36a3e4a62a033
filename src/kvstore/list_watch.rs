//! List and watch a prefix: an explicit state machine with one step function.

use std::time::Duration;

use super::{Event, KeyValue, Position, Session, SessionError};

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
    /// On a new session: no list is needed, the watch goes on behind this position.
    Resumed(Position),
    /// Complete revisions, in order.
    Events(Vec<Event>, Position),
    /// Nothing happened up to here.
    Progress(Position),
    /// Starts over after a pause that the machine itself waits.
    Restarting(RestartReason, Duration),
}

/// Lists a prefix, then watches it, over any number of sessions.
#[derive(Debug)]
pub struct ListWatch {}

impl ListWatch {
    /// For all keys that begin with `prefix`.
    #[must_use]
    pub fn new(_prefix: Vec<u8>, _options: ListWatchOptions) -> Self {
        unimplemented!("skeleton")
    }

    /// Forgets the position: the next step begins a list.
    pub fn forget(&mut self) {
        unimplemented!("skeleton")
    }

    /// The next thing that happens. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The session is over (or useless); step on with a new one.
    pub async fn step(&mut self, _session: &Session) -> Result<Step, SessionError> {
        unimplemented!("skeleton")
    }
}
