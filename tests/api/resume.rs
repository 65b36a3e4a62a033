//! Streams that go on where another one ended, over connections.

use std::collections::HashMap;

use meshgate::view::SourcePosition;
use tonic::codec::CompressionEncoding;

use super::*;

fn publish_at(server: &Server, builder: &mut ClusterBuilder, revision: i64) {
    builder.set_synced(SourcePosition { etcd_cluster_id: 1, revision });
    server.view.publish(builder.build());
}

impl Frames {
    /// Goes on from here with another stream.
    async fn again(self, server: &Server, mut request: pb::SubscribeRequest) -> Self {
        request.resume_tokens = self.fold.tokens();
        let stream = server.client().await.subscribe(request).await.unwrap().into_inner();
        let mut fold = self.fold;
        fold.begin();
        Self { stream, fold }
    }
}

/// What a stream brought until everything was synced, in a word each.
fn words(frames: &[Frame]) -> Vec<&'static str> {
    let word = |frame: &Frame| match frame {
        Frame::Hello(_) => "hello",
        Frame::SnapshotBegin(_) => "begin",
        Frame::SnapshotChunk(_) => "chunk",
        Frame::Synced(synced) if synced.resumed => "resumed",
        Frame::Synced(_) => "synced",
        Frame::Batch(_) => "batch",
        Frame::AllSynced(_) => "all synced",
        Frame::GoAway(_) => "go away",
        _ => "other",
    };
    frames.iter().map(word).collect()
}

async fn all_synced(sub: &mut Frames) -> Vec<Frame> {
    sub.until("all synced", |frame| matches!(frame, Frame::AllSynced(_))).await
}

#[tokio::test]
async fn s2_three_events_after_three_changes_and_the_goodbye_has_the_token() {
    let server = Server::start().await;
    let mut a = publish(&server, "a", 1, 1_000);
    publish(&server, "b", 2, 1_000);
    let mut sub = server.synced(pb::SubscribeRequest::default()).await;
    for (offset, revision) in [(0, 8), (1, 9)] {
        a.remove(number(&a, offset));
        publish_at(&server, &mut a, revision);
    }
    put(&mut a, 2, "k8s:app=changed;");
    publish_at(&server, &mut a, 10);
    // Nothing of that is read: the client goes away with what it had.
    sub = sub.again(&server, pb::SubscribeRequest::default()).await;
    let frames = all_synced(&mut sub).await;
    assert_eq!(words(&frames), ["hello", "resumed", "batch", "resumed", "all synced"]);
    let Frame::Batch(batch) = &frames[2] else { panic!("a batch") };
    assert_eq!((batch.upserted.len(), batch.removed.len()), (1, 2), "three events, as three things happened");
    assert_eq!(batch.reason(), pb::BatchReason::Resumed);
    assert!(sub.holds(&server.view));

    let view = server.view.clone();
    server.end().await;
    let Frame::GoAway(go_away) = sub.next().await else { panic!("GoAway is last") };
    assert_eq!(go_away.resume_tokens, sub.fold.tokens());
    assert!(go_away.resume_tokens.values().all(|token| !token.is_empty() && token.len() <= 40));

    // Another process, another replica: it has the same cluster, but never saw this client.
    let other = Server::start().await;
    view.load().clusters().for_each(|cluster| other.view.publish(std::sync::Arc::clone(cluster)));
    sub = sub.again(&other, pb::SubscribeRequest::default()).await;
    assert_eq!(words(&all_synced(&mut sub).await), ["hello", "resumed", "resumed", "all synced"]);
    other.end().await;
}

