//! Typed failures of a session's calls, and the only place that reads etcd's texts.

use std::error::Error as StdError;
use std::time::Duration;

use etcd_client::Error as EtcdError;
use tonic::Code;

use crate::tls::{self, OtherSide, TlsFailure};

/// Why a session ended or a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The connection died.
    #[error("connection lost: {0}")]
    ConnectionLost(String),
    /// TLS refused, by either side, after the handshake.
    #[error("{}", .0.message)]
    Tls(TlsFailure),
    /// No answer in time.
    #[error("no answer to {0} within the deadline")]
    Deadline(&'static str),
    /// A watch showed no sign of life.
    #[error("the watch showed no sign of life for {0:?}")]
    Silent(Duration),
    /// The store is reached, but nothing shows that anybody keeps it up to date.
    #[error("the store's heartbeat has not moved for {0:?}")]
    Stale(Duration),
    /// The server closed the connection because of our pings.
    #[error("the server closed the connection: too many pings")]
    TooManyPings,
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
    /// The token, or the users and roles it was made for, is out of date: a new session authenticates anew.
    #[error("authentication expired: {0}")]
    AuthExpired(String),
    /// Etcd answers that it cannot serve now (no leader, timed out, too many requests).
    #[error("etcd cannot serve now: {0}")]
    Unavailable(String),
    /// The lease is gone.
    #[error("lease not found")]
    LeaseNotFound,
    /// A message larger than our limit or etcd's.
    #[error("a message is larger than the limit: {0}")]
    TooLarge(String),
    /// What answers breaks the protocol, so it is no etcd.
    #[error("this is no etcd: {0}")]
    NotEtcd(String),
    /// Anything else that etcd answered.
    #[error("etcd refused: {0}")]
    Other(String),
}

impl SessionError {
    /// The reason of [`Self::Denied`].
    pub const DENIED: &'static str = "permission-denied";

    /// A name from a bounded set; a metric label.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::ConnectionLost(_) => "connection-lost",
            Self::Tls(failure) => failure.reason,
            Self::Deadline(_) => "deadline",
            Self::Silent(_) => "silent",
            Self::Stale(_) => "heartbeat-stale",
            Self::TooManyPings => "too-many-pings",
            Self::ClusterIdChanged { .. } => "etcd-cluster-id-changed",
            Self::RevisionWentBack { .. } => "revision-went-back",
            Self::Compacted => "compacted",
            Self::Denied(_) => Self::DENIED,
            Self::AuthExpired(_) => "auth-expired",
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
            Self::Tls(failure) => failure.hint,
            Self::Stale(_) => {
                "check whoever writes that store (clustermesh-apiserver, the operator) and its quorum; other endpoints are tried"
            }
            Self::TooManyPings => {
                "nothing; the next connection pings half as often (etcd's --grpc-keepalive-min-time is above our interval)"
            }
            Self::ClusterIdChanged { .. } => {
                "several etcds answer behind one address, or it was replaced; nothing is to be done after a rollout"
            }
            Self::RevisionWentBack { .. } => "the etcd was restored from a backup, or lags behind; it is listed again",
            Self::Compacted => "nothing; it is listed again",
            Self::Denied(_) => "give this user or certificate a role that may read the ranges named in the manual",
            Self::AuthExpired(_) => "nothing; it is authenticated again",
            Self::Unavailable(_) => "check the etcd's members and leader (etcdctl endpoint status); it is tried again",
            Self::LeaseNotFound => "nothing; a new lease is taken",
            Self::TooLarge(_) => "use smaller pages, or find out who writes such large values",
            Self::NotEtcd(_) => "check the endpoint's host and port",
            Self::Other(_) => "see the etcd's log",
        }
        .to_owned()
    }

    /// Whether it may heal by itself, soon.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        !matches!(self, Self::Denied(_) | Self::Tls(_) | Self::NotEtcd(_) | Self::TooLarge(_))
    }

    /// Whether a write that failed so may have been done all the same.
    #[must_use]
    pub const fn outcome_is_unknown(&self) -> bool {
        matches!(
            self,
            Self::ConnectionLost(_)
                | Self::Tls(_)
                | Self::TooManyPings
                | Self::Deadline(_)
                | Self::ClusterIdChanged { .. }
                | Self::RevisionWentBack { .. }
                | Self::Unavailable(_)
                | Self::NotEtcd(_)
        )
    }

    /// Whether the connection is of no use any more, whatever is asked next.
    pub(super) const fn ends_session(&self) -> bool {
        matches!(
            self,
            Self::ConnectionLost(_)
                | Self::Tls(_)
                | Self::TooManyPings
                | Self::Stale(_)
                | Self::Silent(_)
                | Self::ClusterIdChanged { .. }
                | Self::RevisionWentBack { .. }
                | Self::AuthExpired(_)
                | Self::NotEtcd(_)
        )
    }
}

