//! One cluster ID, one peer; and what happens when IDs move.

use meshgate::telemetry::ClusterState;

use super::{DEADLINE, Rig, Store, Told};
use crate::support::fill::Cluster;
use crate::support::proxy::{Direction, Proxy};
use crate::support::{Pki, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn p06_the_later_of_two_is_refused_and_takes_over_by_itself() {
    let pki = Pki::temporary().unwrap();
    let first = Store::new(&pki, "first", 5, &["a", "b"]).await;
    let second = Store::new(&pki, "second", 5, &["c"]).await;
    let rig = Rig::start();
    rig.write("first", &first.yaml());
    rig.until_state("first", ClusterState::Synced).await;
    rig.write("second", &second.yaml());
    rig.until_refused("second", "cluster-id-taken").await;
    assert_eq!(rig.shown(5), first.contents(&[(1, "a"), (2, "b")]), "the earlier one is not disturbed");
    first.put_app(3, "d").await;
    rig.until_shown(5, &first.contents(&[(1, "a"), (2, "b"), (3, "d")])).await;

    rig.remove("first");
    rig.until_shown(5, &second.contents(&[(1, "c")])).await;
    rig.until_state("second", ClusterState::Synced).await;
    let log = rig.subscriber.log().await;
    let last_of_first = log.iter().rposition(|told| matches!(told, Told::Removed(name, _) if name == "first")).unwrap();
    let first_of_second =
        log.iter().position(|told| matches!(told, Told::Upserted(name, ..) if name == "second")).unwrap();
    assert!(last_of_first < first_of_second, "{log:?}");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p06_impossible_ids_are_refused_with_their_reason_and_recover() {
    let pki = Pki::temporary().unwrap();
    let mut store = Store::new(&pki, "blue", 1, &[]).await;
    let rig = Rig::start();
    rig.write("blue", &store.yaml());
    rig.until_refused("blue", "cluster-id-ours").await;
    for (id, reason) in [(0, "cluster-id-unset"), (256, "cluster-id-out-of-range")] {
        store.cluster.id = id;
        store.announce().await;
        rig.until_refused("blue", reason).await;
    }
    store.cluster = Cluster { width: meshgate::identity::MaxConnectedClusters::C511, ..Cluster::new("blue", 2) };
    store.announce().await;
    rig.until_refused("blue", "max-connected-clusters").await;
    store.cluster = Cluster::new("blue", 2);
    store.put_app(1, "a").await;
    store.announce().await;
    rig.until_shown(2, &store.contents(&[(1, "a")])).await;
    rig.stop().await;
}

/// When the one who takes the ID appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taker {
    /// While the other one has it.
    Before,
    /// While the other one's etcd is stalled, and nobody can know that it moves.
    DuringStall,
    /// When the other one has moved.
    Behind,
}

#[tokio::test(flavor = "multi_thread")]
async fn r13_a_peer_moves_to_another_id_and_another_peer_takes_the_old_one() {
    let pki = Pki::temporary().unwrap();
    for taker in [Taker::Before, Taker::DuringStall, Taker::Behind] {
        let mut a = Store::new(&pki, "a", 3, &["one", "two"]).await;
        let b = Store::new(&pki, "b", 3, &["three"]).await;
        let proxy = Proxy::to(a.etcd.port()).await;
        let rig = Rig::start();
        rig.write("a", &a.yaml_through(proxy.port()));
        rig.until_state("a", ClusterState::Synced).await;
        if taker == Taker::Before {
            rig.write("b", &b.yaml());
            rig.until_refused("b", "cluster-id-taken").await;
        }
        if taker == Taker::DuringStall {
            proxy.stall(Direction::ToClient);
        }
        // A moves: its identities are numbered anew, then it says so.
        a.cluster.id = 4;
        a.put_app(1, "one").await;
        a.announce().await;
        if taker == Taker::DuringStall {
            rig.write("b", &b.yaml());
            rig.until_refused("b", "cluster-id-taken").await;
            assert_eq!(rig.shown(3).len(), 2, "what is known of a stays its own");
            proxy.flow();
        }
        rig.until_shown(4, &a.contents(&[(1, "one")])).await;
        if taker == Taker::Behind {
            rig.write("b", &b.yaml());
        }
        rig.until_shown(3, &b.contents(&[(1, "three")])).await;
        assert_eq!(rig.status("a").unwrap().cluster_id, 4);
        let log = rig.subscriber.log().await;
        let at = |wanted: &dyn Fn(&Told) -> bool| log.iter().position(wanted).unwrap();
        let old = 3 << 16;
        let gone = |n: u32| move |told: &Told| *told == Told::Removed("a".into(), old + n);
        let drained = at(&gone(1)).max(at(&gone(2)));
        let of_b = |told: &Told| matches!(told, Told::Upserted(name, ..) if name == "b");
        assert!(drained < at(&of_b), "{taker:?}: {log:?}");
        let renumbered = |told: &Told| matches!(told, Told::Upserted(_, number, _) if number >> 16 == 4);
        assert!(drained < at(&renumbered), "{taker:?}: {log:?}");
        rig.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_file_drains_and_a_returning_one_syncs_again() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a", "b"]).await;
    let rig = Rig::start();
    for _ in 0..3 {
        rig.write("blue", &store.yaml());
        rig.until_shown(2, &store.contents(&[(1, "a"), (2, "b")])).await;
        rig.until_state("blue", ClusterState::Synced).await;
        assert!(rig.metrics.scrape().contains(r#"cluster="blue""#));
        rig.remove("blue");
        eventually("the drain", DEADLINE, async || rig.version(2).is_none() && rig.status("blue").is_none()).await;
        assert!(!rig.metrics.scrape().contains(r#"cluster="blue""#), "its series are gone");
    }
    rig.stop().await;
}
