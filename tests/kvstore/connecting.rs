//! Which endpoint is taken, and how long the others take.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use meshgate::kvstore::{Connector, EtcdConfig, Stage, Timing};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};

use super::{Copy, Seen, connect, etcd, session_of, timing};
use crate::support::proxy::{Direction, Proxy};
use crate::support::{CertSpec, EtcdOptions, EtcdServer, Pki, eventually};

/// An address that drops packets: a listener whose queue is full.
pub(super) struct BlackHole {
    pub(super) address: SocketAddr,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl BlackHole {
    async fn new() -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into()).await
    }

    pub(super) async fn at(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(address).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            queued.push(stream.unwrap());
        }
        Self { address, _listener: listener, _queued: queued }
    }
}

/// One port on which nothing listens, for as long as this lives.
fn dead() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let url = format!("https://{}", socket.local_addr().unwrap());
    (socket, url)
}

fn at(config: &EtcdConfig, endpoints: impl IntoIterator<Item = String>) -> EtcdConfig {
    EtcdConfig { endpoints: endpoints.into_iter().collect(), ..config.clone() }
}

/// One live endpoint among one that refuses, one that drops packets, and one of another CA, wherever they stand (E12).
#[tokio::test]
async fn e12_one_live_endpoint_suffices_in_any_position() {
    let pki = Pki::temporary().unwrap();
    let live = etcd(&pki, "live").await;
    let strangers = Pki::temporary().unwrap();
    let stranger = etcd(&strangers, "stranger").await;
    let (_socket, refusing) = dead();
    let hole = BlackHole::new().await;
    let endpoints = [refusing, format!("https://{}", hole.address), stranger.client_url(), live.client_url()];
    for turn in 0..endpoints.len() {
        let mut endpoints = endpoints.clone();
        endpoints.rotate_left(turn);
        let begun = Instant::now();
        let session = connect(at(&live.config(), endpoints)).await;
        assert_eq!(session.endpoint(), live.client_url());
        assert!(begun.elapsed() < timing().dial * 2, "position {turn}: {:?}", begun.elapsed());
    }
}

