//! The composition root: builds every room, wires them, runs them, and drains them when told to stop.
//!
//! Only this module sees everything. Start: a wrong configuration or an occupied port ends it with one line; a store that
//! does not answer does not, it shows in status and readiness. Stop: readiness off, streams told to go away, a deadline,
//! then whatever is left is cut.

mod allocating;
mod descriptors;
mod readiness;
mod reload;
mod tasks;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::access::PolicyError;
use crate::allocator::AllocError;
use crate::api;
use crate::config::{ClusterConfig, Config};
use crate::kvstore::{EtcdConfig, EtcdConfigError};
use crate::mirror::{LocalCluster, LocalSettings, Outlet, OwnRecords};
use crate::peer::{PeerManager, PeerSettings, Us};
use crate::picture::{OpenError, PictureStore};
use crate::telemetry::http::{self, ListenError};
use crate::telemetry::{Metrics, Readiness, StatusBoard};
use crate::tls::TlsError;
use crate::view::{Interner, View};
use allocating::Allocating;
pub use allocating::OwnAllocator;
pub use descriptors::raise_descriptor_limit;
use reload::Guarding;
pub use tasks::TaskEnded;
use tasks::Tasks;

/// The gRPC server keeps to the grace itself; this is for the case that it does not.
const SAFETY: Duration = Duration::from_secs(1);
/// Calls under way end, and references are released where that is wanted; what does not come through ends with its lease.
const ALLOCATING_GRACE: Duration = Duration::from_secs(5);
/// Followers of stores hold nothing that needs a goodbye and stop at once; this is a safety net, above the peers' own.
const STORES_GRACE: Duration = Duration::from_secs(6);
/// More than the HTTP server's own drain.
const HTTP_GRACE: Duration = Duration::from_secs(2);

