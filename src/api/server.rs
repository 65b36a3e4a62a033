//! The server: accepts, limits, and ends in time.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::acknowledged::Acknowledged;
use super::authorize::Authorizer;
use super::connection::{self, HandshakeError, Requests, Shared};
use super::crowd::Crowd;
use super::mesh::Mesh;
use super::status::GatewayStatus;
use super::subscribe::{SubscribeOptions, Subscriptions, WithSubscribe};
use super::unary::mesh_service_server::MeshServiceServer;
use super::{Parts, health, pb};
use crate::identity::ReservedIdentities;
use crate::telemetry::{LogLimiter, Metrics};

/// After a failed accept (no descriptors left): busy looping helps nobody.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Log lines about one kind of bad client come at most once in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Requests are names and labels of one identity.
const MAX_REQUEST: usize = 1 << 20;

/// How the server is guarded.
#[derive(Clone, Debug)]
pub enum Security {
    /// Not at all: for loopback addresses only.
    Plaintext,
    /// Mutual TLS.
    MutualTls(TlsSource),
}

/// Gives the TLS configuration for one handshake: the newest one, so that certificates change without dropping anyone.
#[derive(Clone)]
pub struct TlsSource(Arc<dyn Fn() -> Arc<rustls::ServerConfig> + Send + Sync>);

impl TlsSource {
    /// Asks `current` at each handshake. It must name `h2` as the application protocol and demand client certificates.
    pub fn new(current: impl Fn() -> Arc<rustls::ServerConfig> + Send + Sync + 'static) -> Self {
        Self(Arc::new(current))
    }

    pub(super) fn current(&self) -> Arc<rustls::ServerConfig> {
        (self.0)()
    }
}

impl fmt::Debug for TlsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSource").finish_non_exhaustive()
    }
}

