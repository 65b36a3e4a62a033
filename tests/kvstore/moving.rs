//! A session that works is left for another one: names that move, pings that are refused.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use meshgate::kvstore::{Connector, EtcdConfig, Resolver, Session, SessionError, Timing};
use meshgate::mirror::{Dialer, Reporter};
use meshgate::telemetry::{Metrics, StatusBoard};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{DEADLINE, etcd, session_of, timing};
use crate::support::proxy::Proxy;
use crate::support::{CertSpec, EtcdOptions, EtcdServer, Pki};

const HOST: &str = "localhost";

/// By way of the name that the certificate is for.
fn by_name(etcd: &EtcdServer, port: u16) -> EtcdConfig {
    EtcdConfig { endpoints: vec![format!("https://{HOST}:{port}")], ..etcd.config() }
}

fn reporter() -> Reporter {
    let board = StatusBoard::default();
    Reporter::new("blue", false, board.clone(), Metrics::new(board))
}

/// What the scripted resolver answers; nothing is a failure.
type Answer = Arc<Mutex<Option<Vec<Ipv4Addr>>>>;

fn scripted(answer: &Answer) -> Resolver {
    let answer = Arc::clone(answer);
    Resolver::new(move |host, port| {
        assert_eq!(host, HOST);
        let answer = answer.lock().unwrap().clone();
        let addresses = answer.map(|ips| ips.into_iter().map(|ip| SocketAddr::from((ip, port))).collect());
        async move { addresses.ok_or_else(|| std::io::Error::other("no server could be reached")) }.boxed()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn p13_a_name_is_followed_to_another_address_and_a_failed_lookup_changes_nothing() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "blue").await;
    // The same port at another address of this machine.
    let elsewhere = Ipv4Addr::new(127, 0, 0, 2);
    let listener = TcpListener::bind((elsewhere, etcd.port())).await.unwrap();
    let answer: Answer = Arc::new(Mutex::new(Some(vec![Ipv4Addr::LOCALHOST])));
    let timing = Timing { resolve_interval: Duration::from_millis(50), ..timing() };
    let mut dialer = Dialer::new(by_name(&etcd, etcd.port()), &timing).with_resolver(scripted(&answer));
    let reporter = reporter();
    let session = dialer.connect(&reporter).await;
    assert_eq!(session.address().ip(), IpAddr::from(Ipv4Addr::LOCALHOST));

    *answer.lock().unwrap() = None;
    let moved = timeout(Duration::from_millis(500), dialer.successor(&session, &reporter)).await;
    assert!(moved.is_err(), "a name that does not resolve says nothing");
    *answer.lock().unwrap() = Some(vec![Ipv4Addr::LOCALHOST, elsewhere]);
    let moved = timeout(Duration::from_millis(500), dialer.successor(&session, &reporter)).await;
    assert!(moved.is_err(), "the address in use is one of them still");

    *answer.lock().unwrap() = Some(vec![elsewhere]);
    let forward = Proxy::on(listener, etcd.port());
    let next = timeout(DEADLINE, dialer.successor(&session, &reporter)).await.expect("it follows");
    assert_eq!(next.address().ip(), IpAddr::from(elsewhere));
    assert_eq!(forward.accepted(), 1);
    session.get(b"x").await.expect("the old one is left, not broken");
}

#[tokio::test(flavor = "multi_thread")]
async fn p13_dead_addresses_of_a_name_cost_less_than_one_dial() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "blue").await;
    let mut holes = Vec::new();
    for last in 2..5 {
        holes.push(super::connecting::BlackHole::at(SocketAddr::from(([127, 0, 0, last], etcd.port()))).await);
    }
    let config = EtcdConfig {
        host_aliases: [(
            HOST.to_owned(),
            vec![
                holes[0].address.ip(),
                holes[1].address.ip(),
                holes[2].address.ip(),
                IpAddr::from(Ipv4Addr::LOCALHOST),
            ],
        )]
        .into(),
        ..by_name(&etcd, etcd.port())
    };
    let begun = Instant::now();
    let session = session_of(&Connector::new(config, Timing::default())).await;
    assert_eq!(session.address().ip(), IpAddr::from(Ipv4Addr::LOCALHOST));
    assert!(begun.elapsed() < Timing::default().dial, "{:?}", begun.elapsed());
}

