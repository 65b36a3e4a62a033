//! Peers as they are in the field: a directory of files, real etcds over mTLS, and what a subscriber sees of it.

mod absence;
mod audit;
mod cluster_ids;
mod configuration;
mod files;
mod golden;
mod isolation;
mod liveness;
mod local;
mod pictures;
mod reconnect;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use meshgate::identity::{ClusterId, ClusterName, MaxConnectedClusters};
use meshgate::kvstore::{ListWatchOptions, Timing};
use meshgate::peer::{PeerManager, PeerSettings, PeerTiming, Us};
use meshgate::telemetry::{ClusterState, ClusterStatus, Metrics, StatusBoard};
use meshgate::view::{Change, ClusterView, HistoryLimits, Interner, View, diff};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::support::fill::Cluster;
use crate::support::{EtcdOptions, EtcdServer, Pki, eventually};

pub const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;
/// Long enough for a busy machine; nothing waits for it unless something is wrong.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Deadlines of which tests do not have to wait.
pub fn timing() -> PeerTiming {
    PeerTiming {
        etcd: Timing {
            dial: Duration::from_secs(2),
            call: Duration::from_secs(2),
            watch_created: Duration::from_secs(2),
            progress_interval: Duration::from_millis(300),
            liveness: Duration::from_secs(2),
            backoff_base: Duration::from_millis(20),
            backoff_max: Duration::from_millis(200),
            ..Timing::default()
        },
        poll: Duration::from_millis(50),
        ..PeerTiming::default()
    }
}

/// Number → key string.
pub type Contents = BTreeMap<u32, String>;

/// One thing that a subscriber was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Upserted(String, u32, String),
    Removed(String, u32),
}

/// Follows the view as a subscriber does: difference after difference.
#[derive(Debug)]
pub struct Subscriber {
    pub view: View,
    /// What it was told, and up to which version of the view.
    told: watch::Sender<(Vec<Told>, u64)>,
    _task: AbortOnDropHandle<()>,
}

impl Subscriber {
    pub fn new(view: View) -> Self {
        let told = watch::Sender::new((Vec::new(), 0));
        let sender = told.clone();
        let follower = view.clone();
        let task = tokio::spawn(async move {
            let mut changes = follower.changes();
            let mut known = BTreeMap::<u16, Arc<ClusterView>>::new();
            loop {
                changes.mark_unchanged();
                let mesh = follower.load();
                let now: BTreeMap<_, _> = mesh.clusters().map(|view| (view.id().get(), view.clone())).collect();
                sender.send_modify(|(log, version)| {
                    log.extend(differences(&known, &now));
                    *version = mesh.version();
                });
                known = now;
                if changes.changed().await.is_err() {
                    return;
                }
            }
        });
        Self { view, told, _task: AbortOnDropHandle::new(task) }
    }

    /// What it was told since [`Self::clear`], up to what is shown now.
    pub async fn log(&self) -> Vec<Told> {
        let now = self.view.load().version();
        let mut told = self.told.subscribe();
        let told = told.wait_for(|(_, version)| *version >= now).await.unwrap();
        told.0.clone()
    }

    pub async fn clear(&self) {
        let told = self.log().await.len();
        self.told.send_modify(|(log, _)| drop(log.drain(..told)));
    }
}

pub fn differences(known: &BTreeMap<u16, Arc<ClusterView>>, now: &BTreeMap<u16, Arc<ClusterView>>) -> Vec<Told> {
    let mut told = Vec::new();
    let removed = |view: &ClusterView, told: &mut Vec<Told>| {
        told.extend(view.iter().map(|gone| Told::Removed(view.name().to_string(), gone.number().get())));
    };
    for (id, old) in known {
        if now.get(id).is_none_or(|new| new.name() != old.name()) {
            removed(old, &mut told);
        }
    }
    for (id, new) in now {
        let old = known.get(id).filter(|old| old.name() == new.name());
        told.extend(diff(old.map(Arc::as_ref), new).map(|change| match change {
            Change::Upserted(entry) => Told::Upserted(new.name().to_string(), entry.number().get(), entry.key_string()),
            Change::Removed(number) => Told::Removed(new.name().to_string(), number.get()),
        }));
    }
    told
}

