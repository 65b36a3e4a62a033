//! The state machine of a subscription, without a network: every interleaving of publications and reads is one of these.

mod filters;
mod model;
mod published;
mod resume;
mod sharing;
mod slow;

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::admission::Admission;
use super::expected::Expected;
use super::part::Shelf;
use super::request::{FrameLimits, Plan};
use super::session::Session;
use super::stream::{End, Next, Reader, Shared};
use crate::access::{Access, Grant};
use crate::api::pb;
use crate::api::pb::subscribe_response::Frame;
use crate::client::{Fold, Update};
use crate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters, NumericIdentity};
use crate::telemetry::{ClusterState, StatusBoard};
use crate::view::{ClusterBuilder, Interner, SourcePosition, View};

const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;

fn id(id: u32) -> ClusterId {
    ClusterId::new(id, WIDTH).unwrap()
}

fn builder(name: &str, cluster: u32) -> ClusterBuilder {
    let range = IdentityRange::of(id(cluster), WIDTH);
    ClusterBuilder::new(Interner::new(), ClusterName::new(name).unwrap(), id(cluster), range)
}

fn put(builder: &mut ClusterBuilder, offset: u32, value: u32) {
    let number = NumericIdentity::new(builder.current().range().min() + offset);
    builder.upsert(number, &format!("k8s:value={value};"), 1).unwrap();
}

fn remove(builder: &mut ClusterBuilder, offset: u32) {
    builder.remove(NumericIdentity::new(builder.current().range().min() + offset));
}

fn sync(builder: &mut ClusterBuilder) {
    sync_at(builder, 7);
}

fn sync_at(builder: &mut ClusterBuilder, revision: i64) {
    builder.set_synced(SourcePosition { etcd_cluster_id: 1, revision });
}

/// For whoever may see everything, for good.
fn admitted() -> Admission {
    Admission::new(Access::default(), None, Grant::all())
}

fn shared(view: &View) -> Shared {
    Shared {
        view: view.clone(),
        shelf: Shelf::default(),
        reserved: std::sync::Arc::default(),
        resume_wait: Duration::from_secs(30),
        hold: Duration::from_mins(5),
        status: StatusBoard::default(),
        stop: CancellationToken::new(),
    }
}

struct Subscriber {
    reader: Reader,
    fold: Fold,
    modes: Vec<pb::ClusterMode>,
    _ready: watch::Sender<bool>,
}

impl Subscriber {
    fn new(view: &View, status: &StatusBoard, request: pb::SubscribeRequest) -> Self {
        let fold = Fold::of(&request);
        Self::again(&shared(view), status, request, fold)
    }

    /// A stream for a client that holds that already.
    fn again(shared: &Shared, status: &StatusBoard, mut request: pb::SubscribeRequest, mut fold: Fold) -> Self {
        fold.begin();
        request.resume_tokens = fold.tokens();
        let (ready, readiness) = watch::channel(true);
        let plan = Plan::new(request, FrameLimits::default()).unwrap();
        let give_up = Instant::now() + Duration::from_secs(30);
        let expected = Expected::new(status.clone(), readiness.clone(), give_up);
        let shared = Shared { status: status.clone(), ..shared.clone() };
        let mut session = Session::new(plan, shared, expected, None);
        let modes = session.modes();
        Self { reader: Reader::new(session, readiness, admitted()), fold, modes, _ready: ready }
    }

    /// The frame that can be had now, folded.
    fn next(&mut self) -> Option<(Frame, Vec<Update>)> {
        let Next::Message(message) = self.reader.next().now_or_never()? else { return None };
        let frame = message.frame();
        let updates = self.fold.apply(frame.clone()).unwrap();
        Some((frame, updates))
    }

    async fn wait(&mut self) -> String {
        let Next::Message(message) = self.reader.next().await else { panic!("a frame") };
        name(&message.frame())
    }

    fn names(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.next()).map(|(frame, _)| name(&frame)).collect()
    }
}

