//! Certificates from files: read whole, checked before use, read anew as they change; and TLS failures in plain words.
//!
//! [`ClientTls`] serves the `kvstore` room, [`ServerTls`] the `api` room. The provider is always named (ring): no
//! process-wide default to install, and no panic when a dependency links another one. Neither type touches connections
//! that exist: a new certificate counts from the next handshake on.

mod client;
mod explain;
mod facts;
mod pem;
mod server;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::{SupportedProtocolVersion, version};
use twox_hash::XxHash3_64;

pub use client::{ClientHandshake, ClientTls, ClientTlsFiles};
pub use explain::{OtherSide, Refusal, TlsFailure, explain};
pub use facts::CertFacts;
pub use server::{ServerTls, ServerTlsFiles};

/// What every connection of ours speaks.
const ALPN_H2: &[u8] = b"h2";
/// 1.2 for etcds and clients that are a few years old.
const VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Why certificate files cannot be used; always names the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// Not there, or not ours to read.
    #[error("{path}: cannot be read: {why}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// Nothing of the kind in it.
    #[error("{path}: contains no {what}", path = .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
    },
    /// Not PEM, or what is inside is not what the PEM label says.
    #[error("{path}: {why}", path = .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A pair that does not belong together, or of which only one half is replaced yet.
    #[error("{key}: is not the key of any certificate in {cert}", key = .key.display(), cert = .cert.display())]
    KeyMismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
}

impl TlsError {
    /// A name from a bounded set; a metric label.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "certificate-unreadable",
            Self::Empty { .. } => "certificate-empty",
            Self::Malformed { .. } => "certificate-malformed",
            Self::KeyMismatch { .. } => "certificate-key-mismatch",
        }
    }

    /// What to do.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Unreadable { .. } => "check the path and that this process may read the file".to_owned(),
            Self::Empty { what, .. } => format!("the file must be PEM with at least one {what}"),
            Self::Malformed { .. } => "the file must be PEM; write it again from its source".to_owned(),
            Self::KeyMismatch { .. } => {
                "replace both files by a pair; if they are being replaced just now, nothing is to be done".to_owned()
            }
        }
    }
}

/// A file's contents at one moment.
#[derive(Debug)]
struct Contents {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Contents {
    fn read(path: &Path) -> Result<Self, TlsError> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(Self { path: path.to_owned(), bytes }),
            Err(error) => Err(TlsError::Unreadable { path: path.to_owned(), why: error.to_string() }),
        }
    }

    /// Tells contents apart, so that an unchanged set of files keeps its config (and with it the TLS session cache). Times
    /// of change would miss a kubelet's swap of symlinks.
    fn fingerprint<'a>(files: impl IntoIterator<Item = &'a Self>) -> u64 {
        files.into_iter().fold(0, |seed, file| XxHash3_64::oneshot_with_seed(seed, &file.bytes))
    }
}
