//! Certificates: whose is refused by whom and why, and what becomes of them over time.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use meshgate::kvstore::{ConnectError, Connector, EtcdConfig, Stage};
use meshgate::tls::{ClientTls, ClientTlsFiles, OtherSide, Refusal, ServerTls, ServerTlsFiles, TlsError, explain};
use rustls::HandshakeKind;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::task::AbortOnDropHandle;

use super::{connect, etcd, session_of, timing};
use crate::support::pki::Usage;
use crate::support::{CertFiles, CertSpec, EtcdOptions, EtcdServer, Pki};

const DAY: Duration = Duration::from_hours(24);

fn ago(time: Duration) -> SystemTime {
    SystemTime::now() - time
}

fn config(port: u16, files: &CertFiles) -> EtcdConfig {
    EtcdConfig {
        endpoints: vec![format!("https://127.0.0.1:{port}")],
        trusted_ca_file: Some(files.ca.clone()),
        cert_file: Some(files.cert.clone()),
        key_file: Some(files.key.clone()),
        ..EtcdConfig::default()
    }
}

async fn failure(config: EtcdConfig) -> ConnectError {
    Connector::new(config, timing()).connect(&|_, _| {}).await.unwrap_err()
}

/// A TLS server that shakes hands and does nothing else.
async fn server(tls: Arc<ServerTls>) -> (u16, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let _ = TlsAcceptor::from(tls.config()).accept(tcp).await;
        }
    });
    (port, AbortOnDropHandle::new(task))
}

fn server_files(files: &CertFiles) -> ServerTlsFiles {
    ServerTlsFiles { cert: files.cert.clone(), key: files.key.clone(), client_ca: files.ca.clone() }
}

/// We refuse the server's certificate (T6).
#[tokio::test]
async fn t06_what_we_refuse_is_told_in_plain_words() {
    let pki = Pki::temporary().unwrap();
    let client = pki.issue(&CertSpec::client("client")).unwrap();
    let stranger = Pki::temporary().unwrap();
    for (files, reason, says) in [
        (
            stranger.issue(&CertSpec::server("stranger")),
            "we-refused-theirs-unknown-issuer",
            "we refused the server's certificate: it is signed by a CA that we do not trust",
        ),
        (
            pki.issue(&CertSpec::server("expired").not_before(ago(3 * DAY)).not_after(ago(DAY))),
            "we-refused-theirs-expired",
            "it expired on 20",
        ),
        (
            pki.issue(&CertSpec::server("early").not_before(SystemTime::now() + DAY)),
            "we-refused-theirs-not-valid-yet",
            "it is valid from 20",
        ),
        (
            pki.issue(&CertSpec::server("elsewhere").without_names().dns("blue.mesh").dns("*.mesh.cilium.io")),
            "we-refused-theirs-wrong-name",
            "it is not for 127.0.0.1: its names are ",
        ),
        (
            pki.issue(&CertSpec::server("client-only").usages(&[Usage::Client])),
            "we-refused-theirs-wrong-usage",
            "it is made for another usage",
        ),
    ] {
        let files = CertFiles { ca: pki.ca_file().to_owned(), ..files.unwrap() };
        let (port, _server) = server(Arc::new(ServerTls::load(server_files(&files)).unwrap())).await;
        let error = failure(config(port, &client)).await;
        assert_eq!((error.stage(), error.reason()), (Stage::Tls, reason), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.is_retryable() && !error.hint().is_empty());
        if reason == "we-refused-theirs-wrong-name" {
            assert!(
                error.to_string().contains("blue.mesh") && error.to_string().contains("*.mesh.cilium.io"),
                "{error}"
            );
        }
    }
}