fn name(frame: &Frame) -> String {
    match frame {
        Frame::Hello(_) => "hello".to_owned(),
        Frame::SnapshotBegin(frame) => format!("begin {}@{}", frame.cluster, frame.cluster_id),
        Frame::SnapshotChunk(frame) => format!("chunk {} {}", frame.cluster, frame.identities.len()),
        Frame::Synced(frame) => {
            let resumed = if frame.resumed { "resumed" } else { "synced" };
            format!("{resumed} {} {}", frame.cluster, frame.count)
        }
        Frame::AllSynced(frame) => format!("all synced but {:?}", frame.left_out),
        Frame::Batch(frame) => {
            let more = if frame.more { "…" } else { "" };
            format!("batch {} +{} -{}{more}", frame.cluster, frame.upserted.len(), frame.removed.len())
        }
        Frame::ClusterRemoved(frame) => format!("removed {}@{}", frame.cluster, frame.cluster_id),
        Frame::Heartbeat(_) => "heartbeat".to_owned(),
        Frame::GoAway(_) => "go away".to_owned(),
        Frame::ClusterStatus(frame) => format!("status {}", frame.cluster),
        Frame::Confirmed(frame) => format!("confirmed {}@{}", frame.cluster, frame.cluster_id),
    }
}

fn mesh() -> (View, StatusBoard) {
    (View::new(WIDTH, id(1)), StatusBoard::default())
}

#[tokio::test]
async fn a_first_list_is_told_as_it_comes_and_anew_when_it_was_withdrawn() {
    let (view, status) = mesh();
    status.update("b", |status| status.state = ClusterState::Listing);
    let mut sub = Subscriber::new(&view, &status, pb::SubscribeRequest::default());
    assert_eq!(sub.names(), [""; 0], "there is nothing yet, and nothing is given up yet");
    let mut b = builder("b", 2);
    put(&mut b, 0, 0);
    view.publish(b.build());
    assert_eq!(sub.names(), ["begin b@2", "chunk b 1"]);
    put(&mut b, 1, 0);
    view.publish(b.build());
    assert_eq!(sub.names(), ["chunk b 1"]);
    // It breaks off. What the subscriber may know of b from an earlier stream is not touched.
    b.clear();
    view.withdraw(id(2));
    assert_eq!(sub.names(), [""; 0]);
    put(&mut b, 2, 0);
    view.publish(b.build());
    assert_eq!(sub.names(), ["begin b@2", "chunk b 1"]);
    // It breaks off and begins again before the subscriber looks.
    b.clear();
    view.withdraw(id(2));
    put(&mut b, 3, 0);
    view.publish(b.build());
    assert_eq!(sub.names(), ["begin b@2", "chunk b 1"]);
    sync(&mut b);
    view.publish(b.build());
    assert_eq!(sub.names(), ["synced b 1", "all synced but []"]);
    assert_eq!(sub.fold.mesh()["b"].identities.len(), 1);
}

#[tokio::test]
async fn a_stale_cluster_is_told_as_such_and_confirmed_behind_the_difference() {
    let (view, status) = mesh();
    let position = SourcePosition { etcd_cluster_id: 1, revision: 5 };
    let (mut b, mut c) = (builder("b", 2), builder("c", 3));
    for builder in [&mut b, &mut c] {
        put(builder, 0, 0);
        put(builder, 1, 0);
        builder.set_stale(position);
        view.publish(builder.build());
    }
    let mut sub = Subscriber::new(&view, &status, pb::SubscribeRequest { max_items: 2, ..Default::default() });
    let modes = sub.modes.clone();
    assert!(modes.iter().all(|mode| mode.stale && mode.mode() == pb::ServeMode::Snapshot), "{modes:?}");
    assert_eq!(sub.names().len(), 7);
    assert!(sub.fold.mesh().values().all(|cluster| cluster.stale));

    // Nothing changed: that is all the news.
    sync(&mut c);
    view.publish(c.build());
    assert_eq!(sub.names(), ["confirmed c@3"]);
    // What changed comes first, in however many parts.
    put(&mut b, 0, 1);
    put(&mut b, 2, 0);
    put(&mut b, 3, 0);
    sync(&mut b);
    view.publish(b.build());
    assert_eq!(sub.names(), ["batch b +2 -0…", "batch b +1 -0", "confirmed b@2"]);
    assert!(sub.fold.mesh().values().all(|cluster| !cluster.stale));
    assert_eq!(sub.fold.mesh()["b"].position, Some(pb::SourcePosition { etcd_cluster_id: 1, revision: 7 }));
    put(&mut b, 4, 0);
    view.publish(b.build());
    assert_eq!(sub.names(), ["batch b +1 -0"], "once is enough");

    let mut later = Subscriber::new(&view, &status, pb::SubscribeRequest::default());
    assert!(later.modes.iter().all(|mode| !mode.stale));
    assert!(!later.names().iter().any(|name| name.starts_with("confirmed")), "nobody said that it was stale");
}

