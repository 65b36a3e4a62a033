//! What goes wrong, and how it ends.

use std::path::Path;
use std::time::Duration;

use meshgate::telemetry::ClusterState;
use tokio::time::sleep;

use super::mesh::Mesh;
use super::peer::{Peer, Store, announce, read};
use crate::support::fill::Cluster;
use crate::support::proxy::{Direction, Proxy};
use crate::support::{DEADLINE, eventually};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    ShortCut,
    LongCut,
    NothingArrives,
    NothingComesBack,
    BlackHole,
    Delay,
    OtherEtcd,
    Stopped,
    Killed,
    MemberReplaced,
    CompactedAway,
    Defragmented,
    Restored,
    HeartbeatFrozen,
    FileRemoved,
    FileRewritten,
    OtherAddress,
    CertificateRotated,
    ConfigDeleted,
    ConfigChanged,
    ClusterIdChanged,
    CanaryMissing,
}

impl Fault {
    pub const ALL: [Self; 22] = [
        Self::ShortCut,
        Self::LongCut,
        Self::NothingArrives,
        Self::NothingComesBack,
        Self::BlackHole,
        Self::Delay,
        Self::OtherEtcd,
        Self::Stopped,
        Self::Killed,
        Self::MemberReplaced,
        Self::CompactedAway,
        Self::Defragmented,
        Self::Restored,
        Self::HeartbeatFrozen,
        Self::FileRemoved,
        Self::FileRewritten,
        Self::OtherAddress,
        Self::CertificateRotated,
        Self::ConfigDeleted,
        Self::ConfigChanged,
        Self::ClusterIdChanged,
        Self::CanaryMissing,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::ShortCut => "all connections cut, once",
            Self::LongCut => "cut off",
            Self::NothingArrives => "stalled towards the etcd",
            Self::NothingComesBack => "stalled towards us",
            Self::BlackHole => "black hole",
            Self::Delay => "slow network",
            Self::OtherEtcd => "another etcd, and back",
            Self::Stopped => "etcd stopped (SIGSTOP)",
            Self::Killed => "etcd killed and restarted",
            Self::MemberReplaced => "member removed and replaced",
            Self::CompactedAway => "compaction while away",
            Self::Defragmented => "defragmentation",
            Self::Restored => "backup restored",
            Self::HeartbeatFrozen => "heartbeat frozen",
            Self::FileRemoved => "peer's file removed and back",
            Self::FileRewritten => "peer's file rewritten, same bytes",
            Self::OtherAddress => "peer's file names another address",
            Self::CertificateRotated => "client certificate rotated",
            Self::ConfigDeleted => "cluster-config deleted",
            Self::ConfigChanged => "cluster-config changed",
            Self::ClusterIdChanged => "cluster ID changed, and back",
            Self::CanaryMissing => "canary missing at reconnect",
        }
    }

    pub const fn suits(self, peer: &Peer) -> bool {
        match self {
            Self::MemberReplaced => matches!(peer.store, Store::Many(_)),
            Self::Restored => matches!(peer.store, Store::One(_)),
            Self::CanaryMissing => peer.cluster.synced_canaries,
            _ => true,
        }
    }

    /// Whether the peer's entries are to be drained meanwhile.
    pub const fn drains(self) -> bool {
        matches!(self, Self::FileRemoved | Self::ClusterIdChanged)
    }

    /// Whether it is over before anybody can have noticed: then a new session tells that somebody has.
    pub const fn is_momentary(self) -> bool {
        matches!(self, Self::ShortCut | Self::OtherAddress | Self::CertificateRotated)
    }

    /// Lasts for `hold`, unless it is momentary, and is over when this returns.
    pub async fn inject(self, mesh: &mut Mesh, at: usize, hold: Duration, dice: &mut fastrand::Rng) {
        let status = mesh.status(at);
        let peer = &mut mesh.peers[at];
        let in_use = peer.member_in_use(&status);
        match self {
            Self::ShortCut
            | Self::LongCut
            | Self::NothingArrives
            | Self::NothingComesBack
            | Self::BlackHole
            | Self::Delay => self.of_the_network(peer, in_use, hold, dice).await,
            Self::OtherEtcd => other_etcd(mesh, at, hold).await,
            Self::Stopped => {
                peer.store.member(in_use).stop().unwrap();
                sleep(hold).await;
                peer.store.member(in_use).cont().unwrap();
            }
            Self::Killed => {
                peer.store.member(in_use).kill().unwrap();
                sleep(hold).await;
                peer.store.member(in_use).restart().await.unwrap();
            }
            Self::MemberReplaced => {
                let Store::Many(cluster) = &mut peer.store else { unreachable!("it suits only such") };
                cluster.remove_member(in_use).await.unwrap();
                sleep(hold).await;
                cluster.add_member(in_use).await.unwrap();
            }
            Self::CompactedAway => {
                peer.ways().for_each(Proxy::cut_off);
                sleep(hold).await;
                let mut kv = peer.client().kv_client();
                let now = kv.get("x", None).await.unwrap().header().unwrap().revision();
                kv.compact(now, None).await.unwrap();
                peer.ways().for_each(Proxy::restore);
            }
            Self::Defragmented => {
                for member in peer.store.members() {
                    member.client().maintenance_client().defragment().await.unwrap();
                }
            }
            Self::Restored => restore(peer, hold).await,
            Self::HeartbeatFrozen => {
                peer.beats.send_replace(false);
                sleep(hold).await;
                peer.beats.send_replace(true);
            }
            Self::FileRemoved => {
                mesh.remove_file(at);
                mesh.until_drained(mesh.peers[at].name()).await;
                sleep(hold).await;
                mesh.write_file(at);
            }
            Self::FileRewritten => {
                let accepted = peer.accepted();
                mesh.write_file(at);
                sleep(hold).await;
                assert_eq!(mesh.status(at).session, status.session, "the same bytes are no news");
                assert_eq!(mesh.peers[at].accepted(), accepted, "and nobody connects because of them");
            }
            Self::OtherAddress => {
                peer.way = 1 - peer.way;
                mesh.write_file(at);
            }
            Self::CertificateRotated => drop(mesh.pki.issue(&peer.certificate).unwrap()),
            Self::ConfigDeleted => {
                peer.delete(peer.cluster.config_key()).await;
                if dice.bool() {
                    peer.ways().for_each(Proxy::cut);
                }
                sleep(hold).await;
                peer.put(peer.cluster.config_key(), peer.cluster.config_json()).await;
            }
            Self::ConfigChanged => {
                let synced_canaries = !peer.cluster.synced_canaries;
                let changed = Cluster { synced_canaries, ..peer.cluster.clone() };
                peer.put(changed.config_key(), changed.config_json()).await;
                sleep(hold).await;
                peer.put(peer.cluster.config_key(), peer.cluster.config_json()).await;
            }
            Self::ClusterIdChanged => cluster_id_changed(mesh, at, hold).await,
            Self::CanaryMissing => {
                peer.delete(peer.cluster.canary_key()).await;
                peer.ways().for_each(Proxy::cut);
                sleep(hold).await;
                peer.put(peer.cluster.canary_key(), "2026-11-30T21:37:04Z".to_owned()).await;
            }
        }
    }

    async fn of_the_network(self, peer: &Peer, in_use: usize, hold: Duration, dice: &mut fastrand::Rng) {
        match self {
            Self::ShortCut => peer.ways().for_each(Proxy::cut),
            Self::LongCut => {
                peer.ways().for_each(Proxy::cut_off);
                sleep(hold).await;
                peer.ways().for_each(Proxy::restore);
            }
            Self::NothingArrives | Self::NothingComesBack | Self::BlackHole => {
                // One member, or all that there are.
                let affected = if dice.bool() { 1 } else { usize::MAX };
                for way in peer.ways().cycle_from(in_use).take(affected) {
                    if self != Self::NothingComesBack {
                        way.stall(Direction::ToServer);
                    }
                    if self != Self::NothingArrives {
                        way.stall(Direction::ToClient);
                    }
                }
                sleep(hold).await;
                peer.ways().for_each(Proxy::flow);
            }
            Self::Delay => {
                let delay = Duration::from_millis(dice.u64(10..300));
                peer.ways().for_each(|way| way.delay(delay));
                sleep(hold).await;
                peer.ways().for_each(|way| way.delay(Duration::ZERO));
            }
            _ => unreachable!("none of the network's"),
        }
    }
}

