//! Who is at the other end of a connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::tls::CertFacts;

/// The other end of a connection; an extension of every request on it. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo(Arc<Inner>);

#[derive(Debug, PartialEq, Eq)]
struct Inner {
    address: SocketAddr,
    certificate: Option<CertFacts>,
}

impl PeerInfo {
    pub(super) fn new(address: SocketAddr, certificate: Option<CertFacts>) -> Self {
        Self(Arc::new(Inner { address, certificate }))
    }

    /// Where it comes from.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// What its certificate says, which the handshake has verified; none without TLS.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertFacts> {
        self.0.certificate.as_ref()
    }
}

/// For logs: `spiffe://mesh.example/agent (10.0.0.7:41234)`.
impl fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = self.certificate();
        let name = facts.and_then(|facts| facts.uris.first().or(facts.dns.first()).or(facts.common_name.as_ref()));
        match name {
            Some(name) => write!(f, "{} ({})", name.escape_debug(), self.0.address),
            None => self.0.address.fmt(f),
        }
    }
}
