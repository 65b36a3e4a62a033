//! From an etcd put's acknowledgement to the subscriber's receipt, beside a raw etcd watch in the same run.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::{Args, FromArgMatches};
use etcd_client::WatchOptions;
use meshgate::api::pb::SubscribeRequest;
use meshgate::client::{ClientOptions, ClientSecurity, Event, Subscription, Update};
use meshgate::config::{Config, Environment, Flags};
use meshgate::devkit::fill::{Cluster, FillOptions, LabelMix, Presence, fill};
use meshgate::devkit::{CertSpec, EtcdOptions, EtcdServer, Pki};
use meshgate::gateway::Gateway;
use tokio::time::{MissedTickBehavior, interval};

use crate::report::{Against, Report, Runs};

const PER_SECOND: u64 = 200;
const CHANGES: usize = 3_000;
const HELD: u32 = 10_000;

/// When a change, known by its label set, was acknowledged, and when each of the two heard of it.
#[derive(Default)]
struct Log(Mutex<HashMap<String, [Option<Instant>; 3]>>);

const PUT: usize = 0;
const WATCH: usize = 1;
const SUBSCRIBER: usize = 2;

impl Log {
    fn note(&self, label_set: String, who: usize) {
        let now = Instant::now();
        let mut log = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        log.entry(label_set).or_default()[who].get_or_insert(now);
    }

    fn complete(&self) -> bool {
        let log = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        log.len() >= CHANGES && log.values().all(|times| times.iter().all(Option::is_some))
    }

    /// Microseconds from the acknowledgement on; 0 where the news was faster than it.
    fn latencies(&self, who: usize) -> Runs {
        let log = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let since = |times: &[Option<Instant>; 3]| Some(times[who]?.saturating_duration_since(times[PUT]?));
        Runs::new(log.values().filter_map(since).map(|took| took.as_secs_f64() * 1e6).collect())
    }
}

pub async fn run(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let pki = Pki::temporary()?;
    let own = EtcdServer::start(EtcdOptions::mtls("own", &pki)?.in_memory()).await?;
    let remote = EtcdServer::start(EtcdOptions::mtls("remote", &pki)?.in_memory()).await?;
    let cluster = Cluster::new("remote", 7);
    let presence = Presence::announce(remote.client(), cluster.clone()).await?;
    let mix = LabelMix::new("remote", 1);
    fill(&remote.client(), &cluster, &mix, &FillOptions { count: HELD, ..FillOptions::default() }).await?;
    presence.complete().await?;

    let peers = pki.dir().join("peers");
    std::fs::create_dir_all(&peers)?;
    std::fs::write(peers.join("remote"), remote.config_yaml())?;
    let own_yaml = pki.dir().join("own.yaml");
    std::fs::write(&own_yaml, own.config_yaml())?;
    let server = pki.issue(&CertSpec::server("gateway"))?;
    let client = pki.issue(&CertSpec::client("bench"))?;
    let own_yaml = format!("etcd.config={}", own_yaml.display());
    let arguments = [
        ("--cluster-name", "own"),
        ("--cluster-id", "1"),
        ("--kvstore-opt", &own_yaml),
        ("--clustermesh-config", &peers.display().to_string()),
        ("--listen", "127.0.0.1:0"),
        ("--http-listen", "127.0.0.1:0"),
        ("--tls-cert", &server.cert.display().to_string()),
        ("--tls-key", &server.key.display().to_string()),
        ("--tls-client-ca", &server.ca.display().to_string()),
    ]
    .map(|(flag, value)| format!("{flag}={value}"));
    let command = Flags::augment_args(clap::Command::new("run").no_binary_name(true));
    let flags = Flags::from_arg_matches(&command.try_get_matches_from(arguments)?)?;
    let mut gateway = Gateway::start(Config::load(flags, &Environment::default())?).await?;
    let options = ClientOptions {
        address: gateway.grpc_addr.to_string(),
        security: ClientSecurity::MutualTls { ca: client.ca, cert: client.cert, key: client.key, server_name: None },
    };
    let mut subscription = Subscription::open(options, SubscribeRequest::default()).await?;
    while subscription.mesh().get("remote").is_none_or(|cluster| cluster.identities.len() < HELD as usize) {
        subscription.next().await;
    }

    let log = Arc::new(Log::default());
    let prefix = cluster.identity_prefix();
    let (_requests, mut events) = {
        let mut watch = remote.client().watch_client();
        watch.watch(prefix, Some(WatchOptions::new().with_prefix())).await?.split()
    };
    let raw = tokio::spawn({
        let log = Arc::clone(&log);
        async move {
            while let Ok(Some(message)) = events.message().await {
                for kv in message.events().iter().filter_map(etcd_client::Event::kv) {
                    log.note(String::from_utf8_lossy(kv.value()).into_owned(), WATCH);
                }
            }
        }
    });
    let subscriber = tokio::spawn({
        let log = Arc::clone(&log);
        async move {
            loop {
                if let Event::Update(Update::Changed { changes, .. }) = subscription.next().await {
                    for change in changes {
                        if let Some(entry) = change.after {
                            log.note(entry.key_string(), SUBSCRIBER);
                        }
                    }
                }
            }
        }
    });

    let mut kv = remote.client().kv_client();
    let mut tick = interval(Duration::from_micros(1_000_000 / PER_SECOND));
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let first = *cluster.numbers().start();
    for n in 0..CHANGES {
        tick.tick().await;
        let label_set = mix.key_string(u64::from(HELD) + n as u64);
        kv.put(cluster.identity_key(first + (n % 5_000) as u32), label_set.clone(), None).await?;
        log.note(label_set, PUT);
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while !log.complete() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    raw.abort();
    subscriber.abort();
    gateway.shutdown();
    gateway.done().await?;
    if !log.complete() {
        return Err("a change was not heard of".into());
    }
    let (watch, ours) = (log.latencies(WATCH), log.latencies(SUBSCRIBER));
    for (name, q) in [("latency/put_to_subscriber_p50", 0.5), ("latency/put_to_subscriber_p99", 0.99)] {
        let against = Against { floor: Some(watch.quantile(q)), target: "beside a raw watch" };
        report.figure(name, &Runs::new(vec![ours.quantile(q)]), "µs", &against);
    }
    Ok(())
}
