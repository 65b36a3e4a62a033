//! The gateway allocates: in the store, in its view, and at its subscribers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use meshgate::allocator::{Key, Paths};
use meshgate::api::pb;
use meshgate::client::{ClientOptions, ClientSecurity, Event, Subscription, Update};
use meshgate::gateway::{OwnAllocator, Running};
use meshgate::identity::NumericIdentity;
use meshgate::view::Identity;
use tokio::time::{Instant, timeout};

use super::{SOON, page, start, stop, until_ready};
use crate::support::proxy::{Direction, Proxy};
use crate::support::{EtcdOptions, EtcdServer, eventually};

const BASE: &str = "cilium/state/identities/v1";

async fn etcd() -> EtcdServer {
    EtcdServer::start(EtcdOptions::plain("a").in_memory()).await.unwrap()
}

fn config(dir: &Path, port: u16) -> PathBuf {
    let path = dir.join(format!("{port}.yaml"));
    std::fs::write(&path, format!("endpoints: [http://127.0.0.1:{port}]\n")).unwrap();
    path
}

fn labels(n: u32) -> Key {
    Key::parse(&format!("k8s:app=a{n};k8s:io.cilium.k8s.policy.cluster=a;")).unwrap()
}

fn soon() -> Instant {
    Instant::now() + SOON
}

fn allocator(running: &Running) -> &OwnAllocator {
    running.allocator.as_ref().unwrap()
}

async fn allocate(running: &Running, n: u32) -> NumericIdentity {
    allocator(running).allocate(&labels(n), soon()).await.unwrap().number
}

async fn dump(client: &Client, prefix: &str) -> Vec<(String, String)> {
    let answer = client.kv_client().get(prefix, Some(GetOptions::new().with_prefix())).await.unwrap();
    let text =
        |entry: &etcd_client::KeyValue| (entry.key_str().unwrap().to_owned(), entry.value_str().unwrap().to_owned());
    answer.kvs().iter().map(text).collect()
}

fn shown(running: &Running, number: NumericIdentity) -> Option<String> {
    running.view.read(|mesh| mesh.get(number).map(Identity::key_string))
}

/// Every change that a subscriber was told, in order: number and whether it is there. Ends when `last` appears.
async fn follow(mut subscription: Subscription, last: u32) -> Vec<(u32, bool)> {
    let following = async {
        let mut heard = Vec::new();
        loop {
            match subscription.next().await {
                Event::Update(Update::Changed { changes, .. }) => {
                    for change in changes {
                        let number = change.after.as_ref().or(change.before.as_ref()).unwrap().number;
                        heard.push((number, change.after.is_some()));
                    }
                    if heard.iter().any(|&(number, _)| number == last) {
                        return heard;
                    }
                }
                Event::Update(_) => {}
                Event::Disconnected { why, .. } => panic!("{why}"),
            }
        }
    };
    timeout(SOON, following).await.unwrap()
}

async fn subscribe(running: &Running) -> Subscription {
    let options = ClientOptions { address: running.grpc_addr.to_string(), security: ClientSecurity::Plaintext };
    let mut subscription = Subscription::open(options, pb::SubscribeRequest::default()).await.unwrap();
    loop {
        match timeout(SOON, subscription.next()).await.unwrap() {
            Event::Update(Update::AllSynced { .. }) => return subscription,
            Event::Update(_) => {}
            Event::Disconnected { why, .. } => panic!("{why}"),
        }
    }
}