#[tokio::test]
async fn s2_tokens_that_are_no_use_cost_a_snapshot_of_their_cluster_only() {
    let server = Server::start().await;
    publish(&server, "a", 1, 10);
    publish(&server, "b", 2, 10);
    let sub = server.synced(pb::SubscribeRequest::default()).await;
    let mut tokens = sub.fold.tokens();
    for useless in [b"garbage".to_vec(), Vec::new(), vec![0xff; 100_000], tokens["a"].clone()] {
        tokens.insert("b".into(), useless);
        let request = pb::SubscribeRequest { resume_tokens: tokens.clone(), ..Default::default() };
        let stream = server.client().await.subscribe(request.clone()).await.unwrap().into_inner();
        let mut fold = Fold::new(false);
        fold.begin();
        let mut frames = Vec::new();
        let mut stream = stream;
        while !matches!(frames.last(), Some(Frame::AllSynced(_))) {
            frames.push(timeout(SOON, stream.message()).await.unwrap().unwrap().unwrap().frame.unwrap());
        }
        assert_eq!(words(&frames), ["hello", "resumed", "begin", "chunk", "synced", "all synced"]);
        let Frame::Hello(hello) = &frames[0] else { panic!("Hello is first") };
        assert_eq!(hello.clusters[1].why, "the token is not one of this cluster");
        // Whoever wants nothing but to go on is told that it cannot.
        let only = pb::SubscribeRequest { start: pb::StartMode::ResumeOnly.into(), ..request };
        let mut stream = server.client().await.subscribe(only).await.unwrap().into_inner();
        let mut last = None;
        let status = loop {
            match timeout(SOON, stream.message()).await.unwrap() {
                Ok(frame) => last = frame.unwrap().frame,
                Err(status) => break status,
            }
        };
        let Some(Frame::GoAway(go_away)) = last else { panic!("GoAway is last") };
        assert_eq!((go_away.reason(), status.code()), (pb::GoAwayReason::NotResumable, tonic::Code::OutOfRange));
        assert_eq!(status.message(), "cluster b: the token is not one of this cluster");
    }
    assert_eq!(server.sample(r#"meshgate_subscription_ends_total{reason="not-resumable"}"#), 4);
    // More than a request may hold is the client's mistake.
    let resume_tokens = HashMap::from([("a".to_owned(), vec![0; 2 << 20])]);
    let too_large = pb::SubscribeRequest { resume_tokens, ..Default::default() };
    let status = server.client().await.subscribe(too_large).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::OutOfRange, "{status:?}");
    server.end().await;
}

#[tokio::test]
async fn history_is_shown() {
    let server = Server::start().await;
    let mut a = publish(&server, "a", 1, 10);
    server.synced(pb::SubscribeRequest::default()).await;
    for revision in 8..18 {
        put(&mut a, 0, &format!("k8s:revision={revision};"));
        publish_at(&server, &mut a, revision);
    }
    assert_eq!(server.sample("meshgate_history_versions"), 10);
    assert_eq!(server.sample("meshgate_history_bytes"), 10 * (3 << 10));
    assert_eq!(server.sample("meshgate_history_evicted_total"), 0);
    server.view.withdraw(id(1));
    assert_eq!(server.sample("meshgate_history_versions"), 0);
    server.end().await;
}

#[tokio::test]
async fn compressed_streams_hold_the_same() {
    let server = Server::start().await;
    let mut a = builder("a", 1);
    fill(&mut a, 20_000, 200);
    sync(&mut a);
    server.view.publish(a.build());
    for encoding in [CompressionEncoding::Zstd, CompressionEncoding::Gzip] {
        let mut client = server.client().await.accept_compressed(encoding).send_compressed(encoding);
        let response = client.subscribe(pb::SubscribeRequest::default()).await.unwrap();
        let told = response.metadata().get("grpc-encoding").unwrap().to_str().unwrap().to_owned();
        assert_eq!(told, format!("{encoding}"));
        let mut sub = Frames { stream: response.into_inner(), fold: Fold::new(false) };
        all_synced(&mut sub).await;
        assert!(sub.holds(&server.view));
        put(&mut a, 0, &format!("k8s:after={encoding};"));
        server.view.publish(a.build());
        sub.until_equal(&server.view).await;
    }
    server.end().await;
}
