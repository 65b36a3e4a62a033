//! The stores, the gateway between them and the subscribers, and what must hold between all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

use meshgate::telemetry::{ClusterState, ClusterStatus};
use tokio::time::{Instant, sleep, timeout};

use super::changes::Changes;
use super::faults::Fault;
use super::gateway::Gateway;
use super::peer::{Peer, announce, read};
use super::subscriber::{Heard, Kind, Subscriber};
use super::tally::Resources;
use crate::support::fill::{Cluster, Contents};
use crate::support::{DEADLINE, EtcdOptions, EtcdServer, Pki, eventually};

/// From the end of a fault to agreement; none takes nearly so long.
const AGREEMENT: Duration = Duration::from_mins(1);

/// Everything.
pub struct Mesh {
    pub peers: Vec<Peer>,
    pub spare: EtcdServer,
    pub pki: Pki,
    directory: tempfile::TempDir,
    own: EtcdServer,
    own_changes: Changes,
    subscribers: Vec<Subscriber>,
    pub gateway: Gateway,
}

/// What others than the one at fault must not notice of it.
#[derive(Debug, PartialEq)]
struct Peace {
    state: ClusterState,
    since: Option<SystemTime>,
    failures: u64,
    session: u64,
}

impl Mesh {
    pub async fn start(seed: u64) -> Self {
        let pki = Pki::temporary().unwrap();
        let clusters = [
            (Cluster::new("blue", 2), 1),
            (Cluster::new("green", 3), 1),
            (Cluster::new("cached", 4).cached(), 1),
            (Cluster::new("three", 5), 3),
            (Cluster { synced_canaries: false, ..Cluster::new("plain", 6) }, 1),
        ];
        let mut peers = Vec::new();
        for ((cluster, members), n) in clusters.into_iter().zip(1..) {
            peers.push(Peer::start(&pki, cluster, members, seed.wrapping_add(n)).await);
        }
        let own_cluster = Cluster::new("own", 1);
        let own = EtcdServer::start(EtcdOptions::mtls("own", &pki).unwrap().in_memory()).await.unwrap();
        let own_contents = announce(&own.client(), &own_cluster, seed).await;
        let spare = EtcdServer::start(EtcdOptions::mtls("spare", &pki).unwrap().in_memory()).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let own_yaml = directory.path().join("own.yaml");
        std::fs::write(&own_yaml, own.config_yaml()).unwrap();
        let folder = directory.path().join("peers");
        std::fs::create_dir(&folder).unwrap();
        for peer in &peers {
            write(&folder, peer.name(), &peer.yaml());
        }
        let gateway = Gateway::start(&own_yaml, &folder).await;
        let address = gateway.running().grpc_addr.to_string();
        let mut subscribers = Vec::new();
        for (name, kind, clusters) in [
            ("the first", Kind::Plain, &[][..]),
            ("the slow one", Kind::Slow, &[]),
            ("the one for numbers", Kind::NumbersOnly, &[]),
            ("the choosy one", Kind::Plain, &["blue", "three"]),
        ] {
            subscribers.push(Subscriber::open(name, kind, address.clone(), clusters).await);
        }
        let own_changes = Changes::of_our_own(own_cluster, own_contents, seed);
        let mut mesh = Self { peers, spare, pki, directory, own, own_changes, subscribers, gateway };
        mesh.agree("in the beginning").await;
        mesh.lease_renewed().await;
        mesh.forget().await;
        mesh
    }

