//! From addresses to a stream: TCP, TLS, each with its own deadline.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::endpoint::Endpoint;
use super::wire::Stream;
use super::{Failure, Stage};
use crate::tls::{self, OtherSide};

/// What an address has before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);

/// A TCP connection to the first of several addresses that answers, and which one that is. Each is tried a little after the
/// one before, so that dead ones cost little time and live ones no connections that nobody needs (RFC 8305).
pub(super) async fn first_tcp(
    addresses: &[SocketAddr],
    deadline: Duration,
) -> Result<(SocketAddr, TcpStream), Failure> {
    let mut attempts = FuturesUnordered::new();
    let mut waiting = addresses.iter().copied();
    loop {
        if let Some(address) = waiting.next() {
            attempts.push(async move { tcp(address, deadline).await.map(|tcp| (address, tcp)) });
        }
        let more = waiting.len() > 0;
        tokio::select! {
            biased;
            Some(attempt) = attempts.next() => match attempt {
                Err(failure) if !more && attempts.is_empty() => return Err(failure),
                Err(_) => {}
                connected => return connected,
            },
            () = sleep(HEAD_START), if more => {}
            else => return Err(Failure::new(Stage::Dial, "dial-failed", "there is no address", "give one")),
        }
    }
}

/// A TCP connection to one address.
async fn tcp(address: SocketAddr, deadline: Duration) -> Result<TcpStream, Failure> {
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
