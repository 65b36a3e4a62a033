//! The composition root: builds every room, wires them, runs them, and drains them when told to stop.
//!
//! Only this module sees everything. Start: a wrong configuration or an occupied port ends it with one line; a store that
//! does not answer does not, it shows in status and readiness. Stop: readiness off, streams told to go away, a deadline,
//! then whatever is left is cut.

mod readiness;
mod tasks;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::config::{ApiConfig, Config};
use crate::kvstore::{EtcdConfig, EtcdConfigError};
use crate::mirror::{LocalCluster, LocalSettings};
use crate::telemetry::http::{self, ListenError};
use crate::telemetry::{Metrics, Readiness, StatusBoard};
use crate::view::{Interner, View};
pub use tasks::TaskEnded;
use tasks::Tasks;

/// Followers of stores hold nothing that needs a goodbye; this is for a call under way.
const STORES_GRACE: Duration = Duration::from_secs(1);
/// More than the HTTP server's own drain.
const HTTP_GRACE: Duration = Duration::from_secs(2);

/// Why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The file that names our own store.
    #[error(transparent)]
    LocalStore(#[from] EtcdConfigError),
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
            Self::LocalStore(_) => true,
            Self::Listen { .. } => false,
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
        let (grpc, grpc_addr) = open("listen", config.api.listen).await?;
        let (http, http_addr) = open("http-listen", config.http_listen).await?;

        let status = StatusBoard::default();
        let metrics = Metrics::new(status.clone());
        let readiness = Readiness::default();
        let view = View::new(config.cluster.width, config.cluster.id);
        let stop = CancellationToken::new();
        let parts = Parts {
            config,
            etcd,
            grpc,
            http,
            view: view.clone(),
            status: status.clone(),
            metrics: metrics.clone(),
            readiness: readiness.clone(),
        };
        let rooms = parts.wire();
        tracing::info!(grpc = %grpc_addr, http = %http_addr, "listening");
        let done = AbortOnDropHandle::new(tokio::spawn(rooms.run(stop.clone())));
        Ok(Running { grpc_addr, http_addr, view, status, metrics, readiness, stop, done })
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
    api: Tasks,
    /// What feeds the view.
    stores: Tasks,
    /// What shows how the others are doing; the last to go.
    pages: Tasks,
    readiness: Readiness,
    grace: Duration,
}

impl Parts {
    fn wire(self) -> Rooms {
        let Self { config, etcd, grpc, http: http_listener, view, status, metrics, readiness } = self;
        let Config { cluster, stores: stores_config, api: api_config, shutdown_grace, .. } = config;
        let interner = Interner::new();

        let (mut api, mut stores, mut pages) = (Tasks::default(), Tasks::default(), Tasks::default());
        // All guards before anybody can ask: a gateway is never ready by accident.
        let local_guard = readiness::await_local(&readiness, &status, cluster.name.as_str());
        let peers_guard = stores_config.peers.is_some().then(|| readiness::await_peers(&readiness, &status));

        let name = cluster.name.to_string();
        let settings = LocalSettings {
            name: cluster.name.clone(),
            id: cluster.id,
            width: cluster.width,
            etcd,
            timing: stores_config.timing.clone(),
            list_watch: stores_config.list.clone(),
        };
        let local = LocalCluster::new(settings, interner.clone(), view.clone(), status.clone(), metrics.clone());
        stores.spawn("the local cluster", |stop| async move {
            local.run(stop).await;
            Ok(())
        });
        let board = status.clone();
        stores.spawn("readiness of the local store", |stop| async move {
            stop.run_until_cancelled(readiness::local_synced(local_guard, board, name)).await;
            // Its work is done at the first sync; the group ends when it is told to.
            stop.cancelled().await;
            Ok(())
        });
        drop((api_config, grpc, peers_guard));

        let router = http::router(metrics, readiness.clone());
        pages.spawn("the HTTP server", |stop| async move {
            http::serve(http_listener, router, stop).await;
            Ok(())
        });
        Rooms { api, stores, pages, readiness, grace: shutdown_grace }
    }
}

impl Rooms {
    async fn run(mut self, stop: CancellationToken) -> Result<(), TaskEnded> {
        let result = tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = self.api.first_end() => Err(ended),
            ended = self.stores.first_end() => Err(ended),
            ended = self.pages.first_end() => Err(ended),
        };
        self.readiness.stop();
        self.api.stop(self.grace).await;
        self.stores.stop(STORES_GRACE).await;
        self.pages.stop(HTTP_GRACE).await;
        tracing::info!("stopped");
        result
    }
}
