//! The listener's certificates: loaded before anything runs, and read again as their files change.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::config::Security;
use crate::tls::{ServerTls, ServerTlsFiles, TlsError};

/// How often the files are looked at. Polled, because no notification reports every way in which Kubernetes swaps a mount;
/// often, because a certificate may be replaced for a reason.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// How the API is guarded, and what has to be kept current for that.
pub(super) fn load(security: &Security) -> Result<(api::Security, Option<Arc<ServerTls>>), TlsError> {
    let Security::MutualTls { cert, key, client_ca } = security else { return Ok((api::Security::Plaintext, None)) };
    let files = ServerTlsFiles { cert: cert.clone(), key: key.clone(), client_ca: client_ca.clone() };
    let tls = Arc::new(ServerTls::load(files)?);
    let current = Arc::clone(&tls);
    Ok((api::Security::MutualTls(api::TlsSource::new(move || current.config())), Some(tls)))
}

/// Keeps them current until `stop`. Files that cannot be used change nothing: what was good goes on serving.
pub(super) async fn keep_current(tls: Arc<ServerTls>, stop: CancellationToken) {
    let mut ticks = interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Told once, not at every look.
    let mut told = None;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let looking = Arc::clone(&tls);
        match tokio::task::spawn_blocking(move || looking.reload_if_changed()).await {
            Ok(Ok(changed)) => {
                if changed {
                    tracing::info!(leaf = ?tls.leaf(), "the listener's certificates were replaced");
                }
                told = None;
            }
            Ok(Err(error)) => {
                if told.as_ref() != Some(&error) {
                    tracing::error!(%error, "the listener's new certificates cannot be used; the old ones go on serving");
                }
                told = Some(error);
            }
            // The runtime is shutting down, or reading panicked, which standard error tells.
            Err(_) => {}
        }
    }
}
