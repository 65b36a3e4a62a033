//! `meshgate demo`: three clusters, their etcds, and a gateway of the first on this machine, with everything real but the
//! workloads.

mod proof;
mod screen;
mod stores;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use clap::{Args as _, FromArgMatches};
use futures_util::future::try_join_all;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::proof::Picture;
use self::screen::{Row, Screen};
use self::stores::{Scale, Store};
use super::{FAILURE, block_on, fail};
use crate::api::pb::SubscribeRequest;
use crate::client::{ClientOptions, ClientSecurity, Subscription};
use crate::config::{Config, Environment, Flags};
use crate::devkit::fill::Contents;
use crate::devkit::{CertSpec, Pki};
use crate::gateway::{Gateway, Running};

/// How long the last changes may take to arrive before an unattended demo has failed.
const AGREEMENT: Duration = Duration::from_secs(20);
/// For the streams to end.
const GRACE: Duration = Duration::from_secs(10);

/// Starts three clusters with real etcds and mTLS, runs the gateway of the first, and shows the mesh live. Ctrl-C leaves
/// nothing behind.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// End after this time, and fail unless a subscriber's map equals what is valid in the three stores
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    run_for: Option<Duration>,
    /// Identities of each cluster
    #[arg(long, value_name = "COUNT", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    identities: u32,
    /// Changes a second in each cluster
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rate: u32,
    /// Seed of contents and changes; printed, so that a run can be repeated
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
}

/// Exit codes: 0 ended as asked, 1 failed or the pictures differ.
pub fn run(args: &Args) -> ExitCode {
    block_on(async {
        match demo(args).await {
            Ok(code) => code,
            Err(error) => fail(FAILURE, &format_args!("{error:#}")),
        }
    })
}

async fn demo(args: &Args) -> anyhow::Result<ExitCode> {
    // Before anything is made, so that no signal comes too early to be heard.
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let stopped = async {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    };
    tokio::pin!(stopped);

    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    // Dropped last: everything below lives in it.
    let dir = tempfile::Builder::new().prefix("meshgate-demo-").tempdir()?;
    anstream::println!("starting three etcds with mTLS in {} (seed {seed}) …", dir.path().display());
    let scale = Scale { identities: args.identities, rate: args.rate, seed };
    let mut mesh = tokio::select! {
        mesh = Mesh::start(dir.path(), scale) => mesh?,
        () = &mut stopped => return Ok(ExitCode::SUCCESS),
    };
    mesh.print_commands(dir.path())?;

    let mut screen = Screen::new();
    let mut frames = interval(screen.interval());
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let end = args.run_for.map(|time| Instant::now() + time);
    loop {
        tokio::select! {
            _ = frames.tick() => screen.draw(&mesh.rows()),
            () = &mut stopped => break,
            () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => return mesh.prove().await,
            ended = mesh.gateway.done() => return Err(ended.err().map_or_else(
                || anyhow::anyhow!("the gateway ended"),
                anyhow::Error::from,
            )),
        }
    }
    mesh.end().await;
    anstream::println!("stopped; nothing is left behind");
    Ok(ExitCode::SUCCESS)
}

/// Everything that runs. Fields drop in order: who reads before what is read.
struct Mesh {
    subscriber: Subscriber,
    gateway: Running,
    stores: Vec<Store>,
}

impl Mesh {
    async fn start(dir: &Path, scale: Scale) -> anyhow::Result<Self> {
        let pki = Pki::new(dir.join("certs"))?;
        let stores = stores::start(dir, &pki, scale).await?;
        let peers = dir.join("peers");
        fs::create_dir(&peers)?;
        for store in &stores[1..] {
            store.write_client_config(&peers.join(&store.cluster.name))?;
        }
        let own = dir.join("etcd.yaml");
        stores[0].write_client_config(&own)?;

        let gateway = Gateway::start(config(&pki, &stores[0], &own, &peers)?).await?;
        let client = pki.issue(&CertSpec::client("demo"))?;
        let options = ClientOptions {
            address: gateway.grpc_addr.to_string(),
            security: ClientSecurity::MutualTls {
                ca: client.ca,
                cert: client.cert,
                key: client.key,
                server_name: None,
            },
        };
        let subscriber = Subscriber::start(Subscription::open(options, SubscribeRequest::default()).await?);
        Ok(Self { subscriber, gateway, stores })
    }

    fn rows(&self) -> Vec<Row> {
        let folded = self.subscriber.counts();
        let board = self.gateway.status.snapshot();
        let row = |(n, store): (usize, &Store)| {
            let name = store.cluster.name.clone();
            let status = board.get(&name).cloned().unwrap_or_default();
            Row {
                id: status.cluster_id,
                local: n == 0,
                state: status.state,
                stored: store.identities(),
                changes: store.changes(),
                shown: status.identities,
                folded: folded.get(&name).copied().unwrap_or_default(),
                refused: status.rejects.values().sum(),
                last_event: status.last_event,
                name,
            }
        };
        self.stores.iter().enumerate().map(row).collect()
    }

