//! Filters act on transitions: what leaves is a removal, what enters an upsert.

use super::*;

fn label(builder: &mut ClusterBuilder, offset: u32, key_string: &str) {
    let number = NumericIdentity::new(builder.current().range().min() + offset);
    builder.upsert(number, key_string, 1).unwrap();
}

fn selecting(selector: &str) -> pb::SubscribeRequest {
    pb::SubscribeRequest { label_selector: selector.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn transitions_over_the_edge_of_a_filter() {
    let (view, status) = mesh();
    let mut b = builder("b", 2);
    for (offset, app) in [(0, "web"), (1, "db"), (2, "web"), (3, "db")] {
        label(&mut b, offset, &format!("k8s:app={app};k8s:n={offset};"));
    }
    sync(&mut b);
    view.publish(b.build());
    let mut sub = Subscriber::new(&view, &status, selecting("k8s:app in (web)"));
    assert_eq!(sub.names(), ["begin b@2", "chunk b 2", "synced b 2", "all synced but []"]);

    // Nothing of this is seen: a change, a new one and a deletion beyond the edge.
    label(&mut b, 1, "k8s:app=db;k8s:n=other;");
    label(&mut b, 4, "k8s:app=db;");
    remove(&mut b, 3);
    view.publish(b.build());
    assert_eq!(sub.names(), [""; 0]);
    // One leaves, one enters, one is deleted, one changes within.
    label(&mut b, 0, "k8s:app=db;k8s:n=0;");
    label(&mut b, 1, "k8s:app=web;k8s:n=1;");
    label(&mut b, 5, "k8s:app=web;");
    view.publish(b.build());
    let (frame, _) = sub.next().unwrap();
    let Frame::Batch(batch) = frame else { panic!("a batch") };
    let min = b.current().range().min();
    assert_eq!(batch.upserted.iter().map(|one| one.number - min).collect::<Vec<_>>(), [1, 5]);
    assert_eq!((batch.removed, batch.left_filter), (vec![min], vec![min]));
    assert_eq!((batch.count, batch.reason), (3, pb::BatchReason::Live.into()));
    remove(&mut b, 5);
    label(&mut b, 2, "k8s:app=web;k8s:n=new;");
    view.publish(b.build());
    let Some((Frame::Batch(batch), _)) = sub.next() else { panic!("a batch") };
    assert_eq!(batch.reason(), pb::BatchReason::Live);
    assert_eq!((batch.removed, batch.left_filter), (vec![min + 5], vec![]));
}

#[tokio::test]
async fn a_difference_in_parts_is_closed_though_nothing_more_passes() {
    let (view, status) = mesh();
    let mut b = builder("b", 2);
    sync(&mut b);
    view.publish(b.build());
    let mut sub = Subscriber::new(&view, &status, pb::SubscribeRequest { max_items: 2, ..selecting("in=yes") });
    sub.names();
    for offset in 0..10 {
        label(&mut b, offset, if offset < 3 { "k8s:in=yes;" } else { "k8s:in=no;" });
    }
    view.publish(b.build());
    assert_eq!(sub.names(), ["batch b +2 -0…", "batch b +1 -0"]);
    for offset in 0..10 {
        label(&mut b, offset, if offset < 2 { "k8s:in=yes;k8s:x=;" } else { "k8s:in=no;k8s:x=;" });
    }
    view.publish(b.build());
    assert_eq!(sub.names(), ["batch b +2 -0…", "batch b +0 -1"]);
}

#[tokio::test]
async fn a_filtered_stream_resumes_with_the_filtered_count() {
    let (view, status) = mesh();
    let mut b = builder("b", 2);
    (0..20).for_each(|offset| put(&mut b, offset, offset % 2));
    sync(&mut b);
    view.publish(b.build());
    let request = selecting("value=1");
    let mut sub = Subscriber::new(&view, &status, request.clone());
    sub.names();
    remove(&mut b, 1);
    put(&mut b, 0, 1);
    put(&mut b, 2, 7);
    sync_at(&mut b, 8);
    view.publish(b.build());
    let mut sub = Subscriber::again(&shared(&view), &status, request.clone(), sub.fold);
    assert_eq!(sub.names(), ["resumed b 10", "batch b +1 -1", "all synced but []"]);
    // What the filter hides moves the token all the same, with a heartbeat.
    put(&mut b, 2, 8);
    sync_at(&mut b, 9);
    view.publish(b.build());
    assert_eq!(sub.names(), [""; 0]);
    let before = sub.fold.tokens();
    tokio::time::pause();
    let Next::Message(message) = sub.reader.next().await else { panic!("a heartbeat") };
    sub.fold.apply(message.frame()).unwrap();
    assert_ne!(sub.fold.tokens(), before);
    let mut sub = Subscriber::again(&shared(&view), &status, request, sub.fold);
    assert_eq!(sub.names(), ["resumed b 10", "all synced but []"]);
}

#[tokio::test]
async fn scopes() {
    let (view, status) = mesh();
    let mut b = builder("b", 2);
    put(&mut b, 0, 0);
    sync(&mut b);
    view.publish(b.build());
    let of = |scopes: &[pb::Scope]| pb::SubscribeRequest {
        scopes: scopes.iter().map(|scope| i32::from(*scope)).collect(),
        ..Default::default()
    };
    let mut sub = Subscriber::new(&view, &status, of(&[pb::Scope::Reserved]));
    assert!(sub.modes.is_empty());
    let names = sub.names();
    assert_eq!((names.first().unwrap().as_str(), names.last().unwrap().as_str()), ("begin @0", "all synced but []"));
    let reserved = &sub.fold.mesh()[""];
    assert_eq!(reserved.identities[&1].labels, ["reserved:host="]);
    // With those of the mesh, and through a filter.
    let both = pb::SubscribeRequest {
        label_selector: "reserved:world".into(),
        ..of(&[pb::Scope::Reserved, pb::Scope::Global])
    };
    let mut sub = Subscriber::new(&view, &status, both);
    sub.names();
    let mesh: Vec<_> = sub.fold.mesh().iter().map(|(name, held)| (name.as_str(), held.identities.len())).collect();
    assert_eq!(mesh[1], ("b", 0));
    assert!(mesh[0].1 >= 1 && mesh[0].1 < 5, "{mesh:?}");
    // There are none that are a node's own.
    let mut sub = Subscriber::new(&view, &status, of(&[pb::Scope::NodeLocal]));
    assert_eq!(sub.names(), ["all synced but []"]);
}
