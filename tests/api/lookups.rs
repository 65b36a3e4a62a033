//! The unary calls.

use std::time::SystemTime;

use meshgate::telemetry::{ClusterState, LastError, RejectExample};
use tonic::Code;

use super::*;

#[tokio::test]
async fn finds_by_number_and_by_labels() {
    let server = Server::start().await;
    let mut b = builder("b", 2);
    put(&mut b, 7, "k8s:app=web;k8s:io.cilium.k8s.policy.cluster=b;k8s:zone=1;");
    sync(&mut b);
    server.view.publish(b.build());
    let mut client = server.client().await;
    let number = number(&b, 7).get();
    let by_number =
        client.get_identity(pb::GetIdentityRequest { number }).await.unwrap().into_inner().identity.unwrap();
    assert_eq!((by_number.cluster.as_str(), by_number.number, by_number.revision), ("b", number, 1));
    let labels = ["k8s:zone=1", "k8s:io.cilium.k8s.policy.cluster=b", "k8s:app=web"].map(str::to_owned).to_vec();
    assert!(labels.iter().all(|label| by_number.labels.contains(label)));
    let request = pb::LookupByLabelsRequest { labels: labels.clone() };
    let by_labels = client.lookup_by_labels(request).await.unwrap().into_inner().identity.unwrap();
    assert_eq!(by_labels, by_number, "the order in which labels are given does not count");
    let status = client.lookup_by_labels(pb::LookupByLabelsRequest { labels: labels[..2].to_vec() }).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    server.end().await;
}

#[tokio::test]
async fn knows_the_reserved_numbers() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let world = client.get_identity(pb::GetIdentityRequest { number: 2 }).await.unwrap().into_inner().identity.unwrap();
    assert_eq!((world.number, world.labels.as_slice()), (2, &["reserved:world=".to_owned()][..]));
    let labels = vec!["reserved:host".to_owned(), "k8s:node=1".to_owned()];
    let host = client.lookup_by_labels(pb::LookupByLabelsRequest { labels }).await.unwrap().into_inner();
    assert_eq!(host.identity.unwrap().number, 1);
    for number in [0, 255, 65_536 * 3, 0x0100_0001, u32::MAX] {
        let status = client.get_identity(pb::GetIdentityRequest { number }).await.unwrap_err();
        assert_eq!((status.code(), status.message().contains(&number.to_string())), (Code::NotFound, true));
    }
    server.end().await;
}

#[tokio::test]
async fn bad_labels_are_told_with_field_and_rule() {
    let server = Server::start().await;
    let mut client = server.client().await;
    for (labels, message) in [
        (vec![], "labels: at least one label is needed"),
        (vec!["k8s:a=1", "k8s:b;c=1"], "labels[1]: a label has no ';', which ends a label in the store"),
        (vec!["k8s:=1"], "labels[0]: the key is empty; a label is source:key=value"),
        (vec!["k8s:a=1", "any:a=2"], "labels[1]: a label set has one label a key, and `a` comes twice"),
    ] {
        let labels = labels.into_iter().map(str::to_owned).collect();
        let status = client.lookup_by_labels(pb::LookupByLabelsRequest { labels }).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
    }
    server.end().await;
}

#[tokio::test]
async fn lists_the_clusters_our_own_first() {
    let server = Server::start().await;
    for (name, local) in [("b", false), ("z", true), ("c", false)] {
        server.status.update(name, |status| status.local = local);
    }
    server.status.update("b", |status| {
        status.state = ClusterState::AwaitingCanary;
        status.etcd_cluster_id = u64::MAX;
        status.last_error = Some(LastError {
            reason: "dial",
            message: "connection refused".to_owned(),
            hint: "is etcd running?".to_owned(),
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(5),
        });
        status.rejects.insert("bad-key", 3);
        let example = RejectExample {
            reason: "bad-key",
            key: "cilium/x".to_owned(),
            detail: "not a number".to_owned(),
            at: SystemTime::now(),
        };
        status.reject_examples.push(example);
    });
    let mut client = server.client().await;
    let clusters = client.list_clusters(pb::ListClustersRequest {}).await.unwrap().into_inner().clusters;
    assert_eq!(clusters.iter().map(|cluster| cluster.name.as_str()).collect::<Vec<_>>(), ["z", "b", "c"]);
    let b = &clusters[1];
    assert_eq!((b.state(), b.etcd_cluster_id, b.rejects["bad-key"]), (pb::ClusterState::AwaitingCanary, u64::MAX, 3));
    let error = b.last_error.as_ref().unwrap();
    assert_eq!((error.reason.as_str(), error.at.unwrap().seconds), ("dial", 5));
    assert_eq!(b.reject_examples[0].key, "cilium/x");
    server.end().await;
}
