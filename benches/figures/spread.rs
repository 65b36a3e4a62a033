//! How long a change takes from an etcd put to the last of a thousand subscribers, beside a raw watch in the same run.

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::{Args, FromArgMatches};
use etcd_client::WatchOptions;
use meshgate::api::pb::subscribe_response::Frame;
use meshgate::client::{ClientOptions, ClientSecurity, connect};
use meshgate::config::{Config, Environment, Flags};
use meshgate::devkit::fill::{Cluster, FillOptions, LabelMix, Presence, fill};
use meshgate::devkit::{CertSpec, EtcdOptions, EtcdServer, Pki};
use meshgate::gateway::{Gateway, Running};
use meshgate::pb::SubscribeRequest;
use tokio::runtime::Runtime;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::report::{Against, Report, Runs};

const SUBSCRIBERS: u32 = 1_000;
const PER_SECOND: u64 = 50;
const CHANGES: usize = 1_000;
const PATIENCE: Duration = Duration::from_mins(2);
/// How the subscribers' threads begin.
const THREADS: &str = "subscriber";

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

    /// Whether what was put has reached everybody.
    fn is_complete(&self) -> bool {
        self.put.iter().zip(&self.last).all(|(put, last)| put.get().is_none() || last.get().is_some())
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

/// A gateway of an empty cluster with one peer, and how its clients reach it.
async fn gateway(pki: &Pki, own: &EtcdServer, remote: &EtcdServer) -> Result<(Running, ClientOptions), Box<dyn Error>> {
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
        // All of them are at one address, with one certificate.
        ("--max-subscriptions-per-client", (2 * SUBSCRIBERS).to_string()),
    ]
    .map(|(flag, value)| format!("{flag}={value}"));
    let command = Flags::augment_args(clap::Command::new("run").no_binary_name(true));
    let flags = Flags::from_arg_matches(&command.try_get_matches_from(arguments)?)?;
    let gateway = Gateway::start(Config::load(flags, &Environment::default())?).await?;
    let options = ClientOptions {
        address: gateway.grpc_addr.to_string(),
        security: ClientSecurity::MutualTls { ca: client.ca, cert: client.cert, key: client.key, server_name: None },
    };
    Ok((gateway, options))
}

/// Follows one stream; counts in `joined` once everything is there.
async fn subscriber(
    options: ClientOptions,
    log: Arc<Log>,
    joined: Arc<AtomicU32>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut client = connect(&options).await?;
    let (mut stream, mut position) = (client.subscribe(SubscribeRequest::default()).await?.into_inner(), 0);
    while let Some(message) = stream.message().await? {
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
    Ok(())
}

/// Opens the subscribers, on threads of their own, so that their cost can be told from the gateway's.
async fn subscribers(options: &ClientOptions, log: &Arc<Log>) -> Result<Runtime, Box<dyn Error>> {
    let threads =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name(THREADS).enable_all().build()?;
    let joined = Arc::new(AtomicU32::new(0));
    for _ in 0..SUBSCRIBERS {
        threads.spawn(subscriber(options.clone(), Arc::clone(log), Arc::clone(&joined)));
    }
    let all = async {
        while joined.load(Ordering::Relaxed) < SUBSCRIBERS {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if timeout(PATIENCE, all).await.is_err() {
        threads.shutdown_background();
        return Err(format!("{} subscribers came", joined.load(Ordering::Relaxed)).into());
    }
    Ok(threads)
}

pub async fn run(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let pki = Pki::temporary()?;
    let own = EtcdServer::start(EtcdOptions::mtls("own", &pki)?.in_memory()).await?;
    let remote = EtcdServer::start(EtcdOptions::mtls("remote", &pki)?.in_memory()).await?;
    let cluster = Cluster::new("remote", 7);
    let presence = Presence::announce(remote.client(), cluster.clone()).await?;
    let mix = LabelMix::new("remote", 1);
    fill(&remote.client(), &cluster, &mix, &FillOptions { count: 1_000, ..FillOptions::default() }).await?;
    presence.complete().await?;
    let (mut gateway, options) = gateway(&pki, &own, &remote).await?;
    let mut kv = remote.client().kv_client();
    let begin = kv.put("meshgate-bench/begin", "", None).await?;
    // Other keys of the store are written meanwhile: twice as many revisions are enough.
    let log = Arc::new(Log::new(begin.header().ok_or("no header")?.revision() + 1, 2 * CHANGES));
    let threads = subscribers(&options, &log).await?;
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

    let (theirs, all) = (cpu_of_threads(THREADS)?, cpu_of_threads("")?);
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
    let everybody = async {
        while !log.is_complete() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, everybody).await.map_err(|_| "a change did not reach everybody")?;
    let took = start.elapsed().as_secs_f64();
    let (theirs, all) = (cpu_of_threads(THREADS)? - theirs, cpu_of_threads("")? - all);
    raw.abort();
    threads.shutdown_background();
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
    for (name, cores, target) in [
        ("fanout/1000x50_cpu_subscribers", theirs / took, "their own cost, TLS and decoding"),
        ("fanout/1000x50_cpu_gateway", (all - theirs) / took, "the gateway's, and the writer's"),
    ] {
        report.figure(name, &Runs::new(vec![cores]), "cores", &Against { floor: None, target });
    }
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
