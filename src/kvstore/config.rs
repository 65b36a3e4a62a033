//! The etcd client configuration: Cilium's YAML file, and our timing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_saphyr::Spanned;

use super::endpoint::Endpoint;

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
    /// Addresses of host names, asked before any resolver; the names stay those that certificates must be for.
    pub host_aliases: BTreeMap<String, Vec<IpAddr>>,
    /// User and password instead of a client certificate.
    pub credentials: Option<Credentials>,
    /// `HOST:PORT` of the gateway of the cluster whose store this is; for comparing with it only.
    pub gateway: Option<String>,
    /// Where plain text is allowed. No field of the file: whoever writes a peer's file must not decide it.
    pub plaintext: Plaintext,
}

/// Where plain text is allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plaintext {
    /// To this machine only.
    #[default]
    LoopbackOnly,
    /// Anywhere: an operator's explicit wish.
    Anywhere,
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
    /// Name resolution, TCP and TLS, each; the last two per address.
    pub dial: Duration,
    /// One unary call.
    pub call: Duration,
    /// One page of a list. Doubled, up to `patience_max`, each time that a session ends because it was missed.
    pub page: Duration,
    /// From asking for a watch to its confirmation. Grows as that of a page does.
    pub watch_created: Duration,
    /// What the two before may grow to.
    pub patience_max: Duration,
    /// HTTP/2 ping interval (etcd refuses less than 5 s on plain text).
    pub keepalive_interval: Duration,
    /// How long a ping may stay unanswered.
    pub keepalive_timeout: Duration,
    /// How often a quiet watch is asked for its progress; unanswered for `liveness` ends the session.
    pub progress_interval: Duration,
    /// How long a watch may show no sign of life.
    pub liveness: Duration,
    /// How often the endpoint's name is resolved while a session lives, so as to follow it to another address; jittered.
    pub resolve_interval: Duration,
    /// Backoff between attempts: first ceiling.
    pub backoff_base: Duration,
    /// Backoff between attempts: highest ceiling.
    pub backoff_max: Duration,
    /// Least pause before the next attempt at a store that denies us what we have to read.
    pub denied_pause: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            // Two lost SYN packets are sent again within it (after 1 s and 3 s), and one dead endpoint costs less than 5 s.
            dial: Duration::from_secs(4),
            call: Duration::from_secs(15),
            page: Duration::from_secs(15),
            watch_created: Duration::from_secs(15),
            patience_max: Duration::from_mins(10),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
            progress_interval: Duration::from_secs(10),
            liveness: Duration::from_secs(30),
            // What DNS of a cluster is cached for at most, as a rule.
            resolve_interval: Duration::from_mins(5),
            backoff_base: Duration::from_millis(200),
            backoff_max: Duration::from_secs(30),
            denied_pause: Duration::from_mins(1),
        }
    }
}

/// Why a file is not an etcd client configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}", path = .path.display())]
pub struct EtcdConfigError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it, where one is to blame in which line, and what to do.
    pub problem: String,
}

impl EtcdConfig {
    /// Reads and checks a file; relative certificate paths are relative to the file's folder. Plain text is for this machine
    /// only.
    ///
    /// # Errors
    /// Unreadable, not YAML, no endpoints, an endpoint that is no URL, one of certificate and key without the other.
    pub fn from_yaml_file(path: &Path) -> Result<Self, EtcdConfigError> {
        Self::from_yaml_file_allowing(path, Plaintext::LoopbackOnly)
    }

    /// As [`Self::from_yaml_file`], with plain text where the operator says.
    ///
    /// # Errors
    /// As [`Self::from_yaml_file`].
    pub fn from_yaml_file_allowing(path: &Path, plaintext: Plaintext) -> Result<Self, EtcdConfigError> {
        std::fs::read_to_string(path)
            .map_err(|error| format!("cannot be read: {error}"))
            .and_then(|text| Self::from_yaml_str_allowing(&text, path.parent().unwrap_or(Path::new(".")), plaintext))
            .map_err(|problem| EtcdConfigError { path: path.to_owned(), problem })
    }

    /// As [`Self::from_yaml_file`], from text.
    ///
    /// # Errors
    /// What is wrong, where one is to blame in which line, and what to do.
    pub fn from_yaml_str(text: &str, base_dir: &Path) -> Result<Self, String> {
        Self::from_yaml_str_allowing(text, base_dir, Plaintext::LoopbackOnly)
    }

