//! Subscribers that do not read.

use meshgate::devkit::raw_subscriber;
use meshgate::gateway::raise_descriptor_limit;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::*;
use crate::support::eventually;

#[tokio::test]
async fn s1_a_stalled_subscriber_gets_one_net_difference_and_nobody_waits_for_it() {
    let server = Server::start().await;
    let mut a = publish(&server, "a", 1, 1_000);
    let mut stalled = server.synced(pb::SubscribeRequest::default()).await;
    let mut reading = server.synced(pb::SubscribeRequest::default()).await;
    let sent = || server.sample(r#"meshgate_frames_total{kind="batch"}"#);

    // 50,000 changes, of which the reading one sees each version at once.
    let mut told = 0;
    for round in 0..200 {
        for offset in 0..250 {
            let key_string = format!("k8s:app=app-{round}-{offset};k8s:padding={:x<300};", "");
            put(&mut a, (round * 250 + offset) % 1_000, &key_string);
        }
        server.view.publish(a.build());
        told += reading.until_equal(&server.view).await.len();
    }
    assert_eq!(told, 200, "every version came by itself");
    let ahead = sent() - 200;
    assert!(ahead < 20, "{ahead} batches were sent to one that does not read: more than windows and buffers hold");

    let late = stalled.until_equal(&server.view).await;
    assert!(late.iter().all(|frame| matches!(frame, Frame::Batch(_))), "no reset is needed");
    assert_eq!(late.len() as u64, ahead + 1, "what was on its way, and one difference");
    let Some(Frame::Batch(net)) = late.last() else { panic!("a batch") };
    assert_eq!((net.upserted.len(), net.more), (1_000, false));
    server.end().await;
}

#[tokio::test]
async fn a_cluster_that_comes_and_goes_unseen_is_not_told() {
    let server = Server::start().await;
    let mut a = publish(&server, "a", 1, 1_000);
    let mut stalled = server.synced(pb::SubscribeRequest { max_items: 10, ..Default::default() }).await;
    // Fill what is on its way, so that the server waits for the reader.
    for round in 0..60 {
        fill(&mut a, 1_000, 100 + round);
        server.view.publish(a.build());
        tokio::task::yield_now().await;
    }
    let frames = || server.sample(r#"meshgate_frames_total{kind="batch"}"#);
    let (mut before, mut still) = (frames(), 0);
    eventually("the server waits for the reader", SOON, || {
        let now = frames();
        still = if now > before { 0 } else { still + 1 };
        before = now;
        async move { still > 40 }
    })
    .await;
    publish(&server, "b", 2, 10);
    server.view.withdraw(id(2));
    let late = stalled.until_equal(&server.view).await;
    assert!(late.iter().all(|frame| matches!(frame, Frame::Batch(_))), "of b nothing is heard");
    server.end().await;
}

/// As many as the entry says; all in one process, so that its limit on open files has to allow for both ends.
const VANISHING: u64 = 1_000;

#[tokio::test(flavor = "multi_thread")]
async fn s6_subscribers_that_vanish_are_forgotten() {
    raise_descriptor_limit().unwrap();
    let options = ServerOptions {
        keepalive_interval: Duration::from_secs(1),
        keepalive_timeout: Duration::from_secs(1),
        subscribe: SubscribeOptions { max_subscribers: 4_000, ..SubscribeOptions::default() },
        ..ServerOptions::default()
    };
    let server = Server::start_with(Security::Plaintext, options).await;
    publish(&server, "a", 1, 10);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let open = || server.sample("meshgate_subscribers");
    // One that comes and goes, so that the server has begun all its own.
    drop(server.synced(pb::SubscribeRequest::default()).await);
    eventually("it is gone", SOON, async || open() == 0).await;
    let before = tasks();
    // Killed: their system says goodbye for them.
    let mut killed = Vec::new();
    for _ in 0..VANISHING {
        killed.push(raw_subscriber(server.addr).await.unwrap());
    }
    eventually("they are there", SOON, async || open() == VANISHING).await;
    drop(killed);
    eventually("they are gone though nothing changes", SOON, async || open() == 0).await;
    // Those whose machine is gone: nothing is closed, and nothing answers.
    let mut dead = Vec::new();
    for _ in 0..VANISHING {
        dead.push(raw_subscriber(server.addr).await.unwrap());
    }
    eventually("they are missed though nothing changes", SOON, async || {
        let ended = server.sample(r#"meshgate_subscription_ends_total{reason="client"}"#);
        open() == 0 && ended == 2 * VANISHING + 1
    })
    .await;
    for tcp in &mut dead {
        until_closed(tcp).await;
    }
    eventually("no task is left of them", SOON, async || tasks() <= before).await;
    server.end().await;
}

pub(super) async fn until_closed(tcp: &mut TcpStream) {
    let mut sink = Vec::new();
    let _ = timeout(SOON, tcp.read_to_end(&mut sink)).await.expect("the server hangs up");
}

/// A server that gives up soon.
fn impatient(hold: Duration) -> ServerOptions {
    ServerOptions { subscribe: SubscribeOptions { hold, ..SubscribeOptions::default() }, ..ServerOptions::default() }
}

#[tokio::test]
async fn s1_whoever_does_not_read_for_too_long_is_sent_away_with_its_tokens() {
    let hold = Duration::from_millis(300);
    let server = Server::start_with(Security::Plaintext, impatient(hold)).await;
    let mut a = publish(&server, "a", 1, 1_000);
    let mut stalled = server.synced(pb::SubscribeRequest::default()).await;
    let mut reading = server.synced(pb::SubscribeRequest::default()).await;
    // More than is on its way at any time, for several times as long as a version is held.
    let (begin, mut round) = (tokio::time::Instant::now(), 0);
    while begin.elapsed() < hold * 4 || round < 60 {
        round += 1;
        fill(&mut a, 1_000, 100 + round % 7);
        server.view.publish(a.build());
        reading.until_equal(&server.view).await;
    }
    let mut frames = Vec::new();
    let status = loop {
        match stalled.try_next().await {
            Ok(frame) => frames.push(frame),
            Err(status) => break status,
        }
    };
    let Some((Frame::GoAway(go_away), before)) = frames.split_last() else { panic!("GoAway is last") };
    assert!(before.iter().all(|frame| matches!(frame, Frame::Batch(_))));
    assert_eq!((go_away.reason(), status.code()), (pb::GoAwayReason::TooSlow, tonic::Code::ResourceExhausted));
    assert_eq!(go_away.resume_tokens, stalled.fold.tokens());
    assert_eq!(server.sample(r#"meshgate_subscription_ends_total{reason="too-slow"}"#), 1);
    // It goes on from there: what it missed, and nothing else.
    let request = pb::SubscribeRequest { resume_tokens: stalled.fold.tokens(), ..Default::default() };
    let stream = server.client().await.subscribe(request).await.unwrap().into_inner();
    let mut fold = stalled.fold;
    fold.begin();
    let mut again = Frames { stream, fold };
    let frames = again.until_equal(&server.view).await;
    assert!(!frames.iter().any(|frame| matches!(frame, Frame::SnapshotBegin(_))));
    server.end().await;
}

#[tokio::test]
async fn s3_neither_stalled_nor_slow_ones_hold_up_the_others() {
    let server = Server::start_with(Security::Plaintext, impatient(Duration::from_mins(1))).await;
    let mut a = publish(&server, "a", 1, 2_000);
    let stalled = server.synced(pb::SubscribeRequest::default()).await;
    let mut slow = Vec::new();
    for _ in 0..5 {
        slow.push(server.synced(pb::SubscribeRequest { max_items: 50, ..Default::default() }).await);
    }
    let mut fast = Vec::new();
    for _ in 0..20 {
        fast.push(server.synced(pb::SubscribeRequest::default()).await);
    }
    for round in 0..60_u32 {
        for offset in 0..100 {
            put(&mut a, (round * 100 + offset) % 2_000, &format!("k8s:round={round};k8s:padding={:x<300};", ""));
        }
        server.view.publish(a.build());
        for sub in &mut fast {
            assert_eq!(sub.until_equal(&server.view).await.len(), 1, "each version by itself, at once");
        }
        // One frame for each of the versions, which come in two parts and more.
        for sub in &mut slow {
            sub.next().await;
        }
    }
    for sub in &mut slow {
        sub.until_equal(&server.view).await;
    }
    assert_eq!(server.sample("meshgate_subscribers"), 26, "nobody who makes progress is sent away");
    drop(stalled);
    server.end().await;
}

#[tokio::test]
async fn s9_streams_that_grow_old_end_apart_and_go_on() {
    let subscribe = SubscribeOptions { max_age: Some(Duration::from_millis(1_500)), ..SubscribeOptions::default() };
    let server = Server::start_with(Security::Plaintext, ServerOptions { subscribe, ..ServerOptions::default() }).await;
    let mut a = publish(&server, "a", 1, 100);
    let begin = std::time::Instant::now();
    let mut readers = Vec::new();
    for _ in 0..20 {
        let mut client = server.client().await;
        readers.push(tokio::spawn(async move {
            let (mut fold, mut ends, mut snapshots) = (Fold::new(false), Vec::new(), 0);
            // Three ends, and whatever there is after them.
            while ends.len() < 3 {
                fold.begin();
                let request = pb::SubscribeRequest { resume_tokens: fold.tokens(), ..Default::default() };
                let mut stream = client.subscribe(request).await.unwrap().into_inner();
                let mut last = None;
                while let Ok(Some(message)) = timeout(SOON, stream.message()).await.unwrap() {
                    let frame = message.frame.unwrap();
                    snapshots += usize::from(matches!(frame, Frame::SnapshotBegin(_)));
                    last = Some(frame.clone());
                    fold.apply(frame).unwrap();
                }
                let Some(Frame::GoAway(go_away)) = last else { panic!("GoAway is last") };
                assert_eq!(go_away.reason(), pb::GoAwayReason::MaxAge);
                ends.push(begin.elapsed());
            }
            (ends, snapshots, fold)
        }));
    }
    let mut round = 0;
    while readers.iter().any(|reader| !reader.is_finished()) {
        round += 1;
        put(&mut a, round % 100, &format!("k8s:round={round};"));
        a.set_synced(SourcePosition { etcd_cluster_id: 1, revision: i64::from(round) + 10 });
        server.view.publish(a.build());
        tokio::time::timeout(Duration::from_millis(10), std::future::pending::<()>()).await.unwrap_err();
    }
    let mut first = Vec::new();
    for reader in readers {
        let (ends, snapshots, _) = reader.await.unwrap();
        assert_eq!(snapshots, 1, "the first time, and never again");
        first.push(ends[0]);
    }
    first.sort();
    assert!(first[19] > first[0] + Duration::from_millis(100), "they end apart: {first:?}");
    server.end().await;
}
