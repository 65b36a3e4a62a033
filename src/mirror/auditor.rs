//! Runs audits of one prefix: a brief one after a resumed watch, a whole one now and then.

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep_until};

use super::apply::Mirror;
use super::audit::{Extent, Findings};
use crate::kvstore::{ListWatch, Position, Session, SessionError, jittered};

/// Ten minutes: a whole audit of 65,000 identities reads 4 MB, and etcd's CPU is not ours to spend.
pub const DEFAULT_AUDIT_INTERVAL: Duration = Duration::from_mins(10);

/// After an audit that the store's compaction overtook.
const AGAIN: Duration = Duration::from_secs(5);

/// Etcd looks every 100 ms which watches it has to catch up with; then what they missed is on its way.
const CATCH_UP: Duration = Duration::from_secs(1);

/// So often a difference is put down to what is on its way.
const MAX_EARLY: u32 = 10;

/// What an audit found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Audited {
    pub(super) extent: Extent,
    pub(super) findings: Findings,
    /// What differs may be on its way still.
    early: bool,
}

/// The audits of one mirror.
pub(super) struct Auditor {
    interval: Duration,
    next_whole: Instant,
    /// A watch was resumed behind this revision, and nothing has shown yet that it missed nothing.
    unproven: Option<i64>,
    /// The store's revision then: the audit is as of that one, or of what is applied since.
    reach: i64,
    /// A quiet watch is told no position, so what is applied may stay below `reach`; from then on it is looked into anyway.
    look_at: Instant,
    /// How often that found what may have been on its way still.
    early: u32,
    running: Option<BoxFuture<'static, Result<Audited, SessionError>>>,
}

impl fmt::Debug for Auditor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auditor")
            .field("interval", &self.interval)
            .field("next_whole", &self.next_whole)
            .field("unproven", &self.unproven)
            .field("running", &self.running.is_some())
            .finish_non_exhaustive()
    }
}

impl Auditor {
    pub(super) fn every(interval: Duration) -> Self {
        let next_whole = Instant::now() + jittered(interval);
        Self { interval, next_whole, unproven: None, reach: 0, look_at: next_whole, early: 0, running: None }
    }

    /// A watch goes on behind `position`.
    pub(super) fn resumed(&mut self, position: Position, session: &Session) {
        self.running = None;
        self.reach = session.revision();
        (self.look_at, self.early) = (Instant::now() + CATCH_UP, 0);
        self.unproven = Some(self.unproven.map_or(position.revision, |since| since.min(position.revision)));
    }

    /// What is held is what was listed just now, or will be.
    pub(super) fn listed(&mut self) {
        self.running = None;
        self.unproven = None;
        self.next_whole = Instant::now() + jittered(self.interval);
    }

    /// A whole audit is due as soon as may be.
    pub(super) fn doubt(&mut self) {
        self.next_whole = Instant::now();
    }

    /// The session is over. What is unproven stays so.
    pub(super) fn break_off(&mut self) {
        self.running = None;
    }

    /// Begins what is due, where the mirror is complete and live.
    pub(super) fn begin(&mut self, mirror: &Mirror, list_watch: &ListWatch, session: &Session) {
        let Some(applied) = list_watch.applied() else { return };
        if self.running.is_some() {
            return;
        }
        let extent = match self.unproven {
            Some(since) if applied.revision >= self.reach || Instant::now() >= self.look_at => Extent::Since(since),
            _ if Instant::now() >= self.next_whole => Extent::Whole,
            _ => return,
        };
        let revision = match extent {
            Extent::Since(_) => applied.revision.max(self.reach),
            Extent::Whole => applied.revision,
        };
        let early = applied.revision < revision && self.early < MAX_EARLY;
        let mut audit = mirror.audit(extent);
        let reader = list_watch.keys(session);
        self.running = Some(Box::pin(async move {
            let count = match audit.extent() {
                Extent::Whole => {
                    reader.all(revision, |keys| audit.look_at(keys)).await?;
                    None
                }
                Extent::Since(since) => {
                    let (keys, count) = reader.written_since(since, revision).await?;
                    audit.look_at(&keys);
                    Some(count)
                }
            };
            let (extent, findings) = (audit.extent(), audit.finish(count));
            let early = early && !findings.is_clean();
            Ok(Audited { extent, findings, early })
        }));
    }

    /// The end of the audit that runs, or `None` when it is time to begin one. Dropping the future loses nothing.
    pub(super) async fn turn(&mut self) -> Option<Result<Audited, SessionError>> {
        let Some(running) = &mut self.running else {
            sleep_until(if self.unproven.is_some() { self.look_at.min(self.next_whole) } else { self.next_whole })
                .await;
            return None;
        };
        let result = running.await;
        self.running = None;
        if result.as_ref().is_ok_and(|audited| audited.early) {
            (self.look_at, self.early) = (Instant::now() + CATCH_UP, self.early + 1);
            return None;
        }
        // Whatever hindered a brief one, such as an answer too large, a whole one does without.
        self.unproven = None;
        let pause = if result.is_ok() { self.interval } else { AGAIN.min(self.interval) };
        if result.as_ref().map_or(true, |audited| audited.extent == Extent::Whole) {
            self.next_whole = Instant::now() + jittered(pause);
        }
        Some(result)
    }
}
