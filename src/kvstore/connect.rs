//! From a configuration to a session: certificates, resolve, dial, TLS, first answer, each with its own deadline.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::time::timeout;
use tower::service_fn;

use super::endpoint::Endpoint;
use super::error::{is_auth_not_enabled, of_transport};
use super::lessons::Lessons;
use super::session::{Ending, Opening};
use super::wire::{Fate, Stream, Wire};
use super::{ConnectError, EtcdConfig, Failure, Plaintext, Resolver, Session, SessionError, Stage, Timing, dial};
use crate::tls::{CertFacts, ClientTls, ClientTlsFiles, TlsError};

/// What is read first: it exists in every cluster, and the narrowest role of a Cilium mesh may read it.
const PROBE_KEY: &[u8] = b"cilium/.heartbeat";

/// Bounds what an etcd can make us hold of one stream and of one connection before we read it.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Told of each stage begun, with the endpoint.
pub type Report<'a> = &'a (dyn Fn(Stage, &str) + Send + Sync);

/// Makes sessions to one etcd; remembers which endpoint to try next.
#[derive(Debug)]
pub struct Connector {
    config: EtcdConfig,
    timing: Timing,
    probe: Vec<u8>,
    resolver: Resolver,
    tls: Arc<ClientTls>,
    trouble: Mutex<Option<TlsError>>,
    last: Mutex<Last>,
}

/// The last session's endpoint and end.
#[derive(Debug, Default)]
struct Last {
    endpoint: Option<usize>,
    ending: Option<Arc<Ending>>,
    lessons: Lessons,
}

/// The certificate material of one attempt.
struct Presented {
    config: Arc<ClientConfig>,
    leaf: Option<CertFacts>,
}

impl Connector {
    /// For that configuration.
    #[must_use]
    pub fn new(config: EtcdConfig, timing: Timing) -> Self {
        let tls = Arc::new(ClientTls::new(ClientTlsFiles {
            ca: config.trusted_ca_file.clone(),
            identity: config.cert_file.clone().zip(config.key_file.clone()),
            skip_verify: config.insecure_skip_tls_verify,
        }));
        Self {
            config,
            timing,
            probe: PROBE_KEY.to_vec(),
            resolver: Resolver::default(),
            tls,
            trouble: Mutex::default(),
            last: Mutex::default(),
        }
    }

