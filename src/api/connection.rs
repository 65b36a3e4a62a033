//! One connection, from the accepted socket to its end.
//!
//! Before HTTP/2 gets it, TLS is done and the client has sent its preface, both within one deadline: a client that connects
//! and says nothing costs a socket for some seconds, not a connection for ever, and one that speaks something else is told
//! apart from one that failed.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tower::Service as _;

use super::PeerInfo;
use super::authorize::Authorizer;
use super::crowd::Crowd;
use super::server::Security;
use crate::telemetry::ClientRefusal;
use crate::tls::{self, CertFacts, OtherSide};

/// What every HTTP/2 client sends first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Encoded frames that one stream may hold in our memory while its client does not read: one largest frame, or a few.
const SEND_BUFFER: usize = 64 << 10;
/// Subscriptions are limited by count, not by this; a client multiplexes its unary calls beside them.
const MAX_STREAMS: u32 = 1_024;
/// Requests are small: labels of one identity, or names of clusters.
const MAX_HEADERS: u32 = 16 << 10;

/// Why a connection came to nothing before its first request.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("no TLS and HTTP/2 handshake within {0:?}")]
    Timeout(Duration),
    #[error("it was the oldest of as many handshakes as may be in progress")]
    Crowd,
    #[error("TLS: {}", tls_words(.0))]
    Tls(#[source] io::Error),
    #[error("closed before the HTTP/2 preface: {0}")]
    Closed(#[source] io::Error),
    #[error("the client does not speak HTTP/2 ({0})")]
    Protocol(&'static str),
}

impl HandshakeError {
    /// A client that comes and goes (a load balancer's probe) is not worth a warning.
    pub(super) fn is_mere_probe(&self) -> bool {
        match self {
            Self::Closed(_) => true,
            Self::Tls(error) => error.kind() == io::ErrorKind::UnexpectedEof,
            Self::Timeout(_) | Self::Crowd | Self::Protocol(_) => false,
        }
    }

    /// What it counts as; a client that left counts as nothing.
    pub(super) fn refusal(&self) -> Option<ClientRefusal> {
        match self {
            Self::Timeout(_) => Some(ClientRefusal::HandshakeTimeout),
            Self::Crowd => Some(ClientRefusal::HandshakeCrowd),
            Self::Tls(_) => Some(ClientRefusal::Tls),
            Self::Protocol(_) => Some(ClientRefusal::Protocol),
            Self::Closed(_) => None,
        }
    }
}

fn tls_words(error: &io::Error) -> String {
    match tls::explain(error, OtherSide::Client) {
        Some(failure) => format!("{}; {}", failure.message, failure.hint),
        None => error.to_string(),
    }
}

/// What all connections share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) routes: Routes,
    pub(super) security: Security,
    pub(super) authorizer: Arc<Authorizer>,
    pub(super) crowd: Crowd,
    pub(super) handshake_timeout: Duration,
    pub(super) keepalive_interval: Duration,
    pub(super) keepalive_timeout: Duration,
    pub(super) requests: Requests,
    /// Streams are told to end.
    pub(super) stop: CancellationToken,
}

/// The tasks of all requests: counted, and cut at the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    pub(super) tasks: TaskTracker,
    pub(super) cut: CancellationToken,
}

tokio::task_local! {
    /// Cuts the request whose task this is.
    static CUT: CancellationToken;
}

