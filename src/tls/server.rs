//! Our side as a server: one certificate, clients must show one of a CA that we trust; swapped whole when files change.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;

use super::pem::Identity;
use super::{ALPN_H2, CertFacts, Contents, TlsError, VERSIONS, provider};

/// Where a server's certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTlsFiles {
    /// PEM chain that we present.
    pub cert: PathBuf,
    /// PEM key of that chain.
    pub key: PathBuf,
    /// PEM bundle of the CAs that may sign a client's certificate.
    pub client_ca: PathBuf,
}

/// A server's certificates. Readers take the current config for each handshake; one task calls
/// [`Self::reload_if_changed`] every few seconds.
#[derive(Debug)]
pub struct ServerTls {
    files: ServerTlsFiles,
    current: ArcSwap<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    fingerprint: u64,
    config: Arc<ServerConfig>,
    leaf: CertFacts,
}

impl ServerTls {
    /// Reads the files (blocking, some kilobytes).
    ///
    /// # Errors
    /// They cannot be used.
    pub fn load(files: ServerTlsFiles) -> Result<Self, TlsError> {
        let loaded = load(&files, None)?;
        // Without known contents there is always something new.
        let loaded = loaded.unwrap_or_else(|| unreachable!("nothing was known before"));
        Ok(Self { files, current: ArcSwap::from_pointee(loaded) })
    }

    /// For the next handshake.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().config)
    }

    /// What we present.
    #[must_use]
    pub fn leaf(&self) -> CertFacts {
        self.current.load().leaf.clone()
    }

    /// The files it was made from.
    #[must_use]
    pub fn files(&self) -> &ServerTlsFiles {
        &self.files
    }

    /// Reads the files again (blocking, some kilobytes), and swaps the config if their contents changed: a new config is also
    /// a new session store, so nobody resumes past a change of the CA.
    ///
    /// # Errors
    /// They cannot be used now; the config stays what it was.
    pub fn reload_if_changed(&self) -> Result<bool, TlsError> {
        match load(&self.files, Some(self.current.load().fingerprint))? {
            Some(loaded) => {
                self.current.store(Arc::new(loaded));
                Ok(true)
            }
            None => Ok(false),
        }
    }
}

fn load(files: &ServerTlsFiles, known: Option<u64>) -> Result<Option<Loaded>, TlsError> {
    let cert = Contents::read(&files.cert)?;
    let key = Contents::read(&files.key)?;
    let ca = Contents::read(&files.client_ca)?;
    let fingerprint = Contents::fingerprint([&cert, &key, &ca]);
    if known == Some(fingerprint) {
        return Ok(None);
    }
    let provider = provider();
    let identity = Identity::new(&cert, &key, &provider)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(ca.roots()?), Arc::clone(&provider))
        .build()
        .map_err(|error| TlsError::Malformed { path: files.client_ca.clone(), why: error.to_string() })?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&VERSIONS)
        .unwrap_or_else(|_| unreachable!("ring has suites for TLS 1.2 and 1.3"))
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified)));
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    Ok(Some(Loaded { fingerprint, config: Arc::new(config), leaf: identity.leaf }))
}
