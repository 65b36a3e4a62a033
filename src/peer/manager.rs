//! One task for each peer that the directory names. A peer that panics, hangs or is broken never touches another.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::config::Us;
use super::crew::Crew;
use super::directory::{Change, Directory};
use super::keeping::{KeepSettings, Keeping};
use super::lifecycle::{Environment, Peer, PeerTiming};
use super::register::ClusterIdRegister;
use super::tenure::Makings;
use crate::kvstore::ListWatchOptions;
use crate::mirror::{DEFAULT_MAX_KEY_STRING, Failure};
use crate::telemetry::{ClusterState, LastError, Metrics, StatusBoard};
use crate::view::{Interner, View};

/// What the peers are made of.
#[derive(Clone, Debug)]
pub struct PeerSettings {
    /// Ourselves.
    pub us: Us,
    /// Where the peers' files are.
    pub directory: PathBuf,
    /// How often the directory is looked at.
    pub rescan: Duration,
    /// Deadlines and intervals of a peer's life.
    pub timing: PeerTiming,
    /// Page size and the like.
    pub list_watch: ListWatchOptions,
    /// Bytes that a peer's key string may have.
    pub max_key_string: usize,
    /// What is kept of a peer that is absent, and while we are.
    pub keep: KeepSettings,
}

impl PeerSettings {
    /// With the defaults.
    #[must_use]
    pub fn new(us: Us, directory: PathBuf) -> Self {
        Self {
            us,
            directory,
            rescan: Duration::from_secs(2),
            timing: PeerTiming::default(),
            list_watch: ListWatchOptions::default(),
            max_key_string: DEFAULT_MAX_KEY_STRING,
            keep: KeepSettings::default(),
        }
    }
}

/// Keeps the peers' tasks in step with the directory.
#[derive(Debug)]
pub struct PeerManager {
    directory: Directory,
    environment: Arc<Environment>,
    looked: watch::Sender<bool>,
}

impl PeerManager {
    /// Not begun.
    #[must_use]
    pub fn new(settings: PeerSettings, interner: Interner, view: View, board: StatusBoard, metrics: Metrics) -> Self {
        let PeerSettings { us, directory, rescan, timing, list_watch, max_key_string, keep } = settings;
        let directory = Directory::new(directory, us.name.clone(), rescan);
        let audit_interval = timing.audit_interval;
        let makings = Makings { view, interner, width: us.width, list_watch, max_key_string, audit_interval };
        let register = ClusterIdRegister::new(us.id);
        let keeping = Arc::new(Keeping::new(keep));
        let environment = Arc::new(Environment { us, register, makings, timing, keeping, board, metrics });
        Self { directory, environment, looked: watch::Sender::new(false) }
    }

    /// Becomes true when the directory was read once, so that every peer of it is on the status board.
    #[must_use]
    pub fn looked(&self) -> watch::Receiver<bool> {
        self.looked.subscribe()
    }

    /// Runs until cancelled. Drains nothing then: a gateway that stops says nothing about its peers.
    pub async fn run(self, cancel: CancellationToken) {
        let Self { mut directory, environment, looked } = self;
        let for_peers = cancel.child_token();
        let board = environment.board.clone();
        let keeping = Arc::clone(&environment.keeping);
        let mut orphans = std::pin::pin!(keeping.forget_orphans(looked.subscribe(), &board));
        let mut crew = Crew::new(board.clone(), move |name, desired| {
            // Made in the task: even a panic in here is the peer's own.
            let (environment, cancel) = (Arc::clone(&environment), for_peers.clone());
            Box::pin(async move { Box::pin(Peer::new(name, environment).run(desired, cancel)).await })
        });
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                never = &mut orphans => match never {},
                ended = crew.next_end() => crew.reap(ended),
                changes = directory.changes() => {
                    for change in changes {
                        match change {
                            Change::Present(name, file) => crew.present(name, file),
                            Change::Removed(name) => crew.removed(&name),
                            Change::Misnamed(file, failure) => refuse_file(&board, &file, failure),
                            Change::MisnamedRemoved(file) => board.remove(&file),
                        }
                    }
                    looked.send_replace(true);
                }
            }
        }
        crew.stop().await;
    }
}

/// A file that cannot be a peer is on the board under its own name.
fn refuse_file(board: &StatusBoard, file: &str, failure: Failure) {
    let Failure { reason, message, hint } = failure;
    tracing::warn!(file, reason, hint, "{message}");
    board.update(file, |status| {
        status.state = ClusterState::Refused;
        status.failures += 1;
        status.last_error = Some(LastError { reason, message, hint, at: SystemTime::now() });
    });
}
