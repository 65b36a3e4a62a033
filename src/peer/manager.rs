//! One task for each peer that the directory names. A peer that panics, hangs or is broken never touches another.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::config::Us;
use super::directory::{Change, Directory, PeerFile};
use super::lifecycle::{Desired, Environment, Peer, PeerTiming};
use super::register::ClusterIdRegister;
use super::tenure::Makings;
use crate::identity::ClusterName;
use crate::kvstore::{Backoff, ListWatchOptions};
use crate::mirror::{DEFAULT_MAX_KEY_STRING, Failure};
use crate::telemetry::{ClusterState, LastError, Metrics, StatusBoard};
use crate::view::{Interner, View};

/// How long peers may take to stop; each of them stops at its next await, so this is a safety net.
const STOP: Duration = Duration::from_secs(5);

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
        let PeerSettings { us, directory, rescan, timing, list_watch, max_key_string } = settings;
        let directory = Directory::new(directory, us.name.clone(), rescan);
        let makings = Makings { view, interner, width: us.width, list_watch, max_key_string };
        let register = ClusterIdRegister::new(us.id);
        let environment = Arc::new(Environment { us, register, makings, timing, board, metrics });
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
        let mut crew = Crew::new(board.clone(), move |name, desired| {
            // Made in the task: even a panic in here is the peer's own.
            let (environment, cancel) = (Arc::clone(&environment), for_peers.clone());
            Box::pin(async move { Peer::new(name, environment).run(desired, cancel).await })
        });
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => break,
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
        status.last_error = Some(LastError { reason, message, hint, at: std::time::SystemTime::now() });
    });
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The peers' tasks. Each of them ends when its file is removed; one that ends otherwise is started again.
struct Crew<F> {
    start: F,
    board: StatusBoard,
    members: BTreeMap<ClusterName, Member>,
    tasks: JoinSet<()>,
    names: HashMap<Id, ClusterName>,
}

struct Member {
    desired: watch::Sender<Desired>,
    backoff: Backoff,
}

impl<F: Fn(ClusterName, watch::Receiver<Desired>) -> Task> Crew<F> {
    fn new(board: StatusBoard, start: F) -> Self {
        Self { start, board, members: BTreeMap::new(), tasks: JoinSet::new(), names: HashMap::new() }
    }

    fn present(&mut self, name: ClusterName, file: Arc<PeerFile>) {
        // A member that is about to end because its file was removed sees the new one, or is started again when it ends.
        if let Some(member) = self.members.get(&name) {
            member.desired.send_replace(Some(file));
            return;
        }
        // On the board before its task runs: whoever asks after the first look sees every peer.
        self.board.update(name.as_str(), |_| ());
        let member = Member {
            desired: watch::Sender::new(Some(file)),
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
        };
        self.spawn(&name, member.desired.subscribe(), Duration::ZERO);
        self.members.insert(name, member);
    }

    fn removed(&mut self, name: &ClusterName) {
        if let Some(member) = self.members.get(name) {
            member.desired.send_replace(None);
        }
    }

    fn spawn(&mut self, name: &ClusterName, desired: watch::Receiver<Desired>, delay: Duration) {
        let task = (self.start)(name.clone(), desired);
        let handle = self.tasks.spawn(async move {
            sleep(delay).await;
            task.await;
        });
        self.names.insert(handle.id(), name.clone());
    }

    /// The next task that ended; never, while there are none.
    async fn next_end(&mut self) -> Result<(Id, ()), JoinError> {
        match self.tasks.join_next_with_id().await {
            Some(ended) => ended,
            None => std::future::pending().await,
        }
    }

