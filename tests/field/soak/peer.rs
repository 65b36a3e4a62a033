//! One peer: its store, the proxies before it, its file, its changes and its heartbeat.

use std::time::{Duration, SystemTime};

use etcd_client::Client;
use meshgate::devkit::EtcdCluster;
use meshgate::telemetry::ClusterStatus;
use tokio::sync::watch;
use tokio::time::{interval, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::changes::Changes;
use crate::support::fill::{Cluster, Contents, FillOptions, HEARTBEAT_KEY, LabelMix, fill, valid_contents};
use crate::support::proxy::Proxy;
use crate::support::{CertFiles, CertSpec, DEADLINE, EtcdOptions, EtcdServer, Pki, eventually};

/// Identities of each store, about.
const IDENTITIES: u32 = 400;
const BEAT: Duration = Duration::from_millis(500);

/// One etcd, or several that are one store.
pub enum Store {
    One(Box<EtcdServer>),
    Many(EtcdCluster),
}

impl Store {
    pub fn members(&self) -> &[EtcdServer] {
        match self {
            Self::One(etcd) => std::slice::from_ref(&**etcd),
            Self::Many(cluster) => cluster.members(),
        }
    }

    pub fn member(&mut self, n: usize) -> &mut EtcdServer {
        match self {
            Self::One(etcd) => etcd,
            Self::Many(cluster) => cluster.member(n),
        }
    }
}

/// One peer: its store, the proxies before it, its file.
pub struct Peer {
    pub cluster: Cluster,
    pub store: Store,
    /// Where the store's files are.
    pub home: tempfile::TempDir,
    /// Two ways to each member; the file names one of them.
    proxies: Vec<[Proxy; 2]>,
    pub way: usize,
    pub certificate: CertSpec,
    files: CertFiles,
    pub changes: Changes,
    /// Whether its heartbeat is being written.
    pub beats: watch::Sender<bool>,
    _beating: AbortOnDropHandle<()>,
}

impl Peer {
    pub async fn start(pki: &Pki, cluster: Cluster, members: usize, seed: u64) -> Self {
        let home = tempfile::Builder::new().prefix("meshgate-soak-").tempdir_in("/dev/shm").unwrap();
        let options = EtcdOptions::mtls(&cluster.name, pki).unwrap().data_in(home.path());
        let store = if members == 1 {
            Store::One(Box::new(EtcdServer::start(options).await.unwrap()))
        } else {
            Store::Many(EtcdCluster::start(members, &options).await.unwrap())
        };
        let client = store.members()[0].client();
        let contents = announce(&client, &cluster, seed).await;
        let mut proxies = Vec::new();
        for member in store.members() {
            proxies.push([Proxy::to(member.port()).await, Proxy::to(member.port()).await]);
        }
        let certificate = CertSpec::client(&format!("{}-gateway", cluster.name));
        let files = pki.issue(&certificate).unwrap();
        let beats = watch::Sender::new(true);
        let clients = store.members().iter().map(EtcdServer::client).collect();
        let beating = AbortOnDropHandle::new(tokio::spawn(beat(clients, beats.subscribe())));
        let changes = Changes::of_a_peer(cluster.clone(), contents, seed);
        Self { cluster, store, home, proxies, way: 0, certificate, files, changes, beats, _beating: beating }
    }

    pub fn name(&self) -> &str {
        &self.cluster.name
    }

    /// A client of some member, another than `n` if there is one.
    pub fn client_beside(&self, n: usize) -> Client {
        let members = self.store.members();
        members[(n + 1) % members.len()].client()
    }

    pub fn client(&self) -> Client {
        self.client_beside(0)
    }

    /// The proxies that the file names.
    pub fn ways(&self) -> impl Iterator<Item = &Proxy> {
        self.proxies.iter().map(|ways| &ways[self.way])
    }

    pub fn retarget(&self, port: Option<u16>) {
        for (member, ways) in self.store.members().iter().zip(&self.proxies) {
            for way in ways {
                way.retarget(port.unwrap_or_else(|| member.port()));
            }
        }
    }

    /// Which member the gateway uses, or used last.
    pub fn member_in_use(&self, status: &ClusterStatus) -> usize {
        let by_port = |ways: &[Proxy; 2]| ways.iter().any(|way| status.endpoint.ends_with(&format!(":{}", way.port())));
        self.proxies.iter().position(by_port).unwrap_or_default()
    }

    pub fn yaml(&self) -> String {
        let endpoints: Vec<_> = self.ways().map(|way| format!("'https://127.0.0.1:{}'", way.port())).collect();
        let CertFiles { cert, key, ca } = &self.files;
        format!(
            "endpoints: [{}]\ntrusted-ca-file: {}\ncert-file: {}\nkey-file: {}\n",
            endpoints.join(", "),
            ca.display(),
            cert.display(),
            key.display()
        )
    }

    pub async fn put(&self, key: String, value: String) {
        let put = async || self.client().kv_client().put(key.clone(), value.clone(), None).await.is_ok();
        eventually("the store takes a write", DEADLINE, put).await;
    }

    pub async fn delete(&self, key: String) {
        let delete = async || self.client().kv_client().delete(key.clone(), None).await.is_ok();
        eventually("the store takes a delete", DEADLINE, delete).await;
    }

    pub async fn valid(&self) -> Contents {
        read(&self.client(), &self.cluster).await
    }

    pub fn open(&self) -> usize {
        self.proxies.iter().flatten().map(Proxy::open).sum()
    }

    pub fn accepted(&self) -> u64 {
        self.proxies.iter().flatten().map(Proxy::accepted).sum()
    }
}

/// What the store holds that a gateway may show.
pub async fn read(client: &Client, cluster: &Cluster) -> Contents {
    let mut contents = None;
    let reading = async {
        while contents.is_none() {
            contents = timeout(Duration::from_secs(5), valid_contents(client, cluster)).await.ok().and_then(Result::ok);
        }
    };
    timeout(DEADLINE, reading).await.expect("the store can be read");
    contents.unwrap()
}

/// Fills a store, and says that it is complete. Without leases: what goes is this test's to say.
pub async fn announce(client: &Client, cluster: &Cluster, seed: u64) -> Contents {
    let options = FillOptions { count: IDENTITIES, ..FillOptions::default() };
    let contents = fill(client, cluster, &LabelMix::new(&cluster.name, seed), &options).await.unwrap();
    let mut kv = client.kv_client();
    kv.put(cluster.canary_key(), "2026-11-30T21:37:03Z", None).await.unwrap();
    kv.put(cluster.config_key(), cluster.config_json(), None).await.unwrap();
    kv.put(HEARTBEAT_KEY, "2026-11-30T21:37:03Z", None).await.unwrap();
    contents
}

async fn beat(members: Vec<Client>, mut beats: watch::Receiver<bool>) {
    let mut tick = interval(BEAT);
    loop {
        tick.tick().await;
        if beats.wait_for(|beats| *beats).await.is_err() {
            return;
        }
        let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        // Any member will do; one that is stopped or gone is none.
        for member in &members {
            if let Ok(Ok(_)) = timeout(BEAT, member.kv_client().put(HEARTBEAT_KEY, now.clone(), None)).await {
                break;
            }
        }
    }
}
