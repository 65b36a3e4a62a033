//! Drives a list-and-watch into the view: one cluster, one prefix, any number of sessions.

use tokio::time::Instant;

use super::apply::{Mirror, Outcome, Publication, source_position};
use super::report::Reporter;
use crate::kvstore::{ListWatch, ListWatchOptions, Session, SessionError, Step};
use crate::telemetry::ClusterState;
use crate::view::{ClusterView, View};

/// A mirror with its source and its destination.
#[derive(Debug)]
pub struct Follower {
    mirror: Mirror,
    list_watch: ListWatch,
    options: ListWatchOptions,
    view: View,
    list_since: Option<Instant>,
    live: bool,
}

impl Follower {
    /// Follows the keys behind `prefix`, which must be the mirror's.
    #[must_use]
    pub fn new(mirror: Mirror, prefix: Vec<u8>, options: ListWatchOptions, view: View) -> Self {
        let list_watch = ListWatch::new(prefix, options.clone());
        Self { mirror, list_watch, options, view, list_since: None, live: false }
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
    pub async fn follow(&mut self, session: &Session, reporter: &Reporter) -> SessionError {
        loop {
            match self.list_watch.step(session).await {
                Ok(step) => self.take(step, reporter),
                Err(error) => return error,
            }
        }
    }

    /// Undoes a list that is not complete. What is complete stays.
    pub fn break_off(&mut self, reporter: &Reporter) {
        self.live = false;
        self.list_since = None;
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

    fn take(&mut self, step: Step, reporter: &Reporter) {
        match &step {
            Step::ListStarted(_) => {
                self.live = false;
                self.list_since = Some(Instant::now());
                reporter.state(ClusterState::Listing, "list");
            }
            Step::Restarting(reason, pause) => {
                tracing::info!(cluster = reporter.cluster(), ?reason, ?pause, "list-and-watch starts over");
            }
            Step::Page(_) | Step::Listed(_) | Step::Resumed(_) | Step::Events(..) | Step::Progress(_) => {}
        }
        let again = self.mirror.is_complete();
        let applied = match &step {
            Step::Listed(position) | Step::Resumed(position) | Step::Progress(position) | Step::Events(_, position) => {
                Some(source_position(*position))
            }
            Step::ListStarted(_) | Step::Page(_) | Step::Restarting(..) => None,
        };
        let event = matches!(step, Step::Events(..));
        let complete = matches!(step, Step::Listed(_) | Step::Resumed(_));
        let outcome = self.mirror.apply(step);
        reporter.outcome(&outcome);
        let Outcome { publication, .. } = outcome;
        self.publish(publication, reporter);
        if let Some(position) = applied {
            self.view.apply(self.mirror.current().id(), position);
            reporter.revision(position.revision, event);
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

    fn publish(&mut self, publication: Publication, reporter: &Reporter) {
        match publication {
            Publication::None => {}
            Publication::Publish(version) => {
                self.view.publish(version.clone());
                reporter.shown(Some(&version));
            }
            Publication::Withdraw(id) => {
                self.view.withdraw(id);
                reporter.shown(None);
            }
        }
    }
}
