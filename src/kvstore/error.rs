//! Typed failures of connecting and of a session; nobody parses text but this file.

use std::error::Error as StdError;

use etcd_client::Error as EtcdError;
use tonic::Code;

use super::Stage;
use crate::tls::{self, OtherSide};

/// Why no session could be made.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{stage} {endpoint}: {message}")]
pub struct ConnectError {
    /// Where it failed.
    pub stage: Stage,
    /// The endpoint tried last; what the others said is in `message` where it differs.
    pub endpoint: String,
    /// In plain words.
    pub message: String,
    pub(super) reason: &'static str,
    pub(super) hint: String,
    pub(super) retryable: bool,
}

impl ConnectError {
    /// A name from a bounded set; a metric label.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    /// What to do.
    #[must_use]
    pub fn hint(&self) -> String {
        self.hint.clone()
    }

    /// Whether it may heal by itself, soon.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.retryable
    }
}

/// Why a session ended or a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The connection died.
    #[error("connection lost: {0}")]
    ConnectionLost(String),
    /// TLS refused, by either side, after the handshake.
    #[error("{message}")]
    Tls {
        /// A name from a bounded set.
        reason: &'static str,
        /// In plain words.
        message: String,
        /// What to do.
        hint: &'static str,
    },
    /// No answer in time.
    #[error("no answer to {0} within the deadline")]
    Deadline(&'static str),
    /// A watch showed no sign of life.
    #[error("the watch showed no sign of life for {0:?}")]
    Silent(std::time::Duration),
    /// Another etcd answers under this connection.
    #[error("another etcd answers (cluster ID {found:x} instead of {expected:x})")]
    ClusterIdChanged {
        /// The ID that the session began with.
        expected: u64,
        /// The ID in the response.
        found: u64,
    },
    /// The store went back in time.
    #[error("the store went back from revision {known} to {found}")]
    RevisionWentBack {
        /// Highest revision seen.
        known: i64,
        /// The revision in the response.
        found: i64,
    },
    /// The revision asked for is compacted.
    #[error("the revision is compacted")]
    Compacted,
    /// Authentication or authorization refused.
    #[error("permission denied: {0}")]
    Denied(String),
    /// Etcd answers that it cannot serve now (no leader, timed out, too many requests).
    #[error("etcd cannot serve now: {0}")]
    Unavailable(String),
    /// The lease is gone.
    #[error("lease not found")]
    LeaseNotFound,
    /// A message larger than our limit.
    #[error("an answer is larger than our limit: {0}")]
    TooLarge(String),
    /// What answers breaks the protocol, so it is no etcd.
    #[error("this is no etcd: {0}")]
    NotEtcd(String),
    /// Anything else that etcd answered.
    #[error("etcd refused: {0}")]
    Other(String),
}

impl SessionError {
    /// A name from a bounded set; a metric label.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::ConnectionLost(_) => "connection-lost",
            Self::Tls { reason, .. } => reason,
            Self::Deadline(_) => "deadline",
            Self::Silent(_) => "silent",
            Self::ClusterIdChanged { .. } => "etcd-cluster-id-changed",
            Self::RevisionWentBack { .. } => "revision-went-back",
            Self::Compacted => "compacted",
            Self::Denied(_) => "permission-denied",
            Self::Unavailable(_) => "unavailable",
            Self::LeaseNotFound => "lease-not-found",
            Self::TooLarge(_) => "too-large",
            Self::NotEtcd(_) => "not-etcd",
            Self::Other(_) => "refused",
        }
    }

    /// What to do.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::ConnectionLost(_) | Self::Deadline(_) | Self::Silent(_) => {
                "check that the etcd runs and that nothing between us and it drops connections; it is tried again"
            }
            Self::Tls { hint, .. } => hint,
            Self::ClusterIdChanged { .. } => {
                "several etcds answer behind one address, or it was replaced: nothing is to be done after a rollout"
            }
            Self::RevisionWentBack { .. } => "the etcd was restored from a backup, or lags behind: it is listed again",
            Self::Compacted => "nothing: it is listed again",
            Self::Denied(_) => "give this user or certificate a role that may read the ranges named in the manual",
            Self::Unavailable(_) => "check the etcd's members and leader (etcdctl endpoint status); it is tried again",
            Self::LeaseNotFound => "nothing: a new lease is taken",
            Self::TooLarge(_) => "use a smaller page size",
            Self::NotEtcd(_) => "check the endpoint's host and port",
            Self::Other(_) => "see the etcd's log",
        }
        .to_owned()
    }

    /// Whether it may heal by itself, soon.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        !matches!(self, Self::Denied(_) | Self::Tls { .. } | Self::NotEtcd(_) | Self::TooLarge(_))
    }

    /// Whether the connection is of no use any more, whatever is asked next.
    pub(super) const fn ends_session(&self) -> bool {
        matches!(
            self,
            Self::ConnectionLost(_) | Self::Tls { .. } | Self::ClusterIdChanged { .. } | Self::RevisionWentBack { .. }
        )
    }
}

/// The table of STACK.md, 2l: code and text together decide, for the code alone misleads.
impl From<EtcdError> for SessionError {
    fn from(error: EtcdError) -> Self {
        match error {
            EtcdError::GRpcStatus(status) => of_status(&status),
            // A stream that is over says so in its own words, again and again.
            EtcdError::LeaseKeepAliveError(text) if text.contains("lease not found") => Self::LeaseNotFound,
            EtcdError::WatchError(text) | EtcdError::LeaseKeepAliveError(text) => Self::ConnectionLost(text),
            EtcdError::TransportError(error) => of_transport(&error),
            other => Self::Other(other.to_string()),
        }
    }
}

fn of_status(status: &tonic::Status) -> SessionError {
    let text = status.message();
    let of_etcd = text.strip_prefix("etcdserver: ");
    match (status.code(), of_etcd) {
        (Code::OutOfRange, Some(text)) if text.contains("has been compacted") => SessionError::Compacted,
        (Code::OutOfRange | Code::ResourceExhausted, None) => SessionError::TooLarge(text.to_owned()),
        (Code::NotFound, Some(text)) if text.contains("lease not found") => SessionError::LeaseNotFound,
        (Code::PermissionDenied | Code::Unauthenticated, _) => SessionError::Denied(text.to_owned()),
        (_, Some(text)) if text.contains("auth token") || text.contains("authentication failed") => {
            SessionError::Denied(text.to_owned())
        }
        (Code::Unavailable | Code::ResourceExhausted, Some(text)) => SessionError::Unavailable(text.to_owned()),
        (Code::Unknown, None) if text == "context deadline exceeded" => SessionError::Unavailable(text.to_owned()),
        (Code::Unimplemented, _) => SessionError::NotEtcd(text.to_owned()),
        (Code::Unknown | Code::Unavailable | Code::Cancelled | Code::Internal, None) => of_transport(status),
        _ => SessionError::Other(text.to_owned()),
    }
}

fn of_transport(error: &(dyn StdError + 'static)) -> SessionError {
    if let Some(failure) = tls::explain(error, OtherSide::Server) {
        return SessionError::Tls { reason: failure.reason, message: failure.message, hint: failure.hint };
    }
    SessionError::ConnectionLost(innermost(error))
}

/// The outer layers say "transport error"; the reason is at the bottom.
pub(super) fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
