//! What a fault costs: bytes read from a peer after a cut, and what a hung and a flapping peer do to the others.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, FromArgMatches};
use meshgate::api::pb::SubscribeRequest;
use meshgate::client::{ClientOptions, ClientSecurity, Event, Subscription, Update};
use meshgate::config::{Config, Environment, Flags};
use meshgate::devkit::fill::{Cluster, Contents, FillOptions, LabelMix, Presence, fill};
use meshgate::devkit::{EtcdOptions, EtcdServer, Pki};
use meshgate::gateway::{Gateway, Running};
use meshgate::telemetry::{ClusterState, ClusterStatus};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::proxy::{Direction, Proxy};
use crate::report::{Against, Report, Runs};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Identities of the peer that is cut off, and changes meanwhile.
const HELD: u32 = 65_000;
const CHANGES: usize = 10;

/// Changes a second, and in one phase, at the peer that is measured.
const PER_SECOND: u64 = 200;
const PUTS: usize = 2_000;
/// Identities of each of the others.
const FEW: u32 = 5_000;

struct Peer {
    etcd: EtcdServer,
    cluster: Cluster,
    contents: Contents,
    proxy: Arc<Proxy>,
    _presence: Presence,
}

impl Peer {
    async fn start(pki: &Pki, name: &str, id: u32, count: u32) -> Result<Self> {
        let etcd = Box::pin(EtcdServer::start(EtcdOptions::mtls(name, pki)?.in_memory())).await?;
        let cluster = Cluster::new(name, id);
        let presence = Box::pin(Presence::announce(etcd.client(), cluster.clone())).await?;
        let mix = LabelMix::new(name, u64::from(id));
        let options = FillOptions { count, ..FillOptions::default() };
        let contents = Box::pin(fill(&etcd.client(), &cluster, &mix, &options)).await?;
        presence.complete().await?;
        let proxy = Arc::new(Proxy::to(etcd.port()).await);
        Ok(Self { etcd, cluster, contents, proxy, _presence: presence })
    }

    fn write(&self, folder: &Path) -> std::io::Result<()> {
        let yaml =
            self.etcd.config_yaml().replace(&format!(":{}", self.etcd.port()), &format!(":{}", self.proxy.port()));
        std::fs::write(folder.join(&self.cluster.name), yaml)
    }

    fn status(&self, gateway: &Running) -> ClusterStatus {
        gateway.status.snapshot().remove(&self.cluster.name).unwrap_or_default()
    }

