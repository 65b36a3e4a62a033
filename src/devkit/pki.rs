//! A development PKI: a CA that lives as long as the value, and the certificates that it signs, as PEM files.
//!
//! The CA's key never touches the disk: whoever needs another certificate makes another CA.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use tempfile::{NamedTempFile, TempDir};

/// Validity of what does not ask for another one. A development CA should die before anyone relies on it.
const DEFAULT_VALIDITY: Duration = Duration::from_hours(365 * 24);
/// Certificates begin in the past, for clocks that disagree a little.
const BACKDATE: Duration = Duration::from_hours(1);

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file or folder.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A name that cannot be in a certificate, or a failure to sign.
    #[error("certificate {name}: {source}")]
    Certificate {
        /// Name of the certificate.
        name: String,
        /// What the library said.
        source: rcgen::Error,
    },
}

/// Paths of one certificate, its key, and the CA that signed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertFiles {
    /// PEM chain, the leaf first; ends below the root.
    pub cert: PathBuf,
    /// PEM key, mode 0600.
    pub key: PathBuf,
    /// PEM root.
    pub ca: PathBuf,
}

/// What a certificate may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// To be a TLS server.
    Server,
    /// To be a TLS client.
    Client,
}

/// What to put into a certificate.
#[derive(Clone, Debug)]
pub struct CertSpec {
    name: String,
    common_name: String,
    dns: Vec<String>,
    ips: Vec<IpAddr>,
    uris: Vec<String>,
    usages: Vec<Usage>,
    not_before: SystemTime,
    not_after: SystemTime,
}

impl CertSpec {
    fn new(name: &str, usage: Usage) -> Self {
        let now = SystemTime::now();
        Self {
            name: name.to_owned(),
            common_name: name.to_owned(),
            dns: Vec::new(),
            ips: Vec::new(),
            uris: Vec::new(),
            usages: vec![usage],
            not_before: now - BACKDATE,
            not_after: now + DEFAULT_VALIDITY,
        }
    }

    /// A server on this machine: `localhost`, `127.0.0.1` and `::1`. `name` is also the stem of the files.
    #[must_use]
    pub fn server(name: &str) -> Self {
        Self::new(name, Usage::Server)
            .dns("localhost")
            .ip(IpAddr::from([127, 0, 0, 1]))
            .ip(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]))
    }

    /// A client whose common name is `name`, which is also the stem of the files.
    #[must_use]
    pub fn client(name: &str) -> Self {
        Self::new(name, Usage::Client)
    }

    /// Another common name than the files' stem.
    #[must_use]
    pub fn common_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.common_name);
        self
    }

    /// Adds a DNS name.
    #[must_use]
    pub fn dns(mut self, name: &str) -> Self {
        self.dns.push(name.to_owned());
        self
    }

    /// Adds an address.
    #[must_use]
    pub fn ip(mut self, ip: IpAddr) -> Self {
        self.ips.push(ip);
        self
    }

    /// Adds a URI, such as `spiffe://mesh.example/agent`.
    #[must_use]
    pub fn uri(mut self, uri: &str) -> Self {
        self.uris.push(uri.to_owned());
        self
    }

    /// Leaves out every name and address.
    #[must_use]
    pub fn without_names(mut self) -> Self {
        self.dns.clear();
        self.ips.clear();
        self.uris.clear();
        self
    }

    /// Exactly these usages (a wrong one is a test's business); none leaves the extension out.
    #[must_use]
    pub fn usages(mut self, usages: &[Usage]) -> Self {
        self.usages = usages.to_vec();
        self
    }

    /// Valid from then on.
    #[must_use]
    pub fn not_before(mut self, time: SystemTime) -> Self {
        self.not_before = time;
        self
    }

    /// Valid up to then.
    #[must_use]
    pub fn not_after(mut self, time: SystemTime) -> Self {
        self.not_after = time;
        self
    }

    fn params(&self) -> Result<CertificateParams, rcgen::Error> {
        let mut params = blank(&self.common_name, self.not_before, self.not_after);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = self
            .usages
            .iter()
            .map(|usage| match usage {
                Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
                Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
            })
            .collect();
        for name in &self.dns {
            params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        params.subject_alt_names.extend(self.ips.iter().copied().map(SanType::IpAddress));
        for uri in &self.uris {
            params.subject_alt_names.push(SanType::URI(uri.as_str().try_into()?));
        }
        Ok(params)
    }
}