    /// Another resolver than the operating system's.
    #[must_use]
    pub fn with_resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = resolver;
        self
    }

    /// Goes on with the certificates in `known` if they are of the same files, so that the last good pair is not forgotten
    /// with a connector; remembers its own there otherwise.
    #[must_use]
    pub fn with_certificates(mut self, known: &mut Option<Arc<ClientTls>>) -> Self {
        match known {
            Some(known) if known.files() == self.tls.files() => self.tls = Arc::clone(known),
            _ => *known = Some(Arc::clone(&self.tls)),
        }
        self
    }

    /// Another key to read first than the heartbeat; it need not exist, but we must be allowed to read it.
    #[must_use]
    pub fn with_probe_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.probe = key.into();
        self
    }

    /// What was wrong with the certificate files when they were read last, while older contents were in use.
    #[must_use]
    pub fn certificate_trouble(&self) -> Option<TlsError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tries each endpoint once; reads the certificates anew each time. Begins with the endpoint used last if its session was
    /// steady and then merely cut (the same etcd can resume a watch), and behind it otherwise.
    ///
    /// # Errors
    /// Why every endpoint failed.
    pub async fn connect(&self, report: Report<'_>) -> Result<Session, ConnectError> {
        self.connect_in(self.order(), report).await
    }

    /// The same beside a session that works and is to be left: begins with that one's endpoint, if it is one of ours.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_beside(&self, session: &Session, report: Report<'_>) -> Result<Session, ConnectError> {
        let endpoints = &self.config.endpoints;
        let first = endpoints.iter().position(|endpoint| endpoint == session.endpoint()).unwrap_or_default();
        self.connect_in((first..first + endpoints.len()).map(|index| index % endpoints.len()), report).await
    }

    async fn connect_in(
        &self,
        order: impl Iterator<Item = usize>,
        report: Report<'_>,
    ) -> Result<Session, ConnectError> {
        let endpoints = &self.config.endpoints;
        if let Err(problem) = self.config.check() {
            let failure = Failure::new(Stage::Certificates, "bad-config", problem, "correct the etcd configuration");
            return Err(ConnectError::new(endpoints.join(","), failure.permanent()));
        }
        let mut error: Option<ConnectError> = None;
        let timing = self.timing_now();
        for index in order {
            let url = &endpoints[index];
            match Box::pin(self.connect_to(url, &timing, report)).await {
                Ok(session) => {
                    let mut last = self.last();
                    (last.endpoint, last.ending) = (Some(index), Some(session.ending()));
                    return Ok(session);
                }
                Err(failure) => {
                    let next = ConnectError::new(url, failure);
                    error = Some(match error {
                        Some(error) => error.and(next),
                        None => next,
                    });
                }
            }
        }
        Err(error.unwrap_or_else(|| unreachable!("a checked configuration has endpoints")))
    }

    /// The certificate that the next session would present.
    ///
    /// # Errors
    /// The files are unusable and never were usable.
    pub async fn certificate(&self) -> Result<Option<CertFacts>, Failure> {
        Ok(self.certificates().await?.leaf)
    }

    /// Whether the session's address is still one of its endpoint's, as far as can be known: a name that does not resolve
    /// at the moment says nothing.
    pub async fn is_current(&self, session: &Session) -> bool {
        let Ok(endpoint) = self.config.parsed(session.endpoint()) else { return true };
        match self.resolver.resolve(&endpoint, &self.config.host_aliases, self.timing.dial).await {
            Ok(addresses) => addresses.contains(&session.address()),
            Err(_) => true,
        }
    }

    /// Our timing, as the last session taught us.
    fn timing_now(&self) -> Timing {
        let mut last = self.last();
        if let Some(ending) = last.ending.clone() {
            last.lessons.learn(&ending, self.timing.liveness);
        }
        last.lessons.apply(&self.timing)
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The indices of all endpoints, in the order of this attempt.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.config.endpoints.len();
        let last = self.last();
        let first = match (last.endpoint, &last.ending) {
            (None, _) => 0,
            (Some(used), Some(ending)) if was_cut(ending, self.timing.liveness) => used,
            (Some(used), _) => used + 1,
        };
        (first..first + count).map(move |index| index % count)
    }

    async fn connect_to(&self, url: &str, timing: &Timing, report: Report<'_>) -> Result<Session, Failure> {
        let dial = timing.dial;
        let endpoint = self.config.parsed(url).map_err(|problem| {
            Failure::new(Stage::Resolve, "bad-endpoint", problem, "correct the endpoint").permanent()
        })?;
        let presented = if endpoint.tls {
            report(Stage::Certificates, url);
            Some(self.certificates().await?)
        } else {
            None
        };
        report(Stage::Resolve, url);
        let mut addresses = self.resolver.resolve(&endpoint, &self.config.host_aliases, dial).await?;
        if !endpoint.tls && self.config.plaintext == Plaintext::LoopbackOnly {
            addresses.retain(|address| address.ip().is_loopback());
        }
        let mut failure = Failure::new(
            Stage::Resolve,
            "plaintext-refused",
            format!("`{}` is not this machine, and plain text goes no further", endpoint.host),
            "use https with a trusted-ca-file",
        )
        .permanent();
        while !addresses.is_empty() {
            report(Stage::Dial, url);
            let (address, tcp) = dial::first_tcp(&addresses, dial).await?;
            // Behind the next one may be another machine.
            addresses.retain(|other| *other != address);
            let attempt = async {
                let stream = match &presented {
                    None => Stream::Plain(tcp),
                    Some(presented) => {
                        report(Stage::Tls, url);
                        dial::shake_hands(tcp, &endpoint, Arc::clone(&presented.config), dial).await?
                    }
                };
                report(Stage::FirstCall, url);
                let leaf = presented.as_ref().and_then(|presented| presented.leaf.clone());
                self.open(stream, &endpoint, address, leaf, timing).await
            };
            match attempt.await {
                Ok(session) => return Ok(session),
                Err(next) => failure = next,
            }
        }
        Err(failure)
    }

    /// Reads files, which may lie on a disk that hangs: not on a worker of the runtime, and not for ever.
    async fn certificates(&self) -> Result<Presented, Failure> {
        if self.config.trusted_ca_file.is_none() && !self.config.insecure_skip_tls_verify {
            // Go's client falls back on the system's CAs; whoever any of those signs for would be our etcd.
            let message = "no CA is configured, so no etcd can be trusted";
            let hint = "set trusted-ca-file to the CA that signed the etcd's certificate";
            return Err(Failure::new(Stage::Certificates, "no-ca", message, hint).permanent());
        }
        let tls = Arc::clone(&self.tls);
        let read = tokio::task::spawn_blocking(move || tls.current());
        let handshake = match timeout(self.timing.dial, read).await {
            Ok(Ok(Ok(handshake))) => handshake,
            Ok(Ok(Err(error))) => {
                let failure = Failure::new(Stage::Certificates, error.reason(), error.to_string(), error.hint());
                return Err(failure.permanent());
            }
            Ok(Err(_)) | Err(_) => {
                let message = format!("the certificate files could not be read within {:?}", self.timing.dial);
                return Err(Failure::new(
                    Stage::Certificates,
                    "certificate-unreadable",
                    message,
                    "check the disk that they are on",
                ));
            }
        };
        if let Some(trouble) = &handshake.trouble {
            tracing::warn!(%trouble, "certificate files are unusable, the last good ones are in use");
        }
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = handshake.trouble;
        Ok(Presented { config: handshake.config, leaf: handshake.leaf })
    }

    async fn open(
        &self,
        stream: Stream,
        endpoint: &Endpoint,
        address: SocketAddr,
        certificate: Option<CertFacts>,
        timing: &Timing,
    ) -> Result<Session, Failure> {
        let (wire, fate) = Wire::new(stream);
        let opening = async {
            let client = self.client(wire, timing).await?;
            let opening = Opening {
                client,
                endpoint: endpoint.url.clone(),
                address,
                certificate,
                timing: timing.clone(),
                ending: Ending::new(Arc::clone(&fate)),
            };
            opening.first_call(&self.probe).await
        };
        opening.await.map_err(|error| Failure::of_first_call(&told_by(&fate, error)))
    }

    /// A client on exactly this wire: a channel that could dial again might reach another etcd without a word.
    async fn client(&self, wire: Wire, timing: &Timing) -> Result<Client, SessionError> {
        let wire = Mutex::new(Some(wire));
        let once = service_fn(move |_: http::Uri| {
            let wire = wire.lock().unwrap_or_else(PoisonError::into_inner).take();
            async move { wire.map(TokioIo::new).ok_or_else(|| io::Error::other("the connection is over")) }
        });
        // `http` although TLS is below: the connector is ours, and etcd does not look at the scheme.
        let http2 = tonic::transport::Endpoint::from_static("http://etcd")
            .http2_keep_alive_interval(timing.keepalive_interval)
            .keep_alive_timeout(timing.keepalive_timeout)
            // Etcd refuses pings on a connection without an open stream, and closes it.
            .keep_alive_while_idle(false)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let channel = match timeout(self.timing.dial, Box::pin(http2.connect_with_connector(once))).await {
            Ok(channel) => channel.map_err(|error| of_transport(&error))?,
            Err(_) => return Err(SessionError::Deadline("the HTTP/2 preface")),
        };
        let options = ConnectOptions::new().with_require_leader(true).with_auto_token_refresh(true);
        let client = |options| {
            let client = Client::from_channel(Channel::Tonic(channel.clone()), Some(options));
            async {
                // With a user, this logs in.
                timeout(self.timing.call, Box::pin(client)).await.map_err(|_| SessionError::Deadline("authentication"))
            }
        };
        let Some(user) = &self.config.credentials else { return Ok(client(options).await??) };
        match client(options.clone().with_user(&user.username, &user.password)).await? {
            // As etcd's own client does: who need not log in may come in all the same.
            Err(error) if is_auth_not_enabled(&error) => Ok(client(options).await??),
            client => Ok(client?),
        }
    }
}

/// The wire's own word for it, where it has one: the layers above pass on "transport error".
pub(super) fn told_by(fate: &Fate, error: SessionError) -> SessionError {
    match error {
        SessionError::ConnectionLost(_) => fate.error().unwrap_or(error),
        error => error,
    }
}

/// Whether nothing but the connection was wrong with a session that had been steady.
fn was_cut(ending: &Ending, steady: Duration) -> bool {
    match ending.verdict() {
        Some((SessionError::ConnectionLost(_), lived)) => *lived >= steady,
        _ => false,
    }
}
