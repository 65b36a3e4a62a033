//! One connection to a gateway, over TLS by rustls or, on loopback, without.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use super::ClientError;
use crate::api::pb::mesh_service_client::MeshServiceClient;

/// The generated client on our channel.
pub type MeshClient = MeshServiceClient<Channel>;

/// Name, TCP and TLS together; a gateway is near.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A gateway that vanished is noticed within the sum of both.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a gateway is, and how to speak to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// `HOST:PORT`.
    pub address: String,
    /// How.
    pub security: ClientSecurity,
}

/// How the connection is secured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientSecurity {
    /// Not at all.
    Plaintext,
    /// Mutual TLS.
    MutualTls {
        /// CAs of the gateway, PEM.
        ca: PathBuf,
        /// Our certificate chain, PEM.
        cert: PathBuf,
        /// Its key, PEM.
        key: PathBuf,
        /// The name that the gateway's certificate must have, where that is not the host of the address.
        server_name: Option<String>,
    },
}

/// Connects. The files are read anew each time, so that a new certificate counts at the next connection.
///
/// # Errors
/// What is wrong with the address, the files, or the other end. That a gateway refuses our certificate may show at the
/// first call only.
pub async fn connect(options: &ClientOptions) -> Result<MeshClient, ClientError> {
    let address = options.address.as_str();
    let invalid = || ClientError::Address(address.to_owned());
    let (host, _) = address
        .rsplit_once(':')
        .filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0))
        .ok_or_else(invalid)?;
    let tls = match &options.security {
        ClientSecurity::Plaintext => None,
        ClientSecurity::MutualTls { ca, cert, key, server_name } => {
            let name = server_name.as_deref().unwrap_or(host.trim_matches(['[', ']']));
            let name = ServerName::try_from(name.to_owned()).map_err(|_| invalid())?;
            Some((TlsConnector::from(Arc::new(tls_config(ca, cert, key)?)), name))
        }
    };
    // The scheme is `http` also over TLS: tonic must not bring its own. The host is what requests name.
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|_| invalid())?
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let to = address.to_owned();
    let dial = tower::service_fn(move |_| {
        let (to, tls) = (to.clone(), tls.clone());
        async move { dial(&to, tls).await.map(TokioIo::new) }
    });
    match timeout(CONNECT_TIMEOUT, endpoint.connect_with_connector(dial)).await {
        Ok(Ok(channel)) => Ok(MeshServiceClient::new(channel)),
        Ok(Err(error)) => Err(ClientError::of_transport(address, &error)),
        Err(_) => Err(ClientError::timeout(address, CONNECT_TIMEOUT)),
    }
}

async fn dial(to: &str, tls: Option<(TlsConnector, ServerName<'static>)>) -> io::Result<Io> {
    let tcp = TcpStream::connect(to).await?;
    tcp.set_nodelay(true)?;
    Ok(match tls {
        None => Io::Plain(tcp),
        Some((connector, name)) => Io::Tls(Box::new(connector.connect(name, tcp).await?)),
    })
}

fn tls_config(ca: &Path, cert: &Path, key: &Path) -> Result<ClientConfig, ClientError> {
    let mut roots = RootCertStore::empty();
    for root in certificates(ca)? {
        roots.add(root).map_err(|error| wrong(ca, format!("not a CA's certificate: {error}")))?;
    }
    let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, pem_problem("private key", &error)))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(cert, error.to_string()))?
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates(cert)?, key_der)
        .map_err(|error| wrong(cert, format!("does not go with the key {}: {error}", key.display())))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// All certificates of a file; one without any is refused.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let problem = |error| wrong(path, pem_problem("certificate", &error));
    let all: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(problem)?.collect::<Result<_, _>>().map_err(problem)?;
    if all.is_empty() { Err(problem(pem::Error::NoItemsFound)) } else { Ok(all) }
}

fn wrong(path: &Path, what: String) -> ClientError {
    ClientError::File { path: path.to_owned(), what }
}

fn pem_problem(what: &str, error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => format!("cannot be read: {error}"),
        pem::Error::NoItemsFound => format!("has no {what}; give a PEM file with one"),
        other => format!("is no PEM file with a {what}: {other}"),
    }
}

/// Either kind of connection.
#[derive(Debug)]
enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

trait Duplex: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl Io {
    fn inner(self: Pin<&mut Self>) -> Pin<&mut dyn Duplex> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io),
            Self::Tls(io) => Pin::new(io),
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_read(cx, buf)
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.inner().poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_shutdown(cx)
    }
}