    /// As [`Self::from_yaml_file_allowing`], from text.
    ///
    /// # Errors
    /// As [`Self::from_yaml_str`].
    pub fn from_yaml_str_allowing(text: &str, base_dir: &Path, plaintext: Plaintext) -> Result<Self, String> {
        let file: Written = serde_saphyr::from_str_with_options(text, serde_saphyr::options! { with_snippet: false })
            .map_err(|error| {
            let line = error.location().map(|location| format!("line {}: ", location.line()));
            format!(
                "{}not an etcd client configuration: {}; it is YAML with `endpoints:` and the paths of certificates",
                line.unwrap_or_default(),
                first_line(&error.render())
            )
        })?;
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let path = |text: Option<String>| given(text).map(|path| base_dir.join(path));
        let credentials = match (given(file.username), given(file.password)) {
            (None, None) => None,
            (Some(username), Some(password)) => Some(Credentials { username, password }),
            _ => return Err("`username` and `password` go together; give both or neither".to_owned()),
        };
        let mut config = Self {
            endpoints: Vec::with_capacity(file.endpoints.len()),
            trusted_ca_file: path(file.trusted_ca_file).or_else(|| path(file.ca_file)),
            cert_file: path(file.cert_file),
            key_file: path(file.key_file),
            insecure_transport: file.insecure_transport,
            insecure_skip_tls_verify: file.insecure_skip_tls_verify,
            host_aliases: BTreeMap::new(),
            credentials,
            gateway: given(file.meshgate_gateway),
            plaintext,
        };
        for endpoint in file.endpoints {
            config
                .parsed(&endpoint.value)
                .map_err(|problem| format!("line {}: {problem}", endpoint.referenced.line()))?;
            config.endpoints.push(endpoint.value);
        }
        for (name, addresses) in file.host_aliases {
            let line = addresses.referenced.line();
            let aliases = aliases(&name, &addresses.value).map_err(|problem| format!("line {line}: {problem}"))?;
            config.host_aliases.insert(name, aliases);
        }
        config.check()?;
        Ok(config)
    }

    /// What can be checked without looking at other files or the network; a configuration from a file has passed.
    ///
    /// # Errors
    /// What is wrong and what to do.
    pub fn check(&self) -> Result<(), String> {
        if self.endpoints.is_empty() {
            return Err("`endpoints` is missing or empty; list at least one https://host:port".to_owned());
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err("`cert-file` and `key-file` go together; give both or neither".to_owned());
        }
        let hosts: Vec<_> =
            self.endpoints.iter().map(|endpoint| Ok(self.parsed(endpoint)?.host)).collect::<Result<_, String>>()?;
        match self.host_aliases.keys().find(|name| !hosts.contains(name)) {
            Some(name) => Err(format!("`host-aliases` names `{name}`, which is no endpoint's host")),
            None => Ok(()),
        }
    }

    /// One endpoint as this configuration means it.
    pub(super) fn parsed(&self, endpoint: &str) -> Result<Endpoint, String> {
        let endpoint = Endpoint::parse(endpoint, self.insecure_transport)?;
        if !endpoint.tls && self.plaintext == Plaintext::LoopbackOnly && !endpoint.is_loopback() {
            let (url, why) =
                (&endpoint.url, if self.insecure_transport { "insecure-transport is set" } else { "http" });
            return Err(format!(
                "endpoint `{url}`: plain text ({why}) is for this machine only; use https with a trusted-ca-file"
            ));
        }
        Ok(endpoint)
    }
}

/// The addresses of one name.
fn aliases(name: &str, written: &[String]) -> Result<Vec<IpAddr>, String> {
    let fail = |why: String| format!("`host-aliases` of `{name}`: {why}");
    let mut addresses = Vec::with_capacity(written.len());
    for text in written {
        let address = text.parse().map_err(|_| fail(format!("`{text}` is not an IP address")))?;
        if addresses.contains(&address) {
            return Err(fail(format!("{address} is there twice")));
        }
        addresses.push(address);
    }
    if addresses.is_empty() {
        return Err(fail("no address; give at least one, or leave the name out".to_owned()));
    }
    Ok(addresses)
}

/// The parser's message without its own place and its advice to programmers.
fn first_line(text: &str) -> &str {
    let line = text.lines().next().unwrap_or_default();
    let line = line.split_once(" at line ").map_or(line, |(message, _)| message);
    line.split_once(", set ").map_or(line, |(message, _)| message).trim_start_matches("error: ")
}