    fn reap(&mut self, ended: Result<(Id, ()), JoinError>) {
        let (id, panicked) = match ended {
            Ok((id, ())) => (id, None),
            Err(error) => (error.id(), Some(error)),
        };
        let Some(name) = self.names.remove(&id) else { return };
        let Some(member) = self.members.get_mut(&name) else { return };
        let wanted = member.desired.borrow().is_some();
        match panicked {
            None if !wanted => {
                self.members.remove(&name);
            }
            // Its file came back while it was draining.
            None => {
                let desired = member.desired.subscribe();
                self.spawn(&name, desired, Duration::ZERO);
            }
            Some(error) => {
                tracing::error!(peer = %name, %error, "the peer's task panicked; it starts again");
                self.board.update(name.as_str(), |status| {
                    status.failures += 1;
                    status.last_error = Some(LastError {
                        reason: "internal",
                        message: format!("a fault of ours: {error}"),
                        hint: "report it with the log; the peer is tried again".into(),
                        at: std::time::SystemTime::now(),
                    });
                });
                // Even if it is not wanted any more: what it shows has to be drained by someone.
                let (desired, delay) = (member.desired.subscribe(), member.backoff.next_delay());
                self.spawn(&name, desired, delay);
            }
        }
    }

    /// Waits for all tasks, which have been cancelled; not for ever.
    async fn stop(mut self) {
        let ended = timeout(STOP, async { while self.tasks.join_next().await.is_some() {} }).await;
        if ended.is_err() {
            tracing::error!(peers = self.tasks.len(), "peers did not stop in time");
            self.tasks.shutdown().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use super::super::directory::tests::file;
    use super::*;

    fn name(name: &str) -> ClusterName {
        ClusterName::new(name).unwrap()
    }

    type Receiver = watch::Receiver<Desired>;

    /// Tasks that do what the test scripted, one entry a start, and otherwise wait for the removal of their file.
    fn crew(
        script: Vec<fn(Receiver) -> Task>,
    ) -> (Crew<impl Fn(ClusterName, Receiver) -> Task>, watch::Receiver<usize>) {
        let started = watch::Sender::new(0);
        let starts = started.subscribe();
        let script = Mutex::new(VecDeque::from(script));
        let crew = Crew::new(StatusBoard::default(), move |_, desired: Receiver| {
            started.send_modify(|count| *count += 1);
            let scripted = script.lock().unwrap().pop_front();
            scripted.unwrap_or(obedient)(desired)
        });
        (crew, starts)
    }

    fn obedient(mut desired: Receiver) -> Task {
        Box::pin(async move {
            let _ = desired.wait_for(Option::is_none).await;
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_panics_starts_again_and_others_do_not_notice() {
        let (mut crew, starts) = crew(vec![|_| Box::pin(async { panic!("scripted") })]);
        crew.present(name("bad"), file(1));
        crew.present(name("good"), file(2));
        let ended = crew.next_end().await;
        crew.reap(ended);
        assert_eq!(*starts.borrow(), 3);
        assert_eq!(crew.tasks.len(), 2);
        let board = crew.board.snapshot();
        assert_eq!(board["bad"].last_error.as_ref().unwrap().reason, "internal");
        assert!(board["good"].last_error.is_none());
        crew.removed(&name("bad"));
        let ended = crew.next_end().await;
        crew.reap(ended);
        assert_eq!(crew.members.keys().map(ClusterName::as_str).collect::<Vec<_>>(), ["good"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_comes_back_while_its_peer_drains_starts_it_again() {
        let (mut crew, starts) = crew(vec![]);
        crew.present(name("blue"), file(1));
        crew.removed(&name("blue"));
        let ended = crew.next_end().await;
        crew.present(name("blue"), file(2));
        crew.reap(ended);
        assert_eq!((*starts.borrow(), crew.tasks.len()), (2, 1));
        crew.removed(&name("blue"));
        let ended = crew.next_end().await;
        crew.reap(ended);
        assert!(crew.members.is_empty() && crew.names.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn r04_stopping_does_not_wait_for_a_task_that_hangs() {
        let (mut crew, _) = crew(vec![|_| Box::pin(std::future::pending())]);
        crew.present(name("hung"), file(1));
        crew.stop().await;
    }
}
