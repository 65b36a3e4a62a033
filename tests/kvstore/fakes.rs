//! What only a faulty or hostile etcd does.

use etcd_client::proto::{PbEvent, PbRangeResponse, PbWatchResponse};
use meshgate::kvstore::{ListKind, RestartReason, Session, SessionError};
use tonic::Status;

use super::{Copy, Seen, connect, timing};
use crate::support::fake_etcd::{FakeEtcd, OpenWatch, header, holding, kv, put};
use crate::support::fake_leases::Renewal;

const ID: u64 = 7;
const WATCH: i64 = 3;
const KEYS: [&str; 5] = ["ids/1", "ids/2", "ids/3", "ids/4", "ids/5"];

fn message(revision: i64, events: Vec<PbEvent>) -> PbWatchResponse {
    PbWatchResponse { header: header(ID, revision), watch_id: WATCH, events, ..PbWatchResponse::default() }
}

fn created(revision: i64) -> PbWatchResponse {
    PbWatchResponse { created: true, ..message(revision, vec![]) }
}

/// A store of five keys at revision 10, listed, with the watch confirmed.
async fn watching() -> (FakeEtcd, Session, Copy, OpenWatch) {
    let mut fake = FakeEtcd::start(holding(ID, 10, &KEYS)).await;
    let session = connect(fake.config()).await;
    let mut copy = Copy::paged(2);
    copy.until(&session, Seen::Listed).await;
    let watch = confirmed(&mut fake, &session, &mut copy, 10).await;
    (fake, session, copy, watch)
}

/// The next watch, confirmed by a member at that revision; the copy has taken its first event, at 11.
async fn confirmed(fake: &mut FakeEtcd, session: &Session, copy: &mut Copy, revision: i64) -> OpenWatch {
    let opened = async {
        let watch = fake.watch().await;
        watch.send(created(revision)).await;
        watch.send(message(11, vec![put("ids/1", 11)])).await;
        watch
    };
    let (watch, ()) = tokio::join!(opened, copy.until(session, Seen::Events));
    watch
}

/// Every page is asked for at the revision in the first page's header, and the watch from the next one on (R3).
#[tokio::test]
async fn r03_pages_carry_the_first_page_s_revision() {
    let mut revision = 10;
    let mut store = holding(ID, 0, &KEYS);
    let mut fake = FakeEtcd::start(move |request| {
        // The store goes on with every answer.
        revision += 1;
        store(request).map(|answer| PbRangeResponse { header: header(ID, revision), ..answer })
    })
    .await;
    let session = connect(fake.config()).await;
    assert_eq!(session.etcd_cluster_id(), ID);
    let mut copy = Copy::paged(2);
    copy.until(&session, Seen::Listed).await;
    let pages = fake.pages();
    let first = session.revision() - 2;
    assert_eq!(pages.iter().map(|page| page.revision).collect::<Vec<_>>(), [0, first, first]);
    let from: Vec<_> = pages.iter().map(|page| String::from_utf8(page.key.clone()).unwrap()).collect();
    assert_eq!(from, ["ids/", "ids/2\0", "ids/4\0"]);
    assert!(pages.iter().all(|page| page.range_end == b"ids0" && page.limit == 2 && !page.serializable));
    let opened = async { fake.watch().await.start_revision };
    tokio::select! {
        start = opened => assert_eq!(start, first + 1),
        step = copy.step(&session) => panic!("{step:?}"),
    }
}

