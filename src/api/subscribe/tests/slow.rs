//! Clients that do not read, and streams that end by themselves.

use std::sync::Arc;

use super::*;
use crate::api::subscribe::stream::lock;

#[tokio::test(start_paused = true)]
async fn what_is_held_for_a_client_that_does_not_read_is_let_go() {
    let (view, status) = mesh();
    let mut b = builder("b", 2);
    put(&mut b, 0, 0);
    sync(&mut b);
    view.publish(b.build());
    let mut sub = Subscriber::new(&view, &status, pb::SubscribeRequest::default());
    sub.names();
    let hold = Duration::from_mins(5);
    let look = |sub: &Subscriber| lock(sub.reader.session()).give_up_if_too_slow(Instant::now());

    // Nothing new: what it holds is what everybody holds.
    tokio::time::advance(hold * 2).await;
    assert_eq!(look(&sub), None);
    let held = Arc::downgrade(view.load().cluster(id(2)).unwrap());
    put(&mut b, 1, 0);
    sync_at(&mut b, 8);
    view.publish(b.build());
    // It reads on at the last moment, and has time again.
    assert_eq!(sub.names(), ["batch b +1 -0"]);
    put(&mut b, 2, 0);
    sync_at(&mut b, 9);
    view.publish(b.build());
    tokio::time::advance(Duration::from_secs(5 * 60 - 1)).await;
    assert_eq!(look(&sub), None);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(look(&sub), Some(Duration::ZERO));
    tokio::time::advance(Duration::from_secs(3)).await;
    assert_eq!(look(&sub), Some(Duration::from_secs(3)));
    // The history is the only one that keeps old versions now.
    view.withdraw(id(2));
    assert!(held.upgrade().is_none());

    // Should it read after all, it hears why, and can go on from where it was.
    let Some(Next::End(End::TooSlow)) = sub.reader.next().now_or_never() else { panic!("given up") };
    assert_eq!(lock(sub.reader.session()).tokens(), sub.fold.tokens());
}

#[tokio::test(start_paused = true)]
async fn s9_a_stream_ends_at_its_age_with_tokens() {
    let (view, status) = mesh();
    let mut b = builder("b", 2);
    put(&mut b, 0, 0);
    sync(&mut b);
    view.publish(b.build());
    let (_ready, readiness) = watch::channel(true);
    let plan = Plan::new(pb::SubscribeRequest::default(), FrameLimits::default()).unwrap();
    let expected = Expected::new(status, readiness.clone(), Instant::now());
    let (begin, age) = (Instant::now(), Duration::from_secs(7));
    let mut reader = Reader::new(Session::new(plan, shared(&view), expected, Some(begin + age)), readiness, admitted());
    let mut fold = Fold::new(false);
    loop {
        match reader.next().await {
            Next::Message(message) => drop(fold.apply(message.frame()).unwrap()),
            Next::End(end) => break assert_eq!(end, End::MaxAge),
        }
    }
    assert_eq!(begin.elapsed(), age);
    assert_eq!(lock(reader.session()).tokens(), fold.tokens());
}

#[tokio::test]
async fn a_clusters_state_is_told_when_it_changes_and_only_the_latest() {
    let (view, status) = mesh();
    let mut b = builder("b", 2);
    sync(&mut b);
    view.publish(b.build());
    let set = |state: ClusterState| status.update("b", |status| status.state = state);
    set(ClusterState::Synced);
    status.update("c", |status| status.state = ClusterState::Refused);
    let mut sub = Subscriber::new(&view, &status, pb::SubscribeRequest::default());
    assert_eq!(sub.names(), ["begin b@2", "synced b 0", r#"all synced but ["c"]"#]);
    set(ClusterState::Reconnecting);
    // Of what is not held nothing is to be known.
    status.update("c", |status| status.state = ClusterState::Connecting);
    let Some((Frame::ClusterStatus(told), _)) = sub.next() else { panic!("a status") };
    assert_eq!((told.cluster.as_str(), told.state()), ("b", pb::ClusterState::Reconnecting));
    assert_eq!(told.why, "reconnecting");
    for state in [ClusterState::Listing, ClusterState::Reconnecting, ClusterState::Synced] {
        set(state);
    }
    assert_eq!(sub.names(), ["status b"]);
    assert_eq!(sub.names(), [""; 0]);
}
