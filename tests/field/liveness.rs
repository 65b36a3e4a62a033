//! Servers that are overloaded, end streams politely, or are asked for a great deal at once.

use std::time::Duration;

use meshgate::kvstore::{Connector, Timing};
use meshgate::telemetry::ClusterState;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use super::play::Play;
use crate::peer::{DEADLINE, Rig, Store, timing};
use crate::support::proxy::{Direction, Proxy};
use crate::support::{EtcdOptions, EtcdServer, Pki, eventually};

/// An etcd that answers nothing but that it is overloaded is asked less and less often, and not in step.
#[tokio::test(flavor = "multi_thread")]
async fn e11_an_overloaded_store_is_not_stormed() {
    let plays = ["one", "two", "three", "four", "five"].map(|name| Play::new(name, 2, &["a"]));
    let fake = plays[0].start().await;
    fake.answer(|_| Err(Status::resource_exhausted("etcdserver: too many requests")));
    let rig = Rig::with(|settings| {
        settings.timing = timing();
        settings.timing.etcd.backoff_base = Duration::from_millis(50);
        settings.timing.etcd.backoff_max = Duration::from_secs(1);
    });
    for play in &plays {
        rig.write(play.cluster.name.as_str(), &Play::yaml(&fake));
    }
    // The pauses of all five are at their longest by then.
    for play in &plays {
        rig.until(&play.cluster.name, "has failed often", |status| status.failures >= 8).await;
    }
    let mut asked = Vec::new();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        let before = fake.asked();
        sleep(Duration::from_millis(200)).await;
        asked.push(fake.asked() - before);
    }
    // Five peers, a full-jittered pause of half a second on average: ten a second. In step, all would come in a few of the
    // twenty slots.
    let total: usize = asked.iter().sum();
    assert!(total < 80, "{total} questions in four seconds: {asked:?}");
    assert!(asked.iter().filter(|asked| **asked > 0).count() >= 10, "{asked:?}");
    // Then it recovers.
    fake.answer(plays[0].answers());
    rig.until("one", "lists", |status| status.identities == 1).await;
    rig.stop().await;
}

/// A server that ends each watch politely, again and again: nobody sees anything of it, and every change arrives.
#[tokio::test(flavor = "multi_thread")]
async fn r21_a_watch_that_ends_politely_is_no_change_of_state() {
    let play = Play::new("blue", 2, &["a"]);
    let mut fake = play.start().await;
    let rig = Rig::start();
    rig.write("blue", &Play::yaml(&fake));
    let mut others = Vec::new();
    let watch = play.watched(&mut fake, &mut others).await;
    rig.until_state("blue", ClusterState::Synced).await;
    let before = rig.status("blue").unwrap();
    rig.subscriber.clear().await;
    drop(watch);
    for n in 2..8 {
        let watch = play.watched(&mut fake, &mut others).await;
        let event = play.put_app(n, "late");
        watch.send(play.message(vec![event])).await;
        eventually("the change is shown", DEADLINE, async || rig.shown(2).contains_key(&play.number(n))).await;
        // Dropping it ends the stream without an error.
    }
    let after = rig.status("blue").unwrap();
    assert_eq!(
        (after.state, after.since, after.session, after.failures, after.audit_repairs),
        (before.state, before.since, before.session, before.failures, 0)
    );
    assert_eq!(rig.subscriber.log().await.len(), 6, "but the changes, nothing was heard");
    rig.stop().await;
}

/// What a slow link takes long to carry is on its way all the while: a watch that catches up by a large message, of which
/// nothing is complete within `liveness`, is not given up again and again.
#[tokio::test(flavor = "multi_thread")]
async fn e03_a_slow_link_is_not_silence() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::with(|settings| settings.timing.etcd.liveness = Duration::from_secs(1));
    rig.write("blue", &store.yaml_through(proxy.port()));
    rig.until_state("blue", ClusterState::Synced).await;
    proxy.cut_off();
    rig.until_state("blue", ClusterState::Reconnecting).await;
    let large = "x".repeat(15_000);
    for n in 0..100 {
        store.put_app(n, &large).await;
    }
    // 1.5 MB, 16 kB at a time.
    proxy.delay(Duration::from_millis(50));
    proxy.restore();
    rig.until("blue", "has caught up", |status| status.identities == 100).await;
    let silent = |status: &meshgate::telemetry::ClusterStatus| {
        status.last_error.as_ref().is_some_and(|error| error.reason == "silent")
    };
    assert!(!silent(&rig.status("blue").unwrap()), "{:#?}", rig.status("blue"));
    // Silence is noticed as ever.
    proxy.delay(Duration::ZERO);
    rig.until("blue", "is synced", |status| status.state == ClusterState::Synced).await;
    proxy.stall(Direction::ToClient);
    rig.until("blue", "is silent", silent).await;
    proxy.flow();
    rig.until_state("blue", ClusterState::Synced).await;
    rig.stop().await;
}

/// A connection without any stream, for many times the interval of pings: none is sent, or the server would close it.
#[tokio::test(flavor = "multi_thread")]
async fn e06_a_connection_without_streams_sends_no_pings() {
    let pki = Pki::temporary().unwrap();
    let etcd = EtcdServer::start(EtcdOptions::mtls("idle", &pki).unwrap().in_memory()).await.unwrap();
    // The server's own minimum is 5 s; the third ping below it ends a connection.
    let timing = Timing { keepalive_interval: Duration::from_millis(100), ..Timing::default() };
    let session = Connector::new(etcd.config(), timing).connect(&|_, _| {}).await.unwrap();
    let closed = timeout(Duration::from_secs(2), session.closed()).await;
    assert!(closed.is_err(), "{closed:?}");
    session.get(b"x").await.unwrap();
}

/// Watches are not starved by reads that share their store: 64 lists in a loop, over TLS, by another client of the same
/// etcd.
#[tokio::test(flavor = "multi_thread")]
async fn e08_many_lists_do_not_starve_a_watch() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &[]).await;
    for n in 0..200 {
        store.put_app(n, &"x".repeat(2_000)).await;
    }
    let rig = Rig::with(|settings| settings.list_watch.page_size = 500);
    rig.write("blue", &store.yaml());
    rig.until_state("blue", ClusterState::Synced).await;
    let prefix = store.cluster.identity_prefix();
    let lists: Vec<_> = (0..64)
        .map(|_| {
            let (client, prefix) = (store.etcd.client(), prefix.clone());
            AbortOnDropHandle::new(tokio::spawn(async move {
                let mut kv = client.kv_client().max_decoding_message_size(64 << 20);
                loop {
                    let options = etcd_client::GetOptions::new().with_prefix();
                    kv.get(prefix.as_str(), Some(options)).await.unwrap();
                }
            }))
        })
        .collect();
    let mut took = Vec::new();
    for n in 1_000..1_011 {
        store.put_app(n, "late").await;
        let written = Instant::now();
        eventually("it arrives", DEADLINE, async || rig.shown(2).contains_key(&store.number(n))).await;
        took.push(written.elapsed());
    }
    took.sort();
    assert!(took[took.len() / 2] < Duration::from_secs(2), "{took:?}");
    assert_eq!(rig.status("blue").unwrap().failures, 0);
    drop(lists);
    rig.stop().await;
}