    /// Waits until the gateway has renewed a lease: the stream for that is opened by the first renewal, stays, and is two
    /// tasks.
    async fn lease_renewed(&self) {
        let mut client = self.own.client();
        let mut left = BTreeMap::new();
        let deadline = Instant::now() + DEADLINE;
        loop {
            for lease in client.leases().await.unwrap().leases() {
                let now = client.lease_time_to_live(lease.id(), None).await.unwrap().ttl();
                if left.insert(lease.id(), now).is_some_and(|before| before < now) {
                    return;
                }
            }
            assert!(Instant::now() < deadline, "no lease was renewed, of {left:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Faults at one peer, one after the other, to agreement; the time from the end of the last one on.
    pub async fn round(&mut self, faults: &[Fault], at: usize, hold: Duration, dice: &mut fastrand::Rng) -> Duration {
        let began = SystemTime::now();
        let peace = self.peace(at);
        self.own_changes.resume(self.own.client());
        let in_use = self.peers[at].member_in_use(&self.status(at));
        for (n, peer) in self.peers.iter_mut().enumerate() {
            // Not by way of the member that the fault may hit.
            let client = peer.client_beside(if n == at { in_use } else { 0 });
            peer.changes.resume(client);
        }
        let mut session = None;
        for fault in faults {
            session = fault.is_momentary().then(|| self.status(at).session);
            if fault.is_momentary() {
                sleep(hold).await;
            }
            fault.inject(self, at, hold, dice).await;
        }
        let (ended, lasted) = (Instant::now(), began.elapsed().unwrap());
        self.own_changes.pause().await;
        for peer in &mut self.peers {
            peer.changes.pause().await;
        }
        let names: Vec<_> = faults.iter().map(|fault| fault.name()).collect();
        let what = format!("after {}", names.join(" + "));
        if let Some(session) = session {
            eventually(&what, AGREEMENT, async || self.status(at).session > session).await;
        }
        self.agree(&what).await;
        let took = ended.elapsed();
        if faults.len() > 1 {
            // Which of them a new session was due to is not known; all of them are to be over before the next round.
            sleep(Duration::from_secs(1)).await;
            self.agree(&what).await;
        }
        assert_eq!(peace, self.peace(at), "{what}: another peer noticed");
        if lasted > Duration::from_secs(1) {
            for (name, status) in self.gateway.running().status.snapshot() {
                let heard = name == self.peers[at].name() || status.last_event.is_some_and(|event| event > began);
                assert!(heard, "{what}: nothing was heard of {name}");
            }
        }
        self.assert_nothing_was_lost(&what, faults.iter().any(|fault| fault.drains()).then_some(at)).await;
        self.forget().await;
        took
    }

    pub fn status(&self, at: usize) -> ClusterStatus {
        self.gateway.running().status.snapshot().remove(self.peers[at].name()).unwrap_or_default()
    }

    fn peace(&self, but: usize) -> BTreeMap<String, Peace> {
        let but = self.peers[but].name();
        let others = self.gateway.running().status.snapshot().into_iter().filter(|(name, _)| name != but);
        let peace = |status: ClusterStatus| {
            let ClusterStatus { state, since, failures, session, .. } = status;
            Peace { state, since, failures, session }
        };
        others.map(|(name, status)| (name, peace(status))).collect()
    }

    /// What is shown of a cluster; nothing if it is not shown.
    pub fn shown(&self, cluster: &str) -> Option<Contents> {
        let mesh = self.gateway.running().view.load();
        let shown = mesh.cluster_named(cluster)?;
        Some(shown.iter().map(|entry| (entry.number().get(), entry.key_string())).collect())
    }

    /// Waits until view and subscribers hold what the stores do, and every peer is synced.
    async fn agree(&mut self, what: &str) {
        let mut stores = vec![("own".to_owned(), read(&self.own.client(), &Cluster::new("own", 1)).await)];
        for peer in &self.peers {
            stores.push((peer.name().to_owned(), peer.valid().await));
        }
        for (cluster, expected) in &stores {
            self.agree_on(what, cluster, expected).await;
        }
        let all_synced = async || {
            let board = self.gateway.running().status.snapshot();
            board.len() == stores.len() && board.values().all(|status| status.state == ClusterState::Synced)
        };
        let synced = timeout(AGREEMENT, eventually(what, AGREEMENT * 2, all_synced)).await.is_ok();
        assert!(synced, "{what}: {:#?}", self.gateway.running().status.snapshot());
    }

    /// Waits until view and subscribers hold exactly that of a cluster.
    pub async fn agree_on(&self, what: &str, cluster: &str, expected: &Contents) {
        let deadline = Instant::now() + AGREEMENT;
        let status = || self.gateway.running().status.snapshot().remove(cluster);
        loop {
            let shown = self.shown(cluster);
            if shown.as_ref() == Some(expected) {
                break;
            }
            assert!(Instant::now() < deadline, "{what}: {} of {:#?}", difference(shown, expected), status());
            sleep(Duration::from_millis(5)).await;
        }
        for subscriber in &self.subscribers {
            loop {
                let held = subscriber.held(cluster).await;
                let agrees = match (&held, subscriber.kind) {
                    (Some(held), Kind::NumbersOnly) => held.keys().eq(expected.keys()),
                    (Some(held), _) => held == expected,
                    (None, _) => subscriber.name == "the choosy one" && !["blue", "three"].contains(&cluster),
                };
                if agrees {
                    break;
                }
                let who = subscriber.name;
                assert!(Instant::now() < deadline, "{what}: {who}: {} of {cluster}", difference(held, expected));
                sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Waits until no subscriber holds anything of the cluster.
    pub async fn until_drained(&self, cluster: &str) {
        let drained = async || {
            for subscriber in &self.subscribers {
                if subscriber.held(cluster).await.is_some() {
                    return false;
                }
            }
            !self.gateway.running().status.snapshot().contains_key(cluster)
        };
        eventually("the cluster is drained", AGREEMENT, drained).await;
    }

    /// Nothing was removed that nobody took away.
    async fn assert_nothing_was_lost(&self, what: &str, drained: Option<usize>) {
        for subscriber in &self.subscribers {
            let Heard { removed, drained: clusters, ends, updates } = subscriber.heard().await;
            let who = subscriber.name;
            assert!(ends.is_empty(), "{what}: {who} was cut off: {ends:?}");
            assert!(updates > 0, "{what}: {who} heard nothing");
            let allowed = |name: &str| drained.is_some_and(|at| self.peers[at].name() == name);
            let too_many: Vec<_> = clusters.iter().filter(|name| !allowed(name)).collect();
            assert!(too_many.is_empty(), "{what}: {who} was told that these are gone: {too_many:?}");
            for (name, numbers) in removed {
                let gone = match self.peers.iter().find(|peer| peer.name() == name) {
                    Some(peer) => &peer.changes.gone,
                    None => &self.own_changes.gone,
                };
                let lost: BTreeSet<_> = numbers.difference(gone).collect();
                assert!(allowed(&name) || lost.is_empty(), "{what}: {who} lost {lost:?} of {name}");
            }
        }
    }

    /// What happened so far counts no more.
    async fn forget(&mut self) {
        for subscriber in &self.subscribers {
            subscriber.heard().await;
        }
        self.own_changes.forget();
        self.peers.iter_mut().for_each(|peer| peer.changes.forget());
    }

    pub fn write_file(&self, at: usize) {
        write(&self.directory.path().join("peers"), self.peers[at].name(), &self.peers[at].yaml());
    }

    pub fn remove_file(&self, at: usize) {
        std::fs::remove_file(self.directory.path().join("peers").join(self.peers[at].name())).unwrap();
    }

    fn resources_now(&self) -> Resources {
        Resources::of(self.gateway.tasks(), self.peers.iter().map(Peer::open).sum())
    }

    /// At rest: one connection for each peer.
    pub async fn resources(&self) -> Resources {
        let at_rest = async || self.peers.iter().all(|peer| peer.open() == 1);
        eventually("each peer has one connection", DEADLINE, at_rest).await;
        self.resources_now()
    }

    /// As soon as they are back where they were, or as they are then.
    pub async fn settled_resources(&self, before: &Resources) -> Resources {
        self.resources().await;
        Resources::back_at(before, async || self.resources_now()).await
    }

    pub async fn stop(self) {
        let repairs: Vec<_> = self.gateway.running().status.snapshot().into_iter().collect();
        for (name, status) in repairs {
            assert_eq!(status.audit_repairs, 0, "{name}: an audit found what list and watch had missed");
        }
        drop(self.subscribers);
        self.gateway.stop().await;
    }
}

/// As an editor does: beside the file, then renamed over it.
fn write(folder: &Path, name: &str, text: &str) {
    let next = folder.join(format!(".{name}"));
    std::fs::write(&next, text).unwrap();
    std::fs::rename(next, folder.join(name)).unwrap();
}

fn difference(found: Option<Contents>, expected: &Contents) -> String {
    let Some(found) = found else { return "nothing is held".to_owned() };
    let missing: Vec<_> = expected.keys().filter(|number| !found.contains_key(number)).collect();
    let extra: Vec<_> = found.keys().filter(|number| !expected.contains_key(number)).collect();
    let other: Vec<_> =
        expected.iter().filter(|(number, set)| found.get(number).is_some_and(|found| found != *set)).collect();
    format!("missing {missing:?}, too many {extra:?}, with other labels {other:?}")
}
