//! What clients do before their first request.

use std::sync::Arc;
use std::time::Instant;

use meshgate::client::{ClientError, ClientOptions, ClientSecurity, Event, Subscription, Update};
use meshgate::tls::{ServerTls, ServerTlsFiles};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::support::{CertSpec, Pki};

pub(super) fn mutual_tls(pki: &Pki) -> Security {
    let files = pki.issue(&CertSpec::server("gateway")).unwrap();
    let tls = ServerTls::load(ServerTlsFiles { cert: files.cert, key: files.key, client_ca: files.ca }).unwrap();
    let tls = Arc::new(tls);
    Security::MutualTls(api::TlsSource::new(move || tls.config()))
}

fn client(pki: &Pki, addr: SocketAddr, ca: &Pki) -> ClientOptions {
    let files = pki.issue(&CertSpec::client("agent").uri("spiffe://mesh.example/agent")).unwrap();
    ClientOptions {
        address: addr.to_string(),
        security: ClientSecurity::MutualTls {
            ca: ca.ca_file().to_owned(),
            cert: files.cert,
            key: files.key,
            server_name: None,
        },
    }
}

async fn open(options: ClientOptions) -> Result<Subscription, ClientError> {
    timeout(SOON, Subscription::open(options, pb::SubscribeRequest::default())).await.expect("an answer in time")
}

#[tokio::test]
async fn t4_silent_and_babbling_clients_stand_in_nobodys_way() {
    let pki = Pki::temporary().unwrap();
    let options = ServerOptions { handshake_timeout: Duration::from_secs(2), ..ServerOptions::default() };
    let server = Server::start_with(mutual_tls(&pki), options).await;
    publish(&server, "a", 1, 1);
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(server.addr).await.unwrap());
    }
    for _ in 0..50 {
        let mut junk = TcpStream::connect(server.addr).await.unwrap();
        junk.write_all(b"GET / HTTP/1.1\r\nhost: gateway\r\n\r\n").await.unwrap();
    }
    let begin = Instant::now();
    let mut sub = open(client(&pki, server.addr, &pki)).await.unwrap();
    while !matches!(sub.next().await, Event::Update(Update::AllSynced { .. })) {}
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    for mut tcp in silent {
        let end = timeout(SOON, tcp.read_to_end(&mut Vec::new())).await;
        assert!(end.is_ok(), "a client that says nothing is hung up on");
    }
    server.end().await;
}

#[tokio::test]
async fn a_client_that_says_nothing_after_tcp_is_hung_up_on_without_tls_too() {
    let options = ServerOptions { handshake_timeout: Duration::from_millis(200), ..ServerOptions::default() };
    let server = Server::start_with(Security::Plaintext, options).await;
    let mut silent = TcpStream::connect(server.addr).await.unwrap();
    // And one that begins, but does not go on.
    let mut slow = TcpStream::connect(server.addr).await.unwrap();
    slow.write_all(b"PRI * HT").await.unwrap();
    for tcp in [&mut silent, &mut slow] {
        timeout(SOON, tcp.read_to_end(&mut Vec::new())).await.expect("in time").unwrap();
    }
    server.end().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_and_then_are_served() {
    let options =
        ServerOptions { max_connections: 3, handshake_timeout: Duration::from_millis(500), ..ServerOptions::default() };
    let server = Server::start_with(Security::Plaintext, options).await;
    let mut silent = Vec::new();
    for _ in 0..9 {
        silent.push(TcpStream::connect(server.addr).await.unwrap());
    }
    server.synced(pb::SubscribeRequest::default()).await;
    server.end().await;
}

#[tokio::test]
async fn who_is_not_trusted_is_told_why() {
    let (pki, other) = (Pki::temporary().unwrap(), Pki::temporary().unwrap());
    let server = Server::start_with(mutual_tls(&pki), ServerOptions::default()).await;
    for (options, what) in [
        (client(&other, server.addr, &pki), "the server refused our certificate"),
        (client(&pki, server.addr, &other), "--ca must be the CA that signed the gateway's certificate"),
        (
            ClientOptions { address: server.addr.to_string(), security: ClientSecurity::Plaintext },
            "does it serve gRPC there, and with TLS exactly if you ask for TLS?",
        ),
    ] {
        let error = open(options).await.unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert!(!error.is_usage());
    }
    let plain = Server::start().await;
    let error = open(client(&pki, plain.addr, &pki)).await.unwrap_err();
    assert!(error.to_string().contains("with TLS exactly if you ask for TLS?"), "{error}");
    let taken = plain.addr;
    plain.end().await;
    let error =
        open(ClientOptions { address: taken.to_string(), security: ClientSecurity::Plaintext }).await.unwrap_err();
    assert!(error.to_string().contains("is it running"), "{error}");
    server.end().await;
}

#[tokio::test]
async fn plaintext_is_for_loopback_only() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let server = Server::start().await;
    let parts = Parts {
        cluster: ClusterName::new("a").unwrap(),
        view: server.view.clone(),
        status: server.status.clone(),
        metrics: server.metrics.clone(),
        readiness: server.readiness.clone(),
        access: Access::default(),
    };
    let stop = CancellationToken::new();
    let refused = api::serve(listener, Security::Plaintext, parts, ServerOptions::default(), stop).await;
    assert!(matches!(refused, Err(ServeError::PlaintextBeyondLoopback(_))));
    server.end().await;
}

