//! Whether a change has arrived.

use std::collections::HashMap;

use super::*;

fn acknowledge(subscriber: &str, tokens: HashMap<String, Vec<u8>>) -> pb::AcknowledgeRequest {
    pb::AcknowledgeRequest { subscriber: subscriber.to_owned(), tokens, rejected: Vec::new() }
}

#[tokio::test]
async fn an_operator_sees_what_subscribers_have_applied() {
    let server = Server::start().await;
    let mut a = publish(&server, "a", 1, 10);
    let (one, mut two) =
        (server.synced(pb::SubscribeRequest::default()).await, server.synced(pb::SubscribeRequest::default()).await);
    let mut client = server.client().await;
    for (name, sub) in [("node-1", &one), ("node-2", &two)] {
        client.acknowledge(acknowledge(name, sub.fold.tokens())).await.unwrap();
    }
    let gauge = |state: &str| server.sample(&format!(r#"meshgate_acknowledged{{cluster="a",state="{state}"}}"#));
    assert_eq!((gauge("current"), gauge("behind")), (2, 0));
    // A change; one of them applies all of it but one identity, the other has not got so far.
    put(&mut a, 0, "k8s:app=new;");
    a.set_synced(SourcePosition { etcd_cluster_id: 1, revision: 8 });
    server.view.publish(a.build());
    assert_eq!((gauge("current"), gauge("behind")), (0, 2));
    two.until_equal(&server.view).await;
    let rejected = vec![pb::Rejected { number: number(&a, 0).get(), reason: "no room".into() }];
    client.acknowledge(pb::AcknowledgeRequest { rejected, ..acknowledge("node-2", two.fold.tokens()) }).await.unwrap();
    assert_eq!((gauge("current"), gauge("behind")), (1, 1));
    assert_eq!(server.sample("meshgate_acknowledged_rejects_total"), 1);

    let subscribers = client.list_subscribers(pb::ListSubscribersRequest {}).await.unwrap().into_inner().subscribers;
    let applied: Vec<_> = subscribers
        .iter()
        .map(|subscriber| {
            let cluster = &subscriber.clusters[0];
            (subscriber.subscriber.as_str(), cluster.position.unwrap().revision, cluster.current)
        })
        .collect();
    assert_eq!(applied, [("node-1", 7, false), ("node-2", 8, true)]);
    assert_eq!(subscribers[1].rejected[0].reason, "no room");
    assert!(subscribers[0].peer.starts_with("127.0.0.1:"));
    // A cluster that is gone leaves no series.
    server.view.withdraw(id(1));
    assert!(!server.metrics.scrape().contains("meshgate_acknowledged{"));
    server.end().await;
}

#[tokio::test]
async fn what_is_wrong_with_an_acknowledgement_is_told() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let garbage = HashMap::from([("a".to_owned(), b"garbage".to_vec())]);
    let rejected = |count: usize, reason: String| pb::AcknowledgeRequest {
        rejected: vec![pb::Rejected { number: 1, reason }; count],
        ..acknowledge("node", HashMap::new())
    };
    for (request, message) in [
        (acknowledge(&"x".repeat(300), HashMap::new()), "subscriber: 300 bytes are given, at most 253 are allowed"),
        (acknowledge("node", garbage), r#"tokens["a"]: the token is not one of this cluster"#),
        (rejected(101, String::new()), "rejected: 101 are given, at most 100 are allowed"),
        (rejected(1, "x".repeat(2_000)), "rejected[0].reason: at most 1024 bytes are allowed"),
    ] {
        let status = client.acknowledge(request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, message));
    }
    let listed = client.list_subscribers(pb::ListSubscribersRequest {}).await.unwrap().into_inner();
    assert!(listed.subscribers.is_empty());
    server.end().await;
}