trait CycleFrom<'a> {
    fn cycle_from(self, first: usize) -> impl Iterator<Item = &'a Proxy>;
}

impl<'a, I: Iterator<Item = &'a Proxy>> CycleFrom<'a> for I {
    fn cycle_from(self, first: usize) -> impl Iterator<Item = &'a Proxy> {
        let mut ways: Vec<_> = self.collect();
        let length = ways.len();
        ways.rotate_left(first % length);
        ways.into_iter()
    }
}

/// Behind the same address is another store of the same cluster: half of what was known, some of it with other labels, and
/// some that is new. Then the first one is back.
async fn other_etcd(mesh: &mut Mesh, at: usize, hold: Duration) {
    mesh.spare.recreate().await.unwrap();
    let client = mesh.spare.client();
    let peer = &mut mesh.peers[at];
    peer.changes.pause().await;
    let here = peer.valid().await;
    let cluster = peer.cluster.clone();
    announce(&client, &cluster, 0).await;
    let mut kv = client.kv_client();
    for (n, (number, key_string)) in here.iter().enumerate() {
        let key_string = match n % 4 {
            0 => continue,
            1 => format!("k8s:moved={n};{key_string}"),
            _ => key_string.clone(),
        };
        kv.put(cluster.identity_key(*number), key_string, None).await.unwrap();
    }
    let there = read(&client, &cluster).await;
    // What only one of them has goes on the way there or on the way back.
    let only_here = here.keys().filter(|number| !there.contains_key(number));
    let only_there = there.keys().filter(|number| !here.contains_key(number));
    peer.changes.gone.extend(only_here.chain(only_there));
    peer.retarget(Some(mesh.spare.port()));
    mesh.agree_on("at another etcd", &cluster.name, &there).await;
    let peer = &mut mesh.peers[at];
    peer.changes.resume(peer.client());
    sleep(hold).await;
    peer.retarget(None);
}

