//! The HTTP port for machines that look after the gateway: `/metrics`, `/livez`, `/readyz`. Reads, never changes anything.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Metrics, Readiness};

/// Probes and a few scrapers; more than this wait in the kernel's queue rather than use up our descriptors.
const MAX_CONNECTIONS: usize = 64;
/// A client that sends no (further) request for so long makes room for another. Scrapers reconnect without harm.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer under way may take once the gateway stops.
const DRAIN: Duration = Duration::from_secs(1);
/// After a failed accept (no descriptors left): busy looping helps nobody.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A port that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr}: {}; {}", reason(.source), advice(.source))]
pub struct ListenError {
    /// The address asked for.
    pub addr: SocketAddr,
    /// What the system said.
    pub source: io::Error,
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another process holds this port".to_owned(),
        io::ErrorKind::AddrNotAvailable => "no interface of this host has this address".to_owned(),
        io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege that this process lacks".to_owned(),
        _ => error.to_string(),
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop it (`ss -ltnp` names it) or choose another port",
        io::ErrorKind::AddrNotAvailable => "choose one that it has, or 0.0.0.0 for all",
        _ => "choose another address",
    }
}

/// Opens a listening socket.
///
/// # Errors
/// The port is taken, privileged, or the address is not ours.
#[expect(clippy::unused_async, reason = "it needs a runtime around it, and this way always has one")]
pub async fn listen(addr: SocketAddr) -> Result<TcpListener, ListenError> {
    open(addr).map_err(|source| ListenError { addr, source })
}

/// Connections that wait to be accepted, at most; the kernel may lower it. The 128 that a listener has by default are fewer
/// than the agents that come back at once, and whoever finds no room tries again after a second.
const BACKLOG: u32 = 4_096;

fn open(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As for any server: a restart does not wait for the last connections of before.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// The pages of the HTTP port.
pub fn router(metrics: Metrics, readiness: Readiness) -> Router {
    let metrics_page = get(|State(metrics): State<Metrics>| async move {
        ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], metrics.scrape())
    });
    Router::new()
        .route("/metrics", metrics_page.with_state(metrics))
        // Whatever a store or a peer does, a restart would not help: that this answers is all there is to ask.
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz).with_state(readiness))
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is /metrics, /livez and /readyz (?verbose)\n") })
}

async fn readyz(State(readiness): State<Readiness>, RawQuery(query): RawQuery) -> impl IntoResponse {
    let verbose = query.is_some_and(|query| query.split('&').any(|part| part.split('=').next() == Some("verbose")));
    let report = readiness.report();
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, if verbose { format!("{report:#}") } else { report.to_string() })
}

/// Serves until `stop`, then ends answers under way within a second. Never fails: a bad client harms itself.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve_connection(stream, router.clone(), stop.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an HTTP connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        connections.shutdown().await;
    }
}

async fn serve_connection(stream: TcpStream, router: Router, stop: CancellationToken) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an HTTP connection broke off");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::telemetry::StatusBoard;

    async fn get_page(addr: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.expect("the server listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("the server reads");
        let mut page = String::new();
        stream.read_to_string(&mut page).await.expect("the server answers");
        page
    }

    #[tokio::test]
    async fn serves_its_pages_and_stops_with_an_idle_client_attached() {
        let readiness = Readiness::default();
        let guard = readiness.guard("local-store");
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let stop = CancellationToken::new();
        let pages = router(Metrics::new(StatusBoard::default()), readiness.clone());
        let server = tokio::spawn(serve(listener, pages, stop.clone()));

        let page = get_page(addr, "/readyz").await;
        assert!(page.starts_with("HTTP/1.1 503 ") && page.contains("[-] local-store: waiting for "), "{page}");
        assert!(get_page(addr, "/livez").await.ends_with("\r\n\r\nalive\n"), "alive though not ready");
        guard.ready();
        let page = get_page(addr, "/readyz").await;
        assert!(page.starts_with("HTTP/1.1 200 ") && page.ends_with("\r\n\r\nready\n"), "{page}");
        assert!(get_page(addr, "/readyz?verbose").await.contains("[+] local-store: ready after "));
        let page = get_page(addr, "/metrics").await;
        assert!(
            page.contains("content-type: text/plain; version=0.0.4") && page.contains("meshgate_build_info"),
            "{page}"
        );
        assert!(get_page(addr, "/").await.starts_with("HTTP/1.1 404 "));

        let _idle = TcpStream::connect(addr).await.expect("the server listens");
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(5), server).await.expect("ends in time").expect("does not panic");
    }

    #[tokio::test]
    async fn says_what_to_do_about_an_occupied_port() {
        let taken = listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a free port");
        let addr = taken.local_addr().expect("bound");
        let error = listen(addr).await.expect_err("the port is taken");
        assert_eq!(
            error.to_string(),
            format!(
                "cannot listen on {addr}: another process holds this port; stop it (`ss -ltnp` names it) or choose another \
                 port"
            )
        );
    }
}
