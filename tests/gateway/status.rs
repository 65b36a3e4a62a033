//! Everything that there is to know of a peer is in the API, in what the command prints, and as far as it is a number in the
//! metrics; and nothing of it is left when the peer is gone.

use std::path::Path;

use meshgate::api::pb;
use meshgate::client::{ClientOptions, ClientSecurity, connect};
use serde_json::Value;
use tokio::process::Command;

use super::{SOON, Store, directory, page, start, stop, until_ready, write_config};
use crate::support::{Pki, eventually};

async fn printed(address: &str, format: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshgate"));
    command.args(["clusters", "--plaintext", "--address", address, "--output", format]).env("COLUMNS", "400");
    let output = tokio::time::timeout(SOON, command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What is refused, and why it is.
async fn write_what_is_refused(store: &Store) {
    let mut kv = store.etcd.client().kv_client();
    for n in 0..12 {
        kv.put(format!("{}{}", store.cluster.identity_prefix(), 1_000 + n), "k8s:foreign=range;", None).await.unwrap();
    }
    kv.put(format!("{}x", store.cluster.identity_prefix()), "k8s:bad=key;", None).await.unwrap();
}

fn metric(scrape: &str, name: &str, more: &str) -> u64 {
    let series = format!("{name}{{cluster=\"b\"{more}}} ");
    let line = scrape.lines().find_map(|line| line.strip_prefix(&series));
    line.unwrap_or_else(|| panic!("no {series}\n{scrape}")).parse().unwrap()
}

#[tokio::test]
async fn the_status_of_a_peer_is_whole_wherever_it_is_shown() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::temporary().unwrap());
    let (a, b) = tokio::join!(Store::start(&pki, "a", 1, 3), Store::start(&pki, "b", 2, 50));
    write_what_is_refused(&b).await;
    let peers = directory(dir.path(), &[&b]);
    let running = start(&write_config(dir.path(), "etcd.yaml", &a.etcd), &[&peers]).await;
    until_ready(&running).await;
    let address = running.grpc_addr.to_string();
    let options = ClientOptions { address: address.clone(), security: ClientSecurity::Plaintext };
    let api = async || {
        let list = connect(&options).await.unwrap().list_clusters(pb::ListClustersRequest {}).await.unwrap();
        list.into_inner().clusters.into_iter().find(|cluster| cluster.name == "b")
    };
    eventually("everything is known", SOON, async || {
        api().await.is_some_and(|b| b.last_heartbeat.is_some() && b.rejects.values().sum::<u64>() == 13)
    })
    .await;
    // An event behind the list, and an error behind the first sync.
    let session = running.status.snapshot()["b"].session;
    b.etcd
        .client()
        .kv_client()
        .put(
            b.cluster.identity_key(b.cluster.numbers().start() + 60),
            "k8s:app=new;k8s:io.cilium.k8s.policy.cluster=b;",
            None,
        )
        .await
        .unwrap();
    eventually("the event is seen", SOON, async || {
        api().await.is_some_and(|b| b.last_event.is_some() && b.identities == 51)
    })
    .await;
    let yaml = dir.path().join("peers/b");
    let good = std::fs::read_to_string(&yaml).unwrap();
    std::fs::write(&yaml, "endpoints: [nonsense").unwrap();
    eventually("the broken file is seen", SOON, async || api().await.is_some_and(|b| b.last_error.is_some())).await;

    let shown = api().await.unwrap();
    let error = shown.last_error.clone().unwrap();
    assert!(!error.reason.is_empty() && !error.message.is_empty() && !error.hint.is_empty() && error.at.is_some());
    let table = printed(&address, "table").await;
    for part in [&error.message, &error.hint, "13 entries refused", &shown.reject_examples[0].key] {
        assert!(table.contains(part), "{part}\n{table}");
    }
    std::fs::write(&yaml, good).unwrap();
    let synced = async || {
        api()
            .await
            .is_some_and(|b| b.state() == pb::ClusterState::Synced && b.session > session && b.last_event.is_some())
    };
    eventually("it is back", SOON, synced).await;

    check(&api().await.unwrap(), &printed(&address, "json").await, &printed(&address, "wide").await);
    let scrape = page(running.http_addr, "/metrics").await.1;
    check_metrics(&api().await.unwrap(), &scrape);

    remove(&yaml).await;
    eventually("it is gone", SOON, async || api().await.is_none()).await;
    let scrape = page(running.http_addr, "/metrics").await.1;
    let left: Vec<_> = scrape.lines().filter(|line| line.contains("cluster=\"b\"")).collect();
    assert!(left.is_empty(), "{left:#?}");
    stop(running).await;
}

