//! From PEM to what rustls takes. Every certificate of a file counts; comments and blank lines do not.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::{CertFacts, Contents, TlsError};

impl Contents {
    fn malformed(&self, why: impl Into<String>) -> TlsError {
        TlsError::Malformed { path: self.path.clone(), why: why.into() }
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let certificates = CertificateDer::pem_slice_iter(&self.bytes)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.malformed(format!("not PEM: {error}")))?;
        if certificates.is_empty() {
            return Err(TlsError::Empty { path: self.path.clone(), what: "certificate" });
        }
        Ok(certificates)
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::Empty { path: self.path.clone(), what: "private key" },
            // The error may quote the file, and this file is a secret.
            _ => self.malformed("not PEM"),
        })
    }

    /// All of a bundle's certificates as trust anchors.
    pub(super) fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for (n, certificate) in self.certificates()?.into_iter().enumerate() {
            let add = roots.add(certificate);
            add.map_err(|error| self.malformed(format!("certificate {} cannot be a CA: {error}", n + 1)))?;
        }
        Ok(roots)
    }
}

/// A chain and its key, known to belong together.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) certified: Arc<CertifiedKey>,
    pub(super) leaf: CertFacts,
}

impl Identity {
    /// The leaf is the certificate that the key belongs to, wherever it stands; the others follow in the file's order.
    pub(super) fn new(cert: &Contents, key: &Contents, provider: &CryptoProvider) -> Result<Self, TlsError> {
        let mut chain = cert.certificates()?;
        let signing_key = provider
            .key_provider
            .load_private_key(key.private_key()?)
            .map_err(|error| key.malformed(format!("not a private key that can be used: {error}")))?;
        let mut leaf_at = None;
        for (n, certificate) in chain.iter().enumerate() {
            let facts = CertFacts::from_der(certificate)
                .map_err(|why| cert.malformed(format!("certificate {}: {why}", n + 1)))?;
            let pair = CertifiedKey::new(vec![certificate.clone()], Arc::clone(&signing_key));
            if leaf_at.is_none() && pair.keys_match().is_ok() {
                leaf_at = Some((n, facts));
            }
        }
        let Some((n, leaf)) = leaf_at else {
            return Err(TlsError::KeyMismatch { cert: cert.path.clone(), key: key.path.clone() });
        };
        chain[..=n].rotate_right(1);
        Ok(Self { certified: Arc::new(CertifiedKey::new(chain, signing_key)), leaf })
    }
}
