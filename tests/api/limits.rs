//! Frames stay within their limits, whatever has to be told.

use prost::Message as _;

use super::*;

/// The largest frame, encoded, and the most identities and numbers in one.
fn largest(frames: &[Frame]) -> (usize, usize) {
    let bytes = |frame: &Frame| pb::SubscribeResponse { frame: Some(frame.clone()) }.encoded_len();
    let items = |frame: &Frame| match frame {
        Frame::SnapshotChunk(chunk) => chunk.identities.len(),
        Frame::Batch(batch) => batch.upserted.len() + batch.removed.len(),
        _ => 0,
    };
    let most = |of: &dyn Fn(&Frame) -> usize| frames.iter().map(of).max().unwrap_or_default();
    (most(&bytes), most(&items))
}

// The client is one at its defaults: it takes no message above 4 MiB.
#[tokio::test]
async fn s13_a_full_cluster_fits_a_client_at_its_defaults() {
    let server = Server::start().await;
    let mut a = builder("a", 1);
    fill(&mut a, 65_000, 300);
    fill(&mut a, 2_000, 2_000);
    sync(&mut a);
    server.view.publish(a.build());
    let mut sub = server.subscribe(pb::SubscribeRequest::default()).await;
    let frames = sub.until("synced", |frame| matches!(frame, Frame::Synced(_))).await;
    let limits = FrameLimits::default();
    let (bytes, items) = largest(&frames);
    assert!(bytes <= limits.bytes && items <= limits.items, "{bytes} bytes, {items} items");
    assert!(bytes > limits.bytes * 9 / 10, "frames are not smaller than they need be: {bytes}");
    assert_eq!(sub.fold.mesh()["a"].identities.len(), 65_000);

    // A mass delete, at one go.
    for offset in 0..65_000 {
        a.remove(number(&a, offset));
    }
    server.view.publish(a.build());
    let frames = sub.until("empty", |frame| matches!(frame, Frame::Batch(batch) if !batch.more)).await;
    let (bytes, items) = largest(&frames);
    assert!(bytes <= limits.bytes && items <= limits.items, "{bytes} bytes, {items} items");
    assert!(frames.len() >= 65_000 / limits.items);
    assert!(sub.holds(&server.view));
    server.end().await;
}

#[tokio::test]
async fn a_client_may_ask_for_less_and_not_for_more() {
    let server = Server::start_with(Security::Plaintext, limited(FrameLimits { items: 50, bytes: 20_000 })).await;
    let mut a = builder("a", 1);
    fill(&mut a, 300, 1_000);
    sync(&mut a);
    server.view.publish(a.build());
    for (request, most_items, most_bytes) in [
        (pb::SubscribeRequest { max_items: 5, ..Default::default() }, 5, 20_000),
        (pb::SubscribeRequest { max_bytes: 3_000, ..Default::default() }, 50, 3_000),
        (pb::SubscribeRequest { max_items: 1_000, max_bytes: 1 << 30, ..Default::default() }, 50, 20_000),
        // One alone is larger: it comes alone.
        (pb::SubscribeRequest { max_bytes: 100, ..Default::default() }, 1, 1_400),
    ] {
        let mut sub = server.subscribe(request.clone()).await;
        let frames = sub.until("synced", |frame| matches!(frame, Frame::Synced(_))).await;
        let (bytes, items) = largest(&frames);
        assert!(bytes <= most_bytes && items <= most_items, "{request:?}: {bytes} bytes, {items} items");
        assert!(sub.holds(&server.view));
    }
    server.end().await;
}

#[tokio::test]
async fn as_many_subscribers_as_allowed() {
    let options = ServerOptions {
        subscribe: SubscribeOptions { max_subscribers: 2, ..SubscribeOptions::default() },
        ..ServerOptions::default()
    };
    let server = Server::start_with(Security::Plaintext, options).await;
    let one = server.synced(pb::SubscribeRequest::default()).await;
    let two = server.synced(pb::SubscribeRequest::default()).await;
    let mut three = server.subscribe(pb::SubscribeRequest::default()).await;
    let Frame::GoAway(go_away) = three.next().await else { panic!("there is no room") };
    assert_eq!(go_away.reason(), pb::GoAwayReason::Overloaded);
    assert!(go_away.reconnect_after.is_some());
    assert_eq!(three.try_next().await.unwrap_err().code(), tonic::Code::ResourceExhausted);
    assert_eq!(server.sample("meshgate_subscribers"), 2);
    // Room is made by whoever leaves, however it leaves.
    drop(one);
    crate::support::eventually("a subscriber that left is not counted", SOON, || async {
        server.sample("meshgate_subscribers") == 1
    })
    .await;
    server.synced(pb::SubscribeRequest::default()).await;
    drop(two);
    server.end().await;
}