    async fn until(&self, gateway: &Running, condition: impl Fn(&ClusterStatus) -> bool) -> Result<()> {
        let deadline = Instant::now() + Duration::from_mins(3);
        while !condition(&self.status(gateway)) {
            if Instant::now() > deadline {
                return Err(format!("{}: {:#?}", self.cluster.name, self.status(gateway)).into());
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

async fn gateway(pki: &Pki, folder: &Path) -> Result<(Running, EtcdServer)> {
    let own = EtcdServer::start(EtcdOptions::mtls("own", pki)?.in_memory()).await?;
    let yaml = pki.dir().join("own.yaml");
    std::fs::write(&yaml, own.config_yaml())?;
    let own_yaml = format!("etcd.config={}", yaml.display());
    let mut arguments: Vec<String> = [
        ("--cluster-name", "own"),
        ("--cluster-id", "1"),
        ("--kvstore-opt", &own_yaml),
        ("--clustermesh-config", &folder.display().to_string()),
        ("--listen", "127.0.0.1:0"),
        ("--http-listen", "127.0.0.1:0"),
    ]
    .map(|(flag, value)| format!("{flag}={value}"))
    .into();
    arguments.push("--plaintext".to_owned());
    let command = Flags::augment_args(clap::Command::new("run").no_binary_name(true));
    let flags = Flags::from_arg_matches(&command.try_get_matches_from(arguments)?)?;
    Ok((Gateway::start(Config::load(flags, &Environment::default())?).await?, own))
}

pub async fn run(report: &mut Report) -> Result<()> {
    Box::pin(after_a_cut(report)).await?;
    Box::pin(beside_bad_peers(report)).await
}

/// A cut of a minute (`MESHGATE_CUT`), ten changes, against the list that the gateway began with.
async fn after_a_cut(report: &mut Report) -> Result<()> {
    let cut =
        std::env::var("MESHGATE_CUT").map_or(Ok(Duration::from_mins(1)), |text| humantime::parse_duration(&text))?;
    let pki = Pki::temporary()?;
    let peer = Peer::start(&pki, "remote", 7, HELD).await?;
    let folder = pki.dir().join("peers");
    std::fs::create_dir_all(&folder)?;
    peer.write(&folder)?;
    let (mut gateway, _own) = gateway(&pki, &folder).await?;
    let read = || peer.proxy.bytes(Direction::ToClient);
    peer.until(&gateway, |status| status.state == ClusterState::Synced).await?;
    let list = read();

    peer.proxy.cut_off();
    let mut kv = peer.etcd.client().kv_client();
    for (n, number) in peer.contents.keys().take(CHANGES).enumerate() {
        sleep(cut / CHANGES as u32).await;
        let key = peer.cluster.identity_key(*number);
        if n % 2 == 0 {
            kv.delete(key, None).await?;
        } else {
            let label_set = LabelMix::new("remote", 7).key_string(u64::from(HELD) + n as u64);
            kv.put(key, label_set, None).await?;
        }
    }
    let before = read();
    let restored = (Instant::now(), SystemTime::now());
    peer.proxy.restore();
    let left = u64::from(HELD) - CHANGES.div_ceil(2) as u64;
    // The audit of the resumed watch is part of it.
    peer.until(&gateway, |status| {
        status.state == ClusterState::Synced
            && status.identities == left
            && status.last_audit.is_some_and(|audit| audit > restored.1)
    })
    .await?;
    let (again, took) = (read() - before, restored.0.elapsed());
    let against = Against { floor: Some(list as f64), target: "a fraction of the list" };
    report.figure("faults/bytes_after_cut", &Runs::new(vec![again as f64]), "B", &against);
    let none = Against { floor: None, target: "backoff and one round trip" };
    report.figure("faults/agreement_after_cut", &Runs::new(vec![took.as_secs_f64() * 1e3]), "ms", &none);
    gateway.shutdown();
    gateway.done().await?;
    Ok(())
}

/// When each label set was sent, and how long it took to the subscriber.
#[derive(Default)]
struct Times {
    sent: HashMap<String, Instant>,
    took: Vec<f64>,
}

fn lock(times: &Mutex<Times>) -> std::sync::MutexGuard<'_, Times> {
    times.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn beside_bad_peers(report: &mut Report) -> Result<()> {
    let pki = Pki::temporary()?;
    let healthy = Peer::start(&pki, "healthy", 2, FEW).await?;
    let hung = Peer::start(&pki, "hung", 3, FEW).await?;
    let flapping = Peer::start(&pki, "flapping", 4, FEW).await?;
    let folder = pki.dir().join("peers");
    std::fs::create_dir_all(&folder)?;
    for peer in [&healthy, &hung, &flapping] {
        peer.write(&folder)?;
    }
    let (mut gateway, _own) = gateway(&pki, &folder).await?;
    let options = ClientOptions { address: gateway.grpc_addr.to_string(), security: ClientSecurity::Plaintext };
    let request = SubscribeRequest { clusters: vec!["healthy".to_owned()], ..SubscribeRequest::default() };
    let mut subscription = Subscription::open(options, request).await?;
    while subscription.mesh().get("healthy").is_none_or(|cluster| cluster.identities.len() < FEW as usize) {
        subscription.next().await;
    }
    for peer in [&healthy, &hung, &flapping] {
        peer.until(&gateway, |status| status.state == ClusterState::Synced).await?;
    }
    let times = Arc::new(Mutex::new(Times::default()));
    let noting = Arc::clone(&times);
    let _subscriber = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            if let Event::Update(Update::Changed { changes, .. }) = subscription.next().await {
                let now = Instant::now();
                let mut times = lock(&noting);
                for entry in changes.into_iter().filter_map(|change| change.after) {
                    if let Some(sent) = times.sent.remove(&entry.key_string()) {
                        times.took.push((now - sent).as_secs_f64() * 1e6);
                    }
                }
            }
        }
    }));

    let mut phases: [Vec<f64>; 2] = Default::default();
    // In turn, so that what the machine does otherwise hits both.
    for turn in 0..4 {
        let bad = turn % 2 == 1;
        let flaps = bad.then(|| {
            hung.proxy.stall(Direction::ToServer);
            hung.proxy.stall(Direction::ToClient);
            let cuts = Arc::clone(&flapping.proxy);
            AbortOnDropHandle::new(tokio::spawn(async move {
                let mut tick = interval(Duration::from_millis(300));
                loop {
                    tick.tick().await;
                    cuts.cut();
                }
            }))
        });
        phases[usize::from(bad)].extend(phase(&healthy, turn, &times).await?);
        drop(flaps);
        hung.proxy.flow();
        for peer in [&hung, &flapping] {
            peer.until(&gateway, |status| status.state == ClusterState::Synced).await?;
        }
    }
    if healthy.status(&gateway).failures > 0 {
        return Err("the healthy peer failed".into());
    }
    gateway.shutdown();
    gateway.done().await?;
    let [without, with] = phases.map(Runs::new);
    for (name, q) in [("faults/others_put_to_subscriber_p50", 0.5), ("faults/others_put_to_subscriber_p99", 0.99)] {
        let against = Against { floor: Some(without.quantile(q)), target: "as without a hung and a flapping peer" };
        report.figure(name, &Runs::new(vec![with.quantile(q)]), "µs", &against);
    }
    Ok(())
}

/// Microseconds from each put to the subscriber.
async fn phase(peer: &Peer, turn: usize, times: &Mutex<Times>) -> Result<Vec<f64>> {
    let mix = LabelMix::new("healthy", 1_000 + turn as u64);
    let mut kv = peer.etcd.client().kv_client();
    let mut tick = interval(Duration::from_micros(1_000_000 / PER_SECOND));
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for (n, number) in (0..PUTS).zip(peer.contents.keys().cycle()) {
        tick.tick().await;
        let label_set = mix.key_string(n as u64);
        lock(times).sent.insert(label_set.clone(), Instant::now());
        kv.put(peer.cluster.identity_key(*number), label_set, None).await?;
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while !lock(times).sent.is_empty() {
        if Instant::now() > deadline {
            return Err("a change was not heard of".into());
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(std::mem::take(&mut lock(times).took))
}
