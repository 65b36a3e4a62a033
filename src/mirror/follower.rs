//! Drives a list-and-watch into the view: one cluster, one prefix, any number of sessions.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::apply::{Mirror, Outcome, Publication, source_position};
use super::auditor::{Audited, Auditor, DEFAULT_AUDIT_INTERVAL};
use super::outlet::Outlet;
use super::report::Reporter;
use crate::kvstore::{ListWatch, ListWatchOptions, Position, Session, SessionError, Step};
use crate::telemetry::ClusterState;
use crate::view::{ClusterView, SourcePosition};

/// How long a watch that goes on behind a stale version may take to bring what it missed, before that is told bit by bit.
/// Etcd looks every 100 ms which watches it has to catch up with; a quiet one gets nothing to show that it is through.
const CATCH_UP: Duration = Duration::from_secs(1);

/// A mirror with its source and its destination.
#[derive(Debug)]
pub struct Follower {
    mirror: Mirror,
    list_watch: ListWatch,
    options: ListWatchOptions,
    outlet: Outlet,
    auditor: Auditor,
    list_since: Option<Instant>,
    catch_up: Option<CatchUp>,
    live: bool,
}

/// A watch was resumed behind a stale version.
#[derive(Clone, Copy, Debug)]
struct CatchUp {
    /// Where the store was then.
    reach: i64,
    until: Instant,
}

impl Follower {
    /// Follows the keys behind `prefix`, which must be the mirror's.
    #[must_use]
    pub fn new(mirror: Mirror, prefix: Vec<u8>, options: ListWatchOptions, outlet: impl Into<Outlet>) -> Self {
        let list_watch = ListWatch::new(prefix, options.clone());
        let auditor = Auditor::every(DEFAULT_AUDIT_INTERVAL);
        let outlet = outlet.into();
        Self { mirror, list_watch, options, outlet, auditor, list_since: None, catch_up: None, live: false }
    }

    /// What is held, from elsewhere, is complete up to there: watches on behind it where that store is found.
    pub fn continue_from(&mut self, position: SourcePosition) {
        let SourcePosition { etcd_cluster_id, revision } = position;
        self.list_watch.continue_from(Position { etcd_cluster_id, revision });
    }

    /// Compares all keys with what is held in this interval, rather than in [`DEFAULT_AUDIT_INTERVAL`]; jittered.
    #[must_use]
    pub fn auditing_every(mut self, interval: Duration) -> Self {
        self.auditor = Auditor::every(interval);
        self
    }

    /// Follows another prefix of the same cluster: lists it, and shows what is held until that list is complete.
    pub fn move_to(&mut self, prefix: Vec<u8>, reporter: &Reporter) {
        self.break_off(reporter);
        self.mirror.move_to(prefix.clone());
        self.list_watch = ListWatch::new(prefix, self.options.clone());
    }

    /// Lists anew within the same session, and shows what is held until that list is complete.
    pub fn start_over(&mut self, reporter: &Reporter) {
        self.break_off(reporter);
        self.list_watch.forget();
    }

    /// Steps until the session is over, and says why it is. May be dropped at any time; [`Self::break_off`] is due then.
    ///
    /// A session may also be exchanged for another one that stands already: what is live stays so.
    pub async fn follow(&mut self, session: &Session, reporter: &Reporter) -> SessionError {
        if self.live {
            reporter.stage("watch");
        }
        loop {
            tokio::select! {
                step = self.list_watch.step(session) => match step {
                    Ok(step) => self.take(step, session, reporter),
                    Err(error) => return error,
                },
                () = until(self.catch_up), if self.catch_up.is_some() => self.caught_up(reporter),
                audited = self.auditor.turn(), if self.live => {
                    if let Some(audited) = audited {
                        self.judge(audited, reporter);
                    }
                }
            }
            if self.live {
                self.auditor.begin(&self.mirror, &self.list_watch, session);
            }
        }
    }

    /// A difference is repaired by a list, whatever made it.
    fn judge(&mut self, audited: Result<Audited, SessionError>, reporter: &Reporter) {
        match audited {
            Ok(audited) => {
                reporter.audited(&audited);
                if !audited.findings.is_clean() {
                    self.start_over(reporter);
                }
            }
            // Compacted, or the session is over, which the list-and-watch will find too.
            Err(error) => tracing::debug!(cluster = reporter.cluster(), %error, "audit broken off"),
        }
    }

