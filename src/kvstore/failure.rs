//! Why no session could be made: one [`Failure`] for each endpoint tried, one [`ConnectError`] for all.

use std::fmt;

use super::SessionError;

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

/// Why one endpoint gave no session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Where it failed.
    pub stage: Stage,
    /// A name from a bounded set; a metric label.
    pub reason: &'static str,
    /// In plain words.
    pub message: String,
    /// What to do.
    pub hint: String,
    /// Whether it may heal by itself, soon.
    pub retryable: bool,
}

impl Failure {
    pub(super) fn new(stage: Stage, reason: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { stage, reason, message: message.into(), hint: hint.into(), retryable: true }
    }

    /// Somebody has to change something before it can work.
    pub(super) fn permanent(self) -> Self {
        Self { retryable: false, ..self }
    }

    /// Under TLS 1.3 a server refuses our certificate after the handshake: with the first call.
    pub(super) fn of_first_call(error: &SessionError) -> Self {
        let stage = if matches!(error, SessionError::Tls(_)) { Stage::Tls } else { Stage::FirstCall };
        let failure = Self::new(stage, error.reason(), error.to_string(), error.hint());
        if error.is_retryable() { failure } else { failure.permanent() }
    }
}

/// Why no session could be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError {
    /// Endpoint and failure, in the order tried; never empty.
    attempts: Vec<(String, Failure)>,
}

impl ConnectError {
    /// The last failure gives the reason; those before it are told beside it.
    pub(super) fn new(endpoint: impl Into<String>, failure: Failure) -> Self {
        Self { attempts: vec![(endpoint.into(), failure)] }
    }

    /// The next attempt failed as well.
    pub(super) fn and(mut self, next: Self) -> Self {
        self.attempts.extend(next.attempts);
        self
    }

    /// Each endpoint that was tried, and why it gave no session.
    #[must_use]
    pub fn attempts(&self) -> &[(String, Failure)] {
        &self.attempts
    }

    /// Where the last attempt failed.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.last().stage
    }

    /// The endpoint tried last.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        self.attempts.last().map_or("", |(endpoint, _)| endpoint)
    }

    /// A name from a bounded set; a metric label.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.last().reason
    }

    /// What to do: each different advice once.
    #[must_use]
    pub fn hint(&self) -> String {
        let mut hints: Vec<&str> = Vec::new();
        for (_, failure) in self.attempts.iter().rev() {
            if !hints.contains(&failure.hint.as_str()) {
                hints.push(&failure.hint);
            }
        }
        hints.join("; ")
    }

    /// Whether it may heal by itself, soon, at any of the endpoints.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.attempts.iter().any(|(_, failure)| failure.retryable)
    }

    fn last(&self) -> &Failure {
        match self.attempts.last() {
            Some((_, failure)) => failure,
            None => unreachable!("made with one attempt, and attempts are only added"),
        }
    }
}

impl std::error::Error for ConnectError {}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (endpoint, failure)) in self.attempts.iter().enumerate() {
            let separator = if n == 0 { "" } else { "; " };
            write!(f, "{separator}{} {endpoint}: {}", failure.stage, failure.message)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_of_every_endpoint() {
        let refused = Failure::new(Stage::Dial, "dial-refused", "nothing listens on 10.0.0.1:1", "start it");
        let expired = Failure::new(Stage::Tls, "we-refused-theirs-expired", "it is expired", "renew it").permanent();
        let error = ConnectError::new("https://a:1", refused).and(ConnectError::new("https://b:2", expired.clone()));
        assert_eq!(
            error.to_string(),
            "dial https://a:1: nothing listens on 10.0.0.1:1; tls https://b:2: it is expired"
        );
        assert_eq!((error.reason(), error.endpoint()), ("we-refused-theirs-expired", "https://b:2"));
        assert_eq!(error.hint(), "renew it; start it");
        assert!(error.is_retryable(), "the first may come back");
        assert!(!ConnectError::new("https://b:2", expired).is_retryable());
    }
}
