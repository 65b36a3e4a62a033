//! One endpoint of an etcd, taken apart.

use std::net::IpAddr;

use rustls::pki_types::ServerName;

/// Where to dial, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// As it was written.
    pub(super) url: String,
    /// Name or address, an IPv6 address without its brackets.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: bool,
}

impl Endpoint {
    /// Takes `https://host:port` apart; `insecure` makes it plain text whatever its scheme says.
    pub(super) fn parse(url: &str, insecure: bool) -> Result<Self, String> {
        // What stands before an `@` may be a password, and errors are logged.
        let shown = url.rsplit_once('@').map_or(url, |(_, behind)| behind);
        let fail = |why: &str| format!("endpoint `{shown}` {why}; write https://host:port");
        let (scheme, rest) = url.split_once("://").ok_or_else(|| fail("has no scheme"))?;
        let tls = match scheme {
            "https" => !insecure,
            "http" => false,
            _ => return Err(fail("is neither https nor http")),
        };
        let rest = rest.trim_end_matches('/');
        if rest.is_empty() || rest.starts_with(':') {
            return Err(fail("has no host"));
        }
        let authority: http::uri::Authority = rest.parse().map_err(|_| fail("is not host and port"))?;
        if authority.as_str().contains('@') {
            return Err(fail("names a user, which belongs into `username` and `password`"));
        }
        // Go's etcd client has no default port either; one that we made up would be right most of the time only.
        let port =
            authority.port_u16().filter(|port| *port != 0).ok_or_else(|| fail("has no port (etcd's is 2379)"))?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if ServerName::try_from(host.as_str()).is_err() {
            return Err(fail("has a host that is neither a name nor an address"));
        }
        Ok(Self { url: url.to_owned(), host, port, tls })
    }

    /// Whether it is this machine by its very name.
    pub(super) fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// The name that the certificate must be for.
    pub(super) fn server_name(&self) -> Option<ServerName<'static>> {
        ServerName::try_from(self.host.clone()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_apart() {
        for (url, host, port, tls) in [
            ("https://[::1]:2380/", "::1", 2380, true),
            ("http://localhost:1", "localhost", 1, false),
            ("https://blue.mesh.cilium.io:2379", "blue.mesh.cilium.io", 2379, true),
            ("https://10.0.0.1:2379//", "10.0.0.1", 2379, true),
        ] {
            let expected = Endpoint { url: url.to_owned(), host: host.to_owned(), port, tls };
            assert_eq!(Endpoint::parse(url, false), Ok(expected.clone()), "{url}");
            assert_eq!(Endpoint::parse(url, true), Ok(Endpoint { tls: false, ..expected }), "{url}");
        }
    }

    #[test]
    fn refused() {
        for (url, says) in [
            ("", "has no scheme"),
            ("a:2379", "has no scheme"),
            ("unix:///run/etcd", "neither https nor http"),
            ("https://", "has no host"),
            ("https://:1", "has no host"),
            ("https://a", "has no port (etcd's is 2379)"),
            ("https://a:0", "has no port"),
            ("https://a:99999", "has no port"),
            ("https://a:1/path", "is not host and port"),
            ("https://a b:1", "is not host and port"),
            ("https://me:secret@a:1", "names a user"),
            ("https://a..b:1", "neither a name nor an address"),
        ] {
            let error = Endpoint::parse(url, false).unwrap_err();
            assert!(error.contains(says), "{url}: {error}");
            assert!(error.ends_with("; write https://host:port"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn this_machine() {
        let loopback = |url| Endpoint::parse(url, false).unwrap().is_loopback();
        assert!(loopback("http://127.8.9.1:1") && loopback("http://[::1]:1") && loopback("http://localhost:1"));
        assert!(!loopback("http://localhost.example.org:1") && !loopback("http://10.0.0.1:1"));
    }
}