#[tokio::test]
async fn all_synced_names_the_stale_ones() {
    let (view, status) = mesh();
    let (mut b, mut c) = (builder("b", 2), builder("c", 3));
    b.set_stale(SourcePosition { etcd_cluster_id: 1, revision: 5 });
    sync(&mut c);
    view.publish(b.build());
    view.publish(c.build());
    let mut sub = Subscriber::new(&view, &status, pb::SubscribeRequest::default());
    let all_synced = std::iter::from_fn(|| sub.next()).find_map(|(frame, _)| match frame {
        Frame::AllSynced(all_synced) => Some(all_synced),
        _ => None,
    });
    let expected = pb::AllSynced { stale: vec!["b".to_owned()], ..pb::AllSynced::default() };
    assert_eq!(all_synced, Some(expected));
}

#[tokio::test]
#[expect(clippy::many_single_char_names, reason = "clusters are named so")]
async fn removals_come_before_what_takes_their_place() {
    let (view, status) = mesh();
    let mut b = builder("b", 2);
    put(&mut b, 0, 0);
    sync(&mut b);
    view.publish(b.build());
    let mut sub = Subscriber::new(&view, &status, pb::SubscribeRequest::default());
    assert_eq!(sub.names(), ["begin b@2", "chunk b 1", "synced b 1", "all synced but []"]);

    // Another cluster gets the ID.
    let mut c = builder("c", 2);
    sync(&mut c);
    view.publish(c.build());
    assert_eq!(sub.names(), ["removed b@2", "begin c@2", "synced c 0"]);
    // A cluster moves to another ID, whether its old place is cleared first or not at all.
    let mut c = builder("c", 1);
    sync(&mut c);
    view.publish(c.build());
    assert_eq!(sub.names(), ["removed c@2", "begin c@1", "synced c 0"]);
    view.withdraw(id(2));
    assert_eq!(sub.names(), [""; 0]);
    // Two swap their IDs between two looks.
    let (mut d, mut e) = (builder("d", 4), builder("e", 5));
    for builder in [&mut d, &mut e] {
        sync(builder);
        view.publish(builder.build());
    }
    assert_eq!(sub.names(), ["begin d@4", "synced d 0", "begin e@5", "synced e 0"]);
    let (mut d, mut e) = (builder("d", 5), builder("e", 4));
    for builder in [&mut d, &mut e] {
        sync(builder);
        view.publish(builder.build());
    }
    let names = sub.names();
    assert_eq!(names[..2], ["removed d@4", "removed e@5"]);
    assert_eq!(names[2..], ["begin e@4", "synced e 0", "begin d@5", "synced d 0"]);

    // A first list that broke off says nothing, until the ID is another's.
    let mut f = builder("f", 6);
    view.publish(f.build());
    view.withdraw(id(6));
    assert_eq!(sub.names(), [""; 0], "not even seen");
    put(&mut f, 0, 0);
    view.publish(f.build());
    assert_eq!(sub.names(), ["begin f@6", "chunk f 1"]);
    view.withdraw(id(6));
    assert_eq!(sub.names(), [""; 0]);
    view.publish(builder("g", 6).build());
    assert_eq!(sub.names(), ["removed f@6", "begin g@6"]);
}

#[tokio::test]
async fn a_drained_cluster_is_removed_though_it_begins_again_at_once() {
    let (view, status) = mesh();
    let mut b = builder("b", 2);
    put(&mut b, 0, 0);
    sync(&mut b);
    view.publish(b.build());
    let mut sub = Subscriber::new(&view, &status, pb::SubscribeRequest::default());
    sub.names();
    view.withdraw(id(2));
    let mut b = builder("b", 2);
    put(&mut b, 1, 0);
    view.publish(b.build());
    assert_eq!(sub.names(), ["removed b@2", "begin b@2", "chunk b 1"]);
    // But if it is complete again before anybody looks, a difference says all.
    sync(&mut b);
    view.publish(b.build());
    sub.names();
    view.withdraw(id(2));
    let mut b = builder("b", 2);
    put(&mut b, 0, 0);
    sync(&mut b);
    view.publish(b.build());
    assert_eq!(sub.names(), ["batch b +1 -1"]);
}