/// The table of STACK.md, 2l: code and text together decide, for the code alone misleads.
impl From<EtcdError> for SessionError {
    fn from(error: EtcdError) -> Self {
        match error {
            EtcdError::GRpcStatus(status) => of_status(&status),
            EtcdError::LeaseKeepAliveError(text) if text.contains("lease not found") => Self::LeaseNotFound,
            // A stream that is over says so in its own words, again and again.
            EtcdError::WatchError(text) | EtcdError::LeaseKeepAliveError(text) => Self::ConnectionLost(text),
            EtcdError::TransportError(error) => of_transport(&error),
            other => Self::Other(other.to_string()),
        }
    }
}

fn of_status(status: &tonic::Status) -> SessionError {
    let text = status.message();
    // Some answers pass through a second gRPC client within etcd, which wraps them once more.
    let of_etcd = text.split_once("etcdserver: ").map(|(_, text)| text);
    match (status.code(), of_etcd) {
        (_, Some(text)) => of_etcd_text(status.code(), text),
        (Code::OutOfRange | Code::ResourceExhausted, None) => SessionError::TooLarge(text.to_owned()),
        (Code::PermissionDenied | Code::Unauthenticated, None) => SessionError::Denied(text.to_owned()),
        // A write without a quorum.
        (Code::Unknown | Code::DeadlineExceeded, None) if text == "context deadline exceeded" => {
            SessionError::Unavailable(text.to_owned())
        }
        (Code::Unimplemented, None) => SessionError::NotEtcd(text.to_owned()),
        // Whatever our own transport says comes as one of these.
        (Code::Unknown | Code::Unavailable | Code::Cancelled | Code::Internal, None) => of_transport(status),
        (_, None) => SessionError::Other(text.to_owned()),
    }
}

/// What etcd itself said, without its prefix.
fn of_etcd_text(code: Code, text: &str) -> SessionError {
    let owned = || text.to_owned();
    if text.contains("has been compacted") {
        SessionError::Compacted
    } else if text.contains("lease not found") {
        SessionError::LeaseNotFound
    } else if text.contains("invalid auth token") || text.contains("revision of auth store is old") {
        SessionError::AuthExpired(owned())
    } else if matches!(code, Code::PermissionDenied | Code::Unauthenticated)
        || text.contains("permission denied")
        || text.contains("authentication failed")
        || text.contains("user name is empty")
    {
        SessionError::Denied(owned())
    } else if text.contains("request is too large") {
        SessionError::TooLarge(owned())
    } else if matches!(code, Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded) {
        SessionError::Unavailable(owned())
    } else {
        SessionError::Other(owned())
    }
}

/// Why etcd cancelled a watch, which it says in a text only.
pub(super) fn of_cancel_reason(reason: &str) -> Option<SessionError> {
    let text = reason.split_once("etcdserver: ").map_or(reason, |(_, text)| text);
    match of_etcd_text(Code::Unknown, text) {
        SessionError::Other(_) if text.contains("no leader") => Some(SessionError::Unavailable(text.to_owned())),
        SessionError::Other(_) => None,
        known => Some(known),
    }
}

/// Whether etcd refuses a login because nobody has to log in.
pub(super) fn is_auth_not_enabled(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status) if status.message().contains("authentication is not enabled"))
}