#[tokio::test]
async fn a_subscription_outlives_its_streams() {
    let first = Server::start().await;
    let mut a = publish(&first, "a", 1, 5);
    publish(&first, "b", 2, 5);
    let address = first.addr;
    let options = ClientOptions { address: address.to_string(), security: ClientSecurity::Plaintext };
    let mut sub = open(options).await.unwrap();
    while !matches!(sub.next().await, Event::Update(Update::AllSynced { .. })) {}
    let view = first.view.clone();
    first.end().await;
    while !matches!(sub.next().await, Event::Disconnected { .. }) {}
    assert_eq!(sub.mesh().len(), 2, "nothing is forgotten because the gateway is away");

    // The gateway returns at the same place. Of a one thing has changed, b is still to be listed, c is new.
    let listener = TcpListener::bind(address).await.unwrap();
    a.remove(number(&a, 0));
    view.publish(a.build());
    view.withdraw(id(2));
    let second = Server::start().await;
    let board = StatusBoard::default();
    board.update("b", |status| status.state = meshgate::telemetry::ClusterState::Refused);
    let parts = Parts {
        cluster: ClusterName::new("a").unwrap(),
        view: view.clone(),
        status: board,
        metrics: second.metrics.clone(),
        readiness: second.readiness.clone(),
        access: Access::default(),
    };
    let stop = CancellationToken::new();
    let serving =
        tokio::spawn(api::serve(listener, Security::Plaintext, parts, ServerOptions::default(), stop.clone()));
    let mut seen = Vec::new();
    timeout(SOON, async {
        loop {
            match sub.next().await {
                Event::Update(Update::Synced { cluster, first, resumed: true, .. }) => seen.push((cluster, first, 0)),
                Event::Update(Update::Changed { cluster, changes }) => seen.push((cluster, false, changes.len())),
                Event::Update(Update::AllSynced { left_out, .. }) => break assert_eq!(left_out, ["b"]),
                Event::Update(Update::Removed { cluster, .. }) => panic!("{cluster} is not gone"),
                _ => {}
            }
        }
    })
    .await
    .unwrap();
    assert_eq!(seen, [("a".to_owned(), false, 0), ("a".to_owned(), false, 1)], "only the difference is news");
    assert_eq!(sub.mesh()["b"].identities.len(), 5);
    stop.cancel();
    timeout(SOON, serving).await.unwrap().unwrap().unwrap();
    second.end().await;
}

#[tokio::test]
async fn new_certificates_of_the_listener_count_for_new_handshakes_and_drop_nobody() {
    let (old, new) = (Pki::temporary().unwrap(), Pki::temporary().unwrap());
    let files = old.issue(&CertSpec::server("gateway")).unwrap();
    let files = ServerTlsFiles { cert: files.cert, key: files.key, client_ca: files.ca };
    let tls = Arc::new(ServerTls::load(files.clone()).unwrap());
    let current = Arc::clone(&tls);
    let security = Security::MutualTls(api::TlsSource::new(move || current.config()));
    let server = Server::start_with(security, ServerOptions::default()).await;
    let mut a = publish(&server, "a", 1, 3);
    let all_synced = async |sub: &mut Subscription| {
        while !matches!(timeout(SOON, sub.next()).await.unwrap(), Event::Update(Update::AllSynced { .. })) {}
    };
    let mut before = open(client(&old, server.addr, &old)).await.unwrap();
    all_synced(&mut before).await;

    // Another CA altogether, on both sides.
    let replacement = new.issue(&CertSpec::server("gateway")).unwrap();
    for (from, to) in
        [(&replacement.cert, &files.cert), (&replacement.key, &files.key), (&replacement.ca, &files.client_ca)]
    {
        std::fs::copy(from, to).unwrap();
    }
    assert!(tls.reload_if_changed().unwrap());
    let mut after = open(client(&new, server.addr, &new)).await.unwrap();
    all_synced(&mut after).await;
    let copy = Pki::temporary().unwrap();
    assert!(open(client(&copy, server.addr, &new)).await.is_err(), "who has a certificate of neither stays out");
    // The stream of before goes on as if nothing had been.
    put(&mut a, 1, "k8s:app=new;");
    server.view.publish(a.build());
    for sub in [&mut before, &mut after] {
        let event = timeout(SOON, sub.next()).await.unwrap();
        assert!(matches!(event, Event::Update(Update::Changed { .. })), "{event:?}");
    }
    server.end().await;
}
