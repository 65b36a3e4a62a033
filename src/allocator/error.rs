//! Typed failures of allocating; each says why in a word and whether trying again can help.

use crate::identity::NumericIdentity;
use crate::kvstore::SessionError;

/// Why no number was given, or none released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Every number of the range is used or leased: helps only that others release and the garbage collector runs.
    #[error("all {size} numbers of the cluster's range are in use")]
    Exhausted {
        /// How many numbers the range has.
        size: u32,
    },
    /// The lock was not held any more when its holder wrote; nothing was written.
    #[error("the lock on the label set was lost")]
    LockLost,
    /// Somebody else wrote first; nothing was written.
    #[error("another writer was faster: {0}")]
    AnotherWriter(&'static str),
    /// A number that we hold stands for other labels in the store. Never overwritten: somebody has to look.
    #[error("identity {number} stands for other labels in the store")]
    Conflict {
        /// The number.
        number: NumericIdentity,
    },
    /// The store cannot be reached, or cannot serve now.
    #[error("the store is not available: {0}")]
    BackendUnavailable(String),
    /// The store refuses, and will refuse again.
    #[error("the store refused: {0}")]
    Refused(String),
    /// The caller's deadline came first.
    #[error("no answer within the deadline while {0}")]
    Deadline(&'static str),
    /// The labels cannot be stored, or not be read back as they are.
    #[error("invalid labels: {0}")]
    InvalidLabels(String),
    /// The label set is not in use here.
    #[error("the label set is not in use here")]
    NotInUse,
    /// The allocator is shutting down.
    #[error("the allocator is shutting down")]
    ShuttingDown,
}

impl AllocError {
    /// The reason in a word: a metric label, from a bounded set.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Exhausted { .. } => "exhausted",
            Self::LockLost => "lock-lost",
            Self::AnotherWriter(_) => "another-writer",
            Self::Conflict { .. } => "conflict",
            Self::BackendUnavailable(_) => "backend-unavailable",
            Self::Refused(_) => "refused",
            Self::Deadline(_) => "deadline",
            Self::InvalidLabels(_) => "invalid-labels",
            Self::NotInUse => "not-in-use",
            Self::ShuttingDown => "shutting-down",
        }
    }

    /// Whether the same call can succeed later without anybody changing something.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Exhausted { .. }
            | Self::LockLost
            | Self::AnotherWriter(_)
            | Self::BackendUnavailable(_)
            | Self::Deadline(_)
            | Self::ShuttingDown => true,
            Self::Conflict { .. } | Self::Refused(_) | Self::InvalidLabels(_) | Self::NotInUse => false,
        }
    }
}

/// A lost lease is the backend's own affair and has been dealt with before it comes here: the next attempt has another.
impl From<SessionError> for AllocError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Other(_) => Self::Refused(error.to_string()),
            _ if !error.is_retryable() => Self::Refused(error.to_string()),
            _ => Self::BackendUnavailable(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_whether_to_try_again() {
        assert!(AllocError::from(SessionError::LeaseNotFound).is_retryable());
        assert!(AllocError::from(SessionError::ConnectionLost("cut".into())).is_retryable());
        assert!(!AllocError::from(SessionError::Denied("role".into())).is_retryable());
        assert!(AllocError::Exhausted { size: 8 }.is_retryable());
        assert!(!AllocError::InvalidLabels("empty".into()).is_retryable());
        assert_eq!(AllocError::Exhausted { size: 8 }.reason(), "exhausted");
    }
}
