//! The etcd client configuration: Cilium's YAML file, and our timing.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// How to reach one etcd (WIRE.md, "Remote clusters").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `https://host:port`, tried in turn.
    pub endpoints: Vec<String>,
    /// PEM bundle of the CAs that may sign the server's certificate.
    pub trusted_ca_file: Option<PathBuf>,
    /// PEM chain that we present.
    pub cert_file: Option<PathBuf>,
    /// PEM key of that chain.
    pub key_file: Option<PathBuf>,
    /// Plain text although the endpoint says https (Cilium's field; allowed on loopback only).
    pub insecure_transport: bool,
    /// Accept any server certificate.
    pub insecure_skip_tls_verify: bool,
    /// User and password instead of a client certificate.
    pub credentials: Option<Credentials>,
}

/// User and password; `Debug` hides the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// etcd user.
    pub username: String,
    /// Its password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).field("password", &"<redacted>").finish()
    }
}

/// Deadlines and intervals; each stage has its own.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Name resolution, TCP and TLS, each, per address.
    pub dial: Duration,
    /// One unary call.
    pub call: Duration,
    /// From asking for a watch to its confirmation.
    pub watch_created: Duration,
    /// HTTP/2 ping interval (etcd refuses less than 5 s on plain text).
    pub keepalive_interval: Duration,
    /// How long a ping may stay unanswered.
    pub keepalive_timeout: Duration,
    /// How often a quiet watch is asked for its progress; unanswered for `liveness` ends the session.
    pub progress_interval: Duration,
    /// How long a watch may show no sign of life.
    pub liveness: Duration,
    /// Backoff between attempts: first ceiling.
    pub backoff_base: Duration,
    /// Backoff between attempts: highest ceiling.
    pub backoff_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            dial: Duration::from_secs(5),
            call: Duration::from_secs(15),
            watch_created: Duration::from_secs(15),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
            progress_interval: Duration::from_secs(10),
            liveness: Duration::from_secs(30),
            backoff_base: Duration::from_millis(200),
            backoff_max: Duration::from_secs(30),
        }
    }
}

/// Why a file is not an etcd client configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}", path = path.display())]
pub struct EtcdConfigError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it and what to do.
    pub problem: String,
}

impl EtcdConfig {
    /// Reads and checks a file; relative certificate paths are relative to the file's folder.
    ///
    /// # Errors
    /// Unreadable, not YAML, no endpoints, an endpoint that is no URL, one of certificate and key without the other.
    pub fn from_yaml_file(path: &Path) -> Result<Self, EtcdConfigError> {
        let fail = |problem: String| EtcdConfigError { path: path.to_owned(), problem };
        let text = std::fs::read_to_string(path).map_err(|error| fail(format!("cannot be read: {error}")))?;
        Self::from_yaml_str(&text, path.parent().unwrap_or(Path::new("."))).map_err(fail)
    }

    /// As [`Self::from_yaml_file`], from text.
    ///
    /// # Errors
    /// What is wrong and what to do.
    pub fn from_yaml_str(text: &str, base_dir: &Path) -> Result<Self, String> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| {
            // The lines behind the first draw the place that the first one names.
            let error = error.to_string();
            let place = error.lines().next().unwrap_or_default();
            format!("is not an etcd client configuration in YAML: {}", place.trim_start_matches("error: "))
        })?;
        let path =
            |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty()).map(|path| base_dir.join(path));
        let credentials = match (file.username, file.password) {
            (None, None) => None,
            (Some(username), Some(password)) => Some(Credentials { username, password }),
            _ => return Err("`username` and `password` go together: give both or neither".to_owned()),
        };
        let config = Self {
            endpoints: file.endpoints,
            trusted_ca_file: path(file.trusted_ca_file.or(file.ca_file)),
            cert_file: path(file.cert_file),
            key_file: path(file.key_file),
            insecure_transport: file.insecure_transport,
            insecure_skip_tls_verify: file.insecure_skip_tls_verify,
            credentials,
        };
        if config.endpoints.is_empty() {
            return Err("`endpoints` is missing or empty: list at least one https://host:port".to_owned());
        }
        for endpoint in &config.endpoints {
            let endpoint = Endpoint::parse(endpoint)?;
            if (!endpoint.tls || config.insecure_transport) && !endpoint.is_loopback() {
                return Err(format!(
                    "endpoint `{}` is plain text beyond this machine: use https, or remove `insecure-transport`",
                    endpoint.url
                ));
            }
        }
        if config.cert_file.is_some() != config.key_file.is_some() {
            return Err("`cert-file` and `key-file` go together: give both or neither".to_owned());
        }
        Ok(config)
    }
}

