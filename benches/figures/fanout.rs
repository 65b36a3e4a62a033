//! Many subscribers: what one costs that is idle, how long a change takes to the last of a thousand, and a hundred that join
//! at once beside one that joins alone.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::{Args, FromArgMatches};
use etcd_client::WatchOptions;
use meshgate::api::pb::subscribe_response::Frame;
use meshgate::api::{self, Parts, Security, ServerOptions, SubscribeOptions};
use meshgate::client::{ClientOptions, ClientSecurity, connect};
use meshgate::config::{Config, Environment, Flags};
use meshgate::devkit::fill::{Cluster, FillOptions, LabelMix, Presence, fill};
use meshgate::devkit::{CertSpec, EtcdOptions, EtcdServer, Pki};
use meshgate::gateway::Gateway;
use meshgate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters, NumericIdentity};
use meshgate::pb::SubscribeRequest;
use meshgate::telemetry::{Metrics, StatusBoard};
use meshgate::view::{ClusterBuilder, Interner, SourcePosition, View};
use prost::bytes::{Buf as _, Bytes};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::transport::Endpoint;

use crate::report::{Against, Report, Runs};

const IDLE: usize = 10_000;
const SUBSCRIBERS: u32 = 1_000;
const PER_SECOND: u64 = 50;
const CHANGES: usize = 1_000;
const JOINING: usize = 100;
const IDENTITIES: u32 = 65_000;
const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;
/// The first argument of the process that only serves.
pub const CHILD: &str = "--serve-idle";
const PATIENCE: Duration = Duration::from_secs(120);

pub async fn run(report: &mut Report) -> Result<(), Box<dyn Error>> {
    idle(report).await?;
    join(report).await?;
    fan_out(report).await
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
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let (status, stop) = (StatusBoard::default(), CancellationToken::new());
    let metrics = Metrics::new(status.clone());
    let ready = tokio::sync::watch::channel(true).1;
    let parts = Parts { cluster: ClusterName::new("a")?, view: view.clone(), status, metrics, ready };
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

/// A subscriber that is as cheap as can be: the bytes that open a stream, and then nothing.
async fn raw_subscriber(addr: SocketAddr) -> Result<TcpStream, Box<dyn Error>> {
    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }
    // HPACK literals without indexing, without Huffman coding.
    let part = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    let header = |name: &str, value: &str| [vec![0], part(name), part(value)].concat();
    let headers = [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", "/meshgate.v1.MeshService/Subscribe"),
        header(":authority", "gateway"),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
    ]
    .concat();
    let opening = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &headers),
        frame(0, 1, 1, &[0; 5]),
    ]
    .concat();
    let mut tcp = TcpStream::connect(addr).await?;
    tcp.write_all(&opening).await?;
    Ok(tcp)
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
    let path = http::uri::PathAndQuery::from_static("/meshgate.v1.MeshService/Subscribe");
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

/// When each revision was put, and when the last subscriber, and a raw watch, had it.
struct Log {
    base: i64,
    put: Vec<OnceLock<Instant>>,
    watch: Vec<OnceLock<Instant>>,
    received: Vec<AtomicU32>,
    last: Vec<OnceLock<Instant>>,
}

impl Log {
    fn new(base: i64, revisions: usize) -> Self {
        let times = || (0..revisions).map(|_| OnceLock::new()).collect();
        let received = (0..revisions).map(|_| AtomicU32::new(0)).collect();
        Self { base, put: times(), watch: times(), received, last: times() }
    }

    /// The revision's place; none for one that is not of the measurement.
    fn at(&self, revision: i64) -> Option<usize> {
        usize::try_from(revision - self.base).ok().filter(|at| *at < self.put.len())
    }

    /// A subscriber has everything from `from` (excluded) up to `to`.
    fn received(&self, from: i64, to: i64) {
        let now = Instant::now();
        for at in (from + 1..=to).filter_map(|revision| self.at(revision)) {
            if self.received[at].fetch_add(1, Ordering::Relaxed) + 1 == SUBSCRIBERS {
                let _ = self.last[at].set(now);
            }
        }
    }