/// The etcd refuses ours. Under TLS 1.3 that shows in no handshake, but with the first call.
#[tokio::test]
async fn t06_that_they_refuse_ours_is_told_in_plain_words() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    let good = etcd.config();
    let stranger = Pki::temporary().unwrap();
    for files in [
        stranger.issue(&CertSpec::client("stranger")),
        pki.issue(&CertSpec::client("expired").not_before(ago(3 * DAY)).not_after(ago(DAY))),
        pki.issue(&CertSpec::client("server-only").usages(&[Usage::Server])),
    ] {
        let files = files.unwrap();
        let error =
            failure(EtcdConfig { cert_file: Some(files.cert), key_file: Some(files.key), ..good.clone() }).await;
        assert_eq!(error.stage(), Stage::Tls, "{error}");
        assert!(error.reason().starts_with("they-refused-ours"), "{}: {error}", error.reason());
        assert!(error.to_string().contains("the server refused our certificate"), "{error}");
        assert!(!error.is_retryable());
    }
    let error = failure(EtcdConfig { cert_file: None, key_file: None, ..good }).await;
    assert_eq!(error.stage(), Stage::Tls, "{error}");
    assert!(error.reason().starts_with("they-refused-ours"), "{}: {error}", error.reason());
}

#[tokio::test]
async fn a_port_without_tls_is_called_so() {
    let pki = Pki::temporary().unwrap();
    let client = pki.issue(&CertSpec::client("client")).unwrap();
    let plain = EtcdServer::start(EtcdOptions::plain("alpha").in_memory()).await.unwrap();
    let error = failure(config(plain.port(), &client)).await;
    assert_eq!(error.stage(), Stage::Tls, "{error}");
    assert!(["not-tls", "tls-broken-off", "tls-protocol"].contains(&error.reason()), "{}: {error}", error.reason());
}

#[tokio::test]
async fn skipping_verification_accepts_any_server() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    let config = EtcdConfig { trusted_ca_file: None, insecure_skip_tls_verify: true, ..etcd.config() };
    connect(config).await;
}

#[tokio::test]
async fn bad_files_are_named() {
    let pki = Pki::temporary().unwrap();
    let good = pki.issue(&CertSpec::client("good")).unwrap();
    let other = pki.issue(&CertSpec::client("other")).unwrap();
    let empty = pki.dir().join("empty.crt");
    std::fs::write(&empty, "# nothing here\n").unwrap();
    let torn = pki.dir().join("torn.crt");
    let whole = std::fs::read_to_string(&good.cert).unwrap();
    std::fs::write(&torn, &whole[..whole.len() / 2]).unwrap();
    let with = |ca: &Path, cert: &Path, key: &Path| {
        let files = ClientTlsFiles {
            ca: Some(ca.to_owned()),
            identity: Some((cert.to_owned(), key.to_owned())),
            skip_verify: false,
        };
        ClientTls::new(files).current().unwrap_err()
    };
    for (error, reason, path) in [
        (with(Path::new("/nowhere"), &good.cert, &good.key), "certificate-unreadable", Path::new("/nowhere")),
        (with(&empty, &good.cert, &good.key), "certificate-empty", &empty),
        (with(&good.ca, &empty, &good.key), "certificate-empty", &empty),
        (with(&good.ca, &good.cert, &good.cert), "certificate-empty", &good.cert),
        (with(&good.ca, &torn, &good.key), "certificate-malformed", &torn),
        (with(&good.ca, &good.cert, &other.key), "certificate-key-mismatch", &other.key),
    ] {
        assert_eq!(error.reason(), reason, "{error}");
        assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
        assert!(!error.hint().is_empty());
    }
}

/// Rotation: each session presents the newest pair that can be used; a torn pair is reported and the last good one used (T1).
#[tokio::test]
async fn t01_each_session_presents_the_newest_good_pair() {
    let pki = Pki::temporary().unwrap();
    let etcd = etcd(&pki, "alpha").await;
    let spec = CertSpec::client("rotated");
    let files = pki.issue(&spec).unwrap();
    let connector = Connector::new(
        EtcdConfig { cert_file: Some(files.cert.clone()), key_file: Some(files.key.clone()), ..etcd.config() },
        timing(),
    );
    let serial = async || session_of(&connector).await.certificate().unwrap().serial.clone();
    let first = serial().await;
    assert_eq!(serial().await, first);

    let old_key = std::fs::read(&files.key).unwrap();
    pki.issue(&spec).unwrap();
    let new_key = std::fs::read(&files.key).unwrap();
    std::fs::write(&files.key, old_key).unwrap();
    assert_eq!(serial().await, first, "a new certificate with the old key");
    assert!(matches!(connector.certificate_trouble(), Some(TlsError::KeyMismatch { .. })));

    std::fs::write(&files.key, new_key).unwrap();
    assert_ne!(serial().await, first);
    assert_eq!(connector.certificate_trouble(), None);
}