/// The file as it is written. What we do not know is somebody else's.
#[derive(serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Written {
    #[serde(default)]
    endpoints: Vec<Spanned<String>>,
    trusted_ca_file: Option<String>,
    /// The name that etcd's client had for it before.
    ca_file: Option<String>,
    cert_file: Option<String>,
    key_file: Option<String>,
    #[serde(default)]
    insecure_transport: bool,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    /// Ours; Cilium's agents take it from their pod's specification.
    #[serde(default)]
    host_aliases: BTreeMap<String, Spanned<Vec<String>>>,
    username: Option<String>,
    password: Option<String>,
    /// Ours, too.
    meshgate_gateway: Option<String>,
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
             key-file: 'tls.key'\nusername: ''\nsome-new-field: {a: [1]}\n",
        )
        .unwrap();
        let expected = EtcdConfig {
            endpoints: vec!["https://one.mesh.cilium.io:2379".into()],
            trusted_ca_file: Some("/ca.crt".into()),
            cert_file: Some("/etc/mesh/tls.crt".into()),
            key_file: Some("/etc/mesh/tls.key".into()),
            ..EtcdConfig::default()
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn p12_host_aliases() {
        let config = parse("endpoints: ['https://a.mesh:1']\nhost-aliases: {a.mesh: [10.0.0.1, '::1']}").unwrap();
        let expected: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        assert_eq!(config.host_aliases["a.mesh"], expected);
    }

    #[test]
    fn the_old_name_of_the_ca() {
        let ca = |text: &str| parse(&format!("endpoints: ['https://a:1']\n{text}")).unwrap().trusted_ca_file.unwrap();
        assert_eq!(ca("ca-file: /old"), Path::new("/old"));
        assert_eq!(ca("ca-file: /old\ntrusted-ca-file: /new"), Path::new("/new"));
        assert_eq!(ca("ca-file: /old\ntrusted-ca-file: ''"), Path::new("/old"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, line, says) in [
            ("endpoints: []", None, "`endpoints` is missing or empty"),
            ("{}", None, "`endpoints` is missing or empty"),
            ("# nothing\nendpoints:\n- ftp://a:1\n", Some(3), "neither https nor http"),
            ("endpoints:\n- https://a:1\n- https://:1\n", Some(3), "has no host"),
            ("endpoints:\n- http://example.org:1", Some(2), "for this machine only"),
            ("insecure-transport: true\nendpoints: ['https://a:1']", Some(2), "insecure-transport is set"),
            ("endpoints: ['https://a:1']\nca-file: c\ncert-file: x", None, "`cert-file` and `key-file` go together"),
            ("endpoints: ['https://a:1']\nca-file: c\nusername: x", None, "`username` and `password` go together"),
            ("endpoints: {", Some(1), "not an etcd client configuration"),
            ("a: b\nendpoints: 7", Some(2), "not an etcd client configuration"),
            ("endpoints: ['https://a:1']\ninsecure-transport: perhaps", Some(2), "not an etcd client configuration"),
            ("endpoints: ['https://a:1']\nhost-aliases:\n  a: []", Some(3), "no address; give at least one"),
            ("endpoints: ['https://a:1']\nhost-aliases:\n  a: [::1, ::1]", Some(3), "::1 is there twice"),
            (
                "endpoints: ['https://a:1']\nhost-aliases:\n  a: [300.1.1.1]",
                Some(3),
                "`300.1.1.1` is not an IP address",
            ),
            ("endpoints: ['https://a:1']\nhost-aliases: {b: [::1]}", None, "which is no endpoint's host"),
        ] {
            let error = parse(text).unwrap_err();
            let place: Option<u32> = error.strip_prefix("line ").and_then(|rest| rest.split(':').next()?.parse().ok());
            assert_eq!(place, line, "{text}: {error}");
            assert!(error.contains(says), "{text}: {error}");
            assert!(!error.contains('\n'), "one line: {error}");
        }
    }

    #[test]
    fn a_file_that_is_not_there() {
        let error = EtcdConfig::from_yaml_file(Path::new("/nowhere/blue")).unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/blue: cannot be read: "), "{error}");
    }

    #[test]
    fn plain_text_goes_abroad_by_explicit_wish_only() {
        let text = "endpoints: ['http://example.org:1']";
        assert!(parse(text).is_err());
        assert!(EtcdConfig::from_yaml_str_allowing(text, Path::new("/"), Plaintext::Anywhere).is_ok());
        for here in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"] {
            assert!(parse(&format!("endpoints: ['{here}']")).is_ok(), "{here}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let config = parse("endpoints: ['http://[::1]:1']\nusername: me\npassword: secret").unwrap();
        assert!(config.credentials.is_some());
        assert!(!format!("{config:?}").contains("secret"));
    }
}