#[tokio::test]
async fn an_allocation_is_in_the_view_when_it_returns_and_told_once() {
    let (dir, etcd) = (tempfile::tempdir().unwrap(), etcd().await);
    let running = start(&config(dir.path(), etcd.port()), &[]).await;
    until_ready(&running).await;
    let subscription = subscribe(&running).await;
    let mut numbers = Vec::new();
    for n in 0..50 {
        let number = allocate(&running, n).await;
        assert_eq!(shown(&running, number).as_deref(), Some(labels(n).as_str()), "at once");
        assert_eq!(running.view.read(|mesh| mesh.lookup(labels(n).as_str()).map(Identity::number)), Some(number));
        numbers.push(number.get());
    }
    let told = |scrape: &str| scrape.contains("meshgate_events_total{cluster=\"a\",kind=\"upsert\"} 50\n");
    eventually("the watch has told the same", SOON, || async { told(&page(running.http_addr, "/metrics").await.1) })
        .await;
    // Whatever else subscribers were told, they were told before this one.
    let last = 131_071;
    etcd.client().kv_client().put(format!("{BASE}/id/{last}"), "k8s:last=1;", None).await.unwrap();
    let mut heard = follow(subscription, last).await;
    heard.sort_unstable();
    numbers.push(last);
    numbers.sort_unstable();
    assert_eq!(heard, numbers.into_iter().map(|number| (number, true)).collect::<Vec<_>>());
    let scrape = page(running.http_addr, "/metrics").await.1;
    for line in [
        "meshgate_allocator_duration_seconds_count{outcome=\"new\"} 50",
        "meshgate_allocator_path_total{path=\"fast\"} 50",
        "meshgate_allocator_path_total{path=\"lock\"} 0",
        "meshgate_allocator_numbers{state=\"used\"} 51",
        "meshgate_allocator_local_keys 50",
        "meshgate_allocator_leased_keys 50",
        "meshgate_allocator_gc_leader 0",
        "meshgate_identities{cluster=\"a\"} 51",
    ] {
        assert!(scrape.lines().any(|found| found == line), "no {line} in\n{scrape}");
    }
    let status = running.status.allocator().unwrap();
    assert!(status.listed && !status.collecting && status.local == 50, "{status:?}");
    stop(running).await;
}

#[tokio::test]
async fn a06_a_record_in_use_returns_and_no_subscriber_hears_of_its_delete() {
    let (dir, etcd) = (tempfile::tempdir().unwrap(), etcd().await);
    let running = start(&config(dir.path(), etcd.port()), &[]).await;
    until_ready(&running).await;
    let client = etcd.client();
    let (used, unused) = (allocate(&running, 1).await, allocate(&running, 2).await);
    allocator(&running).release(&labels(2), soon()).await.unwrap();
    let position = || running.view.read(|mesh| mesh.cluster_named("a").and_then(|cluster| cluster.position()));
    eventually("the watch has told both", SOON, || async { position().is_some() }).await;
    let subscription = subscribe(&running).await;
    let record = format!("{BASE}/id/{used}");
    for _ in 0..10 {
        client.kv_client().delete(record.as_str(), None).await.unwrap();
        eventually("it is back", SOON, || async { !dump(&client, &record).await.is_empty() }).await;
        assert!(shown(&running, used).is_some());
    }
    client.kv_client().delete(format!("{BASE}/id/{unused}"), None).await.unwrap();
    let last = 131_071;
    client.kv_client().put(format!("{BASE}/id/{last}"), "k8s:last=1;", None).await.unwrap();
    let mut heard = follow(subscription, last).await;
    heard.sort_unstable();
    assert_eq!(heard, [(unused.get(), false), (last, true)]);
    assert_eq!(dump(&client, &record).await, [(record, labels(1).to_string())]);
    stop(running).await;
}

#[tokio::test]
async fn a13_allocation_waits_for_the_own_list_and_for_no_peer() {
    let (dir, etcd, other) = (tempfile::tempdir().unwrap(), etcd().await, etcd().await);
    etcd.client().kv_client().put(format!("{BASE}/id/65600"), labels(1).as_str(), None).await.unwrap();
    let (proxy, peer) = (Proxy::to(etcd.port()).await, Proxy::to(other.port()).await);
    proxy.stall(Direction::ToClient);
    peer.stall(Direction::ToClient);
    let peers = dir.path().join("peers");
    std::fs::create_dir(&peers).unwrap();
    std::fs::write(peers.join("b"), format!("endpoints: [http://127.0.0.1:{}]\n", peer.port())).unwrap();
    let peers = format!("--clustermesh-config={}", peers.display());
    let running = start(&config(dir.path(), proxy.port()), &[&peers, "--dial-timeout=1s"]).await;
    let deadline = Instant::now() + Duration::from_millis(300);
    let error = allocator(&running).allocate(&labels(1), deadline).await.unwrap_err();
    assert_eq!((error.reason(), error.is_retryable()), ("deadline", true));
    let labels = labels(1);
    let (allocated, ()) = tokio::join!(allocator(&running).allocate(&labels, soon() + SOON), async {
        // Longer than an attempt may take; each has more time than the one before.
        let before = proxy.accepted();
        eventually("it is tried again", SOON, || async { proxy.accepted() > before + 1 }).await;
        assert_eq!(page(running.http_addr, "/livez").await.0, 200, "a slow list ends nothing");
        proxy.flow();
    });
    assert_eq!(allocated.unwrap().number.get(), 65_600, "the one that was in the store");
    assert!(!running.status.snapshot()["b"].synced_once);
    stop(running).await;
}