    /// What to try in another terminal.
    fn print_commands(&self, dir: &Path) -> anyhow::Result<()> {
        let certs = dir.join("certs");
        let file = |name: &str| certs.join(name).display().to_string();
        let environment = dir.join("env");
        let client = [
            ("MESHGATE_ADDRESS", self.gateway.grpc_addr.to_string()),
            ("MESHGATE_CA", file("ca.crt")),
            ("MESHGATE_CERT", file("demo.crt")),
            ("MESHGATE_KEY", file("demo.key")),
        ];
        let lines = client.map(|(name, value)| format!("export {name}='{value}'"));
        fs::write(&environment, lines.join("\n") + "\n").with_context(|| environment.display().to_string())?;
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("meshgate"));
        let program = program.display();
        let (own, peer) = (&self.stores[0].cluster, &self.stores[1]);
        let name = &peer.cluster.name;
        let mut commands = vec![
            (format!(". {}", environment.display()), "where the gateway is, and a client certificate".to_owned()),
            (format!("{program} watch"), "every change of the mesh, as it comes".to_owned()),
            (format!("{program} clusters"), "how each cluster is doing, and what was refused".to_owned()),
            (format!("{program} identity list --cluster {name}"), format!("all of {name}'s identities")),
            (format!("{program} identity get {}", own.numbers().start()), "one of them".to_owned()),
            (format!("curl -s http://{}/metrics", self.gateway.http_addr), "also /readyz and /livez".to_owned()),
        ];
        if let Some(pid) = peer.etcd.pid() {
            let freeze = format!("kill -STOP {pid}; sleep 60; kill -CONT {pid}");
            commands.push((freeze, format!("{name}'s etcd hangs for a minute: what is known of it stays")));
        }
        let width = commands.iter().map(|(command, _)| command.len()).max().unwrap_or_default();
        anstream::println!("\nTry in another terminal:\n");
        for (command, what) in commands {
            anstream::println!("  {command:width$}  # {what}");
        }
        anstream::println!();
        Ok(())
    }

    /// Lets everything settle, then compares what the subscriber has with what the stores hold.
    async fn prove(self) -> anyhow::Result<ExitCode> {
        let Self { subscriber, mut gateway, stores } = self;
        let settled = try_join_all(stores.into_iter().map(Store::settle)).await?;
        let stored: Picture = try_join_all(settled.iter().map(stores::SettledStore::read)).await?.into_iter().collect();
        let mut subscription = subscriber.stop().await?;
        let deadline = Instant::now() + AGREEMENT;
        let (seen, differences) = loop {
            let seen = picture(&subscription);
            let differences = proof::differences(&stored, &seen);
            if differences.is_empty() || timeout_at(deadline, subscription.next()).await.is_err() {
                break (seen, differences);
            }
        };
        let count = |picture: &Picture| picture.values().map(Contents::len).sum::<usize>();
        anstream::println!(
            "\nvalid in the three stores: {} identities; in a subscriber's map: {}",
            count(&stored),
            count(&seen)
        );
        drop(subscription);
        gateway.shutdown();
        let ended = timeout(GRACE, gateway.done()).await;
        if differences.is_empty() {
            anstream::println!("they are equal, number by number and label by label");
        }
        for difference in &differences {
            anstream::println!("they differ in {difference}");
        }
        ended.context("the gateway did not stop in time")??;
        Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) })
    }

    async fn end(self) {
        let Self { subscriber, mut gateway, stores } = self;
        drop(subscriber);
        gateway.shutdown();
        // Whatever is left of it then goes with it.
        let _ = timeout(GRACE, gateway.done()).await;
        drop(stores);
    }
}

/// The gateway of the first cluster, configured by the flags that a user would give.
fn config(pki: &Pki, own: &Store, etcd: &Path, peers: &Path) -> anyhow::Result<Config> {
    let server = pki.issue(&CertSpec::server("gateway"))?;
    let flags = [
        ("--cluster-name", own.cluster.name.clone()),
        ("--cluster-id", own.cluster.id.to_string()),
        ("--kvstore-opt", format!("etcd.config={}", etcd.display())),
        ("--clustermesh-config", peers.display().to_string()),
        ("--listen", "127.0.0.1:0".to_owned()),
        ("--http-listen", "127.0.0.1:0".to_owned()),
        ("--tls-cert", server.cert.display().to_string()),
        ("--tls-key", server.key.display().to_string()),
        ("--tls-client-ca", server.ca.display().to_string()),
    ]
    .map(|(flag, value)| format!("{flag}={value}"));
    let command = Flags::augment_args(clap::Command::new("run").no_binary_name(true));
    let flags = Flags::from_arg_matches(&command.try_get_matches_from(flags)?)?;
    Ok(Config::load(flags, &Environment::default())?)
}

/// A subscription that is read all the time, and what it has.
struct Subscriber {
    /// Identities by the name of their cluster.
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
    stop: CancellationToken,
    task: AbortOnDropHandle<Subscription>,
}

impl Subscriber {
    fn start(mut subscription: Subscription) -> Self {
        let (counts, stop) = (Arc::new(Mutex::new(BTreeMap::new())), CancellationToken::new());
        let task = tokio::spawn({
            let (counts, stop) = (Arc::clone(&counts), stop.clone());
            async move {
                while stop.run_until_cancelled(subscription.next()).await.is_some() {
                    let now = subscription
                        .mesh()
                        .iter()
                        .map(|(name, cluster)| (name.clone(), cluster.identities.len() as u64));
                    *counts.lock().unwrap_or_else(PoisonError::into_inner) = now.collect();
                }
                subscription
            }
        });
        Self { counts, stop, task: AbortOnDropHandle::new(task) }
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn stop(self) -> anyhow::Result<Subscription> {
        self.stop.cancel();
        Ok(self.task.await?)
    }
}

fn picture(subscription: &Subscription) -> Picture {
    let clusters = subscription.mesh().iter().map(|(name, cluster)| {
        let identities = cluster.identities.iter().map(|(&number, entry)| (number, entry.key_string())).collect();
        (name.clone(), identities)
    });
    clusters.collect()
}