    /// Milliseconds from the acknowledgement of a put on; 0 where the news was faster than it.
    fn since_put(&self, heard: &[OnceLock<Instant>]) -> Runs {
        let took = self
            .put
            .iter()
            .zip(heard)
            .filter_map(|(put, heard)| Some(heard.get()?.saturating_duration_since(*put.get()?)));
        Runs::new(took.map(|took| took.as_secs_f64() * 1e3).collect())
    }
}

async fn fan_out(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let pki = Pki::temporary()?;
    let own = EtcdServer::start(EtcdOptions::mtls("own", &pki)?.in_memory()).await?;
    let remote = EtcdServer::start(EtcdOptions::mtls("remote", &pki)?.in_memory()).await?;
    let cluster = Cluster::new("remote", 7);
    let presence = Presence::announce(remote.client(), cluster.clone()).await?;
    let mix = LabelMix::new("remote", 1);
    fill(&remote.client(), &cluster, &mix, &FillOptions { count: 1_000, ..FillOptions::default() }).await?;
    presence.complete().await?;
    let peers = pki.dir().join("peers");
    std::fs::create_dir_all(&peers)?;
    std::fs::write(peers.join("remote"), remote.config_yaml())?;
    let own_yaml = pki.dir().join("own.yaml");
    std::fs::write(&own_yaml, own.config_yaml())?;
    let (server, client) = (pki.issue(&CertSpec::server("gateway"))?, pki.issue(&CertSpec::client("bench"))?);
    let arguments = [
        ("--cluster-name", "own".to_owned()),
        ("--cluster-id", "1".to_owned()),
        ("--kvstore-opt", format!("etcd.config={}", own_yaml.display())),
        ("--clustermesh-config", peers.display().to_string()),
        ("--listen", "127.0.0.1:0".to_owned()),
        ("--http-listen", "127.0.0.1:0".to_owned()),
        ("--tls-cert", server.cert.display().to_string()),
        ("--tls-key", server.key.display().to_string()),
        ("--tls-client-ca", server.ca.display().to_string()),
    ]
    .map(|(flag, value)| format!("{flag}={value}"));
    let command = Flags::augment_args(clap::Command::new("run").no_binary_name(true));
    let flags = Flags::from_arg_matches(&command.try_get_matches_from(arguments)?)?;
    let mut gateway = Gateway::start(Config::load(flags, &Environment::default())?).await?;
    let options = ClientOptions {
        address: gateway.grpc_addr.to_string(),
        security: ClientSecurity::MutualTls { ca: client.ca, cert: client.cert, key: client.key, server_name: None },
    };

    // Subscribers on threads of their own, so that their cost can be told from the gateway's.
    let subscribers =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("subscriber").enable_all().build()?;
    let mut kv = remote.client().kv_client();
    let base = kv.put("meshgate-bench/begin", "", None).await?.header().ok_or("no header")?.revision() + 1;
    // Other keys of the store are written meanwhile: twice as many revisions are enough.
    let log = Arc::new(Log::new(base, 2 * CHANGES));
    let joined = Arc::new(AtomicU32::new(0));
    let mut reading = Vec::new();
    for _ in 0..SUBSCRIBERS {
        let (options, log, joined) = (options.clone(), Arc::clone(&log), Arc::clone(&joined));
        reading.push(subscribers.spawn(async move {
            let mut client = connect(&options).await.map_err(|error| error.to_string())?;
            let stream = client.subscribe(SubscribeRequest::default()).await.map_err(|error| error.to_string())?;
            let (mut stream, mut position) = (stream.into_inner(), 0);
            while let Ok(Some(message)) = stream.message().await {
                match message.frame {
                    Some(Frame::Synced(synced)) if synced.cluster == "remote" => {
                        position = synced.position.map_or(0, |position| position.revision);
                        joined.fetch_add(1, Ordering::Relaxed);
                    }
                    Some(Frame::Batch(batch)) if batch.cluster == "remote" => {
                        let now = batch.position.map_or(position, |position| position.revision);
                        log.received(position, now);
                        position = now;
                    }
                    _ => {}
                }
            }
            Ok::<_, String>(())
        }));
    }
    timeout(PATIENCE, async {
        while joined.load(Ordering::Relaxed) < SUBSCRIBERS {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await?;
    let (_requests, mut events) = {
        let mut watch = remote.client().watch_client();
        watch.watch(cluster.identity_prefix(), Some(WatchOptions::new().with_prefix())).await?.split()
    };
    let raw = tokio::spawn({
        let log = Arc::clone(&log);
        async move {
            while let Ok(Some(message)) = events.message().await {
                let now = Instant::now();
                for revision in message.events().iter().filter_map(|event| Some(event.kv()?.mod_revision())) {
                    log.at(revision).map(|at| log.watch[at].set(now));
                }
            }
        }
    });

    let (theirs, all) = (cpu_of_threads("subscriber")?, cpu_of_threads("")?);
    let start = Instant::now();
    let mut tick = interval(Duration::from_micros(1_000_000 / PER_SECOND));
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let first = *cluster.numbers().start();
    for n in 0..CHANGES {
        tick.tick().await;
        let label_set = mix.key_string(1_000 + n as u64);
        let put = kv.put(cluster.identity_key(first + (n % 1_000) as u32), label_set, None).await?;
        let revision = put.header().ok_or("no header")?.revision();
        log.at(revision).map(|at| log.put[at].set(Instant::now()));
    }
    let complete = || log.put.iter().zip(&log.last).all(|(put, last)| put.get().is_none() || last.get().is_some());
    timeout(PATIENCE, async {
        while !complete() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .map_err(|_| "a change did not reach everybody")?;
    let took = start.elapsed().as_secs_f64();
    let (theirs, all) = (cpu_of_threads("subscriber")? - theirs, cpu_of_threads("")? - all);
    raw.abort();
    reading.iter().for_each(tokio::task::JoinHandle::abort);
    subscribers.shutdown_background();
    gateway.shutdown();
    gateway.done().await?;
    let (watch, last) = (log.since_put(&log.watch), log.since_put(&log.last));
    for (name, q) in [("p50", 0.5), ("p99", 0.99)] {
        let against = Against { floor: Some(watch.quantile(q)), target: "to the last of 1,000; floor: a raw watch" };
        report.figure(
            &format!("fanout/1000x50_put_to_last_{name}"),
            &Runs::new(vec![last.quantile(q)]),
            "ms",
            &against,
        );
    }
    let against = |target| Against { floor: None, target };
    report.figure(
        "fanout/1000x50_cpu_subscribers",
        &Runs::new(vec![theirs / took]),
        "cores",
        &against("their own cost, TLS and decoding"),
    );
    report.figure(
        "fanout/1000x50_cpu_gateway",
        &Runs::new(vec![(all - theirs) / took]),
        "cores",
        &against("the gateway's, and the writer's"),
    );
    Ok(())
}

/// Seconds of processor time of our threads whose name begins so.
fn cpu_of_threads(name: &str) -> Result<f64, Box<dyn Error>> {
    let mut ticks = 0.0;
    for task in std::fs::read_dir("/proc/self/task")? {
        // A thread may end between two looks.
        let Ok(stat) = std::fs::read_to_string(task?.path().join("stat")) else { continue };
        let Some((head, tail)) = stat.rsplit_once(')') else { continue };
        if head.split_once('(').is_some_and(|(_, comm)| comm.starts_with(name)) {
            let fields: Vec<&str> = tail.split_whitespace().collect();
            // utime and stime: fields 14 and 15 of the whole line.
            ticks += fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        }
    }
    // Linux' USER_HZ, whatever the kernel's own rate.
    Ok(ticks / 100.0)
}
