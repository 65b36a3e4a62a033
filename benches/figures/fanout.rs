//! Many subscribers: what one costs that is idle, and a hundred that join at once beside one that joins alone.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use meshgate::access::Access;
use meshgate::api::{self, Parts, Security, ServerOptions, SubscribeOptions};
use meshgate::devkit::fill::LabelMix;
use meshgate::devkit::raw_subscriber;
use meshgate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters, NumericIdentity};
use meshgate::pb::SubscribeRequest;
use meshgate::telemetry::{Metrics, Readiness, StatusBoard, http};
use meshgate::view::{ClusterBuilder, Interner, SourcePosition, View};
use prost::bytes::{Buf as _, Bytes};
use tokio_util::sync::CancellationToken;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::transport::Endpoint;

use crate::report::{Against, Report, Runs};

const IDLE: usize = 10_000;
const JOINING: usize = 100;
const IDENTITIES: u32 = 65_000;
const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;
/// The first argument of the process that only serves.
pub const CHILD: &str = "--serve-idle";

pub async fn run(report: &mut Report) -> Result<(), Box<dyn Error>> {
    idle(report).await?;
    join(report).await
}

fn cluster(name: &str, id: u32, identities: u32) -> Result<ClusterBuilder, Box<dyn Error>> {
    let id = ClusterId::new(id, WIDTH)?;
    let range = IdentityRange::of(id, WIDTH);
    let mut builder = ClusterBuilder::new(Interner::new(), ClusterName::new(name)?, id, range);
    let mix = LabelMix::new(name, 1);
    for n in 0..identities {
        builder.upsert(NumericIdentity::new(range.min() + n), &mix.key_string(u64::from(n)), 1)?;
    }
    builder.set_synced(SourcePosition { etcd_cluster_id: 1, revision: 1 });
    Ok(builder)
}

/// A server on a view, without limits that matter here.
async fn serve(view: &View) -> Result<(SocketAddr, CancellationToken), Box<dyn Error>> {
    let listener = http::listen("127.0.0.1:0".parse()?).await?;
    let addr = listener.local_addr()?;
    let (status, stop) = (StatusBoard::default(), CancellationToken::new());
    let metrics = Metrics::new(status.clone());
    let parts = Parts {
        cluster: ClusterName::new("a")?,
        view: view.clone(),
        status,
        metrics,
        readiness: Readiness::default(),
        access: Access::default(),
    };
    let options = ServerOptions {
        max_connections: 2 * IDLE,
        // The clients of the idle figure are bytes on a socket, and answer no ping.
        keepalive_interval: Duration::from_hours(1),
        subscribe: SubscribeOptions { max_subscribers: 2 * IDLE, ..SubscribeOptions::default() },
        ..ServerOptions::default()
    };
    tokio::spawn(api::serve(listener, Security::Plaintext, parts, options, stop.clone()));
    Ok((addr, stop))
}

/// The process that only serves: says where, and ends with its standard input.
pub async fn child() -> Result<(), Box<dyn Error>> {
    let view = View::new(WIDTH, ClusterId::new(1, WIDTH)?);
    for (name, id) in [("a", 1), ("b", 2), ("c", 3)] {
        view.publish(cluster(name, id, 20)?.build());
    }
    let (addr, _stop) = serve(&view).await?;
    println!("{addr}");
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    Ok(())
}

async fn idle(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?);
    let mut child = child.arg(CHILD).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    let addr: SocketAddr = line.trim().parse()?;
    let before = resident(&child)?;
    let start = Instant::now();
    let mut clients = Vec::new();
    for _ in 0..IDLE {
        clients.push(raw_subscriber(addr).await?);
    }
    let opened = start.elapsed();
    // Everybody has everything once nothing grows any more.
    let (mut last, mut still) = (resident(&child)?, 0);
    while still < 10 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = resident(&child)?;
        still = if now > last { 0 } else { still + 1 };
        last = now;
    }
    let grown = last - before;
    drop(child.stdin.take());
    child.wait()?;
    drop(clients);
    let against = |target| Against { floor: None, target };
    let megabytes = Runs::new(vec![grown / 1e6]);
    report.figure(
        "fanout/10000_idle_subscriptions_resident",
        &megabytes,
        "MB",
        &against("< 500 MB, each its own connection"),
    );
    let seconds = Runs::new(vec![opened.as_secs_f64()]);
    report.figure("fanout/10000_subscriptions_opened", &seconds, "s", &against("by one client, one after the other"));
    Ok(())
}

fn resident(child: &Child) -> Result<f64, Box<dyn Error>> {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", child.id()))?;
    let pages: f64 = statm.split_whitespace().nth(1).ok_or("no statm")?.parse()?;
    Ok(pages * 4096.0)
}

/// Takes messages as bytes, so that the figure is the server's.
#[derive(Clone, Default)]
struct Undecoded;

impl Codec for Undecoded {
    type Encode = SubscribeRequest;
    type Decode = Bytes;
    type Encoder = tonic_prost::ProstEncoder<SubscribeRequest>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        tonic_prost::ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Decoder for Undecoded {
    type Item = Bytes;
    type Error = tonic::Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, tonic::Status> {
        Ok(Some(buf.copy_to_bytes(buf.remaining())))
    }
}

/// First byte of a message that holds `AllSynced`: field 5, length-delimited.
const ALL_SYNCED: u8 = (5 << 3) | 2;

/// From the call until everything is there; how many bytes that were.
async fn joined(addr: SocketAddr) -> Result<(Duration, usize), tonic::Status> {
    let unavailable = |error: tonic::transport::Error| tonic::Status::unavailable(error.to_string());
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).map_err(unavailable)?;
    let mut grpc = tonic::client::Grpc::new(endpoint.connect().await.map_err(unavailable)?);
    grpc.ready().await.map_err(unavailable)?;
    let (start, mut bytes) = (Instant::now(), 0);
    let path = ::http::uri::PathAndQuery::from_static("/meshgate.v1.MeshService/Subscribe");
    let request = tonic::Request::new(SubscribeRequest::default());
    let mut frames = grpc.server_streaming(request, path, Undecoded).await?.into_inner();
    while let Some(frame) = frames.message().await? {
        bytes += frame.len();
        if frame.first() == Some(&ALL_SYNCED) {
            break;
        }
    }
    Ok((start.elapsed(), bytes))
}

async fn join(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let view = View::new(WIDTH, ClusterId::new(1, WIDTH)?);
    view.publish(cluster("a", 1, IDENTITIES)?.build());
    let (addr, stop) = serve(&view).await?;
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    // In turn, so that what else the machine does meets both.
    for _ in 0..5 {
        alone.push(joined(addr).await?.0.as_secs_f64() * 1e3);
        let start = Instant::now();
        let joining: Vec<_> = (0..JOINING).map(|_| tokio::spawn(joined(addr))).collect();
        for joined in joining {
            joined.await??;
        }
        together.push(start.elapsed().as_secs_f64() * 1e3);
    }
    stop.cancel();
    let alone = Runs::new(alone);
    let floor = Some(alone.median());
    report.figure("fanout/1_joins_65000", &alone, "ms", &Against { floor: None, target: "plain text, undecoded" });
    let against = Against { floor, target: "100 × one is no sharing at all" };
    report.figure("fanout/100_join_at_once_65000", &Runs::new(together), "ms", &against);
    Ok(())
}
