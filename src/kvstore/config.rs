//! The etcd client configuration: Cilium's YAML file, and our timing.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// How to reach one etcd (WIRE.md, "Remote clusters").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `https://host:port`, tried in turn.
    pub endpoints: Vec<String>,
    /// PEM bundle of the CAs that may sign the server's certificate.
    pub trusted_ca_file: Option<PathBuf>,
    /// PEM chain that we present.
    pub cert_file: Option<PathBuf>,
    /// PEM key of that chain.
    pub key_file: Option<PathBuf>,
    /// Plain text although the endpoint says https (Cilium's field; allowed on loopback only).
    pub insecure_transport: bool,
    /// Accept any server certificate.
    pub insecure_skip_tls_verify: bool,
    /// User and password instead of a client certificate.
    pub credentials: Option<Credentials>,
}

/// User and password; `Debug` hides the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// etcd user.
    pub username: String,
    /// Its password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).field("password", &"<redacted>").finish()
    }
}

/// Deadlines and intervals; each stage has its own.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Name resolution, TCP and TLS, each, per address.
    pub dial: Duration,
    /// One unary call.
    pub call: Duration,
    /// From asking for a watch to its confirmation.
    pub watch_created: Duration,
    /// HTTP/2 ping interval (etcd refuses less than 5 s on plain text).
    pub keepalive_interval: Duration,
    /// How long a ping may stay unanswered.
    pub keepalive_timeout: Duration,
    /// How often a quiet watch is asked for its progress; unanswered for `liveness` ends the session.
    pub progress_interval: Duration,
    /// How long a watch may show no sign of life.
    pub liveness: Duration,
    /// Backoff between attempts: first ceiling.
    pub backoff_base: Duration,
    /// Backoff between attempts: highest ceiling.
    pub backoff_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            dial: Duration::from_secs(5),
            call: Duration::from_secs(15),
            watch_created: Duration::from_secs(15),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
            progress_interval: Duration::from_secs(10),
            liveness: Duration::from_secs(30),
            backoff_base: Duration::from_millis(200),
            backoff_max: Duration::from_secs(30),
        }
    }
}

/// Why a file is not an etcd client configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}", path = path.display())]
pub struct EtcdConfigError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it and what to do.
    pub problem: String,
}

impl EtcdConfig {
    /// Reads and checks a file; relative certificate paths are relative to the file's folder.
    ///
    /// # Errors
    /// Unreadable, not YAML, no endpoints, an endpoint that is no URL, one of certificate and key without the other.
    pub fn from_yaml_file(_path: &Path) -> Result<Self, EtcdConfigError> {
        unimplemented!("skeleton")
    }
}