    /// Leaves the session, and undoes a list that is not complete. What is complete stays.
    pub fn break_off(&mut self, reporter: &Reporter) {
        self.list_watch.leave();
        self.live = false;
        self.list_since = None;
        self.catch_up = None;
        reporter.unavailable();
        self.auditor.break_off();
        let publication = self.mirror.break_off();
        self.publish(publication, reporter);
    }

    /// Whether what is shown is complete and being kept in step.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.live
    }

    /// The state as it would be published now.
    #[must_use]
    pub fn current(&self) -> &ClusterView {
        self.mirror.current()
    }

    fn take(&mut self, step: Step, session: &Session, reporter: &Reporter) {
        match &step {
            Step::ListStarted(_) => {
                self.live = false;
                self.catch_up = None;
                reporter.unavailable();
                self.auditor.break_off();
                self.list_since = Some(Instant::now());
                reporter.state(ClusterState::Listing, "list");
            }
            Step::Restarting(reason, pause) => {
                tracing::info!(cluster = reporter.cluster(), ?reason, ?pause, "list-and-watch starts over");
            }
            Step::Listed(_) => self.auditor.listed(),
            Step::Resumed(position) => {
                self.auditor.resumed(*position, session);
                if self.mirror.current().is_stale() {
                    self.catch_up = Some(CatchUp { reach: session.revision(), until: Instant::now() + CATCH_UP });
                }
            }
            Step::Page(_) | Step::Events(..) | Step::Progress(_) => {}
        }
        let again = self.mirror.is_complete();
        let applied = match &step {
            Step::Listed(position) | Step::Resumed(position) | Step::Progress(position) | Step::Events(_, position) => {
                Some(source_position(*position))
            }
            Step::ListStarted(_) | Step::Page(_) | Step::Restarting(..) => None,
        };
        let event = matches!(step, Step::Events(..));
        let complete = matches!(step, Step::Listed(_) | Step::Resumed(_)) && self.catch_up.is_none();
        let outcome = self.mirror.apply(step);
        reporter.outcome(&outcome);
        let Outcome { publication, .. } = outcome;
        self.publish(publication, reporter);
        if let Some(position) = applied {
            reporter.revision(position.revision, event);
        }
        self.report_applied(reporter);
        if self.catch_up.is_some_and(|catch_up| applied.is_some_and(|position| position.revision >= catch_up.reach)) {
            self.caught_up(reporter);
        }
        if complete {
            self.live = true;
            reporter.synced();
            match self.list_since.take() {
                Some(since) if again => reporter.metrics().sync_again(since.elapsed()),
                Some(since) => reporter.metrics().first_sync(since.elapsed()),
                None => {}
            }
        }
    }

    /// What was stale is in step from here on.
    fn caught_up(&mut self, reporter: &Reporter) {
        self.catch_up = None;
        let Some(position) = self.list_watch.applied() else { return };
        let publication = self.mirror.caught_up(position);
        self.publish(publication, reporter);
        self.report_applied(reporter);
        // The version may be old, and its store restored from a backup since, under the same ID.
        self.auditor.doubt();
        self.live = true;
        reporter.synced();
    }

    /// Behind each publication, so that whoever reads the position first has a version that is at least as new. Not while that
    /// lacks what was written again: it would be found outdated at this position.
    fn report_applied(&self, reporter: &Reporter) {
        if self.mirror.is_published()
            && let Some(Position { etcd_cluster_id, revision }) = self.list_watch.applied()
        {
            let position = SourcePosition { etcd_cluster_id, revision };
            self.outlet.applied(self.mirror.current().id(), position);
            reporter.applied(position, self.mirror.prefix());
        }
    }

    fn publish(&mut self, publication: Publication, reporter: &Reporter) {
        match publication {
            Publication::None => {}
            Publication::Publish(version) => self.outlet.publish(version, reporter),
            Publication::Withdraw(id) => self.outlet.withdraw(id, reporter),
        }
    }
}

async fn until(catch_up: Option<CatchUp>) {
    match catch_up {
        Some(CatchUp { until, .. }) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}
