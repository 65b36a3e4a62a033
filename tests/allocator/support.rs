//! A node: an allocator on a real etcd, with the gateway's own mirror and view as its picture of the records.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use meshgate::allocator::backend::Backend;
use meshgate::allocator::etcd::{EtcdBackend, EtcdTerms, SessionKeeper, Store};
use meshgate::allocator::{
    AllocError, Allocation, Allocator, AllocatorMetrics, AllocatorSettings, Key, NumberRange, Paths,
};
use meshgate::identity::{ClusterId, ClusterName, MaxConnectedClusters};
use meshgate::kvstore::{EtcdConfig, ListWatchOptions, Timing};
use meshgate::mirror::{DEFAULT_AUDIT_INTERVAL, LocalCluster, LocalSettings, Outlet, OwnRecords};
use meshgate::telemetry::{Metrics, StatusBoard};
use meshgate::view::{Interner, View};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{EtcdOptions, EtcdServer};

pub const BASE: &str = "cilium/state/identities/v1";
const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;
pub const SOON: Duration = Duration::from_secs(20);

pub async fn etcd() -> EtcdServer {
    EtcdServer::start(EtcdOptions::plain("local").in_memory()).await.unwrap()
}

/// A size from a variable, for the long runs (`mod.rs` lists them).
pub fn size(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

/// Lets the log be seen, as `MESHGATE_LOG` filters it.
pub fn show_log() {
    if let Ok(filter) = std::env::var("MESHGATE_LOG") {
        let filter = tracing_subscriber::EnvFilter::new(filter);
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    }
}

/// An etcd as a node reaches it.
pub trait Reach {
    fn config(&self) -> EtcdConfig;
}

impl Reach for EtcdServer {
    fn config(&self) -> EtcdConfig {
        Self::config(self)
    }
}

impl Reach for EtcdConfig {
    fn config(&self) -> EtcdConfig {
        self.clone()
    }
}

pub fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

/// A label set of its own for each number.
pub fn numbered(n: usize) -> Key {
    key(&format!("k8s:app=a{n};k8s:io.cilium.k8s.policy.cluster=cluster-a;"))
}

#[derive(Clone, Copy)]
pub struct Setup {
    pub numbers: (u32, u32),
    pub terms: EtcdTerms,
    pub sync: Duration,
    pub release_on_shutdown: bool,
    pub follow: bool,
    pub call: Duration,
    pub attempts: u32,
    /// Longest pause between two attempts to connect.
    pub reconnect: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            numbers: (5 << 16, (6 << 16) - 1),
            terms: EtcdTerms::default(),
            sync: Duration::from_mins(5),
            release_on_shutdown: false,
            follow: true,
            call: Duration::from_secs(5),
            attempts: 16,
            reconnect: Duration::from_secs(1),
        }
    }
}

pub struct Node<B: Backend = EtcdBackend> {
    pub allocator: Allocator<B>,
    pub etcd: EtcdBackend,
    pub records: OwnRecords,
    pub metrics: AllocatorMetrics,
    local: Option<LocalCluster>,
    cancel: CancellationToken,
    tasks: JoinSet<()>,
    keepers: JoinSet<()>,
}

impl Node<EtcdBackend> {
    pub async fn start(etcd: &impl Reach, name: &str) -> Self {
        Self::start_with(etcd, name, Setup::default()).await
    }

    pub async fn start_with(etcd: &impl Reach, name: &str, setup: Setup) -> Self {
        Self::start_on(etcd, name, setup, |backend| backend).await
    }
}