#[tokio::test]
async fn g09_a_changed_cluster_id_gets_new_numbers() {
    let (dir, etcd) = (tempfile::tempdir().unwrap(), etcd().await);
    let config = config(dir.path(), etcd.port());
    let first = start(&config, &["--release-on-shutdown"]).await;
    for n in 0..100 {
        assert_eq!(allocate(&first, n).await.get() >> 16, 1);
    }
    stop(first).await;
    let client = etcd.client();
    assert_eq!(dump(&client, &format!("{BASE}/value/")).await, [], "released, as told");
    let second = start(&config, &["--cluster-id=2"]).await;
    for n in 0..100 {
        let allocation = allocator(&second).allocate(&labels(n), soon()).await.unwrap();
        assert!(allocation.is_new && allocation.number.get() >> 16 == 2);
    }
    let mesh = second.view.load();
    let own = mesh.cluster_named("a").unwrap();
    assert!(own.len() == 100 && own.iter().all(|identity| identity.number().get() >> 16 == 2));
    assert_eq!(dump(&client, &format!("{BASE}/id/")).await.len(), 200, "old records are left to a clean-up");
    stop(second).await;
}

#[tokio::test]
async fn references_outlive_a_restart_and_unused_records_do_not_outlive_their_collector() {
    let (dir, etcd) = (tempfile::tempdir().unwrap(), etcd().await);
    let config = config(dir.path(), etcd.port());
    let gc = ["--enable-gc", "--identity-gc-interval=200ms", "--lock-gc-interval=10s"];
    let [one, two] = ["--node-name=g1", "--node-name=g2"];
    let first = start(&config, &[&gc[..], &[one]].concat()).await;
    let (used, unused) = (allocate(&first, 1).await, allocate(&first, 2).await);
    let leads = |running: &Running| running.status.allocator().unwrap().collecting;
    eventually("the first collects", SOON, || async { leads(&first) }).await;
    let second = start(&config, &[&gc[..], &[two]].concat()).await;
    allocator(&first).release(&labels(2), soon()).await.unwrap();
    eventually("it is collected", SOON, || async { shown(&first, unused).is_none() }).await;
    assert!(!leads(&second), "one at a time");
    let client = etcd.client();
    let reference = (format!("{BASE}/value/{}/g1", labels(1)), used.to_string());
    stop(first).await;
    eventually("the second collects", SOON, || async { leads(&second) }).await;
    assert_eq!(dump(&client, &format!("{BASE}/value/")).await, [reference], "kept");
    let again = start(&config, &[one]).await;
    let allocation = allocator(&again).allocate(&labels(1), soon()).await.unwrap();
    assert_eq!((allocation.number, allocation.is_new), (used, false));
    stop(again).await;
    stop(second).await;
}