/// The store goes back to a backup: the same etcd cluster ID, lower revisions.
async fn restore(peer: &mut Peer, hold: Duration) {
    let Store::One(_) = &peer.store else { unreachable!("it suits only such") };
    let backup = tempfile::tempdir_in("/dev/shm").unwrap();
    let data = std::fs::read_dir(peer.home.path()).unwrap().next().unwrap().unwrap().path();
    peer.changes.pause().await;
    peer.store.member(0).kill().unwrap();
    copy(&data, backup.path());
    peer.store.member(0).restart().await.unwrap();
    let then = peer.valid().await;
    peer.changes.resume(peer.client());
    sleep(hold).await;
    peer.changes.pause().await;
    let now = peer.valid().await;
    peer.store.member(0).kill().unwrap();
    for entry in std::fs::read_dir(&data).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
    }
    copy(backup.path(), &data);
    peer.store.member(0).restart().await.unwrap();
    peer.changes.gone.extend(now.keys().filter(|number| !then.contains_key(number)));
    peer.changes.rebuild(then);
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap();
    assert!(copied.success());
}

/// The cluster has another ID for a while, of whose range the store has nothing.
async fn cluster_id_changed(mesh: &mut Mesh, at: usize, hold: Duration) {
    let peer = &mesh.peers[at];
    let other = Cluster { id: peer.cluster.id + 100, ..peer.cluster.clone() };
    peer.put(other.config_key(), other.config_json()).await;
    let (board, name) = (mesh.gateway.running().status.clone(), peer.name().to_owned());
    let moved = async || {
        let status = board.snapshot().remove(&name).unwrap_or_default();
        u32::from(status.cluster_id) == other.id && status.state == ClusterState::Synced && status.identities == 0
    };
    eventually("the new ID's range is read, and empty", DEADLINE, moved).await;
    sleep(hold).await;
    peer.put(peer.cluster.config_key(), peer.cluster.config_json()).await;
}