async fn remove(path: &Path) {
    tokio::fs::remove_file(path).await.unwrap();
}

fn check(api: &pb::ClusterInfo, json: &str, wide: &str) {
    let json: Value = serde_json::from_str(json).unwrap();
    let json = json.as_array().unwrap().iter().find(|cluster| cluster["name"] == "b").unwrap();
    assert_eq!(json["state"], "synced");
    let texts = [
        ("stage", api.stage.clone()),
        ("endpoint", api.endpoint.clone()),
        ("etcd_cluster_id", format!("{:016x}", api.etcd_cluster_id)),
        ("etcd_version", api.etcd_version.clone()),
        ("checksum", format!("{:016x}", api.checksum)),
    ];
    for (field, value) in texts {
        assert!(!value.is_empty() && json[field] == value, "{field}: {} in JSON, {value} in the API", json[field]);
    }
    let numbers =
        [("identities", api.identities), ("failures", api.failures), ("revision", api.revision.cast_unsigned())];
    for (field, value) in numbers {
        assert!(value > 0 && json[field] == value, "{field}: {} in JSON, {value} in the API", json[field]);
    }
    for field in ["since", "certificate_expires", "last_event", "last_heartbeat"] {
        let text = json[field].as_str().unwrap_or_default();
        assert!(humantime::parse_rfc3339(text).is_ok(), "{field}: {text}");
    }
    for field in ["reason", "message", "hint", "at"] {
        assert!(json["last_error"][field].as_str().is_some_and(|text| !text.is_empty()), "last_error.{field}");
    }
    assert_eq!(json["rejects"].as_object().unwrap().len(), api.rejects.len());
    assert_eq!(json["rejects"].as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>(), 13);
    let examples = json["reject_examples"].as_array().unwrap();
    assert!(!examples.is_empty() && examples.len() < 13, "the last few: {}", examples.len());
    for example in examples {
        for field in ["reason", "key", "detail", "at"] {
            assert!(example[field].as_str().is_some_and(|text| !text.is_empty()), "{example}");
        }
    }
    let line = wide.lines().find(|line| line.split_whitespace().next() == Some("b")).unwrap();
    let shown = [
        api.endpoint.clone(),
        format!("{:x} {}", api.etcd_cluster_id, api.etcd_version),
        format!("{:016x}", api.checksum),
        api.revision.to_string(),
    ];
    for part in shown {
        assert!(line.contains(&part), "{part}\n{wide}");
    }
    for column in ["LAST EVENT", "HEARTBEAT", "CERTIFICATE ENDS"] {
        let at = wide.lines().next().unwrap().find(column).unwrap_or_else(|| panic!("{column}\n{wide}"));
        let cell = &line[at..];
        assert!(cell.contains(if column == "CERTIFICATE ENDS" { "in " } else { "ago" }), "{column}\n{wide}");
    }
}

fn check_metrics(api: &pb::ClusterInfo, scrape: &str) {
    let gauge = |name: &str| metric(scrape, &format!("meshgate_{name}"), "");
    let seconds = |time: Option<prost_types::Timestamp>| time.unwrap().seconds.cast_unsigned();
    assert_eq!(gauge("identities"), api.identities);
    assert_eq!(gauge("cluster_ready"), 1);
    assert_eq!(gauge("cluster_revision"), api.revision.cast_unsigned());
    assert_eq!(gauge("cluster_checksum"), api.checksum & ((1 << 48) - 1));
    assert_eq!(gauge("cluster_last_event_timestamp_seconds"), seconds(api.last_event));
    assert!(gauge("cluster_last_heartbeat_timestamp_seconds") > 0);
    assert_eq!(gauge("cluster_certificate_expiry_timestamp_seconds"), seconds(api.certificate_expires));
    for (reason, count) in &api.rejects {
        assert_eq!(metric(scrape, "meshgate_rejects_total", &format!(",reason=\"{reason}\"")), *count);
    }
    let failures: u64 = scrape
        .lines()
        .filter(|line| line.starts_with("meshgate_failures_total{cluster=\"b\""))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum();
    assert_eq!(failures, api.failures);
}