#[tokio::test]
async fn p04_the_own_configuration_is_back_within_the_period() {
    let (dir, etcd) = (tempfile::tempdir().unwrap(), etcd().await);
    let flags = ["--announce-cluster", "--announce-interval=200ms", "--enable-allocator=false"];
    let running = start(&config(dir.path(), etcd.port()), &flags).await;
    assert!(running.allocator.is_none() && running.status.allocator().is_none());
    let client = etcd.client();
    let keys = ["cilium/.heartbeat", "cilium/cluster-config/a", &format!("cilium/synced/a/{BASE}")];
    let there = async || {
        let found: Vec<_> = dump(&client, "cilium/").await.into_iter().map(|(key, _)| key).collect();
        found == keys
    };
    eventually("it is announced", SOON, &there).await;
    for key in keys {
        client.kv_client().delete(key, None).await.unwrap();
        eventually("it is announced again", SOON, &there).await;
    }
    client.kv_client().put("cilium/cluster-config/a", "{}", None).await.unwrap();
    let config = r#"{"capabilities":{"maxConnectedClusters":255,"syncedCanaries":true},"id":1}"#;
    eventually("what somebody changed is ours again", SOON, || async {
        dump(&client, "cilium/cluster-config/a").await[0].1 == config
    })
    .await;
    stop(running).await;
}

#[tokio::test]
async fn g02_a_lost_lease_shows_in_metrics_and_its_references_return() {
    let (dir, etcd) = (tempfile::tempdir().unwrap(), etcd().await);
    let running = start(&config(dir.path(), etcd.port()), &[]).await;
    for n in 0..20 {
        allocate(&running, n).await;
    }
    let client = etcd.client();
    let lease = allocator(&running).backend().reference_leases();
    for lost in client.lease_client().leases().await.unwrap().leases() {
        client.lease_client().revoke(lost.id()).await.unwrap();
    }
    let before = *lease.losses().borrow();
    // The next operation finds out.
    allocate(&running, 20).await;
    eventually("all are back", SOON, || async { dump(&client, &format!("{BASE}/value/")).await.len() == 21 }).await;
    assert!(*lease.losses().borrow() > before);
    eventually("it is counted", SOON, || async {
        !page(running.http_addr, "/metrics").await.1.contains("meshgate_allocator_lost_leases_total 0\n")
    })
    .await;
    assert_eq!(page(running.http_addr, "/readyz").await.0, 200);
    stop(running).await;
}

#[tokio::test]
async fn calls_keep_to_the_limit_that_is_set() {
    let (dir, etcd) = (tempfile::tempdir().unwrap(), etcd().await);
    let limits =
        ["--kvstore-opt=etcd.qps=40", "--kvstore-opt=etcd.bootstrapQps=1000", "--kvstore-opt=etcd.maxInflight=4"];
    let running = start(&config(dir.path(), etcd.port()), &limits).await;
    until_ready(&running).await;
    let since = Instant::now();
    for n in 0..24 {
        allocate(&running, n).await;
    }
    // A tenth of a second's calls may come at once.
    assert!(since.elapsed() >= Duration::from_millis(20 * 25 - 10), "{:?}", since.elapsed());
    stop(running).await;
}

/// The value of a series, which is whole.
fn series(scrape: &str, name: &str) -> u64 {
    let line = scrape.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{scrape}")).parse().unwrap()
}

