//! The certificate files of a peer, looked at without a connection.

use std::time::{Duration, SystemTime};

use super::Outcome;
use crate::kvstore::EtcdConfig;
use crate::mirror::Failure;
use crate::tls::{CertFacts, ClientTls, ClientTlsFiles};

/// A certificate that ends sooner should have been replaced by now.
const SOON: Duration = Duration::from_hours(7 * 24);

/// Reads them as a connection would.
pub(super) fn look(config: &EtcdConfig) -> Outcome {
    let tls = ClientTls::new(ClientTlsFiles {
        ca: config.trusted_ca_file.clone(),
        identity: config.cert_file.clone().zip(config.key_file.clone()),
        skip_verify: config.insecure_skip_tls_verify,
    });
    let failed = |reason, message: String, hint: &str| Failure { reason, message, hint: hint.to_owned() };
    let handshake = match tls.current() {
        Ok(handshake) => handshake,
        Err(error) => {
            let (reason, message, hint) = (error.reason(), error.to_string(), error.hint());
            return Outcome::Failed(Failure { reason, message, hint });
        }
    };
    if let Some(trouble) = handshake.trouble {
        let (reason, message, hint) = (trouble.reason(), trouble.to_string(), trouble.hint());
        return Outcome::Warned(Failure { reason, message, hint });
    }
    let Some(leaf) = handshake.leaf else {
        return Outcome::Passed("no certificate of ours is shown".to_owned());
    };
    let until = humantime::format_rfc3339_seconds(leaf.not_after);
    match left(&leaf, SystemTime::now()) {
        Left::NotYet => Outcome::Failed(failed(
            "certificate-not-yet-valid",
            format!("{} is valid from {} on", leaf.subject, humantime::format_rfc3339_seconds(leaf.not_before)),
            "check this machine's clock, or wait",
        )),
        Left::Expired => Outcome::Failed(failed(
            "certificate-expired",
            format!("{} expired at {until}", leaf.subject),
            "put a newer pair into the same files",
        )),
        Left::Soon => Outcome::Warned(failed(
            "certificate-expiring",
            format!("{} expires at {until}", leaf.subject),
            "put a newer pair into the same files: it is taken up without a break",
        )),
        Left::Long => Outcome::Passed(format!("{}, valid to {until}", leaf.subject)),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Left {
    NotYet,
    Expired,
    Soon,
    Long,
}

fn left(leaf: &CertFacts, now: SystemTime) -> Left {
    match leaf.not_after.duration_since(now) {
        _ if now < leaf.not_before => Left::NotYet,
        Err(_) => Left::Expired,
        Ok(left) if left < SOON => Left::Soon,
        Ok(_) => Left::Long,
    }
}
