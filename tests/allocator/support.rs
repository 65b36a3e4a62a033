//! A node: an allocator on a real etcd, told of its records by a follower of the simplest kind.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use meshgate::allocator::backend::Backend;
use meshgate::allocator::etcd::{EtcdBackend, EtcdTerms, SessionKeeper, Sessions, Store};
use meshgate::allocator::{
    AllocError, Allocation, Allocator, AllocatorMetrics, AllocatorSettings, Key, MasterTable, NumberRange, Paths,
    Vanished,
};
use meshgate::identity::NumericIdentity;
use meshgate::kvstore::{EtcdConfig, Event, KeyValue, ListWatch, ListWatchOptions, Step, Timing};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{EtcdOptions, EtcdServer};

pub const BASE: &str = "cilium/state/identities/v1";
pub const SOON: Duration = Duration::from_secs(20);

pub async fn etcd() -> EtcdServer {
    EtcdServer::start(EtcdOptions::plain("local").in_memory()).await.unwrap()
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
        }
    }
}

pub struct Node<B: Backend = EtcdBackend> {
    pub allocator: Allocator<B>,
    pub etcd: EtcdBackend,
    pub table: Arc<MasterTable>,
    pub metrics: AllocatorMetrics,
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
            backoff_max: Duration::from_secs(1),
            ..Timing::default()
        };
        let (keeper, sessions) = SessionKeeper::new(etcd.config(), timing);
        let store = Store::new(sessions.clone(), setup.call);
        let etcd = EtcdBackend::new(store, Paths::new(BASE, name).unwrap(), numbers, setup.terms);
        let table = Arc::new(MasterTable::default());
        let metrics = AllocatorMetrics::new();
        let settings = AllocatorSettings {
            sync: setup.sync,
            release_on_shutdown: setup.release_on_shutdown,
            ..AllocatorSettings::new(numbers)
        };
        let allocator = Allocator::new(wrap(etcd.clone()), table.clone(), settings, metrics.clone());
        let cancel = CancellationToken::new();
        let (mut tasks, mut keepers) = (JoinSet::new(), JoinSet::new());
        // Outlives the rest, so that a shutdown can still say goodbye.
        let connection = CancellationToken::new();
        keepers.spawn(keeper.run(connection));
        tasks.spawn(Box::pin(etcd.clone().run(cancel.clone())));
        let (running, stop) = (allocator.clone(), cancel.clone());
        tasks.spawn(async move { running.run(stop).await });
        if setup.follow {
            let follower = follow(sessions, allocator.clone(), table.clone());
            let stop = cancel.clone();
            tasks.spawn(async move {
                stop.run_until_cancelled(follower).await;
            });
        }
        Self { allocator, etcd, table, metrics, cancel, tasks, keepers }
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

async fn follow<B: Backend>(sessions: Sessions, allocator: Allocator<B>, table: Arc<MasterTable>) {
    let prefix = format!("{BASE}/id/");
    let number = |path: &[u8]| NumericIdentity::parse_canonical(&path[prefix.len()..]).ok();
    let mut watch = ListWatch::new(prefix.clone().into_bytes(), ListWatchOptions::default());
    let mut listed: HashSet<NumericIdentity> = HashSet::new();
    let put = |entry: &KeyValue| {
        let number = number(&entry.key)?;
        table.put(number, std::str::from_utf8(&entry.value).unwrap(), entry.mod_revision);
        Some(number)
    };
    let remove = |number, revision| {
        if allocator.vanished(number) == Vanished::Gone {
            table.remove(number, revision);
        }
    };
    loop {
        let Ok(session) = sessions.current(SOON).await else { continue };
        loop {
            match watch.step(&session).await {
                Ok(Step::ListStarted(_)) => listed.clear(),
                Ok(Step::Page(entries)) => listed.extend(entries.iter().filter_map(put)),
                Ok(Step::Listed(position)) => {
                    allocator.listed(listed.iter().copied());
                    table.retain(position.revision, |number| listed.contains(&number));
                }
                Ok(Step::Events(events, _)) => {
                    for event in events {
                        match event {
                            Event::Put(entry) => {
                                if let Some(number) = put(&entry) {
                                    allocator.appeared(number);
                                }
                            }
                            Event::Delete { key, mod_revision } => {
                                if let Some(number) = number(&key) {
                                    remove(number, mod_revision);
                                }
                            }
                        }
                    }
                }
                Ok(_) => {}
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    break;
                }
            }
        }
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
