//! Streams that go on where another one ended.

use super::*;
use crate::view::HistoryLimits;

fn publish(view: &View, builder: &mut ClusterBuilder, revision: i64) {
    sync_at(builder, revision);
    view.publish(builder.build());
}

/// Two gateways' views of one cluster with `count` identities, at revision 10.
fn two_replicas(count: u32) -> [(View, ClusterBuilder); 2] {
    [(); 2].map(|()| {
        let (view, mut b) = (View::new(WIDTH, id(1)), builder("b", 2));
        (0..count).for_each(|offset| put(&mut b, offset, 0));
        publish(&view, &mut b, 10);
        (view, b)
    })
}

fn fold_of(view: &View) -> Fold {
    let mut sub = Subscriber::new(view, &StatusBoard::default(), pb::SubscribeRequest::default());
    sub.names();
    sub.fold
}

fn again(view: &View, fold: Fold) -> Subscriber {
    Subscriber::again(&shared(view), &StatusBoard::default(), pb::SubscribeRequest::default(), fold)
}

/// Deletes two and modifies one, at three revisions.
fn three_changes(view: &View, builder: &mut ClusterBuilder) {
    remove(builder, 0);
    publish(view, builder, 11);
    remove(builder, 1);
    publish(view, builder, 12);
    put(builder, 2, 9);
    publish(view, builder, 13);
}

fn held(sub: &Subscriber) -> (usize, u64) {
    let cluster = &sub.fold.mesh()["b"];
    (cluster.identities.len(), cluster.checksum())
}

fn shown(view: &View) -> (usize, u64) {
    let mesh = view.load();
    let cluster = mesh.cluster(id(2)).unwrap();
    (cluster.len(), cluster.checksum())
}

#[tokio::test]
async fn s2_a_resumed_stream_gets_exactly_what_it_missed() {
    let [(view, mut b), _] = two_replicas(100);
    let fold = fold_of(&view);
    three_changes(&view, &mut b);
    let mut sub = again(&view, fold);
    assert_eq!(sub.modes[0].mode(), pb::ServeMode::Resumed);
    assert_eq!(sub.names(), ["resumed b 100", "batch b +1 -2", "all synced but []"]);
    assert_eq!(held(&sub), shown(&view));
    // And goes on from there, with or without anything new.
    let mut sub = again(&view, sub.fold);
    assert_eq!(sub.names(), ["resumed b 98", "all synced but []"]);
}

#[tokio::test]
async fn s2_b_after_a_restart_an_equal_state_is_recognized_and_another_one_comes_whole() {
    let [(view, mut b), (restarted, mut same)] = two_replicas(100);
    let fold = fold_of(&view);
    let mut sub = again(&restarted, fold);
    assert_eq!(sub.names(), ["resumed b 100", "all synced but []"]);
    // It restarts again, and now something happened meanwhile.
    let fold = sub.fold;
    three_changes(&view, &mut b);
    same.clear();
    (2..100).for_each(|offset| put(&mut same, offset, if offset == 2 { 9 } else { 0 }));
    let restarted = View::new(WIDTH, id(1));
    publish(&restarted, &mut same, 13);
    let mut sub = again(&restarted, fold);
    let mode = &sub.modes[0];
    assert_eq!(
        (mode.mode(), mode.why.as_str()),
        (pb::ServeMode::Snapshot, "what the token stands for is not in the history kept here")
    );
    assert_eq!(sub.names(), ["begin b@2", "chunk b 98", "synced b 98", "all synced but []"]);
    assert_eq!(held(&sub), shown(&view), "what is gone is gone");
}

#[tokio::test]
async fn s2_c_another_replica_resumes() {
    let [(one, mut b1), (two, mut b2)] = two_replicas(100);
    let fold = fold_of(&one);
    three_changes(&one, &mut b1);
    three_changes(&two, &mut b2);
    let mut sub = again(&two, fold);
    assert_eq!(sub.names(), ["resumed b 100", "batch b +1 -2", "all synced but []"]);
    assert_eq!(held(&sub), shown(&one));
}

