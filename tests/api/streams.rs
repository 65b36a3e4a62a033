//! Snapshots and changes over a connection.

use std::time::Instant;

use prost::Message as _;

use super::*;

#[tokio::test]
async fn a_subscriber_gets_the_whole_and_then_every_change() {
    let server = Server::start().await;
    let mut a = publish(&server, "a", 1, 3);
    publish(&server, "b", 2, 0);
    let mut sub = server.subscribe(pb::SubscribeRequest::default()).await;
    let Frame::Hello(hello) = sub.next().await else { panic!("Hello is first") };
    assert_eq!((hello.cluster.as_str(), hello.clusters.len()), ("a", 2));
    assert!(hello.clusters.iter().all(|mode| mode.mode() == pb::ServeMode::Snapshot));
    let frames = sub.until("all synced", |frame| matches!(frame, Frame::AllSynced(_))).await;
    let synced = frames.iter().filter(|frame| matches!(frame, Frame::Synced(_))).count();
    assert_eq!((frames.len(), synced), (6, 2), "begin, chunk, synced; begin, synced; all synced");

    a.remove(number(&a, 0));
    put(&mut a, 1, "k8s:app=other;");
    put(&mut a, 9, "k8s:app=new;");
    server.view.publish(a.build());
    let Frame::Batch(batch) = sub.next().await else { panic!("changes come as a batch") };
    assert_eq!((batch.upserted.len(), batch.removed.len(), batch.more, batch.count), (2, 1, false, 3));
    assert_eq!(batch.upserted[1].labels, ["k8s:app=new"]);
    assert_eq!(batch.position.unwrap().revision, 7);
    assert!(sub.holds(&server.view));
    server.end().await;
}

#[tokio::test]
async fn filters_and_numbers_only() {
    let server = Server::start().await;
    for (name, cluster) in [("a", 1), ("b", 2), ("c", 3)] {
        publish(&server, name, cluster, 2);
    }
    let request =
        pb::SubscribeRequest { clusters: vec!["b".into(), "z".into()], numbers_only: true, ..Default::default() };
    let mut sub = server.subscribe(request).await;
    let Frame::Hello(hello) = sub.next().await else { panic!("Hello is first") };
    let modes: Vec<_> = hello.clusters.iter().map(|mode| (mode.cluster.as_str(), mode.mode())).collect();
    assert_eq!(modes, [("b", pb::ServeMode::Snapshot), ("z", pb::ServeMode::Waiting)]);
    assert_eq!(hello.clusters[1].why, "no cluster of this name is configured");
    sub.until("all synced", |frame| matches!(frame, Frame::AllSynced(_))).await;
    let held: Vec<_> = sub.fold.mesh().keys().collect();
    assert_eq!(held, ["b"]);
    assert!(sub.fold.mesh()["b"].identities.values().all(|entry| entry.labels.is_empty()));
    // One that joins later counts too.
    publish(&server, "z", 26, 1);
    sub.until("z", |frame| matches!(frame, Frame::Synced(synced) if synced.cluster == "z")).await;
    server.end().await;
}

#[tokio::test]
async fn a_large_snapshot_does_not_delay_changes() {
    let server = Server::start().await;
    let mut a = publish(&server, "a", 1, 1);
    let mut sub = server.synced(pb::SubscribeRequest { max_items: 100, ..Default::default() }).await;
    let mut big = publish(&server, "big", 2, 20_000);
    sub.until("the snapshot is on its way", |frame| matches!(frame, Frame::SnapshotChunk(_))).await;
    // What the server has sent ahead cannot be overtaken: the window, the send buffer, what sockets hold.
    put(&mut a, 1, "k8s:app=urgent;");
    server.view.publish(a.build());
    put(&mut big, 0, "k8s:app=changed-while-it-was-told;");
    server.view.publish(big.build());
    let frames = sub.until("big is synced", |frame| matches!(frame, Frame::Synced(_))).await;
    let urgent = frames.iter().position(|frame| matches!(frame, Frame::Batch(batch) if batch.cluster == "a"));
    let urgent = urgent.expect("the change came before the snapshot was over");
    assert!(urgent < frames.len(), "{urgent} of {}", frames.len());
    sub.until_equal(&server.view).await;
    server.end().await;
}

#[tokio::test]
async fn many_subscribers_and_a_busy_view() {
    let server = Server::start().await;
    let mut clusters = [publish(&server, "a", 1, 200), publish(&server, "b", 2, 200), publish(&server, "c", 3, 200)];
    let mut readers = Vec::new();
    for items in [1, 7, 0] {
        let mut sub = server.subscribe(pb::SubscribeRequest { max_items: items, ..Default::default() }).await;
        let (view, (finish, finished)) = (server.view.clone(), tokio::sync::oneshot::channel::<()>());
        let reader = tokio::spawn(async move {
            tokio::pin!(finished);
            let mut over = false;
            while !(over && sub.holds(&view)) {
                tokio::select! {
                    frame = sub.try_next() => drop(frame.unwrap()),
                    _ = &mut finished, if !over => over = true,
                }
            }
        });
        readers.push((finish, reader));
    }
    for round in 0..2_000u32 {
        let cluster = &mut clusters[(round % 3) as usize];
        match round % 7 {
            0 => drop(cluster.remove(number(cluster, round * 31 % 200))),
            _ => put(cluster, round * 17 % 200, &format!("k8s:app=app-{round};")),
        }
        server.view.publish(cluster.build());
        if round % 50 == 0 {
            tokio::task::yield_now().await;
        }
    }
    for (finish, reader) in readers {
        finish.send(()).unwrap();
        timeout(SOON, reader).await.unwrap().unwrap();
    }
    server.end().await;
}

