//! Our side as a client: what we present, whom we trust; read anew for each handshake.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{DigitallySignedStruct, SignatureScheme};

use super::pem::Identity;
use super::{ALPN_H2, CertFacts, Contents, TlsError, VERSIONS, provider};

/// Where a client's certificates are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTlsFiles {
    /// PEM bundle of the CAs that may sign the server's certificate. None trusts nobody.
    pub ca: Option<PathBuf>,
    /// PEM chain and key that we present.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Accepts any server certificate.
    pub skip_verify: bool,
}

/// What the next handshake uses.
#[derive(Clone, Debug)]
pub struct ClientHandshake {
    /// To give to rustls.
    pub config: Arc<ClientConfig>,
    /// Our own certificate.
    pub leaf: Option<CertFacts>,
    /// Set when the files are unusable at the moment, and the last good ones are in use.
    pub trouble: Option<TlsError>,
}

/// A client's certificates, as new as their files.
#[derive(Debug)]
pub struct ClientTls {
    files: ClientTlsFiles,
    last_good: Mutex<Option<Loaded>>,
}

#[derive(Clone, Debug)]
struct Loaded {
    fingerprint: u64,
    config: Arc<ClientConfig>,
    leaf: Option<CertFacts>,
}

impl ClientTls {
    /// From these files, which are read first by [`Self::current`].
    #[must_use]
    pub fn new(files: ClientTlsFiles) -> Self {
        Self { files, last_good: Mutex::new(None) }
    }

    /// Where they are.
    #[must_use]
    pub const fn files(&self) -> &ClientTlsFiles {
        &self.files
    }

    /// Reads the files (blocking, some kilobytes). Unchanged contents give the config of the time before; unusable ones give
    /// the last good one, and say so.
    ///
    /// # Errors
    /// The files are unusable and never were usable.
    pub fn current(&self) -> Result<ClientHandshake, TlsError> {
        let mut last_good = self.last_good.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = match self.load(last_good.as_ref()) {
            Ok(loaded) => {
                *last_good = Some(loaded);
                None
            }
            Err(error) => Some(error),
        };
        match (last_good.clone(), trouble) {
            (Some(Loaded { config, leaf, .. }), trouble) => Ok(ClientHandshake { config, leaf, trouble }),
            (None, Some(error)) => Err(error),
            (None, None) => unreachable!("a successful load was stored just now"),
        }
    }

    fn load(&self, known: Option<&Loaded>) -> Result<Loaded, TlsError> {
        let ca = self.files.ca.as_deref().map(Contents::read).transpose()?;
        let pair = match &self.files.identity {
            Some((cert, key)) => Some((Contents::read(cert)?, Contents::read(key)?)),
            None => None,
        };
        let fingerprint = Contents::fingerprint(ca.iter().chain(pair.iter().flat_map(|(cert, key)| [cert, key])));
        if let Some(known) = known
            && known.fingerprint == fingerprint
        {
            return Ok(known.clone());
        }
        let provider = provider();
        let identity = match &pair {
            Some((cert, key)) => Some(Identity::new(cert, key, &provider)?),
            None => None,
        };
        let roots = match &ca {
            Some(ca) => ca.roots()?,
            None => rustls::RootCertStore::empty(),
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&VERSIONS)
            .unwrap_or_else(|_| unreachable!("ring has suites for TLS 1.2 and 1.3"));
        let builder = if self.files.skip_verify {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAny(provider)))
        } else {
            builder.with_root_certificates(roots)
        };
        let mut config = match &identity {
            Some(identity) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&identity.certified))))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![ALPN_H2.to_vec()];
        // A resumed handshake shows no certificate: one that has expired or been replaced since would go unnoticed, on either
        // side. Connections are few and long.
        config.resumption = Resumption::disabled();
        Ok(Loaded { fingerprint, config: Arc::new(config), leaf: identity.map(|identity| identity.leaf) })
    }
}

/// `insecure-skip-tls-verify`: any chain and any name; the server must still hold the key of what it shows.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