/// Why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The file that names our own store.
    #[error(transparent)]
    LocalStore(#[from] EtcdConfigError),
    /// The listener's certificates.
    #[error("the gRPC API's certificates: {0}; give PEM files that belong together")]
    Certificates(#[from] TlsError),
    /// The access policy cannot be used.
    #[error("access-policy: {0}")]
    AccessPolicy(#[from] PolicyError),
    /// The directory of the pictures.
    #[error("state-dir: {0}")]
    StateDirectory(#[from] OpenError),
    /// What the allocator is made of.
    #[error("the allocator cannot be built: {0}")]
    Allocator(#[from] AllocError),
    /// A port is taken.
    #[error("{setting}: {source}")]
    Listen {
        /// The setting that names it.
        setting: &'static str,
        /// What is wrong.
        source: ListenError,
    },
}

impl StartError {
    /// Whether the configuration has to be changed, rather than the world.
    #[must_use]
    pub const fn is_configuration(&self) -> bool {
        match self {
            Self::LocalStore(_)
            | Self::Certificates(_)
            | Self::AccessPolicy(_)
            | Self::Allocator(_)
            | Self::StateDirectory(OpenError::Unusable { .. }) => true,
            Self::Listen { .. } | Self::StateDirectory(OpenError::InUse { .. }) => false,
        }
    }
}

/// Builds gateways.
#[derive(Debug)]
pub struct Gateway;

impl Gateway {
    /// Builds everything, opens both ports and runs.
    ///
    /// # Errors
    /// The configuration names files that are not what they should be, or a port that is taken.
    pub async fn start(config: Config) -> Result<Running, StartError> {
        let etcd = EtcdConfig::from_yaml_file(&config.stores.local)?;
        let guarding = Guarding::load(&config.api)?;
        let (grpc, grpc_addr) = open("listen", config.api.listen).await?;
        let (http, http_addr) = open("http-listen", config.http_listen).await?;

        let pictures = config.stores.state_dir.as_deref().map(PictureStore::open).transpose()?;
        if pictures.is_none() && config.stores.peers.is_some() {
            tracing::info!(
                "no state-dir is given: peers that are away at the next start will be unknown until they are reached"
            );
        }

        let status = StatusBoard::default();
        let metrics = Metrics::new(status.clone());
        let readiness = Readiness::default();
        let view = View::with_history(config.cluster.width, config.cluster.id, config.api.history);
        let stop = CancellationToken::new();
        let parts = Parts {
            config,
            etcd,
            guarding,
            pictures,
            grpc,
            http,
            view: view.clone(),
            status: status.clone(),
            metrics: metrics.clone(),
            readiness: readiness.clone(),
        };
        let interner = Interner::new();
        let cluster = parts.config.cluster.clone();
        let records =
            OwnRecords::new(cluster.name, cluster.id, cluster.width, interner.clone(), view.clone(), status.clone());
        let allocating = Allocating::build(&parts.config, parts.etcd.clone(), records.clone(), &metrics)?;
        let allocator = allocating.as_ref().and_then(|allocating| allocating.allocator.clone());
        let rooms = parts.wire(interner, records, allocating);
        tracing::info!(grpc = %grpc_addr, http = %http_addr, "listening");
        let done = AbortOnDropHandle::new(tokio::spawn(rooms.run(stop.clone())));
        Ok(Running { grpc_addr, http_addr, view, status, metrics, readiness, allocator, stop, done })
    }
}

async fn open(setting: &'static str, addr: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { setting, source };
    let listener = http::listen(addr).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(|source| failed(ListenError { addr, source }))?;
    Ok((listener, bound))
}

/// A gateway that runs. Dropping it ends it without a goodbye; [`Running::shutdown`] drains.
#[derive(Debug)]
pub struct Running {
    /// Where the gRPC API listens.
    pub grpc_addr: SocketAddr,
    /// Where the HTTP pages are.
    pub http_addr: SocketAddr,
    /// The merged picture.
    pub view: View,
    /// The state of every cluster.
    pub status: StatusBoard,
    /// Everything that is counted.
    pub metrics: Metrics,
    /// Whether traffic may come.
    pub readiness: Readiness,
    /// Identities of our own cluster; `None` where allocating is switched off.
    pub allocator: Option<OwnAllocator>,
    stop: CancellationToken,
    done: AbortOnDropHandle<Result<(), TaskEnded>>,
}

impl Running {
    /// Begins to drain. [`Running::done`] tells when that is over.
    pub fn shutdown(&self) {
        self.stop.cancel();
    }

    /// Waits for the end. To be awaited to its end once; dropping it before that loses nothing.
    ///
    /// # Errors
    /// A part of the gateway ended though nobody asked for it. The rest was drained.
    pub async fn done(&mut self) -> Result<(), TaskEnded> {
        (&mut self.done).await.unwrap_or_else(|error| Err(TaskEnded { task: "the gateway", why: error.to_string() }))
    }
}

/// Everything built, nothing running.
struct Parts {
    config: Config,
    etcd: EtcdConfig,
    guarding: Guarding,
    pictures: Option<PictureStore>,
    grpc: TcpListener,
    http: TcpListener,
    view: View,
    status: StatusBoard,
    metrics: Metrics,
    readiness: Readiness,
}

/// The tasks of all rooms, in the groups in which they stop.
struct Rooms {
    /// Subscribers and other clients: get the whole grace.
    serving: Tasks,
    /// What writes to our own store: after those whom it serves, before what keeps its connection and its leases.
    allocating: Tasks,
    /// What feeds the view, and keeps connections.
    stores: Tasks,
    /// What shows how the others are doing; the last to go.
    pages: Tasks,
    readiness: Readiness,
    grace: Duration,
}

impl Parts {
    fn wire(self, interner: Interner, records: OwnRecords, allocating: Option<Allocating>) -> Rooms {
        let (mut serving, mut stores, mut pages) = (Tasks::default(), Tasks::default(), Tasks::default());
        let mut writing = Tasks::default();
        let allocator = allocating.as_ref().and_then(|allocating| allocating.allocator.clone());
        let outlet = match allocator {
            Some(allocator) => Outlet::own(records, Arc::new(allocator)),
            None => self.view.clone().into(),
        };
        // All guards before anybody can ask: a gateway is never ready by accident.
        self.spawn_local(&mut stores, &interner, outlet);
        if let Some(allocating) = allocating {
            allocating.spawn(&mut writing, &mut stores, &self.readiness);
        }
        if let Some(directory) = self.config.stores.peers.clone() {
            self.spawn_peers(&mut stores, interner, directory);
        }
        let Self { config, guarding, grpc, http: http_listener, view, status, metrics, readiness, .. } = self;
        let cluster = config.cluster.name;
        let Guarding { security, access, tls, policy } = guarding;
        let parts =
            api::Parts { cluster, view, status, metrics: metrics.clone(), readiness: readiness.clone(), access };
        let options = api::ServerOptions {
            drain: config.shutdown_grace,
            subscribe: api::SubscribeOptions {
                max_subscribers: config.api.max_subscribers,
                max_per_client: config.api.max_per_client,
                all_synced_wait: config.stores.peer_readiness_wait,
                hold: config.api.hold,
                max_age: config.api.max_age,
                ..api::SubscribeOptions::default()
            },
            ..api::ServerOptions::default()
        };
        serving.spawn(
            "the gRPC server",
            |stop| async move { Ok(api::serve(grpc, security, parts, options, stop).await?) },
        );
        if let Some(tls) = tls {
            let metrics = metrics.clone();
            serving.spawn("the certificates", |stop| async move {
                reload::certificates(tls, metrics, stop).await;
                Ok(())
            });
        }
        if let Some(policy) = policy {
            let metrics = metrics.clone();
            serving.spawn("the access policy", |stop| async move {
                reload::access_policy(policy, metrics, stop).await;
                Ok(())
            });
        }
        let router = http::router(metrics, readiness.clone());
        pages.spawn("the HTTP server", |stop| async move {
            http::serve(http_listener, router, stop).await;
            Ok(())
        });
        Rooms { serving, allocating: writing, stores, pages, readiness, grace: config.shutdown_grace }
    }

    fn spawn_local(&self, tasks: &mut Tasks, interner: &Interner, outlet: Outlet) {
        let ClusterConfig { name, id, width } = &self.config.cluster;
        let settings = LocalSettings {
            name: name.clone(),
            id: *id,
            width: *width,
            etcd: self.etcd.clone(),
            timing: self.config.stores.timing.clone(),
            list_watch: self.config.stores.list.clone(),
            audit_interval: self.config.stores.audit_interval,
        };
        let guard = readiness::await_local(&self.readiness, &self.status, name.as_str());
        let (board, metrics) = (self.status.clone(), self.metrics.clone());
        let local = LocalCluster::new(settings, interner.clone(), outlet, board, metrics);
        tasks.spawn("the local cluster", |stop| async move {
            local.run(stop).await;
            Ok(())
        });
        tasks.spawn_once(readiness::local_synced(guard, self.status.clone(), name.to_string()));
    }

    fn spawn_peers(&self, tasks: &mut Tasks, interner: Interner, directory: PathBuf) {
        let ClusterConfig { name, id, width } = self.config.cluster.clone();
        let stores = &self.config.stores;
        let mut settings = PeerSettings::new(Us { name, id, width }, directory);
        settings.rescan = stores.peer_rescan;
        settings.timing.etcd = stores.timing.clone();
        settings.timing.heartbeat = stores.heartbeat;
        settings.timing.heartbeat_timeout = stores.heartbeat_timeout;
        settings.timing.audit_interval = stores.audit_interval;
        settings.list_watch = stores.list.clone();
        settings.keep.store.clone_from(&self.pictures);
        settings.keep.ttl = stores.peer_ttl;
        let (view, board, metrics) = (self.view.clone(), self.status.clone(), self.metrics.clone());
        let peers = PeerManager::new(settings, interner, view, board.clone(), metrics);
        let guard = readiness::await_peers(&self.readiness, &board);
        tasks.spawn_once(readiness::peers_settled(guard, peers.looked(), board, stores.peer_readiness_wait));
        tasks.spawn("the peers", |stop| async move {
            peers.run(stop).await;
            Ok(())
        });
    }
}

impl Rooms {
    async fn run(mut self, stop: CancellationToken) -> Result<(), TaskEnded> {
        let result = tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = self.serving.first_end() => Err(ended),
            ended = self.allocating.first_end() => Err(ended),
            ended = self.stores.first_end() => Err(ended),
            ended = self.pages.first_end() => Err(ended),
        };
        self.readiness.stop();
        self.serving.stop(self.grace + SAFETY).await;
        self.allocating.stop(ALLOCATING_GRACE).await;
        self.stores.stop(STORES_GRACE).await;
        self.pages.stop(HTTP_GRACE).await;
        tracing::info!("stopped");
        result
    }
}
