//! The gateway as a whole: the real binary, or the composition root in this process, with real etcds.

mod allocating;
mod binary;
mod life;
mod pictures;
mod resuming;
mod status;
mod subscribing;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args as _, FromArgMatches as _};
use meshgate::config::{Config, Environment, Flags};
use meshgate::gateway::{Gateway, Running};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::fill::{Cluster, Contents, FillOptions, LabelMix, Presence, fill};
use crate::support::{EtcdOptions, EtcdServer, Pki, eventually};

/// Longer than anything here takes on a busy machine, shorter than anybody's patience.
const SOON: Duration = Duration::from_secs(30);

/// The flags of a gateway of cluster `a` (ID 1), on ports that the system chooses; those in `more` win.
fn flags(local: &Path, more: &[&str]) -> Vec<String> {
    let mut flags: Vec<String> = [
        "--cluster-name=a",
        "--cluster-id=1",
        "--listen=127.0.0.1:0",
        "--http-listen=127.0.0.1:0",
        "--backoff-max=200ms",
        "--peer-rescan-interval=100ms",
    ]
    .into_iter()
    .filter(|flag| flag.split_once('=').is_some_and(|(name, _)| !more.iter().any(|more| more.starts_with(name))))
    .map(str::to_owned)
    .collect();
    flags.push(format!("--kvstore-opt=etcd.config={}", local.display()));
    flags.extend(more.iter().map(|flag| (*flag).to_owned()));
    if !flags.iter().any(|flag| flag.starts_with("--tls-")) {
        flags.push("--plaintext".to_owned());
    }
    flags
}

async fn start(local: &Path, more: &[&str]) -> Running {
    let command = Flags::augment_args(clap::Command::new("run").no_binary_name(true));
    let matches = command.try_get_matches_from(flags(local, more)).unwrap();
    let config = Config::load(Flags::from_arg_matches(&matches).unwrap(), &Environment::default()).unwrap();
    Gateway::start(config).await.unwrap()
}

/// The store of a cluster that has announced itself and allocated some identities.
struct Store {
    etcd: EtcdServer,
    cluster: Cluster,
    contents: Contents,
    _presence: Presence,
}

impl Store {
    async fn start(pki: &Pki, name: &str, id: u32, identities: u32) -> Self {
        let etcd = Box::pin(EtcdServer::start(EtcdOptions::mtls(name, pki).unwrap().in_memory())).await.unwrap();
        let (client, cluster) = (etcd.client(), Cluster::new(name, id));
        let presence = Box::pin(Presence::announce(client.clone(), cluster.clone())).await.unwrap();
        let options = FillOptions { count: identities, ..FillOptions::default() };
        let mix = LabelMix::new(name, id.into());
        let contents = Box::pin(fill(&client, &cluster, &mix, &options)).await.unwrap();
        Box::pin(presence.complete()).await.unwrap();
        Self { etcd, cluster, contents, _presence: presence }
    }
}

/// A directory of peers, with a file for each of them, as the flag that names it.
fn directory(dir: &Path, peers: &[&Store]) -> String {
    let directory = dir.join("peers");
    std::fs::create_dir(&directory).unwrap();
    for peer in peers {
        write_config(&directory, &peer.cluster.name, &peer.etcd);
    }
    format!("--clustermesh-config={}", directory.display())
}

/// Stops a gateway and waits for its end.
async fn stop(mut running: Running) {
    running.shutdown();
    tokio::time::timeout(SOON, running.done()).await.unwrap().unwrap();
}

/// Writes the etcd client YAML of `etcd` as the file `name`.
fn write_config(dir: &Path, name: &str, etcd: &EtcdServer) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, etcd.config_yaml()).unwrap();
    path
}

/// Status and body of a page.
async fn page(addr: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

async fn until_ready(running: &Running) {
    eventually("the gateway is ready", SOON, || async { page(running.http_addr, "/readyz").await.0 == 200 }).await;
}
