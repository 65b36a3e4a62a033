//! Files that are read again as they change: the listener's certificates and the access policy.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::StartError;
use crate::access::{Access, AccessFile, PolicyError};
use crate::api;
use crate::config::{ApiConfig, Security};
use crate::telemetry::Metrics;
use crate::telemetry::metrics::{ACCESS_POLICY, LISTENER_CERTIFICATES};
use crate::tls::{ServerTls, ServerTlsFiles, TlsError};

/// How often the files are looked at. Polled, because no notification reports every way in which Kubernetes swaps a mount;
/// often, because a certificate may be replaced for a reason.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// How the API is guarded, and what has to be kept current for that.
pub(super) struct Guarding {
    pub(super) security: api::Security,
    pub(super) access: Access,
    pub(super) tls: Option<Arc<ServerTls>>,
    pub(super) policy: Option<Arc<AccessFile>>,
}

impl Guarding {
    /// Loads everything for the first time.
    pub(super) fn load(config: &ApiConfig) -> Result<Self, StartError> {
        let policy = config.access_policy.clone().map(AccessFile::open).transpose()?.map(Arc::new);
        let access = policy.as_ref().map(|policy| policy.access()).unwrap_or_default();
        let Security::MutualTls { cert, key, client_ca } = &config.security else {
            return Ok(Self { security: api::Security::Plaintext, access, tls: None, policy });
        };
        let files = ServerTlsFiles { cert: cert.clone(), key: key.clone(), client_ca: client_ca.clone() };
        let tls = Arc::new(ServerTls::load(files)?);
        let current = Arc::clone(&tls);
        let security = api::Security::MutualTls(api::TlsSource::new(move || current.config()));
        Ok(Self { security, access, tls: Some(tls), policy })
    }
}

/// Keeps the certificates current until `stop`.
pub(super) async fn certificates(tls: Arc<ServerTls>, metrics: Metrics, stop: CancellationToken) {
    let look = move || {
        let changed = tls.reload_if_changed()?;
        if changed {
            tracing::info!(leaf = ?tls.leaf(), "the listener's certificates were replaced");
        }
        Ok::<_, TlsError>(())
    };
    keep_current(LISTENER_CERTIFICATES, metrics, look, stop).await;
}

/// Keeps the access policy current until `stop`.
pub(super) async fn access_policy(file: Arc<AccessFile>, metrics: Metrics, stop: CancellationToken) {
    let look = move || {
        let changed = file.reload()?;
        if changed {
            tracing::info!("the access policy was replaced; streams that may see something else now are ended");
        }
        Ok::<_, PolicyError>(())
    };
    keep_current(ACCESS_POLICY, metrics, look, stop).await;
}

/// Looks again and again. Files that cannot be used change nothing: what was good goes on serving.
async fn keep_current<E: Display + PartialEq + Send + 'static>(
    file: &'static str,
    metrics: Metrics,
    look: impl Fn() -> Result<(), E> + Send + Sync + 'static,
    stop: CancellationToken,
) {
    let look = Arc::new(look);
    let mut ticks = interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Told once, not at every look.
    let mut told = None;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let look = Arc::clone(&look);
        // Otherwise the runtime is shutting down, or reading panicked, which standard error tells.
        let Ok(looked) = tokio::task::spawn_blocking(move || look()).await else { continue };
        metrics.reload_failing(file, looked.is_err());
        let error = looked.err();
        if let Some(error) = error.as_ref().filter(|_| error != told) {
            tracing::error!(%error, file, "the new file cannot be used; what was good goes on serving");
        }
        told = error;
    }
}
