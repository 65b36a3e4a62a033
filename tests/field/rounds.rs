//! Many sessions, one after the other: nothing of an earlier one is left, and nothing of a later one is harmed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use meshgate::telemetry::ClusterState;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::soak::Resources;
use crate::peer::{DEADLINE, Rig, Store, Told};
use crate::support::fill::{Churn, Cluster, FillOptions, LabelMix, fill, load, valid_contents};
use crate::support::proxy::{Direction, Proxy};
use crate::support::{CertSpec, Pki, eventually};

/// As many as the variable says, if it is set.
fn rounds(variable: &str) -> Option<u32> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number of rounds"))
}

/// `MESHGATE_RECONNECTS` says how often; the store is a large one then.
#[tokio::test(flavor = "multi_thread")]
async fn r08_reconnects_leave_nothing_behind() {
    let (rounds, many) = rounds("MESHGATE_RECONNECTS").map_or((40, 1_000), |rounds| (rounds, 20_000));
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &[]).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::with(|settings| settings.list_watch.page_size = i64::from(many) / 4);
    let relabel = async |round: u32| {
        let set = |n: u32| format!("k8s:app=a{n};k8s:io.cilium.k8s.policy.cluster=blue;k8s:round={round};");
        let entries = (0..many).map(|n| (store.cluster.identity_key(store.number(n)), set(n)));
        load(&store.etcd.client(), entries, 0).await.unwrap();
        store.etcd.client().kv_client().get("x", None).await.unwrap().header().unwrap().revision()
    };
    relabel(0).await;
    rig.write("blue", &store.yaml_through(proxy.port()));
    rig.until_state("blue", ClusterState::Synced).await;
    // Whoever looks something up meanwhile never sees what is older than the round before.
    let oldest = Arc::new(AtomicU32::new(0));
    let lookups = {
        let (view, oldest, number) = (rig.view.clone(), Arc::clone(&oldest), store.number(7));
        tokio::spawn(async move {
            loop {
                let least = oldest.load(Ordering::SeqCst);
                let mesh = view.load();
                let found = mesh.clusters().flat_map(|cluster| cluster.iter()).find(|id| id.number().get() == number);
                let set = found.expect("it is there all along").key_string();
                let (_, round) = set.trim_end_matches(';').rsplit_once('=').unwrap();
                assert!(round.parse::<u32>().unwrap() >= least, "{set} after round {least}");
                sleep(Duration::from_millis(1)).await;
            }
        })
    };
    let lookups = AbortOnDropHandle::new(lookups);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut before = None;
    for round in 1..=rounds {
        let session = rig.status("blue").unwrap().session;
        proxy.cut_off();
        let revision = relabel(round).await;
        proxy.restore();
        rig.until("blue", "has caught up", |status| {
            status.session > session && status.state == ClusterState::Synced && status.revision >= revision
        })
        .await;
        let (shown, last) = (rig.shown(2), format!("k8s:round={round};"));
        assert!(shown.len() == many as usize && shown.values().all(|set| set.ends_with(&last)), "round {round}");
        oldest.store(round, Ordering::SeqCst);
        // What it was told is remembered until then.
        rig.subscriber.clear().await;
        if round == rounds.min(10) {
            eventually("one connection is left", DEADLINE, async || proxy.open() == 1).await;
            before = Some(Resources::of(tasks(), proxy.open()));
        }
    }
    assert!(!lookups.is_finished(), "look-ups went on: {:?}", timeout(DEADLINE, lookups).await);
    let before = before.unwrap();
    let after = Resources::back_at(&before, async || Resources::of(tasks(), proxy.open())).await;
    eprintln!("after ten rounds: {before}\nafter {rounds}: {after}");
    after.assert_not_above(&before, 2 << 20);
    drop(lookups);
    rig.stop().await;
}

/// `MESHGATE_ROTATIONS` says how often. Address and certificate change at random moments under churn; a third of the old
/// connections hang when they are to be closed.
#[tokio::test(flavor = "multi_thread")]
async fn r22_rotations_under_churn_lose_nothing() {
    let rotations = rounds("MESHGATE_ROTATIONS").unwrap_or(15);
    let pki = Pki::temporary().unwrap();
    let cluster = Cluster::new("blue", 2);
    let store = Store::empty(&pki, cluster.clone()).await;
    let client = store.etcd.client();
    let mix = LabelMix::new("blue", 1);
    let contents = fill(&client, &cluster, &mix, &FillOptions { count: 300, ..FillOptions::default() }).await.unwrap();
    // Never touched: whoever is told that one of these is gone was told something wrong.
    for n in 1..=20 {
        store.put_app(60_000 + n, "stays").await;
    }
    store.announce().await;
    let ways = [Proxy::to(store.etcd.port()).await, Proxy::to(store.etcd.port()).await];
    let certificate = CertSpec::client("blue-gateway");
    let files = pki.issue(&certificate).unwrap();
    let old = store.etcd.client_certs().unwrap();
    let yaml = |way: usize| {
        store
            .yaml_through(ways[way].port())
            .replace(&old.cert.display().to_string(), &files.cert.display().to_string())
            .replace(&old.key.display().to_string(), &files.key.display().to_string())
    };
    let rig = Rig::with(|settings| settings.list_watch.page_size = 100);
    rig.write("blue", &yaml(0));
    rig.until_state("blue", ClusterState::Synced).await;
    let churn = Churn::new(cluster.clone(), mix, contents, 5).with_bad_entries(30).start(client.clone(), 50);
    let mut dice = fastrand::Rng::with_seed(22);
    let mut way = 0;
    for rotation in 0..rotations {
        if rotation % 3 == 0 {
            pki.issue(&certificate).unwrap();
        } else {
            let before = way;
            way = 1 - way;
            if rotation % 3 == 1 {
                ways[before].stall(Direction::ToServer);
            }
            rig.write("blue", &yaml(way));
        }
        sleep(Duration::from_millis(dice.u64(1..300))).await;
        ways.iter().for_each(Proxy::flow);
    }
    drop(churn.stop().await.unwrap());
    let expected = valid_contents(&client, &cluster).await.unwrap();
    rig.until_shown(2, &expected).await;
    let last = ways[way].port().to_string();
    rig.until("blue", "is synced by way of the last", |status| {
        status.state == ClusterState::Synced && status.endpoint.ends_with(&last) && status.cluster_id == 2
    })
    .await;
    let untouched = store.number(60_000);
    let log = rig.subscriber.log().await;
    let lost =
        |told: &&Told| matches!(told, Told::Removed(_, number) if *number > untouched && *number <= untouched + 20);
    assert_eq!(log.iter().filter(lost).count(), 0);
    eventually("one connection is left", DEADLINE, async || ways.iter().map(Proxy::open).sum::<usize>() == 1).await;
    rig.stop().await;
}
