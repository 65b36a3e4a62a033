//! What can go wrong between a client and a gateway, in words that say what to do.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustls::CertificateError;
use tonic::{Code, Status};

use super::fold::FoldError;

/// Why a client got no (further) answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is not one.
    #[error("address `{0}`: not HOST:PORT; write for example 127.0.0.1:4240")]
    Address(String),
    /// A certificate or key file.
    #[error("{}: {what}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        what: String,
    },
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
            Self::Address(_) | Self::File { .. } => true,
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
    let mut innermost = error;
    let mut next = Some(error);
    while let Some(error) = next {
        innermost = error;
        // An I/O error that wraps another one names that one's cause as its own: the wrapped one is asked for by itself.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = wrapped.map(|wrapped| wrapped as &(dyn Error + 'static)).or_else(|| error.source());
    }
    let hint = if let Some(error) = innermost.downcast_ref::<rustls::Error>() {
        tls_hint(error)
    } else if let Some(error) = innermost.downcast_ref::<io::Error>() {
        io_hint(error)
    } else {
        "does it serve gRPC, and with TLS exactly if you ask for TLS?"
    };
    (innermost.to_string(), hint)
}

fn io_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "is it running, and is this the address that it listens on?",
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::InvalidData => "does it serve gRPC, and with TLS exactly if you ask for TLS?",
        _ => "",
    }
}

fn tls_hint(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::AlertReceived(_) => {
            "it refuses our certificate: give one of a CA that it lets in (its --tls-client-ca), not expired"
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "its certificate names other hosts: use one of them, or --server-name",
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its certificate is of another CA than the one given with --ca"
        }
        rustls::Error::InvalidMessage(_) => "it does not speak TLS there: --plaintext, if that is meant",
        _ => "",
    }
}
