//! The end of the server.

use std::time::Instant;

use tokio::net::TcpStream;

use super::*;

/// Reads to the end; returns what came since, and how it ended.
async fn to_the_end(mut sub: Frames) -> (Vec<Frame>, Status) {
    let mut frames = Vec::new();
    loop {
        match sub.try_next().await {
            Ok(frame) => frames.push(frame),
            Err(status) => return (frames, status),
        }
    }
}

fn check_goodbye(frames: &[Frame], status: &Status) {
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
    let Some((Frame::GoAway(go_away), before)) = frames.split_last() else { panic!("GoAway is last: {frames:?}") };
    assert_eq!(go_away.reason(), pb::GoAwayReason::Shutdown);
    let after = Duration::try_from(go_away.reconnect_after.unwrap()).unwrap();
    assert!(after <= SubscribeOptions::default().reconnect_spread);
    assert!(go_away.deadline.is_some(), "it is told when it will be cut");
    let removes = |frame: &Frame| match frame {
        Frame::ClusterRemoved(_) => true,
        Frame::Batch(batch) => !batch.removed.is_empty(),
        _ => false,
    };
    assert!(!before.iter().any(removes), "nothing is gone because the gateway goes");
}

#[tokio::test]
async fn streams_that_are_read_end_at_once() {
    let server = Server::start().await;
    publish(&server, "a", 1, 100);
    let mut readers = Vec::new();
    for _ in 0..20 {
        readers.push(tokio::spawn(to_the_end(server.synced(pb::SubscribeRequest::default()).await)));
    }
    let begin = Instant::now();
    server.end().await;
    assert!(begin.elapsed() < Duration::from_secs(3), "nobody was waited for: {:?}", begin.elapsed());
    for reader in readers {
        let (frames, status) = reader.await.unwrap();
        check_goodbye(&frames, &status);
    }
}

#[tokio::test]
async fn s8_stalled_subscribers_and_silent_clients_do_not_hold_the_end() {
    let drain = Duration::from_millis(700);
    let server = Server::start_with(Security::Plaintext, quick_drain(drain)).await;
    let mut a = builder("a", 1);
    fill(&mut a, 5_000, 1_000);
    sync(&mut a);
    server.view.publish(a.build());
    let mut readers = Vec::new();
    for _ in 0..5 {
        readers.push(tokio::spawn(to_the_end(server.synced(pb::SubscribeRequest::default()).await)));
    }
    let mut stalled = Vec::new();
    for _ in 0..5 {
        let mut sub = server.subscribe(pb::SubscribeRequest::default()).await;
        sub.next().await;
        stalled.push(sub);
    }
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(server.addr).await.unwrap());
    }
    let begin = Instant::now();
    server.end().await;
    let took = begin.elapsed();
    assert!(took < drain + Duration::from_secs(2), "{took:?}");
    for reader in readers {
        let (frames, status) = reader.await.unwrap();
        check_goodbye(&frames, &status);
    }
    // What was cut off got no goodbye, and no lies.
    for sub in stalled {
        let (frames, _) = to_the_end(sub).await;
        assert!(
            frames
                .iter()
                .all(|frame| matches!(frame, Frame::SnapshotBegin(_) | Frame::SnapshotChunk(_) | Frame::GoAway(_)))
        );
    }
}

#[tokio::test]
async fn silent_clients_alone_hold_nothing() {
    let server = Server::start().await;
    let silent = TcpStream::connect(server.addr).await.unwrap();
    let idle = server.client().await;
    let begin = Instant::now();
    server.end().await;
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    drop((silent, idle));
}

#[tokio::test]
async fn the_end_of_its_task_is_the_end_of_everything() {
    let server = Server::start().await;
    publish(&server, "a", 1, 10);
    let mut sub = server.synced(pb::SubscribeRequest::default()).await;
    server.done.abort();
    assert!(sub.try_next().await.is_err());
    crate::support::eventually("nothing is left behind", SOON, || async { server.sample("meshgate_subscribers") == 0 })
        .await;
}