/// Pings until the connection is closed, or until `quiet` has passed.
async fn until_closed(session: &Session, quiet: Duration) -> Option<SessionError> {
    let mut watch = session.watch(b"x", 0).await.unwrap();
    let over = async {
        loop {
            if let Err(error) = watch.next().await {
                return error;
            }
        }
    };
    timeout(quiet, over).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn e06_pings_that_are_refused_become_rarer() {
    let options = EtcdOptions::plain("strict").in_memory().args(["--grpc-keepalive-min-time", "1s"]);
    let etcd = EtcdServer::start(options).await.unwrap();
    // Nothing but pings may be heard: a server forgives pings between which it has sent something.
    let timing = Timing {
        keepalive_interval: Duration::from_millis(400),
        progress_interval: Duration::from_mins(1),
        liveness: Duration::from_mins(3),
        ..timing()
    };
    let connector = Connector::new(etcd.config(), timing);
    let mut refused = 0;
    while let Some(closed) = until_closed(&session_of(&connector).await, Duration::from_secs(6)).await {
        assert_eq!(closed, SessionError::TooManyPings);
        refused += 1;
    }
    assert!((1..=2).contains(&refused), "0.4 s is too often, 1.6 s is not: {refused}");
}

/// A mesh of 100 peers whose names all become unknown at once: the resolver is down.
#[tokio::test(start_paused = true)]
async fn p13_a_resolver_that_is_down_is_asked_seldom_and_not_by_all_at_once() {
    const PEERS: usize = 100;
    let pki = Pki::temporary().unwrap();
    let files = pki.issue(&CertSpec::client("gateway")).unwrap();
    let asked: Arc<Mutex<Vec<(Instant, String)>>> = Arc::default();
    let since = |begin: Instant| -> Vec<(Duration, String)> {
        let asked = asked.lock().unwrap();
        asked.iter().filter(|(at, _)| *at >= begin).map(|(at, host)| (*at - begin, host.clone())).collect()
    };
    let peers: Vec<_> = (0..PEERS)
        .map(|n| {
            let config = EtcdConfig {
                endpoints: vec![format!("https://peer-{n}.example:2379")],
                trusted_ca_file: Some(files.ca.clone()),
                cert_file: Some(files.cert.clone()),
                key_file: Some(files.key.clone()),
                ..EtcdConfig::default()
            };
            let asked = Arc::clone(&asked);
            let resolver = Resolver::new(move |host, _| {
                asked.lock().unwrap().push((Instant::now(), host));
                async { Err(std::io::Error::other("no server could be reached")) }.boxed()
            });
            let mut dialer = Dialer::new(config, &Timing::default()).with_resolver(resolver);
            AbortOnDropHandle::new(tokio::spawn(async move { drop(dialer.connect(&reporter()).await) }))
        })
        .collect();
    // The first attempts follow each other fast, as they should: most failures are short.
    let begin = Instant::now();
    sleep(Duration::from_mins(1)).await;
    let first = since(begin).len();
    assert!((5 * PEERS..=14 * PEERS).contains(&first), "{first} questions in the first minute");
    let begin = Instant::now();
    sleep(Duration::from_mins(10)).await;
    let asked = since(begin);
    // A wait is 15 s on average by then.
    assert!(asked.len() <= 10 * 6 * PEERS, "{} questions in ten minutes", asked.len());
    let mut by_second = vec![0; 601];
    let mut last: BTreeMap<_, _> = (0..PEERS).map(|n| (format!("peer-{n}.example"), Duration::ZERO)).collect();
    for (at, host) in asked {
        by_second[usize::try_from(at.as_secs()).unwrap()] += 1;
        let before = last.insert(host.clone(), at).expect("one of ours");
        let latest = before + Timing::default().backoff_max + Duration::from_secs(1);
        assert!(at <= latest, "{host} was asked for at {before:?}, then at {at:?}");
    }
    let most = by_second.into_iter().max().unwrap();
    assert!(most <= PEERS / 3, "{most} of {PEERS} in one second");
    drop(peers);
}