pub(super) fn of_transport(error: &(dyn StdError + 'static)) -> SessionError {
    match tls::explain(error, OtherSide::Server) {
        Some(failure) => SessionError::Tls(failure),
        None => SessionError::ConnectionLost(innermost(error)),
    }
}

/// The outer layers say "transport error"; the reason is at the bottom.
fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Status;

    fn of(code: Code, text: &str) -> SessionError {
        SessionError::from(EtcdError::GRpcStatus(Status::new(code, text)))
    }

    /// Seen from etcd 3.4.23 and from our own transport (STACK.md, 2l).
    #[test]
    fn the_table() {
        for (code, text, reason) in [
            (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted", "compacted"),
            (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision", "refused"),
            (Code::OutOfRange, "Error, decoded message length too large: found 9 bytes, the limit is: 8", "too-large"),
            (Code::ResourceExhausted, "grpc: received message larger than max (3000000 vs. 2097152)", "too-large"),
            (Code::InvalidArgument, "etcdserver: request is too large", "too-large"),
            (Code::ResourceExhausted, "etcdserver: too many requests", "unavailable"),
            (Code::Unavailable, "etcdserver: no leader", "unavailable"),
            (Code::Unavailable, "etcdserver: request timed out", "unavailable"),
            (Code::Unavailable, "etcdserver: rpc not supported for learner", "unavailable"),
            (Code::Unknown, "context deadline exceeded", "unavailable"),
            (Code::Unknown, "h2 protocol error: error reading a body from connection", "connection-lost"),
            (Code::Unknown, "protocol error: missing grpc-status trailer", "connection-lost"),
            (Code::Unknown, "transport error", "connection-lost"),
            (Code::Unavailable, "tcp connect error", "connection-lost"),
            (Code::Cancelled, "Timeout expired", "connection-lost"),
            (Code::PermissionDenied, "etcdserver: permission denied", "permission-denied"),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                "permission-denied",
            ),
            (Code::InvalidArgument, "etcdserver: user name is empty", "permission-denied"),
            (Code::Unauthenticated, "etcdserver: invalid auth token", "auth-expired"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", "auth-expired"),
            (Code::NotFound, "etcdserver: requested lease not found", "lease-not-found"),
            (Code::Unimplemented, "unknown service etcdserverpb.KV", "not-etcd"),
            (Code::InvalidArgument, "etcdserver: too many operations in txn request", "refused"),
        ] {
            assert_eq!(of(code, text).reason(), reason, "{code:?} {text}");
        }
    }

    #[test]
    fn what_will_not_heal_by_itself() {
        assert!(of(Code::Unavailable, "etcdserver: no leader").is_retryable());
        assert!(of(Code::Unauthenticated, "etcdserver: invalid auth token").is_retryable());
        assert!(!of(Code::PermissionDenied, "etcdserver: permission denied").is_retryable());
        assert!(!of(Code::Unimplemented, "unknown service").is_retryable());
    }

    #[test]
    fn a_refused_write_was_not_done_and_a_lost_one_may_have_been() {
        assert!(of(Code::Unknown, "transport error").outcome_is_unknown());
        assert!(of(Code::Unknown, "context deadline exceeded").outcome_is_unknown());
        assert!(SessionError::Deadline("a write").outcome_is_unknown());
        assert!(!of(Code::PermissionDenied, "etcdserver: permission denied").outcome_is_unknown());
        assert!(!of(Code::NotFound, "etcdserver: requested lease not found").outcome_is_unknown());
    }

    #[test]
    fn reasons_of_a_cancelled_watch() {
        let reason = |text| of_cancel_reason(text).map(|error| error.reason());
        let denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
        assert_eq!(reason(denied), Some("permission-denied"));
        assert_eq!(reason("etcdserver: mvcc: required revision has been compacted"), Some("compacted"));
        assert_eq!(reason("etcdserver: no leader"), Some("unavailable"));
        assert_eq!(reason(""), None);
        assert_eq!(reason("watch closed"), None);
    }
}
