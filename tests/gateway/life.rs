//! The life of a gateway: start without its store, readiness, peers that come and go, the end.

use std::path::Path;

use meshgate::api::pb;
use meshgate::client::{ClientOptions, ClientSecurity, connect};

use super::{SOON, Store, directory, page, start, stop, until_ready, write_config};
use crate::support::{CertSpec, EtcdOptions, EtcdServer, Pki, eventually};

#[tokio::test]
async fn starts_without_its_store_and_is_ready_when_that_comes() {
    let dir = tempfile::tempdir().unwrap();
    let mut etcd = EtcdServer::start(EtcdOptions::plain("a").in_memory()).await.unwrap();
    etcd.kill().unwrap();
    let running = start(&write_config(dir.path(), "etcd.yaml", &etcd), &[]).await;

    assert_eq!(page(running.http_addr, "/livez").await.0, 200);
    eventually("readiness says what it waits for", SOON, || async {
        let (status, text) = page(running.http_addr, "/readyz").await;
        assert_eq!(status, 503);
        text.starts_with("not ready\n[-] local-store: waiting for ") && text.contains("connecting: ")
    })
    .await;

    etcd.restart().await.unwrap();
    until_ready(&running).await;
    assert!(page(running.http_addr, "/readyz?verbose").await.1.contains("[+] local-store: ready after "));

    etcd.kill().unwrap();
    eventually("the loss shows in the status", SOON, || async {
        running.status.snapshot()["a"].state.name() == "reconnecting"
    })
    .await;
    assert_eq!(page(running.http_addr, "/readyz").await.0, 200, "what is known stays known");
    stop(running).await;
}

/// The value of a series in a scrape.
fn value(scrape: &str, series: &str) -> Option<f64> {
    scrape.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn shows_its_own_cluster_and_a_peer_and_no_trace_of_one_that_is_removed() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::temporary().unwrap());
    let (a, b) = tokio::join!(Store::start(&pki, "a", 1, 30), Store::start(&pki, "b", 2, 20));
    let peers = directory(dir.path(), &[&b]);
    let running = start(&write_config(dir.path(), "etcd.yaml", &a.etcd), &[&peers]).await;
    until_ready(&running).await;

    let shown = |store: &Store| {
        let mesh = running.view.load();
        let Some(cluster) = mesh.cluster_named(&store.cluster.name) else { return Vec::new() };
        cluster.iter().map(|identity| identity.number().get()).collect::<Vec<_>>()
    };
    assert_eq!(shown(&a), a.contents.keys().copied().collect::<Vec<_>>());
    assert_eq!(shown(&b), b.contents.keys().copied().collect::<Vec<_>>());
    let scrape = page(running.http_addr, "/metrics").await.1;
    for (series, expected) in [
        (r#"meshgate_identities{cluster="a"}"#, 30.0),
        (r#"meshgate_identities{cluster="b"}"#, 20.0),
        (r#"meshgate_events_total{cluster="b",kind="upsert"}"#, 20.0),
        (r#"meshgate_sync_duration_seconds_count{cluster="b",kind="first"}"#, 1.0),
        (r#"meshgate_peers{state="synced"}"#, 1.0),
        ("meshgate_subscribers", 0.0),
    ] {
        assert_eq!(value(&scrape, series), Some(expected), "{series} in\n{scrape}");
    }

    std::fs::remove_file(dir.path().join("peers/b")).unwrap();
    eventually("the peer is drained", SOON, || async { !running.status.snapshot().contains_key("b") }).await;
    assert!(shown(&b).is_empty(), "nothing of it is left");
    let scrape = page(running.http_addr, "/metrics").await.1;
    assert!(!scrape.contains(r#"cluster="b""#), "{scrape}");
    assert_eq!(value(&scrape, r#"meshgate_peers{state="synced"}"#), Some(0.0));

    write_config(&dir.path().join("peers"), "b", &b.etcd);
    eventually("the peer is back", SOON, || async { shown(&b).len() == b.contents.len() }).await;
    eventually("its counters began at zero", SOON, || async {
        let scrape = page(running.http_addr, "/metrics").await.1;
        value(&scrape, r#"meshgate_events_total{cluster="b",kind="upsert"}"#) == Some(20.0)
    })
    .await;
    stop(running).await;
}

/// Two gateways that wait for each other's cluster both become ready, and one dead peer does not hold up the others.
#[tokio::test]
async fn a_dead_peer_delays_readiness_up_to_the_bound_only() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::temporary().unwrap());
    let (a, mut b) = tokio::join!(Store::start(&pki, "a", 1, 3), Store::start(&pki, "b", 2, 3));
    b.etcd.kill().unwrap();
    let peers = directory(dir.path(), &[&b]);
    let wait = "--peer-readiness-wait=2s";
    let running = start(&write_config(dir.path(), "etcd.yaml", &a.etcd), &[&peers, wait]).await;
    eventually("the own store is synced, the peer is not", SOON, || async {
        let (status, text) = page(running.http_addr, "/readyz").await;
        status == 503
            && !text.contains("local-store")
            && text.contains("[-] peers: waiting for ")
            && text.contains("b (")
    })
    .await;
    until_ready(&running).await;
    b.etcd.restart().await.unwrap();
    eventually("the peer comes late", SOON, || async { running.status.snapshot()["b"].synced_once }).await;
    stop(running).await;
}

/// The file of the access policy is looked at again and again; one that cannot be used is shown and changes nothing.
#[tokio::test]
async fn the_access_policy_is_read_again_as_it_changes() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::temporary().unwrap());
    let a = Store::start(&pki, "a", 1, 3).await;
    let policy = dir.path().join("access.yaml");
    std::fs::write(&policy, "rules: [{clients: ['dns:ops.example'], roles: [admin]}]").unwrap();
    let server = pki.issue(&CertSpec::server("gateway")).unwrap();
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let more = [
        flag("access-policy", &policy),
        flag("tls-cert", &server.cert),
        flag("tls-key", &server.key),
        flag("tls-client-ca", pki.ca_file()),
    ];
    let running = start(&write_config(dir.path(), "etcd.yaml", &a.etcd), &more.each_ref().map(String::as_str)).await;
    until_ready(&running).await;
    let files = pki.issue(&CertSpec::client("agent").uri("spiffe://mesh.example/agent")).unwrap();
    let options = ClientOptions {
        address: running.grpc_addr.to_string(),
        security: ClientSecurity::MutualTls { ca: files.ca, cert: files.cert, key: files.key, server_name: None },
    };
    let clusters = async || {
        let mut client = connect(&options).await.unwrap();
        client.list_clusters(pb::ListClustersRequest {}).await.map(|list| list.into_inner().clusters.len())
    };
    assert_eq!(clusters().await.unwrap_err().code(), tonic::Code::PermissionDenied);
    let failing = async |value: u8| {
        let line = format!("meshgate_reload_failing{{file=\"access-policy\"}} {value}");
        page(running.http_addr, "/metrics").await.1.contains(&line)
    };
    std::fs::write(&policy, "rules: [{clients: ['ops.example'], roles: [admin]}]").unwrap();
    eventually("it is shown that the file is broken", SOON, async || failing(1).await).await;
    assert_eq!(clusters().await.unwrap_err().code(), tonic::Code::PermissionDenied);
    std::fs::write(&policy, "rules: [{clients: ['spiffe://mesh.example/**'], roles: [subscriber]}]").unwrap();
    eventually("the new policy counts", SOON, async || clusters().await.is_ok_and(|count| count == 1)).await;
    assert!(failing(0).await);
    stop(running).await;
}
