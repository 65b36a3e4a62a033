use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use crate::telemetry::ClusterState;

/// Name → (type, help, label names), as a scrape tells them.
fn described(scrape: &str) -> BTreeMap<String, (String, String, BTreeSet<String>)> {
    let mut families: BTreeMap<String, (String, String, BTreeSet<String>)> = BTreeMap::new();
    for line in scrape.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            families.entry(name.to_owned()).or_default().1 = help.to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            families.entry(name.to_owned()).or_default().0 = kind.to_owned();
        } else if let Some((name, rest)) = line.split_once('{') {
            let name = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            let labels = rest.split("\",").filter_map(|pair| pair.split_once('=')).map(|(label, _)| label.to_owned());
            families.entry(name.to_owned()).or_default().2.extend(labels.filter(|label| label != "le"));
        }
    }
    families
}

fn with_everything() -> (Metrics, StatusBoard) {
    let board = StatusBoard::default();
    board.update("here", |status| status.local = true);
    board.update("there", |status| {
        status.state = ClusterState::Synced;
        status.identities = 7;
    });
    let metrics = Metrics::new(board.clone());
    let allocator = metrics.allocator();
    allocator.status(|status| (status.free, status.used, status.oldest_lock) = (65_533, 3, Duration::from_secs(9)));
    allocator.allocation("new", Duration::from_millis(1));
    allocator.path(true);
    allocator.collected("lock", 2, Duration::from_millis(2));
    let cluster = metrics.cluster("there");
    cluster.upserts(3);
    cluster.deletes(2);
    cluster.unchanged(1);
    cluster.reject("out-of-range");
    cluster.failure("dial");
    cluster.picture("kept");
    cluster.revoked();
    cluster.first_sync(Duration::from_millis(40));
    cluster.sync_again(Duration::from_millis(30));
    metrics.read_acknowledged(|| AcknowledgedGauges { clusters: [("there".to_owned(), (3, 1))].into() });
    metrics.acknowledged(2);
    (metrics, board)
}

#[test]
fn the_table_and_a_scrape_are_equal() {
    let (metrics, _) = with_everything();
    let shown = described(&metrics.scrape());
    let table: BTreeMap<_, _> = rows()
        .map(|row| {
            let labels: BTreeSet<_> = row.labels.iter().map(|label| (*label).to_owned()).collect();
            (row.name.to_owned(), (row.kind.name().to_owned(), row.help.to_owned(), labels))
        })
        .collect();
    assert_eq!(shown, table);
}

#[test]
fn metrics_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    if std::env::var_os("MESHGATE_BLESS").is_some() {
        std::fs::write(path, markdown()).expect("docs/metrics.md is writable");
    }
    let page = std::fs::read_to_string(path).expect("docs/metrics.md is there");
    assert_eq!(page, markdown(), "run with MESHGATE_BLESS=1 to rewrite docs/metrics.md");
}

#[test]
fn counts_what_it_is_told() {
    let (metrics, _) = with_everything();
    let scrape = metrics.scrape();
    for line in [
        r#"meshgate_events_total{cluster="there",kind="upsert"} 3"#,
        r#"meshgate_events_total{cluster="there",kind="delete"} 2"#,
        r#"meshgate_events_total{cluster="there",kind="unchanged"} 1"#,
        r#"meshgate_rejects_total{cluster="there",reason="out-of-range"} 1"#,
        r#"meshgate_failures_total{cluster="there",reason="dial"} 1"#,
        r#"meshgate_sync_duration_seconds_count{cluster="there",kind="first"} 1"#,
        r#"meshgate_identities{cluster="there"} 7"#,
        r#"meshgate_identities{cluster="here"} 0"#,
        r#"meshgate_allocator_duration_seconds_count{outcome="new"} 1"#,
        r#"meshgate_allocator_path_total{path="fast"} 1"#,
        r#"meshgate_allocator_path_total{path="lock"} 0"#,
        r#"meshgate_allocator_numbers{state="free"} 65533"#,
        r#"meshgate_allocator_gc_deleted_total{kind="lock"} 2"#,
        "meshgate_allocator_oldest_lock_seconds 9",
        r#"meshgate_peers{state="synced"} 1"#,
        r#"meshgate_peers{state="configured"} 0"#,
        r#"meshgate_acknowledged{cluster="there",state="current"} 3"#,
        r#"meshgate_acknowledged{cluster="there",state="behind"} 1"#,
        "meshgate_acknowledgements_total 1",
        "meshgate_acknowledged_rejects_total 2",
    ] {
        assert!(scrape.lines().any(|found| found == line), "no line {line} in\n{scrape}");
    }
}

#[test]
fn a_removed_cluster_leaves_no_series_and_returns_at_zero() {
    let (metrics, board) = with_everything();
    let stale = metrics.cluster("there");
    board.remove("there");
    metrics.forget_cluster("there");
    stale.reject("out-of-range");
    let of_cluster = |line: &&str| line.contains(r#"cluster="there""#) && !line.starts_with("meshgate_acknowledged{");
    assert_eq!(metrics.scrape().lines().find(of_cluster), None);

    let _kept = metrics.cluster("there");
    let scrape = metrics.scrape();
    assert!(scrape.contains(r#"meshgate_events_total{cluster="there",kind="upsert"} 0"#));
    assert!(!scrape.contains(r#"meshgate_rejects_total{cluster="there""#));
}

#[test]
fn every_end_of_a_subscription_is_counted() {
    let metrics = Metrics::new(StatusBoard::default());
    let (dropped, ended) = (metrics.subscription(), metrics.subscription());
    assert!(metrics.scrape().contains("meshgate_subscribers 2"));
    drop(dropped);
    ended.end(SubscriptionEnd::Shutdown);
    metrics.frame(FrameKind::GoAway);
    let scrape = metrics.scrape();
    for line in [
        "meshgate_subscribers 0",
        r#"meshgate_subscription_ends_total{reason="client"} 1"#,
        r#"meshgate_subscription_ends_total{reason="shutdown"} 1"#,
        r#"meshgate_subscription_ends_total{reason="internal"} 0"#,
        r#"meshgate_frames_total{kind="go_away"} 1"#,
        r#"meshgate_frames_total{kind="hello"} 0"#,
    ] {
        assert!(scrape.lines().any(|found| found == line), "no line {line} in\n{scrape}");
    }
}