/// The peers' side of a gateway of the cluster `us`, ID 1.
pub struct Rig {
    pub directory: tempfile::TempDir,
    pub view: View,
    pub board: StatusBoard,
    pub metrics: Metrics,
    pub subscriber: Subscriber,
    cancel: CancellationToken,
    manager: AbortOnDropHandle<()>,
}

impl Rig {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut PeerSettings)) -> Self {
        Self::over(tempfile::tempdir().unwrap(), change)
    }

    /// Over a directory that may hold files already.
    pub fn over(directory: tempfile::TempDir, change: impl FnOnce(&mut PeerSettings)) -> Self {
        let us = Us { name: ClusterName::new("us").unwrap(), id: ClusterId::new(1, WIDTH).unwrap(), width: WIDTH };
        let mut settings = PeerSettings::new(us, directory.path().to_owned());
        settings.rescan = Duration::from_millis(20);
        settings.timing = timing();
        settings.list_watch = ListWatchOptions { page_size: 2, ..ListWatchOptions::default() };
        change(&mut settings);
        // Nobody comes back here: versions that were replaced are not kept.
        let none = HistoryLimits { memory: 0, age: Duration::ZERO };
        let view = View::with_history(WIDTH, settings.us.id, none);
        let board = StatusBoard::default();
        let metrics = Metrics::new(board.clone());
        let subscriber = Subscriber::new(view.clone());
        let manager = PeerManager::new(settings, Interner::new(), view.clone(), board.clone(), metrics.clone());
        let cancel = CancellationToken::new();
        let manager = AbortOnDropHandle::new(tokio::spawn(manager.run(cancel.clone())));
        Self { directory, view, board, metrics, subscriber, cancel, manager }
    }

    /// Writes a peer's file as an editor would.
    pub fn write(&self, name: &str, contents: &str) {
        let next = self.directory.path().join(format!(".{name}"));
        std::fs::write(&next, contents).unwrap();
        std::fs::rename(next, self.path(name)).unwrap();
    }

    pub fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    pub fn version(&self, id: u16) -> Option<Arc<ClusterView>> {
        self.view.load().cluster(ClusterId::new(id.into(), WIDTH).unwrap()).cloned()
    }

    /// What is shown of a cluster.
    pub fn shown(&self, id: u16) -> Contents {
        let version = self.version(id);
        let entries = version.iter().flat_map(|version| version.iter());
        entries.map(|entry| (entry.number().get(), entry.key_string())).collect()
    }

    pub fn status(&self, name: &str) -> Option<ClusterStatus> {
        self.board.snapshot().remove(name)
    }

    pub async fn until(&self, name: &str, what: &str, condition: impl Fn(&ClusterStatus) -> bool) {
        let what = format!("{name} {what}");
        let held = tokio::time::timeout(DEADLINE, async {
            eventually(&what, DEADLINE * 2, async || self.status(name).is_some_and(|status| condition(&status))).await;
        });
        assert!(held.await.is_ok(), "{what}, but it is {:#?}", self.status(name));
    }

    pub async fn until_state(&self, name: &str, state: ClusterState) {
        self.until(name, &format!("is {}", state.name()), |status| status.state == state).await;
    }

    pub async fn until_refused(&self, name: &str, reason: &str) {
        self.until(name, &format!("is refused: {reason}"), |status| {
            status.state == ClusterState::Refused
                && status.last_error.as_ref().is_some_and(|error| error.reason == reason && !error.hint.is_empty())
        })
        .await;
    }

    pub async fn until_shown(&self, id: u16, expected: &Contents) {
        let held = tokio::time::timeout(DEADLINE, async {
            eventually("shown", DEADLINE * 2, async || self.shown(id) == *expected).await;
        });
        if held.await.is_err() {
            assert_same("shown", &self.shown(id), expected);
        }
    }

    /// Stops as a gateway does.
    pub async fn stop(self) {
        self.cancel.cancel();
        tokio::time::timeout(Duration::from_secs(2), self.manager).await.expect("stops at once").unwrap();
    }
}

