//! From a configuration to a session: certificates, resolve, dial, TLS, first answer, each with its own deadline.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use etcd_client::{Channel, Client, ConnectOptions};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tower::service_fn;

use super::config::Endpoint;
use super::error::innermost;
use super::session::deadline;
use super::{ConnectError, EtcdConfig, Session, SessionError, Timing};
use crate::tls::{self, ClientTls, ClientTlsFiles, OtherSide};

/// What is read first: it exists in every cluster, and the narrowest role may read it.
const PROBE_KEY: &[u8] = b"cilium/.heartbeat";

/// Bounds what a peer can make us hold for one stream and one connection before we read it.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Where in connecting we are, or where it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Certificates are read.
    Certificates,
    /// The name is resolved.
    Resolve,
    /// TCP connects.
    Dial,
    /// TLS shakes hands.
    Tls,
    /// The first call is answered (version, cluster ID, quorum, auth).
    FirstCall,
}

impl Stage {
    /// Its name in status and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Certificates => "certificates",
            Self::Resolve => "resolve",
            Self::Dial => "dial",
            Self::Tls => "tls",
            Self::FirstCall => "first-call",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Makes sessions to one etcd; remembers which endpoint to try next.
#[derive(Debug)]
pub struct Connector {
    config: EtcdConfig,
    timing: Timing,
    tls: ClientTls,
    next: AtomicUsize,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connector {
    /// For that configuration.
    #[must_use]
    pub fn new(config: EtcdConfig, timing: Timing) -> Self {
        let tls = ClientTls::new(ClientTlsFiles {
            ca: config.trusted_ca_file.clone(),
            identity: config.cert_file.clone().zip(config.key_file.clone()),
            skip_verify: config.insecure_skip_tls_verify,
        });
        Self { config, timing, tls, next: AtomicUsize::new(0) }
    }

    /// Tries each endpoint once, beginning with the one that worked last, or behind the one that failed last; reads the
    /// certificates anew each time.
    ///
    /// # Errors
    /// Why the last endpoint failed, with what the others said.
    pub async fn connect(&self, report: &(dyn Fn(Stage, &str) + Send + Sync)) -> Result<Session, ConnectError> {
        let count = self.config.endpoints.len();
        let mut failures: Vec<ConnectError> = Vec::new();
        for _ in 0..count {
            let endpoint = &self.config.endpoints[self.next.load(Ordering::Relaxed) % count];
            match self.connect_to(endpoint, report).await {
                Ok(session) => return Ok(session),
                Err(error) => {
                    self.next.fetch_add(1, Ordering::Relaxed);
                    failures.push(error);
                }
            }
        }
        Err(joined(failures))
    }

    async fn connect_to(
        &self,
        url: &str,
        report: &(dyn Fn(Stage, &str) + Send + Sync),
    ) -> Result<Session, ConnectError> {
        let failed = |stage: Stage, reason: &'static str, message: String, hint: &str| ConnectError {
            stage,
            endpoint: url.to_owned(),
            message,
            reason,
            hint: hint.to_owned(),
            retryable: true,
        };
        let endpoint = Endpoint::parse(url).map_err(|problem| ConnectError {
            retryable: false,
            ..failed(Stage::Resolve, "bad-endpoint", problem, "correct the peer's file")
        })?;

        let tls = if endpoint.tls && !self.config.insecure_transport {
            report(Stage::Certificates, url);
            let handshake = self.tls.current().map_err(|error| ConnectError {
                retryable: false,
                ..failed(Stage::Certificates, error.reason(), error.to_string(), &error.hint())
            })?;
            if let Some(trouble) = &handshake.trouble {
                tracing::warn!(endpoint = url, %trouble, "certificate files are unusable, the last good ones are in use");
            }
            Some(TlsConnector::from(handshake.config))
        } else {
            None
        };

        report(Stage::Resolve, url);
        let resolve_hint = "check the name and the resolver, or give an address";
        let addresses: Vec<SocketAddr> =
            match timeout(self.timing.dial, lookup_host((endpoint.host.as_str(), endpoint.port))).await {
                Ok(Ok(addresses)) => addresses.collect(),
                Ok(Err(error)) => {
                    let message = format!("`{}` does not resolve: {error}", endpoint.host);
                    return Err(failed(Stage::Resolve, "resolve", message, resolve_hint));
                }
                Err(_) => {
                    let message = format!("`{}` did not resolve within {:?}", endpoint.host, self.timing.dial);
                    return Err(failed(Stage::Resolve, "resolve-timeout", message, resolve_hint));
                }
            };

        // Each address has a dial's and a handshake's time of its own.
        let mut failure =
            failed(Stage::Resolve, "resolve", format!("`{}` has no address", endpoint.host), resolve_hint);
        for address in addresses {
            report(Stage::Dial, url);
            let dial_hint = "check that the etcd listens there and that no firewall is between us";
            let tcp = match timeout(self.timing.dial, TcpStream::connect(address)).await {
                Ok(Ok(tcp)) => tcp,
                Ok(Err(error)) => {
                    failure = failed(Stage::Dial, "dial", format!("{address}: {error}"), dial_hint);
                    continue;
                }
                Err(_) => {
                    let message = format!("{address}: no answer within {:?}", self.timing.dial);
                    failure = failed(Stage::Dial, "dial-timeout", message, dial_hint);
                    continue;
                }
            };
            // A small request must not wait for the acknowledgement of the one before.
            if let Err(error) = tcp.set_nodelay(true) {
                failure = failed(Stage::Dial, "dial", format!("{address}: {error}"), dial_hint);
                continue;
            }
            let stream: Box<dyn Stream> = match &tls {
                None => Box::new(tcp),
                Some(tls) => {
                    report(Stage::Tls, url);
                    match self.shake_hands(tls, &endpoint, tcp).await {
                        Ok(stream) => stream,
                        Err((reason, message, hint, retryable)) => {
                            failure = ConnectError { retryable, ..failed(Stage::Tls, reason, message, hint) };
                            continue;
                        }
                    }
                }
            };
            report(Stage::FirstCall, url);
            match self.open(stream, url).await {
                Ok(session) => return Ok(session),
                Err(error) => {
                    // Under TLS 1.3 a server refuses our certificate after the handshake: with the first call.
                    let stage = if matches!(error, SessionError::Tls { .. }) { Stage::Tls } else { Stage::FirstCall };
                    failure = ConnectError {
                        retryable: error.is_retryable(),
                        ..failed(stage, error.reason(), error.to_string(), &error.hint())
                    };
                }
            }
        }
        Err(failure)
    }