/// Limits and times of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Connections at a time, those that are still shaking hands included; further ones wait in the kernel's queue.
    pub max_connections: usize,
    /// Connections that are still shaking hands; for a further one the oldest of them is closed.
    pub max_handshakes: usize,
    /// For TLS and the start of HTTP/2 together.
    pub handshake_timeout: Duration,
    /// How often a client is pinged.
    pub keepalive_interval: Duration,
    /// How long a ping may stay unanswered: a client that vanished is noticed within the sum of both.
    pub keepalive_timeout: Duration,
    /// How long streams may take to end once the gateway stops; then they are cut.
    pub drain: Duration,
    /// Limits and times of subscriptions.
    pub subscribe: SubscribeOptions,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            // Four times the subscribers that are allowed: calls, probes, and clients that come back before they are missed.
            max_connections: 4_096,
            // As many agents as may subscribe can come at once; a handshake takes about a millisecond of a core.
            max_handshakes: 1_024,
            handshake_timeout: Duration::from_secs(5),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
            drain: Duration::from_secs(10),
            subscribe: SubscribeOptions::default(),
        }
    }
}

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener has no address.
    #[error("the listening socket is broken: {0}")]
    Listener(#[source] std::io::Error),
    /// Identities are not shown to a network without TLS.
    #[error("plaintext on {0}: only loopback addresses are served without TLS; listen on 127.0.0.1 or give TLS files")]
    PlaintextBeyondLoopback(SocketAddr),
    /// The descriptors that the build made cannot be read.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves until `stop`; then refuses new connections, tells every stream to end, waits for them up to `options.drain`, and
/// cuts what is left. Dropped before that, it cuts everything at once.
///
/// # Errors
/// What is wrong with the listener; nothing that a client does.
pub async fn serve(
    listener: TcpListener,
    security: Security,
    parts: Parts,
    options: ServerOptions,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let address = listener.local_addr().map_err(ServeError::Listener)?;
    if matches!(security, Security::Plaintext) && !address.ip().is_loopback() {
        return Err(ServeError::PlaintextBeyondLoopback(address));
    }
    let mut tasks = JoinSet::new();
    let (reporter, health) = tonic_health::server::health_reporter();
    health::not_yet(&reporter).await;
    tasks.spawn(health::follow(reporter, parts.readiness.changes(), stop.clone()));

    let reserved = Arc::new(ReservedIdentities::default());
    let authorizer = Arc::new(Authorizer::new(parts.access.clone(), parts.metrics.clone()));
    let metrics = parts.metrics.clone();
    let mesh = MeshServiceServer::new(Mesh {
        view: parts.view.clone(),
        status: parts.status.clone(),
        reserved: Arc::clone(&reserved),
        gateway: GatewayStatus::of(&parts),
        acknowledged: Acknowledged::new(parts.view.clone(), parts.metrics.clone(), options.subscribe.max_subscribers),
    });
    let subscriptions = Arc::new(Subscriptions::new(parts, reserved, options.subscribe, options.drain, stop.clone()));
    let looked_after = Arc::clone(&subscriptions);
    let until = stop.clone();
    tasks.spawn(async move {
        until.run_until_cancelled(looked_after.look_after()).await;
    });
    let mesh = WithSubscribe::new(mesh.max_decoding_message_size(MAX_REQUEST), subscriptions, MAX_REQUEST);
    let reflection = || {
        let descriptors = [pb::DESCRIPTORS, tonic_health::pb::FILE_DESCRIPTOR_SET];
        descriptors.into_iter().fold(tonic_reflection::server::Builder::configure(), |builder, set| {
            builder.register_encoded_file_descriptor_set(set)
        })
    };
    let routes = Routes::new(mesh)
        .add_service(health)
        .add_service(reflection().build_v1()?)
        // What grpcurl asked before 1.8.8.
        .add_service(reflection().build_v1alpha()?)
        .prepare();

    let requests = Requests::default();
    let shared = Shared {
        routes,
        security,
        authorizer,
        handshake_timeout: options.handshake_timeout,
        crowd: Crowd::new(options.max_handshakes),
        keepalive_interval: options.keepalive_interval,
        keepalive_timeout: options.keepalive_timeout,
        requests: requests.clone(),
        stop: stop.clone(),
    };
    // Requests live in tasks of their own, which must not outlive us however we end.
    let cut = requests.cut.clone().drop_guard();
    accept(listener, shared, options.max_connections, metrics, &mut tasks, &stop).await;
    drain(tasks, requests, options.drain).await;
    drop(cut);
    Ok(())
}

/// Accepts until `stop`. A connection counts from here to its end, so that nothing a client does before its first request
/// is free; but it shakes hands in its own task, so that nobody waits for another.
async fn accept(
    listener: TcpListener,
    shared: Shared,
    max_connections: usize,
    metrics: Metrics,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
    let log = Arc::new(LogLimiter::new(1, LOG_INTERVAL));
    loop {
        let accepted = async {
            if permits.available_permits() == 0
                && let Some(suppressed) = log.allow("full")
            {
                tracing::warn!(max_connections, suppressed, "as many connections as allowed; the next ones wait");
            }
            // The semaphore is never closed.
            let permit = Arc::clone(&permits).acquire_owned().await.ok()?;
            Some((listener.accept().await, permit))
        };
        tokio::select! {
            () = stop.cancelled() => return,
            Some(ended) = tasks.join_next() => note_panic(ended),
            Some((accepted, permit)) = accepted => match accepted {
                Ok((tcp, address)) => {
                    let connection = connection::serve(tcp, address, shared.clone());
                    tasks.spawn(run(connection, address, metrics.clone(), Arc::clone(&log), permit));
                }
                Err(error) => {
                    if let Some(suppressed) = log.allow("accept") {
                        tracing::warn!(%error, suppressed, "cannot accept a connection");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn run(
    connection: impl Future<Output = Result<(), HandshakeError>>,
    address: SocketAddr,
    metrics: Metrics,
    log: Arc<LogLimiter>,
    _permit: OwnedSemaphorePermit,
) {
    match connection.await {
        Ok(()) => {}
        Err(error) if error.is_mere_probe() => tracing::debug!(%address, %error, "a connection came to nothing"),
        Err(error) => {
            if let Some(reason) = error.refusal() {
                metrics.client_refused(reason);
            }
            if let Some(suppressed) = log.allow("handshake") {
                tracing::warn!(%address, %error, suppressed, "a connection came to nothing");
            }
        }
    }
}

/// Waits until every connection has ended, but not for ever.
async fn drain(mut tasks: JoinSet<()>, requests: Requests, deadline: Duration) {
    requests.tasks.close();
    let ended = async {
        while let Some(ended) = tasks.join_next().await {
            note_panic(ended);
        }
        requests.tasks.wait().await;
    };
    if timeout(deadline, ended).await.is_err() {
        let (connections, streams) = (tasks.len(), requests.tasks.len());
        tracing::warn!(connections, streams, ?deadline, "not ended within the deadline, cut off");
        requests.cut.cancel();
        tasks.shutdown().await;
        requests.tasks.wait().await;
    }
}

fn note_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        // The message and the place are on standard error already.
        tracing::error!("the task of a connection panicked; others are not affected");
    }
}