/// The header of any answer may be the one that tells (R5); a session with a wrong one gives no answers any more.
#[tokio::test]
async fn r05_another_cluster_id_under_one_connection_ends_the_session() {
    let changed = SessionError::ClusterIdChanged { expected: ID, found: 8 };
    // In a page.
    let fake = FakeEtcd::start(holding(ID, 10, &KEYS)).await;
    let session = connect(fake.config()).await;
    let mut copy = Copy::paged(2);
    copy.until(&session, Seen::Page).await;
    fake.answer(holding(8, 10, &KEYS));
    assert_eq!(copy.until_over(&session).await, changed);
    fake.answer(holding(ID, 10, &KEYS));
    assert_eq!(session.get(b"ids/1").await.unwrap_err(), changed);
    assert_eq!(session.closed().await, changed);
    // In a message of a watch: confirmation, events, progress.
    let (_fake, session, mut copy, watch) = watching().await;
    let foreign = PbWatchResponse { header: header(8, 12), ..message(12, vec![put("ids/9", 12)]) };
    watch.send(foreign).await;
    assert_eq!(copy.until_over(&session).await, changed);
    assert!(!copy.published.contains_key("ids/9"), "nothing of it is applied");
    let (_fake, session, mut copy, watch) = watching().await;
    watch.send(PbWatchResponse { header: header(8, 12), watch_id: -1, ..message(12, vec![]) }).await;
    assert_eq!(copy.until_over(&session).await, changed);
}

#[tokio::test]
async fn r06_a_linearizable_answer_from_the_past_ends_the_session() {
    let fake = FakeEtcd::start(holding(ID, 10, &KEYS)).await;
    let session = connect(fake.config()).await;
    fake.answer(holding(ID, 9, &KEYS));
    assert_eq!(session.get(b"ids/1").await.unwrap_err(), SessionError::RevisionWentBack { known: 10, found: 9 });
}

/// A watch is confirmed by a member that stands behind our position: a read tells whether it only lags.
#[tokio::test]
async fn r06_a_confirmation_from_the_past_is_looked_into() {
    // The member lags; the store does not.
    let mut fake = FakeEtcd::start(holding(ID, 10, &KEYS)).await;
    let session = connect(fake.config()).await;
    let mut copy = Copy::paged(10);
    copy.until(&session, Seen::Listed).await;
    let watch = confirmed(&mut fake, &session, &mut copy, 4).await;
    drop((watch, session));
    // The store is behind: the next session does not believe it at once, then lists.
    fake.answer(holding(ID, 10, &KEYS));
    let session = connect(fake.config()).await;
    fake.answer(holding(ID, 5, &KEYS[..2]));
    assert_eq!(copy.until_over(&session).await, SessionError::RevisionWentBack { known: 10, found: 5 });
    let session = connect(fake.config()).await;
    copy.until(&session, Seen::Listed).await;
    assert_eq!(copy.count(&Seen::Started(ListKind::Again)), 1, "{:?}", copy.seen);
    assert_eq!((copy.published.len(), copy.revision), (2, 5));
}

/// A session whose first answer is old may have come from a member that lagged.
#[tokio::test]
async fn r06_one_old_answer_is_no_proof() {
    let (mut fake, session, mut copy, watch) = watching().await;
    drop((watch, session));
    let mut calls = 0;
    fake.answer(move |request| {
        calls += 1;
        holding(ID, if calls == 1 { 4 } else { 11 }, &KEYS)(request)
    });
    let session = connect(fake.config()).await;
    let opened = async {
        let watch = fake.watch().await;
        assert_eq!(watch.start_revision, 12);
        watch.send(created(11)).await;
        watch
    };
    let (_watch, ()) = tokio::join!(opened, copy.until(&session, Seen::Resumed));
    assert_eq!(copy.lists(), 1);
}

/// The answer to our own question is a sign of life, and no position: it may overtake events (etcd-io/etcd#15220).
#[tokio::test]
async fn an_answer_to_a_question_advances_nothing() {
    let (_fake, session, mut copy, mut watch) = watching().await;
    let answering = async {
        watch.asked(1).await;
        watch.send(PbWatchResponse { watch_id: -1, ..message(50, vec![]) }).await;
        // An event that the answer overtook.
        watch.send(message(50, vec![put("ids/6", 49)])).await;
        watch
    };
    let (watch, seen) = tokio::join!(answering, copy.step(&session));
    assert_eq!((seen.unwrap(), copy.revision), (Seen::Events, 49));
    watch.send(message(60, vec![])).await;
    assert_eq!((copy.step(&session).await.unwrap(), copy.revision), (Seen::Progress, 60));
}