impl<B: Backend> Node<B> {
    /// With what `wrap` makes of the backend.
    #[expect(clippy::unused_async, reason = "what it spawns needs the runtime that only an async caller has")]
    pub async fn start_on(etcd: &impl Reach, name: &str, setup: Setup, wrap: impl FnOnce(EtcdBackend) -> B) -> Self {
        let numbers = NumberRange::new(setup.numbers.0, setup.numbers.1, 0).unwrap();
        let timing = Timing {
            call: setup.call,
            backoff_base: Duration::from_millis(10),
            backoff_max: setup.reconnect,
            ..Timing::default()
        };
        let (keeper, sessions) = SessionKeeper::new(etcd.config(), timing.clone());
        let store = Store::new(sessions, setup.call);
        let backend = EtcdBackend::new(store, Paths::new(BASE, name).unwrap(), numbers, setup.terms);
        let id = ClusterId::new(setup.numbers.0 >> WIDTH.shift(), WIDTH).unwrap();
        let cluster = ClusterName::new("cluster-a").unwrap();
        let (interner, view, board) = (Interner::new(), View::new(WIDTH, id), StatusBoard::default());
        let metrics = Metrics::new(board.clone());
        let records = OwnRecords::new(cluster.clone(), id, WIDTH, interner.clone(), view, board.clone());
        let settings = AllocatorSettings {
            attempts: setup.attempts,
            sync: setup.sync,
            release_on_shutdown: setup.release_on_shutdown,
            ..AllocatorSettings::new(numbers)
        };
        let counted = AllocatorMetrics::of(&metrics);
        let allocator = Allocator::new(wrap(backend.clone()), Arc::new(records.clone()), settings, counted.clone());
        let local = LocalSettings {
            name: cluster,
            id,
            width: WIDTH,
            etcd: etcd.config(),
            timing,
            list_watch: ListWatchOptions::default(),
            audit_interval: DEFAULT_AUDIT_INTERVAL,
        };
        let outlet = Outlet::own(records.clone(), Arc::new(allocator.clone()));
        let local = LocalCluster::new(local, interner, outlet, board, metrics);
        let cancel = CancellationToken::new();
        let (mut tasks, mut keepers) = (JoinSet::new(), JoinSet::new());
        // Outlives the rest, so that a shutdown can still say goodbye.
        let connection = CancellationToken::new();
        keepers.spawn(keeper.run(connection));
        tasks.spawn(Box::pin(backend.clone().run(cancel.clone())));
        let (running, stop) = (allocator.clone(), cancel.clone());
        tasks.spawn(async move { running.run(stop).await });
        let mut node =
            Self { allocator, etcd: backend, records, metrics: counted, local: Some(local), cancel, tasks, keepers };
        if setup.follow {
            node.follow();
        }
        node
    }

    /// Begins to follow the store, if it does not yet.
    pub fn follow(&mut self) {
        if let Some(local) = self.local.take() {
            self.keepers.spawn(Box::pin(local.run(self.cancel.clone())));
        }
    }

    pub async fn allocate(&self, key: &Key) -> Result<Allocation, AllocError> {
        self.allocator.allocate(key, Instant::now() + SOON).await
    }

    pub async fn release(&self, key: &Key) -> Result<bool, AllocError> {
        self.allocator.release(key, Instant::now() + SOON).await
    }

    /// Gone from one moment to the next: the store hears nothing more of it.
    pub async fn kill(mut self) {
        self.keepers.shutdown().await;
        self.stop().await;
    }

    /// A clean shutdown.
    pub async fn stop(mut self) {
        self.cancel.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Everything below a prefix: key and value.
pub async fn dump(client: &Client, prefix: &str) -> Vec<(String, String)> {
    let answer = client.kv_client().get(prefix, Some(GetOptions::new().with_prefix())).await.unwrap();
    let text =
        |entry: &etcd_client::KeyValue| (entry.key_str().unwrap().to_owned(), entry.value_str().unwrap().to_owned());
    answer.kvs().iter().map(text).collect()
}

pub async fn masters(client: &Client) -> Vec<(String, String)> {
    dump(client, &format!("{BASE}/id/")).await
}

pub async fn slaves(client: &Client) -> Vec<(String, String)> {
    dump(client, &format!("{BASE}/value/")).await
}

pub async fn put(client: &Client, path: &str, value: &str) {
    client.kv_client().put(format!("{BASE}/{path}"), value, None).await.unwrap();
}

pub async fn delete(client: &Client, path: &str) {
    client.kv_client().delete(format!("{BASE}/{path}"), None).await.unwrap();
}
