//! What can go wrong between a client and a gateway, in words that say what to do.

use std::error::Error;
use std::io;
use std::time::Duration;

use tonic::{Code, Status};

use super::fold::FoldError;
use crate::tls::{self, OtherSide, Refusal, TlsError, TlsFailure};

/// Why a client got no (further) answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is not one.
    #[error("address `{0}`: not HOST:PORT; write for example 127.0.0.1:4280")]
    Address(String),
    /// A certificate or key file.
    #[error("{0}; {hint}", hint = .0.hint())]
    Files(#[from] TlsError),
    /// Nobody there, or nobody that we trust, or that trusts us.
    #[error("cannot reach the gateway at {address}: {what}{}", hint_text(.hint))]
    Connect {
        /// Where.
        address: String,
        /// What is wrong.
        what: String,
        /// What to do; may be empty.
        hint: &'static str,
    },
    /// The gateway said no.
    #[error("the gateway answers {}: {what}", code_name(*.code))]
    Refused {
        /// The gRPC code.
        code: Code,
        /// Its words.
        what: String,
    },
    /// A stream ended, or there was no sign of life for too long.
    #[error("the stream ended: {0}")]
    Ended(String),
    /// The gateway said something that contradicts what it said before.
    #[error("the stream contradicts itself: {0}")]
    Contradiction(#[from] FoldError),
}

impl ClientError {
    /// Whether what the user gave has to change, rather than the world.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Address(_) | Self::Files(_) => true,
            Self::Refused { code, .. } => matches!(code, Code::InvalidArgument),
            Self::Connect { .. } | Self::Ended(_) | Self::Contradiction(_) => false,
        }
    }

    /// From what a call returned.
    #[must_use]
    pub fn of_status(address: &str, status: &Status) -> Self {
        // A status without a cause came over the wire; with one, it was made here because the wire failed.
        match status.source() {
            Some(source) => Self::of_transport(address, source),
            None => Self::Refused { code: status.code(), what: status.message().to_owned() },
        }
    }

    /// From what dialling or the transport returned.
    pub(super) fn of_transport(address: &str, error: &(dyn Error + 'static)) -> Self {
        let (what, hint) = explain(error);
        Self::Connect { address: address.to_owned(), what, hint }
    }

    /// A TLS failure and what to do about it; `None` for any other error.
    pub(super) fn tls_words(error: &(dyn Error + 'static)) -> Option<String> {
        let failure = tls::explain(error, OtherSide::Server)?;
        Some(format!("{}; {}", failure.message, tls_hint(&failure)))
    }

    pub(super) fn timeout(address: &str, after: Duration) -> Self {
        let what = format!("no answer within {}", humantime::format_duration(after));
        Self::Connect {
            address: address.to_owned(),
            what,
            hint: "is it the right address, and is nothing between that drops?",
        }
    }
}

fn hint_text(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!("; {hint}") }
}

/// A code as gRPC's own documentation spells it.
pub(super) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// What the innermost cause says, and what to do about it.
fn explain(error: &(dyn Error + 'static)) -> (String, &'static str) {
    if let Some(failure) = tls::explain(error, OtherSide::Server) {
        return (failure.message.clone(), tls_hint(&failure));
    }
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let hint = innermost.downcast_ref::<io::Error>().map_or(WRONG_PROTOCOL, io_hint);
    (innermost.to_string(), hint)
}

const WRONG_PROTOCOL: &str = "does it serve gRPC there, and with TLS exactly if you ask for TLS?";

fn io_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "is it running, and is this the address that it listens on?",
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::InvalidData => WRONG_PROTOCOL,
        _ => "",
    }
}

/// Advice in the words of our own flags, where the general one speaks of etcd's.
fn tls_hint(failure: &TlsFailure) -> &'static str {
    match (failure.refusal, failure.reason) {
        (Refusal::TheyRefusedOurs, _) => {
            "give --cert and --key of a CA that the gateway lets in (its --tls-client-ca), for clients and not expired"
        }
        (_, "we-refused-theirs-unknown-issuer" | "we-refused-theirs-bad-signature") => {
            "--ca must be the CA that signed the gateway's certificate"
        }
        (_, "we-refused-theirs-wrong-name") => "use one of its names in --address, or name it with --server-name",
        (_, "not-tls") => "does the gateway serve in plain text? then --plaintext",
        _ => failure.hint,
    }
}