/// An answer from before what we know: a restored store shows itself to a quiet prefix, too (R6).
#[tokio::test]
async fn r06_a_quiet_watch_learns_that_the_store_went_back() {
    let (fake, session, mut copy, mut watch) = watching().await;
    fake.answer(holding(ID, 5, &KEYS));
    let answering = async {
        watch.asked(1).await;
        watch.send(PbWatchResponse { watch_id: -1, ..message(5, vec![]) }).await;
        watch
    };
    let (_watch, error) = tokio::join!(answering, copy.until_over(&session));
    assert_eq!(error, SessionError::RevisionWentBack { known: 11, found: 5 });
}

/// The server ends the stream, politely (E14): on the same session, the watch goes on where it was.
#[tokio::test]
async fn e14_a_stream_that_ends_politely_is_resumed() {
    let (mut fake, session, mut copy, watch) = watching().await;
    fake.answer(holding(ID, 11, &KEYS));
    drop(watch);
    assert_eq!(copy.step(&session).await.unwrap(), Seen::Restarting(RestartReason::WatchEnded));
    for cancel in [false, true] {
        let opened = async {
            let watch = fake.watch().await;
            assert_eq!(watch.start_revision, 12);
            watch.send(created(11)).await;
            if cancel {
                watch.send(PbWatchResponse { canceled: true, ..message(11, vec![]) }).await;
            }
            watch
        };
        let (watch, ()) = tokio::join!(opened, copy.until(&session, Seen::Resumed));
        if cancel {
            assert_eq!(copy.step(&session).await.unwrap(), Seen::Restarting(RestartReason::WatchEnded));
        }
        drop(watch);
        if !cancel {
            assert_eq!(copy.step(&session).await.unwrap(), Seen::Restarting(RestartReason::WatchEnded));
        }
    }
    assert_eq!(copy.lists(), 1);
}

/// A watch that lags until its position is compacted (E1): listed again, on the same session.
#[tokio::test]
async fn e01_a_watch_that_is_cancelled_by_a_compaction_lists_again() {
    let (fake, session, mut copy, watch) = watching().await;
    fake.answer(holding(ID, 30, &KEYS[..3]));
    let cancelled =
        PbWatchResponse { header: header(ID, 0), canceled: true, compact_revision: 20, ..message(0, vec![]) };
    watch.send(cancelled).await;
    assert_eq!(copy.step(&session).await.unwrap(), Seen::Restarting(RestartReason::Compacted));
    copy.until(&session, Seen::Listed).await;
    assert_eq!(copy.count(&Seen::Started(ListKind::Again)), 1);
    assert_eq!((copy.published.len(), copy.revision), (3, 30));
}

/// A page above our own limit is asked for in halves, from where it was: no new list, and no loop.
#[tokio::test]
async fn a_page_that_is_too_large_is_halved() {
    let mut store = holding(ID, 10, &KEYS);
    let fake = FakeEtcd::start(move |request| {
        if request.limit > 2 {
            return Err(Status::out_of_range("Error, decoded message length too large: found 99 bytes"));
        }
        store(request)
    })
    .await;
    let session = connect(fake.config()).await;
    let mut copy = Copy::paged(8);
    copy.until(&session, Seen::Listed).await;
    assert_eq!((copy.lists(), copy.published.len()), (1, 5));
    assert_eq!(fake.pages().iter().map(|page| page.limit).collect::<Vec<_>>(), [8, 4, 2, 2, 2]);
}

/// A list that such a server can keep from ending is not gone on with.
#[tokio::test]
async fn a_list_without_an_end_is_refused() {
    for answer in [vec![], vec![kv("ids/0", 1)], vec![kv("a", 1)]] {
        let fake = FakeEtcd::start(move |request| {
            let kvs = if request.range_end.is_empty() { vec![] } else { answer.clone() };
            Ok(PbRangeResponse { header: header(ID, 10), kvs, more: true, count: 9 })
        })
        .await;
        let session = connect(fake.config()).await;
        let error = Copy::paged(2).until_over(&session).await;
        assert_eq!((error.reason(), error.is_retryable()), ("not-etcd", false), "{error}");
    }
}