#[tokio::test]
async fn a_server_reloads_and_keeps_what_is_good() {
    let pki = Pki::temporary().unwrap();
    let spec = CertSpec::server("api").uri("spiffe://mesh.example/api");
    let files = pki.issue(&spec).unwrap();
    let tls = Arc::new(ServerTls::load(server_files(&files)).unwrap());
    let first = tls.leaf();
    assert_eq!(first.uris, ["spiffe://mesh.example/api"]);
    assert_eq!(first.names(), ["localhost", "spiffe://mesh.example/api", "127.0.0.1", "::1"]);
    assert!(first.not_after > SystemTime::now() && first.not_before < SystemTime::now());
    assert_eq!(tls.reload_if_changed(), Ok(false));
    let before = tls.config();

    let old_key = std::fs::read(&files.key).unwrap();
    pki.issue(&spec).unwrap();
    let new_key = std::fs::read(&files.key).unwrap();
    std::fs::write(&files.key, old_key).unwrap();
    assert_eq!(tls.reload_if_changed().unwrap_err().reason(), "certificate-key-mismatch");
    assert!(Arc::ptr_eq(&before, &tls.config()));
    std::fs::write(&files.key, new_key).unwrap();
    assert_eq!(tls.reload_if_changed(), Ok(true));
    assert_ne!(tls.leaf().serial, first.serial);
}

/// The server's side of the words.
#[tokio::test]
async fn a_server_demands_a_client_s_certificate() {
    let pki = Pki::temporary().unwrap();
    let tls = ServerTls::load(server_files(&pki.issue(&CertSpec::server("api")).unwrap())).unwrap();
    let strangers = Pki::temporary().unwrap();
    let stranger = strangers.issue(&CertSpec::client("stranger")).unwrap();
    let good = pki.issue(&CertSpec::client("good")).unwrap();
    for (identity, reason) in [
        (Some(&good), None),
        (Some(&stranger), Some("we-refused-theirs-unknown-issuer")),
        (None, Some("no-certificate-shown")),
    ] {
        let identity = identity.map(|files| (files.cert.clone(), files.key.clone()));
        let files = ClientTlsFiles { ca: Some(pki.ca_file().to_owned()), identity, skip_verify: false };
        let client = ClientTls::new(files).current().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let name = Ipv4Addr::LOCALHOST.into();
        let acceptor = TlsAcceptor::from(tls.config());
        let (accepted, _connected) = tokio::join!(
            async { acceptor.accept(listener.accept().await.unwrap().0).await },
            TlsConnector::from(client.config).connect(name, tcp),
        );
        let explained = accepted.err().and_then(|error| explain(&error, OtherSide::Client));
        assert_eq!(explained.as_ref().map(|failure| failure.reason), reason, "{explained:?}");
        if let Some(failure) = explained {
            assert_eq!(failure.refusal, Refusal::WeRefusedTheirs);
            assert!(failure.message.contains("client"), "{}", failure.message);
        }
    }
}

/// A ticket of the connection before would let both sides go on without showing a certificate (T1).
#[tokio::test]
async fn t01_every_handshake_shows_certificates() {
    let pki = Pki::temporary().unwrap();
    let server_side = pki.issue(&CertSpec::server("server")).unwrap();
    let (port, _server) = server(Arc::new(ServerTls::load(server_files(&server_side)).unwrap())).await;
    let files = pki.issue(&CertSpec::client("client")).unwrap();
    let identity = Some((files.cert.clone(), files.key.clone()));
    let tls = ClientTls::new(ClientTlsFiles { ca: Some(files.ca.clone()), identity, skip_verify: false });
    for _ in 0..3 {
        let config = tls.current().unwrap().config;
        let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        let mut stream = TlsConnector::from(config).connect("localhost".try_into().unwrap(), tcp).await.unwrap();
        // Tickets come behind the handshake; the server closes then.
        let _ = stream.read_to_end(&mut Vec::new()).await;
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(HandshakeKind::Full));
    }
}
