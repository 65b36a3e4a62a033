//! What a certificate says about itself, for operators and for authorization.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

/// Facts of one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertFacts {
    /// The subject, as in `CN=agent, O=mesh`.
    pub subject: String,
    /// Its first common name.
    pub common_name: Option<String>,
    /// DNS names of the SAN extension.
    pub dns: Vec<String>,
    /// URIs of the SAN extension, such as SPIFFE IDs.
    pub uris: Vec<String>,
    /// Addresses of the SAN extension.
    pub ips: Vec<IpAddr>,
    /// Serial number, hexadecimal with colons.
    pub serial: String,
    /// Valid from then on.
    pub not_before: SystemTime,
    /// Valid up to then.
    pub not_after: SystemTime,
}

impl CertFacts {
    /// Reads a DER certificate.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn from_der(der: &[u8]) -> Result<Self, String> {
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|error| format!("not an X.509 certificate: {error}"))?;
        let mut facts = Self {
            subject: certificate.subject().to_string(),
            common_name: certificate
                .subject()
                .iter_common_name()
                .next()
                .and_then(|name| name.as_str().ok().map(str::to_owned)),
            dns: Vec::new(),
            uris: Vec::new(),
            ips: Vec::new(),
            serial: certificate.raw_serial_as_string(),
            not_before: system_time(certificate.validity().not_before),
            not_after: system_time(certificate.validity().not_after),
        };
        let names = certificate
            .subject_alternative_name()
            .map_err(|error| format!("its subject alternative names cannot be read: {error}"))?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(dns) => facts.dns.push((*dns).to_owned()),
                GeneralName::URI(uri) => facts.uris.push((*uri).to_owned()),
                GeneralName::IPAddress(bytes) => facts.ips.extend(ip(bytes)),
                _ => {}
            }
        }
        Ok(facts)
    }

    /// All names of the SAN extension, for people.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let ips = self.ips.iter().map(ToString::to_string);
        self.dns.iter().cloned().chain(self.uris.iter().cloned()).chain(ips).collect()
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

fn system_time(time: ASN1Time) -> SystemTime {
    let seconds = time.timestamp();
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let shifted = if seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    };
    shifted.unwrap_or(SystemTime::UNIX_EPOCH)
}