/// A CA and the folder that its files go to.
pub struct Pki {
    dir: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// The intermediates between `issuer` (included) and the root (not included), in the order of a chain.
    chain: String,
    ca: PathBuf,
    temporary: Option<TempDir>,
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki")
            .field("dir", &self.dir)
            .field("temporary", &self.temporary.is_some())
            .finish_non_exhaustive()
    }
}

impl Pki {
    /// A new CA; makes `dir` where it is missing, writes `ca.crt` into it, and replaces the file of an earlier CA.
    ///
    /// # Errors
    /// The folder or the file cannot be written.
    pub fn new(dir: impl Into<PathBuf>) -> Result<Self, PkiError> {
        let dir = dir.into();
        fs::create_dir_all(&dir).map_err(|source| PkiError::File { path: dir.clone(), source })?;
        let issuer = authority("Meshgate development CA", None)?;
        let ca = dir.join("ca.crt");
        write(&ca, &issuer.pem(), 0o644)?;
        Ok(Self { dir, issuer, chain: String::new(), ca, temporary: None })
    }

    /// A new CA in a folder that goes when the value goes.
    ///
    /// # Errors
    /// No folder can be made.
    pub fn temporary() -> Result<Self, PkiError> {
        let temporary = tempfile::Builder::new()
            .prefix("meshgate-pki-")
            .tempdir()
            .map_err(|source| PkiError::File { path: std::env::temp_dir(), source })?;
        let mut pki = Self::new(temporary.path())?;
        pki.temporary = Some(temporary);
        Ok(pki)
    }

    /// An intermediate CA below this one. What it issues carries the whole chain but the root, and names the same root.
    ///
    /// # Errors
    /// Signing failed.
    pub fn intermediate(&self, name: &str) -> Result<Self, PkiError> {
        let issuer = authority(name, Some(&self.issuer))?;
        let chain = issuer.pem() + &self.chain;
        Ok(Self { dir: self.dir.clone(), issuer, chain, ca: self.ca.clone(), temporary: None })
    }

    /// Makes a key and a certificate and writes both, replacing those of the same name one file at a time.
    ///
    /// # Errors
    /// A name that cannot be in a certificate, or a file that cannot be written.
    pub fn issue(&self, spec: &CertSpec) -> Result<CertFiles, PkiError> {
        let (cert, key) = self.sign(spec).map_err(named(&spec.name))?;
        let files = CertFiles {
            cert: self.dir.join(format!("{}.crt", spec.name)),
            key: self.dir.join(format!("{}.key", spec.name)),
            ca: self.ca.clone(),
        };
        write(&files.key, &key, 0o600)?;
        write(&files.cert, &cert, 0o644)?;
        Ok(files)
    }

    /// The root's PEM file.
    #[must_use]
    pub fn ca_file(&self) -> &Path {
        &self.ca
    }

    /// The folder of all files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn sign(&self, spec: &CertSpec) -> Result<(String, String), rcgen::Error> {
        let key = KeyPair::generate()?;
        let leaf = spec.params()?.signed_by(&key, &self.issuer)?;
        Ok((leaf.pem() + &self.chain, key.serialize_pem()))
    }
}

fn named(name: &str) -> impl FnOnce(rcgen::Error) -> PkiError {
    let name = name.to_owned();
    move |source| PkiError::Certificate { name, source }
}

fn authority(
    name: &str,
    parent: Option<&CertifiedIssuer<'static, KeyPair>>,
) -> Result<CertifiedIssuer<'static, KeyPair>, PkiError> {
    let now = SystemTime::now();
    let mut params = blank(name, now - BACKDATE, now + DEFAULT_VALIDITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    KeyPair::generate()
        .and_then(|key| match parent {
            None => CertifiedIssuer::self_signed(params, key),
            Some(parent) => CertifiedIssuer::signed_by(params, key, parent),
        })
        .map_err(named(name))
}

fn blank(common_name: &str, not_before: SystemTime, not_after: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.use_authority_key_identifier_extension = true;
    params.not_before = not_before.into();
    params.not_after = not_after.into();
    params
}

/// Writes beside the target and renames: nobody reads half a file, and a key is never readable by others, not even briefly.
fn write(path: &Path, pem: &str, mode: u32) -> Result<(), PkiError> {
    let attempt = || {
        let mut file = NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        file.write_all(pem.as_bytes())?;
        file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        file.persist(path)?;
        Ok(())
    };
    attempt().map_err(|source: io::Error| PkiError::File { path: path.to_owned(), source })
}