#[tokio::test]
async fn changes_and_snapshots_take_turns() {
    let (view, status) = mesh();
    let (mut a, mut big) = (builder("a", 1), builder("big", 2));
    sync(&mut a);
    view.publish(a.build());
    let request = pb::SubscribeRequest { max_items: 10, ..Default::default() };
    let mut sub = Subscriber::new(&view, &status, request);
    sub.names();
    (0..35).for_each(|offset| put(&mut big, offset, 0));
    sync(&mut big);
    view.publish(big.build());
    let mut names = Vec::new();
    // With a change before every read, both go on.
    for round in 0..10 {
        put(&mut a, round, 0);
        view.publish(a.build());
        names.extend(sub.next().map(|(frame, _)| name(&frame)));
    }
    assert_eq!(names.iter().filter(|name| name.starts_with("batch a")).count(), 5);
    assert_eq!(names.iter().filter(|name| name.contains("big")).count(), 5);
    // Changes of what is being told are told after it.
    put(&mut big, 0, 1);
    view.publish(big.build());
    assert_eq!(sub.names(), ["synced big 35", "batch big +1 -0"]);
}

#[tokio::test]
async fn a_late_reader_gets_the_net_difference_in_parts() {
    let (view, status) = mesh();
    let mut a = builder("a", 1);
    (0..10).for_each(|offset| put(&mut a, offset, 0));
    sync(&mut a);
    view.publish(a.build());
    let mut sub = Subscriber::new(&view, &status, pb::SubscribeRequest { max_items: 4, ..Default::default() });
    sub.names();
    for value in 1..=1_000 {
        (0..10).for_each(|offset| put(&mut a, offset, value));
        view.publish(a.build());
    }
    a.remove(NumericIdentity::new(a.current().range().min() + 9));
    view.publish(a.build());
    assert_eq!(sub.names(), ["batch a +4 -0…", "batch a +4 -0…", "batch a +1 -1"]);
    // What changed and changed back is nothing.
    put(&mut a, 0, 1);
    view.publish(a.build());
    put(&mut a, 0, 1_000);
    view.publish(a.build());
    assert_eq!(sub.names(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_least_interval_folds_changes() {
    let (view, status) = mesh();
    let mut a = builder("a", 1);
    sync(&mut a);
    view.publish(a.build());
    let second = prost_types::Duration { seconds: 1, nanos: 0 };
    let mut sub =
        Subscriber::new(&view, &status, pb::SubscribeRequest { min_interval: Some(second), ..Default::default() });
    sub.names();
    let begin = Instant::now();
    for offset in 0..3 {
        put(&mut a, offset, 0);
        view.publish(a.build());
        if offset == 0 {
            assert_eq!(sub.names(), ["batch a +1 -0"], "the first change does not wait");
        }
    }
    assert_eq!(sub.wait().await, "batch a +2 -0");
    assert_eq!(begin.elapsed(), std::time::Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn all_synced_waits_for_what_may_come_and_not_for_what_may_not() {
    let (view, status) = mesh();
    for (cluster, state) in [("b", ClusterState::Connecting), ("c", ClusterState::Refused)] {
        status.update(cluster, |status| status.state = state);
    }
    let mut sub = Subscriber::new(&view, &status, pb::SubscribeRequest::default());
    assert_eq!(sub.names(), [""; 0]);
    // A peer's file is removed before the peer ever came.
    let wait = tokio::spawn(async move {
        let frame = sub.wait().await;
        (sub, frame)
    });
    tokio::task::yield_now().await;
    status.remove("b");
    let (mut sub, removed) = wait.await.unwrap();
    assert_eq!(removed, "removed b@0");
    assert_eq!(sub.names(), [r#"all synced but ["c"]"#]);

    status.update("b", |status| status.state = ClusterState::Connecting);
    let begin = Instant::now();
    let mut sub =
        Subscriber::new(&view, &status, pb::SubscribeRequest { clusters: vec!["b".into()], ..Default::default() });
    assert_eq!(sub.wait().await, r#"all synced but ["b"]"#);
    assert_eq!(begin.elapsed(), std::time::Duration::from_secs(30));
    assert_eq!(sub.wait().await, "heartbeat");
    assert_eq!(begin.elapsed(), std::time::Duration::from_mins(1));
}
