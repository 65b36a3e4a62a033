//! TLS failures in plain words: who refused whom, and why.

use std::error::Error;
use std::io;
use std::time::{Duration, SystemTime};

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, InvalidMessage};

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherSide {
    /// We are the client.
    Server,
    /// We are the server.
    Client,
}

impl OtherSide {
    const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// Who refused whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An alert came from the other side.
    TheyRefusedOurs,
    /// Our own check of their certificate failed.
    WeRefusedTheirs,
    /// No certificate was the matter.
    NotCertificates,
}

/// One failure, explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFailure {
    /// Who refused whom.
    pub refusal: Refusal,
    /// A name from a bounded set; a metric label.
    pub reason: &'static str,
    /// In plain words.
    pub message: String,
    /// What to do.
    pub hint: &'static str,
}

/// Explains an error with a TLS error somewhere inside; none for an error that has none.
#[must_use]
pub fn explain(error: &(dyn Error + 'static), other: OtherSide) -> Option<TlsFailure> {
    find(error).map(|error| explain_tls(error, other))
}

/// The TLS error in a chain. An `io::Error` does not show the error that it wraps as its source, only that one's source.
fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner as &'a (dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

fn explain_tls(error: &rustls::Error, other: OtherSide) -> TlsFailure {
    let they = other.name();
    match error {
        rustls::Error::AlertReceived(alert) => explain_alert(*alert, they),
        rustls::Error::InvalidCertificate(error) => explain_certificate(error, they),
        rustls::Error::NoCertificatesPresented => TlsFailure {
            refusal: Refusal::WeRefusedTheirs,
            reason: "no-certificate-shown",
            message: format!("the {they} shows no certificate"),
            hint: "configure a certificate there",
        },
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => TlsFailure {
            refusal: Refusal::NotCertificates,
            reason: "not-tls",
            message: format!("the {they} does not speak TLS"),
            hint: "check the port, and whether the other side is set to plain text",
        },
        other_error => TlsFailure {
            refusal: Refusal::NotCertificates,
            reason: "tls-protocol",
            message: format!("TLS with the {they} failed: {other_error}"),
            hint: "check that both sides speak TLS 1.2 or 1.3 and that nothing in between tampers with the stream",
        },
    }
}

fn explain_alert(alert: AlertDescription, they: &str) -> TlsFailure {
    let refused = |reason, why: &str, hint| TlsFailure {
        refusal: Refusal::TheyRefusedOurs,
        reason,
        message: format!("the {they} refused our certificate: {why}"),
        hint,
    };
    match alert {
        AlertDescription::CertificateExpired => refused(
            "they-refused-ours-expired",
            "it says that it is expired (or not valid yet)",
            "renew our certificate; if it is valid, compare the clocks",
        ),
        AlertDescription::UnknownCA => refused(
            "they-refused-ours-unknown-ca",
            "it does not know the CA that signed it",
            "have our certificate signed by a CA that the other side trusts, and put intermediates into our chain",
        ),
        AlertDescription::CertificateRevoked => {
            refused("they-refused-ours-revoked", "it says that it is revoked", "renew our certificate")
        }
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => refused(
            "they-refused-ours-missing",
            "we show none, and it wants one",
            "configure a client certificate (cert-file and key-file)",
        ),
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied
        | AlertDescription::DecryptError => refused(
            "they-refused-ours",
            &format!("alert {alert:?}"),
            "check that it is signed by a CA that the other side trusts, not expired, and made for this usage (client or \
             server); the log of the other side says more",
        ),
        AlertDescription::UnrecognisedName => TlsFailure {
            refusal: Refusal::NotCertificates,
            reason: "they-do-not-know-the-name",
            message: format!("the {they} does not serve the name that we asked for"),
            hint: "check the host in the endpoint",
        },
        AlertDescription::ProtocolVersion
        | AlertDescription::HandshakeFailure
        | AlertDescription::InsufficientSecurity
        | AlertDescription::NoApplicationProtocol => TlsFailure {
            refusal: Refusal::NotCertificates,
            reason: "tls-nothing-in-common",
            message: format!("the {they} and we have no TLS version, cipher or protocol in common (alert {alert:?})"),
            hint: "TLS 1.2 or 1.3 with ECDHE and AES-GCM or ChaCha20, and HTTP/2, are needed on both sides",
        },
        alert => TlsFailure {
            refusal: Refusal::NotCertificates,
            reason: "tls-protocol",
            message: format!("the {they} broke TLS off (alert {alert:?})"),
            hint: "the log of the other side says more",
        },
    }
}

fn explain_certificate(error: &CertificateError, they: &str) -> TlsFailure {
    let (reason, why, hint) = match error {
        CertificateError::UnknownIssuer => (
            "we-refused-theirs-unknown-issuer",
            "is signed by a CA that we do not trust".to_owned(),
            "put the CA that signed it into the CA bundle (trusted-ca-file), or check that this is the right server",
        ),
        CertificateError::Expired => ("we-refused-theirs-expired", "is expired".to_owned(), RENEW),
        CertificateError::ExpiredContext { not_after, .. } => {
            ("we-refused-theirs-expired", format!("expired on {}", date(*not_after)), RENEW)
        }
        CertificateError::NotValidYet => {
            ("we-refused-theirs-not-valid-yet", "is not valid yet".to_owned(), "compare the clocks of both machines")
        }
        CertificateError::NotValidYetContext { not_before, .. } => (
            "we-refused-theirs-not-valid-yet",
            format!("is valid from {} on only", date(*not_before)),
            "compare the clocks of both machines",
        ),
        CertificateError::NotValidForName => {
            ("we-refused-theirs-wrong-name", "is not for the name that we asked for".to_owned(), NAME)
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            ("we-refused-theirs-wrong-name", format!("is not for {}: {}", expected.to_str(), list(presented)), NAME)
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => (
            "we-refused-theirs-wrong-usage",
            "is made for another usage".to_owned(),
            "a server's certificate needs the extended key usage serverAuth, a client's clientAuth",
        ),
        CertificateError::Revoked => ("we-refused-theirs-revoked", "is revoked".to_owned(), RENEW),
        // A new CA often has the name of the old one: then it is the signature that tells them apart.
        CertificateError::BadSignature => (
            "we-refused-theirs-unknown-issuer",
            "is signed by a CA that we do not trust, though it has the name of one that we do".to_owned(),
            "put the new CA beside the old one into the CA bundle (trusted-ca-file)",
        ),
        other => ("we-refused-theirs", format!("cannot be used: {other}"), "make that certificate anew"),
    };
    TlsFailure {
        refusal: Refusal::WeRefusedTheirs,
        reason,
        message: format!("we refused the {they}'s certificate: it {why}"),
        hint,
    }
}

const RENEW: &str = "renew the other side's certificate; if it is valid, compare the clocks";
const NAME: &str = "use one of its names in the endpoint, or have the endpoint's name put into the certificate";

fn list(names: &[String]) -> String {
    if names.is_empty() { "it has no names at all".to_owned() } else { format!("its names are {}", names.join(", ")) }
}

fn date(time: UnixTime) -> humantime::Rfc3339Timestamp {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(time.as_secs()));
    humantime::format_rfc3339_seconds(time.unwrap_or(SystemTime::UNIX_EPOCH))
}
