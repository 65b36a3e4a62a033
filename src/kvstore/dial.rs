//! From an endpoint to a stream: resolve, TCP, TLS, each with its own deadline.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::endpoint::Endpoint;
use super::wire::Stream;
use super::{Failure, Stage};
use crate::tls::{self, OtherSide};

/// All addresses of the endpoint's host.
pub(super) async fn resolve(endpoint: &Endpoint, deadline: Duration) -> Result<Vec<SocketAddr>, Failure> {
    let host = endpoint.host.as_str();
    let failed = |reason, message: String| {
        Failure::new(Stage::Resolve, reason, message, "check the name and this machine's resolver, or give an address")
    };
    match timeout(deadline, lookup_host((host, endpoint.port))).await {
        Ok(Ok(addresses)) => {
            let addresses: Vec<_> = addresses.collect();
            if addresses.is_empty() {
                return Err(failed("resolve-failed", format!("`{host}` has no address")));
            }
            Ok(addresses)
        }
        Ok(Err(error)) => Err(failed("resolve-failed", format!("`{host}` does not resolve: {error}"))),
        Err(_) => Err(failed("resolve-timeout", format!("`{host}` did not resolve within {deadline:?}"))),
    }
}

/// A TCP connection to one address.
pub(super) async fn tcp(address: SocketAddr, deadline: Duration) -> Result<TcpStream, Failure> {
    let failed = |reason, message, hint| Failure::new(Stage::Dial, reason, message, hint);
    let connected = async {
        let tcp = TcpStream::connect(address).await?;
        // A small request must not wait for the acknowledgement of the one before.
        tcp.set_nodelay(true)?;
        Ok::<_, io::Error>(tcp)
    };
    match timeout(deadline, connected).await {
        Ok(Ok(tcp)) => Ok(tcp),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let message = format!("nothing listens on {address}");
            Err(failed("dial-refused", message, "check that the etcd runs, and its port"))
        }
        Ok(Err(error)) => {
            Err(failed("dial-failed", format!("{address}: {error}"), "check routes and firewalls between us and it"))
        }
        Err(_) => {
            let message = format!("{address} did not answer within {deadline:?}");
            Err(failed("dial-timeout", message, "check that the host is up and that no firewall drops our packets"))
        }
    }
}

/// TLS on top. Our own certificate may still be refused afterwards: TLS 1.3 tells with the first answer only.
pub(super) async fn shake_hands(
    tcp: TcpStream,
    endpoint: &Endpoint,
    config: Arc<ClientConfig>,
    deadline: Duration,
) -> Result<Stream, Failure> {
    const NO_TLS: &str = "check that this port speaks TLS and that nothing in between holds the stream up";
    let failed = |reason, message, hint| Failure::new(Stage::Tls, reason, message, hint);
    let Some(name) = endpoint.server_name() else {
        let message = format!("`{}` cannot be a server's name", endpoint.host);
        return Err(failed("bad-endpoint", message, "correct the endpoint").permanent());
    };
    match timeout(deadline, TlsConnector::from(config).connect(name, tcp)).await {
        Ok(Ok(stream)) => Ok(Stream::Tls(Box::new(stream))),
        Ok(Err(error)) => Err(match tls::explain(&error, OtherSide::Server) {
            Some(explained) => failed(explained.reason, explained.message, explained.hint).permanent(),
            None => failed("tls-broken-off", format!("the connection ended in the handshake: {error}"), NO_TLS),
        }),
        Err(_) => Err(failed("tls-timeout", format!("no handshake within {deadline:?}"), NO_TLS)),
    }
}