/// What an allocator went through can be read off its series.
#[tokio::test]
async fn every_series_of_the_allocator_tells_what_happened() {
    let (dir, etcd) = (tempfile::tempdir().unwrap(), etcd().await);
    let client = etcd.client();
    let more =
        ["--enable-gc", "--identity-gc-interval=300ms", "--lock-gc-interval=1100ms", "--kvstore-periodic-sync=100ms"];
    let running = start(&config(dir.path(), etcd.port()), &more).await;
    until_ready(&running).await;
    let scrape = async || page(running.http_addr, "/metrics").await.1;
    let reaches = async |name: &str, least: u64| {
        eventually(name, SOON, async || series(&scrape().await, &format!("meshgate_allocator_{name}")) >= least).await;
    };
    // One transaction each; then one that finds its label set locked, and waits until collectors have taken the lock away.
    let (kept, gone) = (allocate(&running, 1).await, allocate(&running, 2).await);
    let lock = Paths::new(BASE, "other").unwrap().locks(&labels(3)).unwrap();
    client.kv_client().put(format!("{lock}1"), "", None).await.unwrap();
    let waiting = labels(3);
    let waiting = allocator(&running).allocate(&waiting, soon());
    let (waiting, ()) = tokio::join!(waiting, async {
        reaches("gc_alive{kind=\"lock\"}", 1).await;
        // Until the round after the one that removes it.
        reaches("oldest_lock_seconds", 1).await;
    });
    waiting.unwrap();
    // In use here already.
    allocate(&running, 1).await;
    // Not to be had in time: somebody has its lock.
    let lock = Paths::new(BASE, "other").unwrap().locks(&labels(5)).unwrap();
    client.kv_client().put(format!("{lock}1"), "", None).await.unwrap();
    allocator(&running).allocate(&labels(5), Instant::now() + Duration::from_millis(50)).await.unwrap_err();
    for (name, least) in [
        ("duration_seconds_count{outcome=\"new\"}", 3),
        ("duration_seconds_count{outcome=\"local\"}", 1),
        ("duration_seconds_count{outcome=\"deadline\"}", 1),
        ("attempts_total", 3),
        ("path_total{path=\"fast\"}", 2),
        ("path_total{path=\"lock\"}", 1),
        ("lock_wait_seconds_count", 1),
        ("numbers{state=\"free\"}", 65_000),
        ("numbers{state=\"used\"}", 3),
        ("local_keys", 3),
        ("leases", 1),
        ("leased_keys", 3),
        ("gc_leader", 1),
        ("gc_deleted_total{kind=\"lock\"}", 1),
        ("gc_duration_seconds_count{kind=\"lock\"}", 2),
    ] {
        reaches(name, least).await;
    }
    // What nobody uses is collected, what is in use and was deleted returns, and what is taken by others is a conflict.
    allocator(&running).release(&labels(2), soon()).await.unwrap();
    reaches("gc_deleted_total{kind=\"identity\"}", 1).await;
    reaches("gc_duration_seconds_count{kind=\"identity\"}", 2).await;
    reaches("gc_alive{kind=\"identity\"}", 2).await;
    eventually("the watch tells it", SOON, async || shown(&running, gone).is_none()).await;
    client.kv_client().delete(format!("{BASE}/id/{kept}"), None).await.unwrap();
    reaches("repairs_total{event=\"recreated\"}", 1).await;
    // All references hang on one lease.
    let reference = format!("{BASE}/value/{}/", labels(1));
    let found = client.kv_client().get(reference, Some(GetOptions::new().with_prefix())).await.unwrap();
    client.lease_client().revoke(found.kvs()[0].lease()).await.unwrap();
    allocate(&running, 4).await;
    reaches("lost_leases_total", 1).await;
    reaches("leased_keys", 3).await;
    // Before the collector takes it away, as a record that nobody uses.
    client.kv_client().put(format!("{BASE}/id/{kept}"), "k8s:foreign=1;", None).await.unwrap();
    reaches("repairs_total{event=\"conflict\"}", 1).await;
    let scrape = scrape().await;
    let moved = |name: &str| scrape.lines().any(|line| line.starts_with(name) && !line.ends_with(" 0"));
    let page = include_str!("../../docs/metrics.md").split('`').filter(|name| name.starts_with("meshgate_allocator_"));
    // That one is 0 again.
    let missed: Vec<_> = page.filter(|name| !moved(name) && !name.ends_with("oldest_lock_seconds")).collect();
    assert!(missed.is_empty(), "nothing here moved {missed:?}");
    stop(running).await;
}

#[tokio::test]
async fn a_number_on_its_way_to_the_store_is_counted_as_leased() {
    let (dir, etcd) = (tempfile::tempdir().unwrap(), etcd().await);
    let proxy = Proxy::to(etcd.port()).await;
    let running = start(&config(dir.path(), proxy.port()), &[]).await;
    until_ready(&running).await;
    let leased = async |count: u64| {
        eventually("the gauge follows", SOON, async || {
            series(&page(running.http_addr, "/metrics").await.1, "meshgate_allocator_numbers{state=\"leased\"}")
                == count
        })
        .await;
    };
    leased(0).await;
    proxy.stall(Direction::ToClient);
    tokio::join!(allocate(&running, 1), async {
        leased(1).await;
        proxy.flow();
    });
    leased(0).await;
    stop(running).await;
}
