//! What is held is compared with the store, so that nothing silently diverges (E8).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::proto::{PbRangeResponse, PbWatchResponse};
use meshgate::identity::{ClusterId, ClusterName, IdentityRange};
use meshgate::kvstore::{Connector, ListWatchOptions, Timing};
use meshgate::mirror::{Admission, Follower, Mirror, Reporter, layout};
use meshgate::telemetry::{ClusterState, Metrics, StatusBoard};
use meshgate::view::{ClusterBuilder, Interner, View};
use tokio_util::task::AbortOnDropHandle;

use super::{DEADLINE, Rig, Store, WIDTH, timing};
use crate::support::fake_etcd::{FakeEtcd, header, kv};
use crate::support::proxy::{Direction, Proxy};
use crate::support::{Pki, eventually};

const ETCD: u64 = 7;
const WATCH: i64 = 3;

fn message(revision: i64) -> PbWatchResponse {
    PbWatchResponse { header: header(ETCD, revision), watch_id: WATCH, ..PbWatchResponse::default() }
}

/// A server that loses an event: nothing but looking again can find it.
#[tokio::test(flavor = "multi_thread")]
async fn e08_an_event_that_the_server_lost_is_found_and_repaired() {
    let key = |n: u32| format!("{}{}", layout::state_ids(), (2 << 16) + n);
    // Key, revision of its last change; and the store's revision.
    let store = Arc::new(Mutex::new((vec![(key(1), 5), (key(2), 6)], 10)));
    let contents = Arc::clone(&store);
    let mut fake = FakeEtcd::start(move |request| {
        let (keys, now) = contents.lock().unwrap().clone();
        let as_of = if request.revision == 0 { now } else { request.revision };
        let is_there = |(key, revision): &&(String, i64)| key.as_bytes() >= &*request.key && *revision <= as_of;
        let found: Vec<_> = keys.iter().filter(is_there).filter(|_| !request.range_end.is_empty()).collect();
        Ok(PbRangeResponse {
            header: header(ETCD, now),
            kvs: found.iter().map(|(key, revision)| kv(key, *revision)).collect(),
            more: false,
            count: i64::try_from(found.len()).unwrap(),
        })
    })
    .await;
    let (id, name) = (ClusterId::new(2, WIDTH).unwrap(), ClusterName::new("blue").unwrap());
    let range = IdentityRange::of(id, WIDTH);
    let (view, board) = (View::new(WIDTH, ClusterId::default()), StatusBoard::default());
    let reporter = Reporter::new("blue", false, board.clone(), Metrics::new(board.clone()));
    let mirror = Mirror::new(
        layout::state_ids().into(),
        Admission::local(range),
        ClusterBuilder::new(Interner::new(), name, id, range),
    );
    let mut follower = Follower::new(mirror, layout::state_ids().into(), ListWatchOptions::default(), view.clone())
        .auditing_every(Duration::from_millis(100));
    let connector = Connector::new(fake.config(), Timing { progress_interval: DEADLINE, ..timing().etcd });
    let session = connector.connect(&|_, _| {}).await.unwrap();
    let _following = AbortOnDropHandle::new(tokio::spawn(async move { follower.follow(&session, &reporter).await }));
    let shown = || view.load().cluster(id).map_or(0, |cluster| cluster.len());

    let watch = fake.watch().await;
    watch.send(PbWatchResponse { created: true, ..message(10) }).await;
    eventually("audited", DEADLINE, async || board.snapshot()["blue"].last_audit.is_some()).await;
    assert_eq!((shown(), board.snapshot()["blue"].audit_repairs), (2, 0));
    // Written, and never told; what is told is that everything up to there was.
    *store.lock().unwrap() = (vec![(key(1), 5), (key(2), 6), (key(3), 11)], 12);
    watch.send(message(12)).await;
    let again = fake.watch().await;
    assert_eq!(again.start_revision, 13, "behind a list of now");
    again.send(PbWatchResponse { created: true, ..message(12) }).await;
    eventually("repaired", DEADLINE, async || board.snapshot()["blue"].state == ClusterState::Synced).await;
    assert_eq!((shown(), board.snapshot()["blue"].audit_repairs), (3, 1));
}

/// A cut with ten changes costs the ten changes, not a list; that nothing was missed is proved all the same.
#[tokio::test(flavor = "multi_thread")]
async fn e08_a_resumed_watch_is_audited_for_a_few_bytes() {
    let pki = Pki::temporary().unwrap();
    let apps: Vec<String> = (1..=2000).map(|n| format!("app{n}-{}", "x".repeat(200))).collect();
    let store = Store::new(&pki, "blue", 2, &apps.iter().map(String::as_str).collect::<Vec<_>>()).await;
    // Refused by its value, and by its name: known, hence no difference.
    store.put(&store.cluster.identity_key(store.number(5000)), "k8s:app=nobody;").await;
    store.put(&format!("{}x", store.cluster.identity_key(store.number(5001))), "k8s:app=nobody;").await;
    let proxy = Proxy::to(store.etcd.port()).await;
    let rig = Rig::with(|settings| settings.list_watch = ListWatchOptions::default());
    rig.write("blue", &store.yaml_through(proxy.port()));
    rig.until_state("blue", ClusterState::Synced).await;
    let list = proxy.bytes(Direction::ToClient);
    proxy.cut_off();
    rig.until_state("blue", ClusterState::Reconnecting).await;
    for n in 1..=5 {
        store.delete_app(n).await;
        store.put_app(3000 + n, "new").await;
    }
    // The watch is told nothing of this, and on etcd 3.4 no position either.
    store.put("elsewhere", "x").await;
    let before = proxy.bytes(Direction::ToClient);
    proxy.restore();
    rig.until("blue", "is audited", |status| status.last_audit.is_some()).await;
    let resumed = proxy.bytes(Direction::ToClient) - before;
    let status = rig.status("blue").unwrap();
    assert_eq!((status.audit_repairs, status.identities), (0, 2000), "{status:#?}");
    assert!(resumed * 20 < list, "{resumed} bytes, where a list takes {list}");
    rig.stop().await;
}
