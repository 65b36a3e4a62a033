//! One connection to a gateway, over TLS by rustls or, on loopback, without.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use super::ClientError;
use crate::pb::mesh_service_client::MeshServiceClient;
use crate::tls::{ClientTls, ClientTlsFiles};

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
            let identity = Some((cert.clone(), key.clone()));
            let files = ClientTlsFiles { ca: Some(ca.clone()), identity, skip_verify: false };
            Some((TlsConnector::from(ClientTls::new(files).current()?.config), name))
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

/// The HTTP/2 library keeps of an error its kind and its text only. A gateway that refuses our certificate says so when the
/// handshake is done for us, so what it says is put into words before it gets there.
fn explained(error: io::Error) -> io::Error {
    match ClientError::tls_words(&error) {
        Some(words) => io::Error::other(words),
        None => error,
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
        self.inner().poll_read(cx, buf).map_err(explained)
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
