//! The gRPC API, the HTTP pages and the log.

use super::{LOGS, SERVE, Setting, switch, text};

pub(in crate::config) static LISTEN: Setting = text(
    SERVE,
    "listen",
    "IP:PORT",
    Some("0.0.0.0:4280"),
    "Where the gRPC API listens",
    "subscribers are on other hosts; mutual TLS guards it",
);
pub(in crate::config) static TLS_CERT: Setting =
    text(SERVE, "tls-cert", "FILE", None, "Certificate chain of the gRPC API, PEM", "required unless plaintext");
pub(in crate::config) static TLS_KEY: Setting =
    text(SERVE, "tls-key", "FILE", None, "Private key of that certificate, PEM", "required unless plaintext");
pub(in crate::config) static TLS_CLIENT_CA: Setting = text(
    SERVE,
    "tls-client-ca",
    "FILE",
    None,
    "CAs whose clients may use the gRPC API, PEM",
    "required unless plaintext",
);
pub(in crate::config) static PLAINTEXT: Setting = switch(
    SERVE,
    "plaintext",
    "false",
    "Serve the gRPC API without TLS; only where it listens on a loopback address",
    "identities are what policy is made of: who may read them is never an accident",
);
pub(in crate::config) static MAX_SUBSCRIBERS: Setting = text(
    SERVE,
    "max-subscribers",
    "COUNT",
    Some("1024"),
    "Subscription streams at a time; further ones are refused",
    "an agent on each of 1,000 nodes; each may hold about 1 MiB of encoded frames while it does not read",
);
pub(in crate::config) static MAX_SUBSCRIPTIONS_PER_CLIENT: Setting = text(
    SERVE,
    "max-subscriptions-per-client",
    "COUNT",
    Some("256"),
    "The same for one client, that is, one certificate at one address",
    "an agent has one or two, and many may come by one translated address; a quarter of all leaves room for others",
);
pub(in crate::config) static ACCESS_POLICY: Setting = text(
    SERVE,
    "access-policy",
    "FILE",
    None,
    "YAML that says which names of clients' certificates may do what and see which clusters; read again as it changes",
    "without it, whoever the CAs in tls-client-ca vouch for may do everything",
);
pub(in crate::config) static RESUME_HISTORY_MEMORY: Setting = text(
    SERVE,
    "resume-history-memory",
    "MIB",
    Some("64"),
    "MiB of replaced versions that are kept for subscribers that come back with a token; 0 keeps none",
    "twenty thousand changes, estimated at 3 KiB each; with less, more of those that come back get everything anew",
);
pub(in crate::config) static RESUME_HISTORY_AGE: Setting = text(
    SERVE,
    "resume-history-age",
    "TIME",
    Some("10m"),
    "How long after it was replaced a version is kept at most",
    "longer than the restart of a node takes",
);
pub(in crate::config) static SUBSCRIBER_HOLD_LIMIT: Setting = text(
    SERVE,
    "subscriber-hold-limit",
    "TIME",
    Some("5m"),
    "How long an old version is held for a subscriber that does not read; then it is sent away, with tokens to come back with",
    "longer than any pause of a live client; half of resume-history-age, so that it can resume",
);
pub(in crate::config) static SUBSCRIBER_MAX_AGE: Setting = text(
    SERVE,
    "subscriber-max-age",
    "TIME|never",
    Some("never"),
    "How old a stream may grow, give or take a fifth; then its client is told to come back, and resumes",
    "streams stay where they are; give an hour where a load balancer should spread them anew",
);
pub(in crate::config) static HTTP_LISTEN: Setting = text(
    SERVE,
    "http-listen",
    "IP:PORT",
    Some("127.0.0.1:4281"),
    "Where /metrics, /livez and /readyz are served, without TLS",
    "readable for the host only, until somebody decides otherwise",
);
pub(in crate::config) static SHUTDOWN_GRACE: Setting = text(
    SERVE,
    "shutdown-grace",
    "TIME",
    Some("10s"),
    "How long streams may take to end once the gateway stops; then they are cut",
    "well below the 30 s that Kubernetes waits before it kills",
);

pub(in crate::config) static LOG_FORMAT: Setting =
    text(LOGS, "log-format", "text|json", Some("text"), "How log lines look, on standard error", "for people");
pub(in crate::config) static LOG_LEVEL: Setting = text(
    LOGS,
    "log-level",
    "LEVEL",
    Some("info"),
    "off, error, warn, info, debug, trace; or directives like info,meshgate::kvstore=debug",
    "every change of state of a peer, nothing that repeats with each event",
);