#[tokio::test]
async fn heartbeats_come_when_nothing_else_does() {
    let server = Server::start().await;
    let interval = prost_types::Duration { seconds: 0, nanos: 100_000_000 };
    let mut sub =
        server.synced(pb::SubscribeRequest { heartbeat_interval: Some(interval), ..Default::default() }).await;
    let begin = Instant::now();
    for _ in 0..3 {
        let Frame::Heartbeat(heartbeat) = sub.next().await else { panic!("nothing else happens") };
        assert!(heartbeat.at.is_some());
    }
    assert!(begin.elapsed() >= Duration::from_millis(250), "{:?}", begin.elapsed());
    server.end().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_told() {
    let server = Server::start().await;
    let request = pb::SubscribeRequest { clusters: vec!["Not-A-Name".into()], ..Default::default() };
    let status = server.client().await.subscribe(request).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(status.message().starts_with("clusters[0]: "), "{}", status.message());
    assert_eq!(server.sample(r#"meshgate_subscription_ends_total{reason="invalid"}"#), 1);
    server.end().await;
}

#[tokio::test]
async fn s4_at_each_marker_that_cluster_is_complete_however_slowly_it_is_read() {
    let server = Server::start().await;
    let mut builders = Vec::new();
    for (name, cluster) in [("a", 1), ("b", 2), ("c", 3)] {
        builders.push(publish(&server, name, cluster, 20_000));
    }
    let mut sub = server.subscribe(pb::SubscribeRequest::default()).await;
    let mut marked = 0;
    loop {
        // Changes pass while it reads; a pause now and then keeps what is on its way full.
        let frame = sub.next().await;
        match &frame {
            Frame::Synced(synced) => {
                let held = &sub.fold.mesh()[&synced.cluster];
                assert_eq!((held.identities.len(), held.checksum()), (20_000, synced.checksum), "{}", synced.cluster);
                assert_eq!(synced.count, 20_000);
                marked += 1;
            }
            Frame::SnapshotChunk(chunk) => {
                let held = sub.fold.mesh().get(&chunk.cluster);
                assert!(held.is_none(), "nothing of {} is shown before its marker", chunk.cluster);
                for builder in &mut builders {
                    put(builder, marked * 7, &format!("k8s:app=changed-{};", chunk.identities.len()));
                    server.view.publish(builder.build());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Frame::AllSynced(_) => break,
            _ => {}
        }
    }
    assert_eq!(marked, 3);
    sub.until_equal(&server.view).await;
    server.end().await;
}

#[tokio::test]
async fn s7_a_change_on_an_idle_stream_waits_for_no_other() {
    let server = Server::start().await;
    let mut a = publish(&server, "a", 1, 3);
    for encoding in [None, Some(tonic::codec::CompressionEncoding::Zstd)] {
        let mut client = server.client().await;
        if let Some(encoding) = encoding {
            client = client.accept_compressed(encoding);
        }
        let stream = client.subscribe(pb::SubscribeRequest::default()).await.unwrap().into_inner();
        let mut sub = Frames { stream, fold: Fold::new(false) };
        sub.until("all synced", |frame| matches!(frame, Frame::AllSynced(_))).await;
        for round in 0..5 {
            put(&mut a, 1, &format!("k8s:app=lone-{round}-{encoding:?};"));
            server.view.publish(a.build());
            // There is no next one: it comes alone or not at all.
            let frame = sub.next().await;
            assert!(matches!(&frame, Frame::Batch(batch) if batch.upserted.len() == 1), "{frame:?}");
            assert!(sub.holds(&server.view));
        }
    }
    server.end().await;
}

/// However many identities a cluster has: its removal is one small frame.
#[tokio::test]
async fn a_removal_is_one_frame_of_constant_size() {
    let server = Server::start().await;
    publish(&server, "a", 1, 3);
    publish(&server, "b", 2, 65_000);
    let mut sub = server.synced(pb::SubscribeRequest::default()).await;
    server.view.withdraw(id(2));
    let frame = sub.next().await;
    assert!(matches!(&frame, Frame::ClusterRemoved(removed) if removed.cluster == "b"), "{frame:?}");
    assert!(pb::SubscribeResponse { frame: Some(frame) }.encoded_len() < 100);
    assert!(sub.holds(&server.view));
    server.end().await;
}