#[tokio::test]
async fn what_no_etcd_sends_ends_the_session_and_panics_nowhere() {
    let odd: [(&str, PbWatchResponse); 3] = [
        ("unknown kind", message(12, vec![PbEvent { r#type: 99, ..put("ids/1", 12) }])),
        ("no key", message(12, vec![PbEvent { kv: None, ..put("ids/1", 12) }])),
        ("no header", PbWatchResponse { header: None, ..message(12, vec![put("ids/1", 12)]) }),
    ];
    for (what, message) in odd {
        let (_fake, session, mut copy, watch) = watching().await;
        watch.send(message).await;
        assert_eq!(copy.until_over(&session).await.reason(), "not-etcd", "{what}");
    }
    let fake = FakeEtcd::start(|_| Ok(PbRangeResponse::default())).await;
    let connector = meshgate::kvstore::Connector::new(fake.config(), timing());
    assert_eq!(connector.connect(&|_, _| {}).await.unwrap_err().reason(), "not-etcd");
}

/// A refused watch is told as a refusal, not as an end to be got over by asking again.
#[tokio::test]
async fn t07_a_denied_watch_is_a_denial() {
    let mut fake = FakeEtcd::start(holding(ID, 10, &KEYS)).await;
    let session = connect(fake.config()).await;
    let mut copy = Copy::paged(10);
    copy.until(&session, Seen::Listed).await;
    let opened = async {
        let watch = fake.watch().await;
        let denied = PbWatchResponse {
            canceled: true,
            watch_id: -1,
            cancel_reason: "rpc error: code = PermissionDenied desc = etcdserver: permission denied".into(),
            ..created(10)
        };
        watch.send(denied).await;
        watch
    };
    let (_watch, error) = tokio::join!(opened, copy.until_over(&session));
    assert_eq!((error.reason(), error.is_retryable()), ("permission-denied", false));
}

/// All renewals go over one stream, and what becomes of one lease is that lease's matter (G5).
#[tokio::test]
async fn g05_a_lease_that_is_gone_or_not_answered_costs_the_others_nothing() {
    let fake = FakeEtcd::start(holding(ID, 10, &KEYS)).await;
    let session = connect(fake.config()).await;
    fake.leases.judge(ID, |_| Renewal::Lives(60));
    assert_eq!(session.lease_keep_alive(1).await, Ok(60));
    fake.leases.judge(ID, |id| match id {
        2 => Renewal::Lives(0),
        3 => Renewal::Ignored,
        _ => Renewal::Lives(30),
    });
    let silent = tokio::spawn({
        let session = session.clone();
        async move { session.lease_keep_alive(3).await }
    });
    let (first, gone, fourth) =
        tokio::join!(session.lease_keep_alive(1), session.lease_keep_alive(2), session.lease_keep_alive(4));
    assert_eq!((first, gone, fourth), (Ok(30), Err(SessionError::LeaseNotFound), Ok(30)));
    assert!(!silent.is_finished(), "nobody waited for it");
    assert_eq!(fake.leases.streams(), 1);
    assert!(matches!(silent.await.unwrap(), Err(SessionError::Deadline(_))));
    // A stream on which an answer failed to come is not asked again; one that the server ends is opened anew.
    assert_eq!(session.lease_keep_alive(1).await, Ok(30));
    assert_eq!(fake.leases.streams(), 2);
    fake.leases.judge(ID, |_| Renewal::Ends);
    assert_eq!(session.lease_keep_alive(1).await.unwrap_err().reason(), "unavailable");
    fake.leases.judge(ID, |_| Renewal::Lives(60));
    assert_eq!(session.lease_keep_alive(1).await, Ok(60));
    assert_eq!(fake.leases.streams(), 3);
    // Another etcd's answer ends the session, here as everywhere (R5).
    fake.leases.judge(8, |_| Renewal::Lives(60));
    let changed = SessionError::ClusterIdChanged { expected: ID, found: 8 };
    assert_eq!(session.lease_keep_alive(1).await, Err(changed));
}
