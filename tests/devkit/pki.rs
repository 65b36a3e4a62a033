//! What the PKI writes is what TLS libraries and operators expect.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::support::pki::Usage;
use crate::support::{CertFiles, CertSpec, Pki};

fn chain(files: &CertFiles) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(&files.cert).unwrap().collect::<Result<_, _>>().unwrap()
}

/// Whether a server that trusts the CA takes the certificate from a client now.
fn client_is_welcome(files: &CertFiles) -> Result<(), rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let chain = chain(files);
    verifier.verify_client_cert(&chain[0], &chain[1..], UnixTime::now()).map(|_| ())
}

#[test]
fn keys_are_for_their_owner_only_and_files_load() {
    let pki = Pki::temporary().unwrap();
    let files = pki.issue(&CertSpec::server("gateway").dns("gateway.mesh.example")).unwrap();
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&files.key), mode(&files.cert), mode(&files.ca)), (0o600, 0o644, 0o644));
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain(&files), PrivateKeyDer::from_pem_file(&files.key).unwrap())
        .unwrap();
}

#[test]
fn names_are_in_the_certificate() {
    let pki = Pki::temporary().unwrap();
    let files = pki.issue(&CertSpec::client("agent").uri("spiffe://mesh.example/agent")).unwrap();
    let der = &chain(&files)[0];
    let (_, cert) = x509_parser::parse_x509_certificate(der).unwrap();
    assert_eq!(cert.subject().iter_common_name().next().unwrap().as_str().unwrap(), "agent");
    let names = format!("{:?}", cert.subject_alternative_name().unwrap().unwrap().value.general_names);
    assert!(names.contains("spiffe://mesh.example/agent"), "{names}");
    assert!(client_is_welcome(&files).is_ok());
}

#[test]
fn makes_bad_certificates_on_request() {
    let pki = Pki::temporary().unwrap();
    let hour = Duration::from_hours(1);
    let bad = [
        CertSpec::client("expired").not_before(SystemTime::now() - 2 * hour).not_after(SystemTime::now() - hour),
        CertSpec::client("early").not_before(SystemTime::now() + hour),
        CertSpec::client("usage").usages(&[Usage::Server]),
    ];
    for spec in bad {
        assert!(client_is_welcome(&pki.issue(&spec).unwrap()).is_err(), "{spec:?}");
    }
}

#[test]
fn an_intermediate_issues_below_the_same_root() {
    let pki = Pki::temporary().unwrap();
    let below = pki.intermediate("Region CA").unwrap().intermediate("Cluster CA").unwrap();
    let files = below.issue(&CertSpec::client("agent")).unwrap();
    assert_eq!(files.ca, pki.ca_file());
    assert_eq!(chain(&files).len(), 3);
    assert!(client_is_welcome(&files).is_ok());
}