pub fn assert_same<T: PartialEq + Debug>(what: &str, found: &T, expected: &T) {
    assert!(found == expected, "{what}\nfound    {found:#?}\nexpected {expected:#?}");
}

/// A peer's etcd with its cluster.
pub struct Store {
    pub etcd: EtcdServer,
    pub cluster: Cluster,
}

impl Store {
    /// An etcd without any contents.
    pub async fn empty(pki: &Pki, cluster: Cluster) -> Self {
        let options = EtcdOptions::mtls(&cluster.name, pki).unwrap().in_memory();
        Self { etcd: EtcdServer::start(options).await.unwrap(), cluster }
    }

    /// One that says that it is complete, with an identity for each of `apps`, numbered from 1.
    pub async fn new(pki: &Pki, name: &str, id: u32, apps: &[&str]) -> Self {
        let store = Self::empty(pki, Cluster::new(name, id)).await;
        for (app, n) in apps.iter().zip(1..) {
            store.put_app(n, app).await;
        }
        store.announce().await;
        store
    }

    /// Writes configuration and canary.
    pub async fn announce(&self) {
        self.put(&self.cluster.canary_key(), "2026-11-30T21:37:03Z").await;
        self.put(&self.cluster.config_key(), self.cluster.config_json()).await;
    }

    pub fn number(&self, n: u32) -> u32 {
        self.cluster.numbers().start() + n
    }

    pub fn key_string(&self, app: &str) -> String {
        format!("k8s:app={app};k8s:io.cilium.k8s.policy.cluster={};", self.cluster.name)
    }

    /// What a gateway ought to show of these: offset in the range, app.
    pub fn contents(&self, apps: &[(u32, &str)]) -> Contents {
        apps.iter().map(|&(n, app)| (self.number(n), self.key_string(app))).collect()
    }

    pub async fn put_app(&self, n: u32, app: &str) {
        self.put(&self.cluster.identity_key(self.number(n)), self.key_string(app)).await;
    }

    pub async fn delete_app(&self, n: u32) {
        self.delete(&self.cluster.identity_key(self.number(n))).await;
    }

    pub async fn put(&self, key: &str, value: impl Into<Vec<u8>>) {
        self.etcd.client().kv_client().put(key, value, None).await.unwrap();
    }

    pub async fn delete(&self, key: &str) {
        self.etcd.client().kv_client().delete(key, None).await.unwrap();
    }

    pub fn yaml(&self) -> String {
        self.etcd.config_yaml()
    }

    /// The file of a peer that is reached by way of another port.
    pub fn yaml_through(&self, port: u16) -> String {
        self.yaml().replace(&format!(":{}", self.etcd.port()), &format!(":{port}"))
    }
}

/// Files as the kubelet mounts them: `name -> ..data/name`, `..data -> ..<generation>`, swapped at once.
pub fn mount(directory: &Path, generation: u32, files: &[(&str, &str)]) {
    use std::os::unix::fs::symlink;
    let folder = format!("..2026_{generation}");
    std::fs::create_dir(directory.join(&folder)).unwrap();
    for (name, contents) in files {
        std::fs::write(directory.join(&folder).join(name), contents).unwrap();
        let link = directory.join(name);
        if !link.is_symlink() {
            symlink(format!("..data/{name}"), link).unwrap();
        }
    }
    let next = directory.join("..data_tmp");
    symlink(folder, &next).unwrap();
    std::fs::rename(next, directory.join("..data")).unwrap();
}