/// The file as it is written; what we do not know is somebody else's.
#[derive(serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    endpoints: Vec<String>,
    trusted_ca_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    #[serde(default)]
    insecure_transport: bool,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    username: Option<String>,
    password: Option<String>,
}

/// One endpoint, taken apart.
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
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let fail = |why: &str| format!("endpoint `{url}` {why}: write https://host:port");
        let (scheme, rest) = url.split_once("://").ok_or_else(|| fail("has no scheme"))?;
        let tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(fail("is neither https nor http")),
        };
        let uri: http::Uri = rest.trim_end_matches('/').parse().map_err(|_| fail("is no URL"))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if host.is_empty() || uri.path().len() > 1 {
            return Err(fail("has no host, or a path"));
        }
        // 2379 is etcd's own port for clients.
        Ok(Self { url: url.to_owned(), host, port: uri.port_u16().unwrap_or(2379), tls })
    }

    fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<EtcdConfig, String> {
        EtcdConfig::from_yaml_str(text, Path::new("/etc/mesh"))
    }

    #[test]
    fn ciliums_file() {
        let config = parse(
            "endpoints:\n- https://one.mesh.cilium.io:2379\ntrusted-ca-file: /ca.crt\ncert-file: tls.crt\n\
             key-file: 'tls.key'\nsome-new-field: 1\n",
        )
        .unwrap();
        assert_eq!(config.endpoints, ["https://one.mesh.cilium.io:2379"]);
        assert_eq!(config.trusted_ca_file, Some("/ca.crt".into()));
        assert_eq!(config.cert_file, Some("/etc/mesh/tls.crt".into()));
        assert_eq!(config.key_file, Some("/etc/mesh/tls.key".into()));
        assert_eq!(parse("endpoints: [https://a:1]\nca-file: /old").unwrap().trusted_ca_file, Some("/old".into()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, says) in [
            ("endpoints: []", "`endpoints` is missing or empty"),
            ("{}", "`endpoints` is missing or empty"),
            ("endpoints: [a:2379]", "has no scheme"),
            ("endpoints: ['ftp://a:1']", "neither https nor http"),
            ("endpoints: ['https://:1']", "write https://host:port"),
            ("endpoints: ['http://example.org:1']", "plain text beyond this machine"),
            ("endpoints: ['https://a:1']\ninsecure-transport: true", "plain text beyond this machine"),
            ("endpoints: ['https://a:1']\ncert-file: x", "`cert-file` and `key-file` go together"),
            ("endpoints: ['https://a:1']\nusername: x", "`username` and `password` go together"),
            ("endpoints: {", "is not an etcd client configuration"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn endpoints_are_taken_apart() {
        let parts = |url| Endpoint::parse(url).map(|endpoint| (endpoint.host, endpoint.port, endpoint.tls));
        assert_eq!(parts("https://[::1]:2380/"), Ok(("::1".to_owned(), 2380, true)));
        assert_eq!(parts("http://localhost"), Ok(("localhost".to_owned(), 2379, false)));
    }

    #[test]
    fn a_password_is_not_shown() {
        let config = parse("endpoints: ['https://a:1']\nusername: me\npassword: secret").unwrap();
        assert!(!format!("{config:?}").contains("secret"));
    }
}
