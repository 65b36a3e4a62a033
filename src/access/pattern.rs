//! Patterns of names in a certificate's SAN extension.

use std::str::FromStr;

use crate::tls::CertFacts;

/// Before a DNS name.
const DNS: &str = "dns:";
/// Before a SPIFFE ID, scheme included.
const SPIFFE: &str = "spiffe://";
/// Any one label, or any one segment.
const ANY: &str = "*";
/// Any segments, at least one; at the end only.
const ANY_REST: &str = "**";

/// Names that a certificate may have.
///
/// `dns:NAME` is a DNS name; a first label `*` stands for any one label, as in certificates (RFC 6125, 6.4.3).
/// `spiffe://TRUST-DOMAIN/SEGMENT/…` is a SPIFFE ID; a segment `*` stands for any one segment, a last one `**` for one or
/// more. The trust domain has no wildcards: whoever speaks for it is decided by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Labels in lower case.
    Dns(Vec<String>),
    /// Trust domain and segments of the path.
    Spiffe(String, Vec<String>),
}

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Neither kind.
    #[error("a client is dns:NAME or spiffe://TRUST-DOMAIN/PATH")]
    Kind,
    /// A DNS name that is none.
    #[error("not a DNS name: labels of letters, digits, '-' and '_', of which the first may be `*`")]
    Dns,
    /// A trust domain that is none.
    #[error("not a trust domain: lower-case letters, digits, '.', '-' and '_', without wildcards")]
    TrustDomain,
    /// A path that no SPIFFE ID has.
    #[error(
        "not the path of a SPIFFE ID: segments of letters, digits, '.', '-' and '_'; `*` stands for a whole one, `**` for the \
         rest"
    )]
    Path,
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if let Some(name) = text.strip_prefix(DNS) {
            let labels: Vec<_> = name.split('.').map(str::to_ascii_lowercase).collect();
            let is_label = |label: &str| {
                !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            };
            // `*` alone would be everybody with a name of one label.
            let valid = labels
                .iter()
                .enumerate()
                .all(|(at, label)| is_label(label) || (at == 0 && label == ANY && labels.len() > 1));
            return if valid { Ok(Self::Dns(labels)) } else { Err(PatternError::Dns) };
        }
        let id = text.strip_prefix(SPIFFE).ok_or(PatternError::Kind)?;
        let (domain, path) = id.split_once('/').ok_or(PatternError::Path)?;
        let is_domain_byte = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
        if domain.is_empty() || !domain.bytes().all(is_domain_byte) {
            return Err(PatternError::TrustDomain);
        }
        let segments: Vec<_> = path.split('/').map(str::to_owned).collect();
        let last = segments.len() - 1;
        let valid = segments
            .iter()
            .enumerate()
            .all(|(at, segment)| segment == ANY || (segment == ANY_REST && at == last) || is_segment(segment));
        if valid { Ok(Self::Spiffe(domain.to_owned(), segments)) } else { Err(PatternError::Path) }
    }
}

impl Pattern {
    /// Whether one of the certificate's names is among those.
    #[must_use]
    pub fn matches(&self, certificate: &CertFacts) -> bool {
        match self {
            Self::Dns(labels) => certificate.dns.iter().any(|name| is_dns(name, labels)),
            // X.509-SVID, 2: one URI, and no more, is the SPIFFE ID.
            Self::Spiffe(domain, segments) => match certificate.uris.as_slice() {
                [uri] => is_spiffe(uri, domain, segments),
                _ => false,
            },
        }
    }
}

fn is_dns(name: &str, labels: &[String]) -> bool {
    let mut names = name.split('.');
    let same = labels.iter().all(|label| {
        names.next().is_some_and(|name| !name.is_empty() && (label == ANY || label.eq_ignore_ascii_case(name)))
    });
    same && names.next().is_none()
}

fn is_spiffe(uri: &str, domain: &str, segments: &[String]) -> bool {
    // SPIFFE-ID, 2: scheme and trust domain are case-insensitive, the path is not.
    let Some(scheme) = uri.get(..SPIFFE.len()).filter(|scheme| scheme.eq_ignore_ascii_case(SPIFFE)) else {
        return false;
    };
    let Some((found, path)) = uri[scheme.len()..].split_once('/') else { return false };
    if !found.eq_ignore_ascii_case(domain) {
        return false;
    }
    let mut rest = path.split('/').peekable();
    for segment in segments {
        if segment == ANY_REST {
            return rest.peek().is_some() && rest.all(is_segment);
        }
        let Some(found) = rest.next() else { return false };
        if !is_segment(found) || (segment != ANY && segment != found) {
            return false;
        }
    }
    rest.next().is_none()
}

/// SPIFFE-ID, 2.2: no empty segment, none that is `.` or `..`, no escapes.
fn is_segment(segment: &str) -> bool {
    let is_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    !segment.is_empty() && segment != "." && segment != ".." && segment.bytes().all(is_byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_pattern_says_why() {
        for (text, why) in [
            ("ops.example", PatternError::Kind),
            ("*", PatternError::Kind),
            ("dns:", PatternError::Dns),
            ("dns:*", PatternError::Dns),
            ("dns:a.*.example", PatternError::Dns),
            ("dns:agent-*.example", PatternError::Dns),
            ("spiffe://mesh.example", PatternError::Path),
            ("spiffe:///ns", PatternError::TrustDomain),
            ("spiffe://*/ns/a", PatternError::TrustDomain),
            ("spiffe://mesh.example/", PatternError::Path),
            ("spiffe://mesh.example/**/sa", PatternError::Path),
            ("spiffe://mesh.example/ns/a*", PatternError::Path),
            ("spiffe://mesh.example/ns/../x", PatternError::Path),
        ] {
            assert_eq!(text.parse::<Pattern>(), Err(why), "{text}");
        }
    }

    #[test]
    fn names_are_compared_as_their_kinds_are() {
        let dns: Pattern = "dns:*.Agents.example".parse().unwrap();
        let Pattern::Dns(labels) = &dns else { panic!("{dns:?}") };
        for (name, same) in [
            ("a.agents.EXAMPLE", true),
            ("*.agents.example", true),
            (".agents.example", false),
            ("a.agents.example.", false),
            ("a.b.agents.example", false),
        ] {
            assert_eq!(is_dns(name, labels), same, "{name}");
        }
        let spiffe: Pattern = "spiffe://mesh.example/ns/*/**".parse().unwrap();
        let Pattern::Spiffe(domain, segments) = &spiffe else { panic!("{spiffe:?}") };
        for (uri, same) in [
            ("spiffe://mesh.example/ns/a/sa/b", true),
            ("SPIFFE://Mesh.Example/ns/a/x", true),
            ("spiffe://mesh.example/ns/a", false),
            ("spiffe://mesh.example/NS/a/x", false),
            ("spiffe://mesh.example/ns/a/", false),
            ("spiffe://mesh.example/ns/a/%2e", false),
            ("spiffe://mesh.example:8443/ns/a/x", false),
            ("https://mesh.example/ns/a/x", false),
            ("spiffé", false),
        ] {
            assert_eq!(is_spiffe(uri, domain, segments), same, "{uri}");
        }
    }
}
