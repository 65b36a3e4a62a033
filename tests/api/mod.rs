//! The gRPC API over real connections: a server in this process on a view that the test writes itself, no etcd.

mod access;
mod acknowledge;
mod commands;
mod connections;
mod health;
mod limits;
mod lookups;
mod resume;
mod shutdown;
mod slow;
mod streams;
mod verify;

use std::net::SocketAddr;
use std::time::Duration;

use meshgate::access::Access;
use meshgate::api::pb::mesh_service_client::MeshServiceClient;
use meshgate::api::pb::subscribe_response::Frame;
use meshgate::api::{self, FrameLimits, Parts, Security, ServeError, ServerOptions, SubscribeOptions, pb};
use meshgate::client::{Fold, MeshClient};
use meshgate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters, NumericIdentity};
use meshgate::telemetry::{Metrics, Readiness, StatusBoard};
use meshgate::view::{ClusterBuilder, Interner, SourcePosition, View};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

/// Longer than anything here takes on a busy machine, shorter than anybody's patience.
const SOON: Duration = Duration::from_secs(20);

const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;

/// A server and what it reads.
struct Server {
    addr: SocketAddr,
    view: View,
    status: StatusBoard,
    metrics: Metrics,
    readiness: Readiness,
    stop: CancellationToken,
    done: JoinHandle<Result<(), ServeError>>,
}

impl Server {
    async fn start() -> Self {
        Self::start_with(Security::Plaintext, ServerOptions::default()).await
    }

    async fn start_with(security: Security, options: ServerOptions) -> Self {
        Self::start_for(Access::default(), security, options).await
    }

    async fn start_for(access: Access, security: Security, options: ServerOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (view, status, stop) = (View::new(WIDTH, id(1)), StatusBoard::default(), CancellationToken::new());
        let metrics = Metrics::new(status.clone());
        let readiness = Readiness::default();
        let parts = Parts {
            cluster: ClusterName::new("a").unwrap(),
            view: view.clone(),
            status: status.clone(),
            metrics: metrics.clone(),
            readiness: readiness.clone(),
            access,
        };
        let done = tokio::spawn(api::serve(listener, security, parts, options, stop.clone()));
        Self { addr, view, status, metrics, readiness, stop, done }
    }

    /// A channel with the least window that HTTP/2 has, so that little is on its way to a client that does not read.
    async fn client(&self) -> MeshClient {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.addr)).unwrap();
        let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
        MeshServiceClient::new(timeout(SOON, endpoint.connect()).await.unwrap().unwrap())
    }

    async fn subscribe(&self, request: pb::SubscribeRequest) -> Frames {
        let numbers_only = request.numbers_only;
        let stream = self.client().await.subscribe(request).await.unwrap().into_inner();
        Frames { stream, fold: Fold::new(numbers_only) }
    }

    /// Subscribes and reads until everything is synced.
    async fn synced(&self, request: pb::SubscribeRequest) -> Frames {
        let mut frames = self.subscribe(request).await;
        frames.until("all synced", |frame| matches!(frame, Frame::AllSynced(_))).await;
        frames
    }

    /// One sample of a scrape: a count.
    fn sample(&self, name: &str) -> u64 {
        let scrape = self.metrics.scrape();
        let line = scrape.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    /// Tells it to stop, and waits for its end.
    async fn end(self) {
        self.stop.cancel();
        timeout(SOON, self.done).await.unwrap().unwrap().unwrap();
    }
}

/// A stream, its frames folded.
struct Frames {
    stream: Streaming<pb::SubscribeResponse>,
    fold: Fold,
}

impl Frames {
    async fn try_next(&mut self) -> Result<Frame, Status> {
        let message = timeout(SOON, self.stream.message()).await.expect("a frame, or the end, in time")?;
        let frame = message.expect("a stream never ends with OK").frame.unwrap();
        self.fold.apply(frame.clone()).unwrap();
        Ok(frame)
    }

    async fn next(&mut self) -> Frame {
        self.try_next().await.unwrap()
    }

    /// All frames up to the one that satisfies `last`, which included.
    async fn until(&mut self, what: &str, last: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let mut frames = Vec::new();
        let reading = async {
            loop {
                let frame = self.next().await;
                let done = last(&frame);
                frames.push(frame);
                if done {
                    break;
                }
            }
        };
        timeout(SOON, reading).await.unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"));
        frames
    }

    /// Reads until the subscriber holds exactly the view.
    async fn until_equal(&mut self, view: &View) -> Vec<Frame> {
        let mut frames = Vec::new();
        while !self.holds(view) {
            frames.push(self.next().await);
        }
        frames
    }

    fn holds(&self, view: &View) -> bool {
        let mesh = view.load();
        let complete: Vec<_> = mesh.clusters().filter(|cluster| cluster.is_synced()).collect();
        let held = self.fold.mesh();
        held.len() == complete.len()
            && complete.iter().all(|cluster| {
                held.get(cluster.name().as_str())
                    .is_some_and(|held| held.identities.len() == cluster.len() && held.checksum() == cluster.checksum())
            })
    }
}

fn id(id: u32) -> ClusterId {
    ClusterId::new(id, WIDTH).unwrap()
}

fn builder(name: &str, cluster: u32) -> ClusterBuilder {
    let range = IdentityRange::of(id(cluster), WIDTH);
    ClusterBuilder::new(Interner::new(), ClusterName::new(name).unwrap(), id(cluster), range)
}

fn number(builder: &ClusterBuilder, offset: u32) -> NumericIdentity {
    NumericIdentity::new(builder.current().range().min() + offset)
}

fn put(builder: &mut ClusterBuilder, offset: u32, key_string: &str) {
    builder.upsert(number(builder, offset), key_string, 1).unwrap();
}

/// `count` identities of about `bytes` bytes each.
fn fill(builder: &mut ClusterBuilder, count: u32, bytes: usize) {
    for offset in 0..count {
        put(builder, offset, &format!("k8s:app=app-{offset};k8s:padding={:x<bytes$};", ""));
    }
}

fn sync(builder: &mut ClusterBuilder) {
    builder.set_synced(SourcePosition { etcd_cluster_id: 1, revision: 7 });
}

/// A complete cluster, published.
fn publish(server: &Server, name: &str, cluster: u32, count: u32) -> ClusterBuilder {
    let mut builder = builder(name, cluster);
    fill(&mut builder, count, 16);
    sync(&mut builder);
    server.view.publish(builder.build());
    builder
}

/// Short enough for tests that wait for it.
fn quick_drain(drain: Duration) -> ServerOptions {
    ServerOptions { drain, ..ServerOptions::default() }
}

fn limited(limits: FrameLimits) -> ServerOptions {
    ServerOptions { subscribe: SubscribeOptions { limits, ..SubscribeOptions::default() }, ..ServerOptions::default() }
}