/// With the deadlines that operators get.
#[tokio::test]
async fn e12_a_black_hole_costs_less_than_five_seconds() {
    let pki = Pki::temporary().unwrap();
    let live = etcd(&pki, "live").await;
    let hole = BlackHole::new().await;
    let config = at(&live.config(), [format!("https://{}", hole.address), live.client_url()]);
    let begun = Instant::now();
    session_of(&Connector::new(config, Timing::default())).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn each_endpoint_s_failure_is_told() {
    let pki = Pki::temporary().unwrap();
    let live = etcd(&pki, "live").await;
    let strangers = Pki::temporary().unwrap();
    let stranger = etcd(&strangers, "stranger").await;
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (_socket, refusing) = dead();
    let hole = BlackHole::new().await;
    let config = at(
        &live.config(),
        [
            refusing,
            format!("https://{}", hole.address),
            format!("https://{}", silent.local_addr().unwrap()),
            "https://no.such.host.invalid:2379".to_owned(),
            stranger.client_url(),
        ],
    );
    let error = Connector::new(config, timing()).connect(&|_, _| {}).await.unwrap_err();
    let told: Vec<_> = error.attempts().iter().map(|(_, failure)| (failure.stage, failure.reason)).collect();
    assert_eq!(told[..3], [(Stage::Dial, "dial-refused"), (Stage::Dial, "dial-timeout"), (Stage::Tls, "tls-timeout")]);
    assert_eq!(told[3].0, Stage::Resolve);
    assert_eq!(told[4], (Stage::Tls, "we-refused-theirs-unknown-issuer"), "{error}");
    assert!(error.is_retryable(), "some may come back");
    let text = error.to_string();
    assert!(text.contains("nothing listens on") && text.contains("a CA that we do not trust"), "{text}");
}

#[tokio::test]
async fn every_stage_is_reported() {
    let pki = Pki::temporary().unwrap();
    let live = etcd(&pki, "live").await;
    let (_socket, refusing) = dead();
    let stages = std::sync::Mutex::new(Vec::new());
    let connector = Connector::new(at(&live.config(), [refusing.clone(), live.client_url()]), timing());
    connector.connect(&|stage, endpoint| stages.lock().unwrap().push((stage, endpoint.to_owned()))).await.unwrap();
    let until =
        |endpoint: &str, stages: &[Stage]| stages.iter().map(|stage| (*stage, endpoint.to_owned())).collect::<Vec<_>>();
    let mut expected = until(&refusing, &[Stage::Certificates, Stage::Resolve, Stage::Dial]);
    expected.extend(until(
        &live.client_url(),
        &[Stage::Certificates, Stage::Resolve, Stage::Dial, Stage::Tls, Stage::FirstCall],
    ));
    assert_eq!(stages.into_inner().unwrap(), expected);
}

/// Set-up that hangs at any stage ends at its own deadline (R16).
#[tokio::test]
async fn r16_a_server_that_falls_silent_at_any_stage_ends_the_attempt() {
    let pki = Pki::temporary().unwrap();
    let live = etcd(&pki, "live").await;
    let proxy = Proxy::to(live.port()).await;
    let config = at(&live.config(), [format!("https://127.0.0.1:{}", proxy.port())]);
    // Silent from the first byte on.
    proxy.stall(Direction::ToClient);
    let connector = Connector::new(config.clone(), timing());
    let error = connector.connect(&|_, _| {}).await.unwrap_err();
    assert_eq!((error.stage(), error.reason()), (Stage::Tls, "tls-timeout"));
    // From the handshake's end on.
    proxy.flow();
    let report = |stage: Stage, _: &str| {
        if stage == Stage::FirstCall {
            proxy.stall(Direction::ToClient);
        }
    };
    let error = connector.connect(&report).await.unwrap_err();
    assert_eq!((error.stage(), error.reason()), (Stage::FirstCall, "deadline"), "{error}");
    // From the first answer on: the watch is never confirmed.
    proxy.flow();
    let session = session_of(&connector).await;
    let mut copy = Copy::paged(10);
    copy.until(&session, Seen::Listed).await;
    proxy.stall(Direction::ToClient);
    assert_eq!(copy.until_over(&session).await.reason(), "deadline");
    // All of this left nothing behind.
    drop((session, copy));
    proxy.flow();
    eventually("connections are closed", super::DEADLINE, async || proxy.open() == 0).await;
}

/// Where a session was steady, a cut says nothing against its endpoint, and the same etcd can resume.
#[tokio::test]
async fn a_steady_endpoint_is_kept_and_one_that_falters_is_left() {
    let pki = Pki::temporary().unwrap();
    let (one, other) = (etcd(&pki, "one").await, etcd(&pki, "other").await);
    let (near, far) = (Proxy::to(one.port()).await, Proxy::to(other.port()).await);
    let urls = [near.port(), far.port()].map(|port| format!("https://127.0.0.1:{port}"));
    let config = at(&one.config(), urls.clone());
    let connector = Connector::new(config, Timing { liveness: Duration::from_millis(300), ..timing() });
    let session = session_of(&connector).await;
    assert_eq!(session.endpoint(), urls[0]);
    tokio::time::sleep(Duration::from_millis(400)).await;
    near.cut();
    session.closed().await;
    let session = session_of(&connector).await;
    assert_eq!(session.endpoint(), urls[0], "it was steady");
    near.cut();
    session.closed().await;
    let session = session_of(&connector).await;
    assert_eq!(session.endpoint(), urls[1], "it was not");
    // The caller was not content with this one.
    drop(session);
    assert_eq!(session_of(&connector).await.endpoint(), urls[0]);
}

#[tokio::test]
async fn plain_text_stays_on_this_machine() {
    let config = EtcdConfig { endpoints: vec!["http://192.0.2.1:2379".into()], ..EtcdConfig::default() };
    let error = Connector::new(config, timing()).connect(&|_, _| {}).await.unwrap_err();
    assert_eq!((error.reason(), error.is_retryable()), ("bad-config", false));
    let config = EtcdConfig { endpoints: vec!["https://127.0.0.1:1".into()], ..EtcdConfig::default() };
    let error = Connector::new(config, timing()).connect(&|_, _| {}).await.unwrap_err();
    assert_eq!((error.stage(), error.reason()), (Stage::Certificates, "no-ca"));
    let etcd = EtcdServer::start(EtcdOptions::plain("alpha").in_memory()).await.unwrap();
    let session = connect(EtcdConfig { endpoints: vec![format!("http://localhost:{}", etcd.port())], ..etcd.config() });
    assert!(session.await.certificate().is_none());
    let insecure = EtcdConfig {
        endpoints: vec![format!("https://localhost:{}", etcd.port())],
        insecure_transport: true,
        ..etcd.config()
    };
    connect(insecure).await;
}

/// Something else than an etcd that speaks HTTP/2 over TLS: the gateway's own API would be one.
#[tokio::test]
async fn what_is_no_etcd_is_called_so() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = tonic::transport::Server::builder()
        .add_service(tonic_health::server::health_reporter().1)
        .serve_with_incoming(incoming);
    let _server = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(server));
    let config = EtcdConfig { endpoints: vec![url], ..EtcdConfig::default() };
    let error = Connector::new(config, timing()).connect(&|_, _| {}).await.unwrap_err();
    assert_eq!((error.stage(), error.reason()), (Stage::FirstCall, "not-etcd"), "{error}");
}

/// A bundle with the CAs of both of a peer's etcds, each reached in turn (T2, T1d).
#[tokio::test]
async fn t02_each_ca_of_a_bundle_counts() {
    let (first, second) = (Pki::temporary().unwrap(), Pki::temporary().unwrap());
    let (one, other) = (etcd(&first, "one").await, etcd(&second, "other").await);
    let bundle = first.dir().join("bundle.crt");
    let read = |pki: &Pki| std::fs::read_to_string(pki.ca_file()).unwrap();
    std::fs::write(&bundle, format!("# both\n\n{}\n\n# the second\n{}", read(&first), read(&second))).unwrap();
    for etcd in [&one, &other] {
        connect(EtcdConfig { trusted_ca_file: Some(bundle.clone()), ..etcd.config() }).await;
    }
    // Leaf and intermediate to a server that knows the root only, in any order.
    let intermediate = first.intermediate("between").unwrap();
    let client = intermediate.issue(&CertSpec::client("below")).unwrap();
    let chain = std::fs::read_to_string(&client.cert).unwrap();
    let (leaf, rest) = chain.split_at(chain[1..].find("-----BEGIN").unwrap() + 1);
    let reversed = first.dir().join("reversed.crt");
    std::fs::write(&reversed, format!("{rest}{leaf}")).unwrap();
    for cert in [client.cert.clone(), reversed] {
        connect(EtcdConfig { cert_file: Some(cert), key_file: Some(client.key.clone()), ..one.config() }).await;
    }
}
