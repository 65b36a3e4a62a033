//! How to start an etcd.

use std::path::PathBuf;

use crate::devkit::{CertFiles, CertSpec, Pki, PkiError};

/// Certificates of one etcd.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// What the server presents; its CA is the one that clients' certificates must come from.
    pub server: CertFiles,
    /// What the devkit's own client presents.
    pub client: CertFiles,
}

/// How to start an etcd.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    pub(super) name: String,
    pub(super) tls: Option<EtcdTls>,
    pub(super) base: Option<PathBuf>,
    pub(super) extra_args: Vec<String>,
}

impl EtcdOptions {
    /// Plain text.
    #[must_use]
    pub fn plain(name: &str) -> Self {
        Self { name: name.to_owned(), tls: None, base: None, extra_args: Vec::new() }
    }

    /// TLS on both sides, with the certificates `<name>-etcd` and `<name>-etcd-client` of that CA.
    ///
    /// # Errors
    /// The certificates cannot be made.
    pub fn mtls(name: &str, pki: &Pki) -> Result<Self, PkiError> {
        let server = pki.issue(&CertSpec::server(&format!("{name}-etcd")))?;
        let client = pki.issue(&CertSpec::client(&format!("{name}-etcd-client")))?;
        Ok(Self { tls: Some(EtcdTls { server, client }), ..Self::plain(name) })
    }

    /// TLS on both sides, with these certificates.
    #[must_use]
    pub fn with_tls(mut self, tls: EtcdTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The certificates, where it has some.
    #[must_use]
    pub fn tls(&self) -> Option<&EtcdTls> {
        self.tls.as_ref()
    }

    /// Keeps the data in memory where the system has a folder for that: an etcd syncs every write to disk, and a slow disk
    /// is most of what a test or bench would measure.
    #[must_use]
    pub fn in_memory(mut self) -> Self {
        let shm = PathBuf::from("/dev/shm");
        if tempfile::tempfile_in(&shm).is_ok() {
            self.base = Some(shm);
        }
        self
    }

    /// Makes the temporary data folder in `dir` rather than in the system's place for such.
    #[must_use]
    pub fn data_in(mut self, dir: impl Into<PathBuf>) -> Self {
        self.base = Some(dir.into());
        self
    }

    /// More of etcd's own flags; they come last, so they win.
    #[must_use]
    pub fn args<'a>(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.extra_args.extend(args.into_iter().map(str::to_owned));
        self
    }
}