#[tokio::test(start_paused = true)]
async fn s2_d_history_is_bounded_by_memory_and_by_age() {
    let limits = HistoryLimits { memory: 40 << 10, age: Duration::from_mins(1) };
    let view = View::with_history(WIDTH, id(1), limits);
    let mut b = builder("b", 2);
    (0..100).for_each(|offset| put(&mut b, offset, 0));
    publish(&view, &mut b, 10);
    let fold = fold_of(&view);
    three_changes(&view, &mut b);
    assert_eq!(view.history_size().versions, 3);
    // Memory: hundreds of versions later.
    for revision in 14..200 {
        put(&mut b, 3, u32::try_from(revision).unwrap());
        publish(&view, &mut b, revision);
        assert!(view.history_size().bytes <= limits.memory);
    }
    let size = view.history_size();
    assert!(size.evicted > 100 && size.versions > 5, "{size:?}");
    let mut sub = again(&view, fold);
    assert_eq!(sub.names(), ["begin b@2", "chunk b 98", "synced b 98", "all synced but []"]);
    // Age: what was replaced long ago is not found, and goes with the next version.
    put(&mut b, 4, 1);
    publish(&view, &mut b, 200);
    tokio::time::advance(limits.age + Duration::from_secs(1)).await;
    let mut sub = again(&view, sub.fold);
    assert_eq!(sub.names()[0], "begin b@2");
    put(&mut b, 4, 2);
    publish(&view, &mut b, 201);
    assert_eq!(view.history_size().versions, 1);
    // A drained cluster leaves nothing.
    view.withdraw(id(2));
    assert_eq!((view.history_size().versions, view.history_size().bytes), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn s2_e_a_token_from_the_future_waits_and_then_gets_a_snapshot() {
    let [(one, mut b1), (two, mut b2)] = two_replicas(100);
    three_changes(&one, &mut b1);
    let fold = fold_of(&one);
    // The other replica catches up while it is waited for: nothing but what is new is sent.
    let mut sub = again(&two, fold);
    assert_eq!(sub.modes[0].mode(), pb::ServeMode::Waiting);
    assert_eq!(sub.names(), [""; 0], "it would go back");
    three_changes(&two, &mut b2);
    assert_eq!(sub.names(), ["resumed b 98", "all synced but []"]);
    // It does not: after a while it is told what there is.
    put(&mut b1, 5, 5);
    publish(&one, &mut b1, 14);
    let begin = Instant::now();
    let mut sub = again(&two, fold_of(&one));
    assert_eq!(sub.wait().await, "begin b@2");
    assert_eq!(begin.elapsed(), Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn an_equal_state_is_confirmed_at_once_but_nothing_goes_back() {
    let [(one, mut b1), (two, mut b2)] = two_replicas(3);
    // There and back: the client knows of revision 12, where the contents are those of revision 10.
    for (view, b, until) in [(&one, &mut b1, 12), (&two, &mut b2, 10)] {
        for (revision, value) in [(11, 1), (12, 0)] {
            if revision <= until {
                put(b, 0, value);
                publish(view, b, revision);
            }
        }
    }
    let mut sub = again(&two, fold_of(&one));
    assert_eq!(sub.names()[0], "resumed b 3");
    // The gateway comes to revision 11, which the client has left behind.
    put(&mut b2, 0, 1);
    publish(&two, &mut b2, 11);
    assert_eq!(sub.names(), [""; 0]);
    put(&mut b2, 0, 0);
    publish(&two, &mut b2, 12);
    put(&mut b2, 1, 7);
    publish(&two, &mut b2, 13);
    assert_eq!(sub.names(), ["batch b +1 -0"]);

    // A store may go on without a change that concerns us: then the source's progress alone releases what waits.
    let mut sub = again(&one, sub.fold);
    assert_eq!(sub.names(), [""; 0]);
    put(&mut b1, 1, 7);
    sync_at(&mut b1, 13);
    one.publish(b1.build());
    one.apply(id(2), SourcePosition { etcd_cluster_id: 1, revision: 15 });
    assert_eq!(sub.names(), ["resumed b 3", "all synced but []"]);
}

#[tokio::test]
async fn the_progress_of_the_source_counts_where_nothing_changed() {
    let [(one, mut b1), (two, mut b2)] = two_replicas(3);
    // One restarted and listed at revision 50, the other has followed to there without any news.
    sync_at(&mut b1, 50);
    one.publish(b1.build());
    let fold = fold_of(&one);
    two.apply(id(2), SourcePosition { etcd_cluster_id: 1, revision: 50 });
    let mut sub = again(&two, fold);
    assert_eq!(sub.names()[0], "resumed b 3");
    put(&mut b2, 0, 1);
    publish(&two, &mut b2, 51);
    assert_eq!(sub.names(), ["batch b +1 -0"]);
}

#[tokio::test]
async fn a_list_that_runs_is_waited_for_and_costs_nothing_if_nothing_changed() {
    let [(one, _), _] = two_replicas(50);
    let fold = fold_of(&one);
    let view = View::new(WIDTH, id(1));
    let mut b = builder("b", 2);
    let mut sub = again(&view, fold);
    for offset in 0..50 {
        put(&mut b, offset, 0);
        view.publish(b.build());
    }
    assert_eq!(sub.names(), ["all synced but [\"b\"]"], "chunks of a list that may turn out to be known");
    publish(&view, &mut b, 20);
    assert_eq!(sub.names(), ["resumed b 50"]);
}

#[tokio::test]
async fn tokens_that_are_none_get_a_snapshot_and_say_why() {
    let [(view, _), _] = two_replicas(3);
    let fold = fold_of(&view);
    let good = fold.tokens()["b"].clone();
    let subscribe = |token: Vec<u8>, label_selector: &str, numbers_only: bool, start: pb::StartMode| {
        let (_ready, readiness) = watch::channel(true);
        let request = pb::SubscribeRequest {
            resume_tokens: [("b".to_owned(), token), ("gone".to_owned(), vec![1; 9])].into(),
            label_selector: label_selector.to_owned(),
            numbers_only,
            start: start.into(),
            ..Default::default()
        };
        let plan = Plan::new(request, FrameLimits::default()).unwrap();
        let expected = Expected::new(StatusBoard::default(), readiness.clone(), Instant::now());
        let mut session = Session::new(plan, shared(&view), expected, None);
        let mode = session.modes().remove(0);
        let first = match Reader::new(session, readiness, admitted()).next().now_or_never() {
            Some(Next::Message(message)) => name(&message.frame()),
            Some(Next::End(End::NotResumable(why))) => why,
            other => panic!("{other:?}"),
        };
        (mode.mode(), mode.why, first)
    };
    let any = pb::StartMode::Unspecified;
    assert_eq!(subscribe(good.clone(), "", false, any).2, "resumed b 3");
    for (token, selector, numbers_only, why) in [
        (b"garbage".to_vec(), "", false, "the token is not one of this cluster"),
        (vec![9; 4], "", false, "the token is of a form that this gateway does not know"),
        (good.clone(), "k8s:value=0", false, "the token was got with another filter"),
        (good.clone(), "", true, "the token was got with another filter"),
    ] {
        let told = subscribe(token.clone(), selector, numbers_only, any);
        assert_eq!(told, (pb::ServeMode::Snapshot, why.to_owned(), "begin b@2".to_owned()));
        let only = subscribe(token, selector, numbers_only, pb::StartMode::ResumeOnly);
        assert_eq!(only.2, format!("cluster b: {why}"));
    }
    assert_eq!(subscribe(good.clone(), "", false, pb::StartMode::ResumeOnly).2, "resumed b 3");
    assert_eq!(subscribe(good, "", false, pb::StartMode::Snapshot).2, "begin b@2");
}

#[tokio::test]
async fn live_only_tells_what_changes_from_now_on() {
    let [(view, mut b), _] = two_replicas(3);
    let request = pb::SubscribeRequest { start: pb::StartMode::LiveOnly.into(), ..Default::default() };
    let mut sub = Subscriber::new(&view, &StatusBoard::default(), request);
    assert_eq!(sub.modes[0].mode(), pb::ServeMode::Live);
    assert_eq!(sub.names(), ["all synced but []"]);
    put(&mut b, 1, 1);
    publish(&view, &mut b, 11);
    assert_eq!(sub.names(), ["batch b +1 -0"]);
    // One that joins is told from its first complete version on.
    let mut c = builder("c", 3);
    put(&mut c, 0, 0);
    view.publish(c.build());
    assert_eq!(sub.names(), [""; 0]);
    sync(&mut c);
    view.publish(c.build());
    assert_eq!(sub.names(), [""; 0]);
    put(&mut c, 1, 0);
    view.publish(c.build());
    assert_eq!(sub.names(), ["batch c +1 -0"]);
}

#[tokio::test]
async fn another_etcd_resumes_only_what_the_history_knows() {
    let [(view, mut b), (other, mut same)] = two_replicas(3);
    let fold = fold_of(&view);
    // The store was restored elsewhere: another etcd, revisions that mean nothing to the old ones.
    let moved = SourcePosition { etcd_cluster_id: 2, revision: 3 };
    b.set_synced(moved);
    view.publish(b.build());
    let mut sub = again(&view, fold);
    assert_eq!(sub.names()[0], "resumed b 3");
    // The token is of the new etcd now; a gateway that knows nothing of that one cannot tell.
    put(&mut b, 0, 1);
    b.set_synced(SourcePosition { revision: 4, ..moved });
    view.publish(b.build());
    assert_eq!(sub.names(), ["batch b +1 -0"]);
    put(&mut same, 0, 1);
    publish(&other, &mut same, 11);
    let sub = again(&other, sub.fold);
    assert_eq!(sub.modes[0].why, "the cluster's store is another one than the token names");
}

#[tokio::test(start_paused = true)]
async fn what_was_last_known_does_not_replace_what_is_newer() {
    let [(one, mut b1), _] = two_replicas(3);
    let old = fold_of(&one);
    three_changes(&one, &mut b1);
    let new = fold_of(&one);
    // A gateway that shows the cluster as it was at revision 10, since it cannot reach its store.
    let (two, status) = (View::new(WIDTH, id(1)), StatusBoard::default());
    let mut b2 = builder("b", 2);
    (0..3).for_each(|offset| put(&mut b2, offset, 0));
    b2.set_stale(SourcePosition { etcd_cluster_id: 1, revision: 10 });
    two.publish(b2.build());
    let again = |fold| Subscriber::again(&shared(&two), &status, pb::SubscribeRequest::default(), fold);
    let (mut old, mut new) = (again(old), again(new));
    let Some((Frame::Synced(synced), _)) = old.next() else { panic!("confirmed") };
    assert!(synced.resumed && synced.stale);
    assert_eq!(old.names(), ["all synced but []"]);
    assert_eq!(new.names(), [""; 0]);
    // However long that lasts: the others need not wait for it.
    let begin = Instant::now();
    assert_eq!(new.wait().await, r#"all synced but ["b"]"#);
    tokio::time::advance(Duration::from_mins(5)).await;
    assert_eq!(new.names(), ["heartbeat"]);
    assert!(begin.elapsed() > Duration::from_mins(5));
    three_changes(&two, &mut b2);
    assert_eq!(old.names(), ["batch b +1 -2", "confirmed b@2"]);
    assert_eq!(new.names(), ["resumed b 1"]);
}
