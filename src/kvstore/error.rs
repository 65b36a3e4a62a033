//! Typed failures of connecting and of a session; nobody parses text but this file.

use super::Stage;

/// Why no session could be made.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{stage} {endpoint}: {message}")]
pub struct ConnectError {
    /// Where it failed.
    pub stage: Stage,
    /// The endpoint tried last (all of them are in `message` where they differ).
    pub endpoint: String,
    /// In plain words.
    pub message: String,
}

/// Why a session ended or a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The connection died.
    #[error("connection lost: {0}")]
    ConnectionLost(String),
    /// No answer in time.
    #[error("no answer within the deadline to {0}")]
    Deadline(&'static str),
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
    #[error("revision compacted")]
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
    /// Anything else that etcd answered.
    #[error("etcd refused: {0}")]
    Other(String),
}
