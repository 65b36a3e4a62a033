//! What many subscribers need is encoded once.

use std::sync::Arc;

use super::*;
use crate::api::subscribe::message::Message;

/// What can be had now, as it is.
fn messages(sub: &mut Subscriber) -> Vec<Arc<Message>> {
    let mut messages = Vec::new();
    while let Some(Next::Message(message)) = sub.reader.next().now_or_never() {
        sub.fold.apply(message.frame()).unwrap();
        messages.push(message);
    }
    messages
}

/// The frames of that kind that two were told, one allocation for both.
fn shared_of(one: &[Arc<Message>], two: &[Arc<Message>]) -> usize {
    one.iter().filter(|message| two.iter().any(|other| Arc::ptr_eq(message, other))).count()
}

fn with(shared: &Shared, status: &StatusBoard, request: pb::SubscribeRequest) -> Subscriber {
    let fold = Fold::of(&request);
    Subscriber::again(shared, status, request, fold)
}

#[tokio::test(start_paused = true)]
async fn chunks_and_batches_are_shared_by_those_who_ask_for_the_same() {
    let (view, status) = mesh();
    let shared = shared(&view);
    let mut b = builder("b", 2);
    (0..1_000).for_each(|offset| put(&mut b, offset, offset));
    sync(&mut b);
    view.publish(b.build());
    let plain = || pb::SubscribeRequest { max_items: 100, ..Default::default() };
    let selecting = |selector: &str| pb::SubscribeRequest { label_selector: selector.into(), ..plain() };
    let mut subs = [
        plain(),
        plain(),
        pb::SubscribeRequest { numbers_only: true, ..plain() },
        selecting("value in (1,2),value"),
        selecting("value , value in ( 2,1 )"),
    ]
    .map(|request| with(&shared, &status, request));
    // One that has begun and does not go on keeps what the others need.
    let mut slow = with(&shared, &status, plain());
    slow.next();
    // Something changes while they load: they load the same version all the same.
    let first = messages(&mut subs[0]);
    put(&mut b, 0, 5);
    view.publish(b.build());
    let mut told: Vec<_> = subs.iter_mut().skip(1).map(messages).collect();
    told.insert(0, first);
    assert_eq!(shared_of(&told[0], &told[1]), 10, "ten chunks");
    assert_eq!((shared_of(&told[0], &told[2]), shared_of(&told[0], &told[3])), (0, 0));
    assert_eq!(shared_of(&told[3], &told[4]), 1, "one chunk");
    assert!(shared.shelf.bytes() > 10_000);
    assert_eq!(shared_of(&messages(&mut slow), &told[0]), 10);
    // Everybody has loaded: no snapshot is kept.
    assert!(shared.shelf.bytes() < 10_000, "{}", shared.shelf.bytes());

    put(&mut b, 1, 77);
    view.publish(b.build());
    let batches: Vec<_> = subs.iter_mut().map(messages).collect();
    assert_eq!(shared_of(&batches[1], &messages(&mut slow)), 1);
    assert_eq!(shared_of(&batches[3], &batches[4]), 1);
    for sub in &subs[..2] {
        assert_eq!(sub.fold.mesh()["b"].checksum(), b.current().checksum());
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_shared_for_a_moment_only_and_not_with_whoever_holds_something() {
    let (view, status) = mesh();
    let shared = shared(&view);
    let mut b = builder("b", 2);
    (0..10).for_each(|offset| put(&mut b, offset, 0));
    sync(&mut b);
    view.publish(b.build());
    let mut slow = with(&shared, &status, pb::SubscribeRequest::default());
    slow.next();
    put(&mut b, 0, 1);
    sync_at(&mut b, 8);
    view.publish(b.build());
    let mut joining = with(&shared, &status, pb::SubscribeRequest::default());
    assert_eq!(joining.names(), ["begin b@2", "chunk b 10", "synced b 10", "batch b +1 -0", "all synced but []"]);
    // A token, if only of another cluster: the client may have seen the newest version.
    let mut request = pb::SubscribeRequest::default();
    request.resume_tokens.insert("b".into(), b"useless".to_vec());
    let (_ready, readiness) = watch::channel(true);
    let expected = Expected::new(status.clone(), readiness.clone(), Instant::now());
    let plan = Plan::new(request, FrameLimits::default()).unwrap();
    let mut reader = Reader::new(Session::new(plan, shared.clone(), expected, None), readiness, admitted());
    let told = std::iter::from_fn(|| match reader.next().now_or_never()? {
        Next::Message(message) => Some(name(&message.frame())),
        Next::End(_) => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), ["begin b@2", "chunk b 10", "synced b 10", "all synced but []"]);
    // Later on, the current version it is.
    tokio::time::advance(Duration::from_secs(2)).await;
    let mut late = with(&shared, &status, pb::SubscribeRequest::default());
    assert_eq!(late.names(), ["begin b@2", "chunk b 10", "synced b 10", "all synced but []"]);
}