    async fn shake_hands(
        &self,
        tls: &TlsConnector,
        endpoint: &Endpoint,
        tcp: TcpStream,
    ) -> Result<Box<dyn Stream>, (&'static str, String, &'static str, bool)> {
        let name = ServerName::try_from(endpoint.host.clone()).map_err(|error| {
            (
                "bad-endpoint",
                format!("`{}` cannot be a server's name: {error}", endpoint.host),
                "correct the peer's file",
                false,
            )
        })?;
        match timeout(self.timing.dial, tls.connect(name, tcp)).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(error)) => Err(match tls::explain(&error, OtherSide::Server) {
                Some(failure) => (failure.reason, failure.message, failure.hint, false),
                None => (
                    "tls",
                    format!("the connection ended in the handshake: {error}"),
                    "check that TLS is spoken on this port",
                    true,
                ),
            }),
            Err(_) => Err((
                "tls-timeout",
                format!("the handshake took more than {:?}", self.timing.dial),
                "check that TLS is spoken on this port",
                true,
            )),
        }
    }

    /// A client on exactly this stream: a channel that redials could reach another etcd without a word.
    async fn open(&self, stream: Box<dyn Stream>, url: &str) -> Result<Session, SessionError> {
        let stream = Arc::new(Mutex::new(Some(stream)));
        let dialer = service_fn(move |_: http::Uri| {
            let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
            async move { stream.map(TokioIo::new).ok_or_else(|| io::Error::other("the connection is over")) }
        });
        // `http` although TLS is below: the connector is ours, and etcd does not look at the scheme.
        let endpoint = tonic::transport::Endpoint::from_static("http://etcd")
            .http2_keep_alive_interval(self.timing.keepalive_interval)
            .keep_alive_timeout(self.timing.keepalive_timeout)
            // Etcd refuses pings on a connection without an open stream.
            .keep_alive_while_idle(false)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let channel = timeout(self.timing.call, endpoint.connect_with_connector(dialer))
            .await
            .map_err(|_| SessionError::Deadline("the HTTP/2 preface"))?
            .map_err(|error| SessionError::ConnectionLost(innermost(&error)))?;
        let mut options = ConnectOptions::new().with_require_leader(true);
        if let Some(credentials) = &self.config.credentials {
            options = options.with_user(&credentials.username, &credentials.password);
        }
        let client = Client::from_channel(Channel::Tonic(channel), Some(options));
        let client = deadline("authentication", self.timing.call, client).await?;
        Session::open(client, url.to_owned(), PROBE_KEY, self.timing.clone()).await
    }
}

/// The last failure, which also says what happened at the endpoints before it. Retryable if any of them is.
fn joined(mut failures: Vec<ConnectError>) -> ConnectError {
    let Some(mut last) = failures.pop() else {
        return ConnectError {
            stage: Stage::Resolve,
            endpoint: String::new(),
            message: "no endpoint is configured".to_owned(),
            reason: "bad-endpoint",
            hint: "list at least one under `endpoints`".to_owned(),
            retryable: false,
        };
    };
    for earlier in &failures {
        last.message.push_str(&format!("; before that, {earlier}"));
        last.retryable |= earlier.retryable;
    }
    last
}
