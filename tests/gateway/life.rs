//! The life of a gateway: start without its store, readiness, peers that come and go, the end.

use super::{SOON, page, start, stop, until_ready, write_config};
use crate::support::{EtcdOptions, EtcdServer, eventually};

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
