//! Who is at the other end of a connection, from its certificate.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;

/// The other end of a connection; an extension of every request on it. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo(Arc<Inner>);

#[derive(Debug, PartialEq, Eq)]
struct Inner {
    address: SocketAddr,
    common_name: Option<String>,
    sans: Vec<San>,
}

/// A subject alternative name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum San {
    /// A host.
    Dns(String),
    /// Such as `spiffe://mesh.example/agent`.
    Uri(String),
    /// An address.
    Ip(IpAddr),
}

impl PeerInfo {
    /// A client without a certificate.
    #[must_use]
    pub fn plaintext(address: SocketAddr) -> Self {
        Self(Arc::new(Inner { address, common_name: None, sans: Vec::new() }))
    }

    /// A client with that certificate, which rustls has verified. Names of kinds or encodings that nothing here compares
    /// with are left out.
    #[must_use]
    pub fn of_certificate(address: SocketAddr, certificate: &CertificateDer<'_>) -> Self {
        let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else {
            return Self::plaintext(address);
        };
        let common_name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let names = certificate.subject_alternative_name().ok().flatten();
        let sans = names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(San::Dns((*name).to_owned())),
            GeneralName::URI(uri) => Some(San::Uri((*uri).to_owned())),
            GeneralName::IPAddress(bytes) => ip(bytes).map(San::Ip),
            _ => None,
        });
        let sans = sans.collect();
        Self(Arc::new(Inner { address, common_name: common_name.map(str::to_owned), sans }))
    }

    /// Where it comes from.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The common name of its certificate.
    #[must_use]
    pub fn common_name(&self) -> Option<&str> {
        self.0.common_name.as_deref()
    }

    /// The alternative names of its certificate.
    #[must_use]
    pub fn sans(&self) -> &[San] {
        &self.0.sans
    }
}

/// For logs: `spiffe://mesh.example/agent (10.0.0.7:41234)`.
impl fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.sans().iter().find_map(|san| match san {
            San::Dns(name) | San::Uri(name) => Some(name.as_str()),
            San::Ip(_) => None,
        });
        match named.or(self.common_name()) {
            Some(name) => write!(f, "{} ({})", name.escape_default(), self.0.address),
            None => self.0.address.fmt(f),
        }
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}