impl Requests {
    /// What cuts the request in whose task this is called, and no other; outside of one, nothing.
    pub(super) fn cut_of_this_one() -> CancellationToken {
        CUT.try_with(CancellationToken::clone).unwrap_or_default()
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Requests {
    fn execute(&self, request: F) {
        let cut = self.cut.child_token();
        self.tasks.spawn(CUT.scope(cut.clone(), async move {
            cut.run_until_cancelled(request).await;
        }));
    }
}

/// Serves a connection until its client leaves, or until its last stream has ended once the gateway stops.
pub(super) async fn serve(tcp: TcpStream, address: SocketAddr, shared: Shared) -> Result<(), HandshakeError> {
    // Boxed: the task lives as long as the connection, and would keep the room that the handshake needed.
    if let Some(connection) = Box::pin(establish(tcp, address, shared)).await? {
        connection.await;
    }
    Ok(())
}

/// A connection of which HTTP/2 has been begun; to be awaited to its end.
type Established = Pin<Box<dyn Future<Output = ()> + Send>>;

/// `None` when the gateway stops before that.
async fn establish(tcp: TcpStream, address: SocketAddr, shared: Shared) -> Result<Option<Established>, HandshakeError> {
    // Frames are whole messages: waiting for more of them only delays a change.
    let _ = tcp.set_nodelay(true);
    match shared.security.clone() {
        Security::Plaintext => {
            let io = shared.handshake(Prefaced::read(tcp)).await?;
            Ok(io.map(|io| http2(io, PeerInfo::new(address, None), shared)))
        }
        Security::MutualTls(source) => {
            let handshake = async {
                let tls = TlsAcceptor::from(source.current()).accept(tcp).await.map_err(HandshakeError::Tls)?;
                Prefaced::read(tls).await
            };
            Ok(shared.handshake(handshake).await?.map(|io| {
                let certificate = io.inner.get_ref().1.peer_certificates().and_then(<[_]>::first);
                // What rustls has verified, this parser reads too; if not, the client has no name.
                let facts = certificate.and_then(|certificate| CertFacts::from_der(certificate).ok());
                http2(io, PeerInfo::new(address, facts), shared)
            }))
        }
    }
}

impl Shared {
    /// The deadline of a handshake; `None` when the gateway stops before it is done.
    async fn handshake<T>(
        &self,
        handshake: impl Future<Output = Result<T, HandshakeError>>,
    ) -> Result<Option<T>, HandshakeError> {
        let within = self.handshake_timeout;
        let place = self.crowd.enter();
        tokio::select! {
            done = timeout(within, handshake) => match done {
                Ok(done) => done.map(Some),
                Err(_) => Err(HandshakeError::Timeout(within)),
            },
            () = place.must_leave.cancelled() => Err(HandshakeError::Crowd),
            () = self.stop.cancelled() => Ok(None),
        }
    }
}

fn http2<I>(io: Prefaced<I>, peer: PeerInfo, shared: Shared) -> Established
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http2::Builder::new(shared.requests.clone());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(shared.keepalive_interval)
        .keep_alive_timeout(shared.keepalive_timeout)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .max_send_buf_size(SEND_BUFFER);
    let (routes, authorizer) = (shared.routes, shared.authorizer);
    let for_requests = peer.clone();
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        let granted = authorizer.judge(request.uri().path(), &for_requests).map(|grant| {
            request.extensions_mut().insert(grant);
            request.extensions_mut().insert(for_requests.clone());
            // Routes are always ready.
            routes.clone().call(request)
        });
        async move {
            Ok::<_, Infallible>(match granted {
                Ok(answer) => answer.await.unwrap_or_else(|never| match never {}),
                Err(refusal) => refusal.into_http(),
            })
        }
    });
    let mut connection = Box::pin(builder.serve_connection(TokioIo::new(io), service));
    let stop = shared.stop;
    Box::pin(async move {
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, error = &error as &dyn std::error::Error, "a connection broke off");
        }
    })
}

/// A stream whose first 24 bytes, the preface, were read already and are given again.
#[derive(Debug)]
struct Prefaced<I> {
    inner: I,
    given: usize,
}

impl<I: AsyncRead + Unpin> Prefaced<I> {
    async fn read(mut inner: I) -> Result<Self, HandshakeError> {
        let mut start = [0; PREFACE.len()];
        let mut read = 0;
        while read < start.len() {
            match inner.read(&mut start[read..]).await {
                Ok(0) => return Err(HandshakeError::Closed(io::ErrorKind::UnexpectedEof.into())),
                Ok(more) => read += more,
                Err(error) => return Err(HandshakeError::Closed(error)),
            }
            // Not one byte more is waited for than it takes to tell.
            if start[..read] != PREFACE[..read] {
                return Err(HandshakeError::Protocol(guess(&start[..read])));
            }
        }
        Ok(Self { inner, given: 0 })
    }
}

/// What it was instead.
fn guess(start: &[u8]) -> &'static str {
    match start {
        // A TLS record of type handshake.
        [0x16, 0x03, ..] => "it looks like TLS, and this port is served in plain text",
        [b'A'..=b'Z', ..] => "it looks like HTTP/1; gRPC needs HTTP/2",
        _ => "unknown bytes",
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Prefaced<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let rest = &PREFACE[self.given..];
        if rest.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let part = &rest[..rest.len().min(buf.remaining())];
        buf.put_slice(part);
        self.given += part.len();
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Prefaced<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
