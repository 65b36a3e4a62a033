//! Every setting, in one table: flags, variables, file keys, help and defaults are made from it.
//!
//! Where Cilium has a setting for the same thing, its name is Cilium's.

/// The shape of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One text.
    Text,
    /// `true` or `false`; as a flag, its presence is enough.
    Switch,
    /// `key=value`, any number of times; in the file a mapping.
    Pairs,
}

/// One setting.
#[derive(Debug)]
pub(super) struct Setting {
    /// The flag without its dashes, and the key in the file.
    pub name: &'static str,
    /// Heading in `--help`.
    pub group: &'static str,
    /// What stands for the value in `--help`.
    pub value: &'static str,
    pub shape: Shape,
    /// Nothing where there is no default.
    pub default: Option<&'static str>,
    /// What it is.
    pub help: &'static str,
    /// Why the default is what it is, or what the absence means.
    pub why: &'static str,
}

const CLUSTER: &str = "Cluster";
const STORES: &str = "Stores and peers";
const ALLOCATE: &str = "Allocating";
const SERVE: &str = "Serving";
const LOGS: &str = "Logs";

const fn text(
    group: &'static str,
    name: &'static str,
    value: &'static str,
    default: Option<&'static str>,
    help: &'static str,
    why: &'static str,
) -> Setting {
    Setting { name, group, value, shape: Shape::Text, default, help, why }
}

const fn switch(
    group: &'static str,
    name: &'static str,
    default: &'static str,
    help: &'static str,
    why: &'static str,
) -> Setting {
    Setting { name, group, value: "true|false", shape: Shape::Switch, default: Some(default), help, why }
}

pub(super) static CLUSTER_NAME: Setting = text(
    CLUSTER,
    "cluster-name",
    "NAME",
    Some("default"),
    "Name of the gateway's own cluster",
    "Cilium's default; a cluster of a mesh needs a name of its own",
);
pub(super) static CLUSTER_ID: Setting = text(
    CLUSTER,
    "cluster-id",
    "ID",
    Some("0"),
    "ID of the gateway's own cluster, unique in the mesh: 1 to max-connected-clusters",
    "Cilium's default, 0, means not set: allowed only without peers",
);
pub(super) static MAX_CONNECTED_CLUSTERS: Setting = text(
    CLUSTER,
    "max-connected-clusters",
    "255|511",
    Some("255"),
    "How many clusters the mesh's identity numbers can tell apart; the same in every cluster",
    "Cilium's default",
);

pub(super) static KVSTORE_OPT: Setting = Setting {
    name: "kvstore-opt",
    group: STORES,
    value: "KEY=VALUE",
    shape: Shape::Pairs,
    default: None,
    help: "Options of the cluster's own store: etcd.config=PATH names its etcd client YAML; etcd.qps, etcd.bootstrapQps and \
           etcd.maxInflight limit what the allocator asks of it",
    why: "the first is required: the gateway reads its own cluster's identities there; without limits there are none",
};
pub(super) static CLUSTERMESH_CONFIG: Setting = text(
    STORES,
    "clustermesh-config",
    "DIRECTORY",
    None,
    "Directory with one etcd client YAML per peer cluster; a file's name is the cluster's name",
    "without it there are no peers",
);
pub(super) static PEER_RESCAN_INTERVAL: Setting = text(
    STORES,
    "peer-rescan-interval",
    "TIME",
    Some("5s"),
    "How often that directory is read again",
    "reading it costs less than a millisecond, and no notification reports every way in which Kubernetes swaps a mount",
);
pub(super) static PEER_READINESS_WAIT: Setting = text(
    STORES,
    "peer-readiness-wait",
    "TIME",
    Some("30s"),
    "How long readiness waits for the first sync of the peers; it goes on without those that are missing then",
    "several times what a large peer takes; bounded, so that two gateways that wait for each other both start",
);
pub(super) static STATE_DIR: Setting = text(
    STORES,
    "state-dir",
    "DIRECTORY",
    None,
    "Where a picture of each peer is kept, which is shown after a restart until the peer is reached; made if need be",
    "without it the gateway knows nothing of peers that are away when it starts; each gateway needs one of its own",
);
pub(super) static PEER_TTL: Setting = text(
    STORES,
    "peer-ttl",
    "TIME|never",
    Some("never"),
    "How long a peer may be out of step, for whatever cause, before its entries are withdrawn",
    "what was true of a peer is a better guess than nothing, until somebody removes its file",
);
pub(super) static DIAL_TIMEOUT: Setting = text(
    STORES,
    "dial-timeout",
    "TIME",
    Some("4s"),
    "Deadline of each of name resolution, TCP and TLS, per endpoint",
    "two lost SYN packets are retried within it (1 s, 3 s), and one dead endpoint costs less than 5 s",
);
pub(super) static CALL_TIMEOUT: Setting = text(
    STORES,
    "call-timeout",
    "TIME",
    Some("15s"),
    "Deadline of one etcd call, and of the confirmation of a watch",
    "a page of a list on a slow link takes 2 s; an etcd that elects a leader answers within 5 s",
);
pub(super) static KEEPALIVE_INTERVAL: Setting = text(
    STORES,
    "keepalive-interval",
    "TIME",
    Some("10s"),
    "How often an etcd connection is pinged; at least 5s",
    "with the timeout below, a dead connection is noticed in 15 s; etcd closes connections that ping more often than every 5 s",
);
pub(super) static KEEPALIVE_TIMEOUT: Setting = text(
    STORES,
    "keepalive-timeout",
    "TIME",
    Some("5s"),
    "How long a ping may stay unanswered",
    "more than the longest pause that a busy etcd makes",
);
pub(super) static PROGRESS_INTERVAL: Setting = text(
    STORES,
    "progress-interval",
    "TIME",
    Some("10s"),
    "How often a quiet watch is asked how far it is",
    "costs a few bytes; shows that etcd itself, not only its connection, is alive",
);
pub(super) static LIVENESS_TIMEOUT: Setting = text(
    STORES,
    "liveness-timeout",
    "TIME",
    Some("30s"),
    "How long a watch may show no sign of life before its session is given up",
    "three unanswered questions",
);
pub(super) static RESOLVE_INTERVAL: Setting = text(
    STORES,
    "resolve-interval",
    "TIME",
    Some("5m"),
    "How often the name of a store in use is resolved again, to follow it to another address",
    "names move seldom; a look-up that fails changes nothing",
);
pub(super) static AUDIT_INTERVAL: Setting = text(
    STORES,
    "audit-interval",
    "TIME",
    Some("10m"),
    "How often what is held of a cluster is compared with all keys of its store",
    "65,000 keys without their values are 4 MB; after each resumed watch it is done for what changed anyway",
);
pub(super) static HEARTBEAT_TIMEOUT: Setting = text(
    STORES,
    "heartbeat-timeout",
    "TIME",
    Some("2m"),
    "How long a peer's heartbeat may stand still before the peer is degraded and another connection is tried",
    "two of Cilium's beats",
);
pub(super) static PEER_HEARTBEAT: Setting = text(
    STORES,
    "peer-heartbeat",
    "if-present|required|ignored",
    Some("if-present"),
    "Whether a peer's store must have a heartbeat",
    "every Cilium since 1.10 writes one; a store without is no reason to refuse it",
);
pub(super) static LIST_READS: Setting = text(
    STORES,
    "list-reads",
    "linearizable|serializable",
    Some("linearizable"),
    "Whether a list asks the store's leader, or takes what the member at hand has (a stale member is noticed)",
    "right before cheap",
);
pub(super) static BACKOFF_BASE: Setting = text(
    STORES,
    "backoff-base",
    "TIME",
    Some("200ms"),
    "Longest wait before the first retry; doubles with each, and each wait is a random part of it",
    "a restarted etcd answers again after a few hundred milliseconds",
);
pub(super) static BACKOFF_MAX: Setting = text(
    STORES,
    "backoff-max",
    "TIME",
    Some("30s"),
    "Longest wait before any retry",
    "an etcd that returns is noticed within half a minute; hundreds of gateways that wait so long do not hurt it",
);
pub(super) static LIST_PAGE_SIZE: Setting = text(
    STORES,
    "list-page-size",
    "KEYS",
    Some("8192"),
    "Keys in one page of a list",
    "etcd counts the whole rest for every page, so small ones are slow; large ones are held whole",
);

pub(super) static ENABLE_ALLOCATOR: Setting = switch(
    ALLOCATE,
    "enable-allocator",
    "true",
    "Allocate identities of the own cluster in its store",
    "costs a connection and a lease; off where the store is a copy of identities that Kubernetes holds (CRD mode)",
);
pub(super) static NODE_NAME: Setting = text(
    ALLOCATE,
    "node-name",
    "NAME",
    None,
    "What tells this gateway's references in the store from others': one path segment, no other writer's, the same after a \
     restart",
    "without it the host's name, which is the pod's in Kubernetes",
);
pub(super) static KVSTORE_LEASE_TTL: Setting = text(
    ALLOCATE,
    "kvstore-lease-ttl",
    "TIME",
    Some("15m"),
    "How long references outlive a gateway that went without a goodbye",
    "Cilium's",
);
pub(super) static KVSTORE_LOCK_LEASE_TTL: Setting = text(
    ALLOCATE,
    "kvstore-lock-lease-ttl",
    "TIME",
    Some("25s"),
    "How long a lock outlives its holder",
    "Cilium's, where it is no setting",
);
pub(super) static KVSTORE_PERIODIC_SYNC: Setting = text(
    ALLOCATE,
    "kvstore-periodic-sync",
    "TIME",
    Some("5m"),
    "How often the store is checked for everything in use here, and what is missing written again; jittered",
    "Cilium's",
);
pub(super) static ALLOCATOR_LIST_TIMEOUT: Setting = text(
    ALLOCATE,
    "allocator-list-timeout",
    "TIME",
    Some("3m"),
    "How long an allocation waits for the first list of the cluster's identities, if its caller does",
    "Cilium's",
);
pub(super) static RELEASE_ON_SHUTDOWN: Setting = switch(
    ALLOCATE,
    "release-on-shutdown",
    "false",
    "Delete this gateway's references when it stops, rather than leave them to its successor or their lease",
    "a restart within the lease's time changes nothing",
);
pub(super) static ENABLE_GC: Setting = switch(
    ALLOCATE,
    "enable-gc",
    "false",
    "Collect identities and locks that nobody uses; one replica does at a time",
    "Cilium's operator does it already where there is one",
);
pub(super) static IDENTITY_GC_INTERVAL: Setting = text(
    ALLOCATE,
    "identity-gc-interval",
    "TIME",
    Some("15m"),
    "Time between two rounds over identities; the second that finds one unused and untouched deletes it",
    "Cilium's",
);
pub(super) static IDENTITY_GC_RATE_LIMIT: Setting = text(
    ALLOCATE,
    "identity-gc-rate-limit",
    "COUNT",
    Some("2500"),
    "Identities deleted in identity-gc-rate-interval, at most",
    "Cilium's",
);
pub(super) static IDENTITY_GC_RATE_INTERVAL: Setting = text(
    ALLOCATE,
    "identity-gc-rate-interval",
    "TIME",
    Some("1m"),
    "The time that identity-gc-rate-limit counts for",
    "Cilium's",
);
pub(super) static LOCK_GC_INTERVAL: Setting = text(
    ALLOCATE,
    "lock-gc-interval",
    "TIME",
    Some("30s"),
    "Time between two rounds over locks; a lock that is the same in both is deleted",
    "longer than a lock's lease: what is older is leaked, or its lease is kept alive by changes of etcd's leader",
);
pub(super) static ANNOUNCE_CLUSTER: Setting = switch(
    ALLOCATE,
    "announce-cluster",
    "false",
    "Write the own cluster's heartbeat, configuration and canary, which other clusters' readers want",
    "Cilium's operator and its clustermesh-apiserver write them already where there are some",
);
pub(super) static ANNOUNCE_INTERVAL: Setting = text(
    ALLOCATE,
    "announce-interval",
    "TIME",
    Some("1m"),
    "How often the heartbeat is written, and the other two are checked and written again where they are gone",
    "Cilium's; readers think a heartbeat lost after two minutes",
);

pub(super) static LISTEN: Setting = text(
    SERVE,
    "listen",
    "IP:PORT",
    Some("0.0.0.0:4280"),
    "Where the gRPC API listens",
    "subscribers are on other hosts; mutual TLS guards it",
);
pub(super) static TLS_CERT: Setting =
    text(SERVE, "tls-cert", "FILE", None, "Certificate chain of the gRPC API, PEM", "required unless plaintext");
pub(super) static TLS_KEY: Setting =
    text(SERVE, "tls-key", "FILE", None, "Private key of that certificate, PEM", "required unless plaintext");
pub(super) static TLS_CLIENT_CA: Setting = text(
    SERVE,
    "tls-client-ca",
    "FILE",
    None,
    "CAs whose clients may use the gRPC API, PEM",
    "required unless plaintext",
);
pub(super) static PLAINTEXT: Setting = switch(
    SERVE,
    "plaintext",
    "false",
    "Serve the gRPC API without TLS; only where it listens on a loopback address",
    "identities are what policy is made of: who may read them is never an accident",
);
pub(super) static MAX_SUBSCRIBERS: Setting = text(
    SERVE,
    "max-subscribers",
    "COUNT",
    Some("1024"),
    "Subscription streams at a time; further ones are refused",
    "an agent on each of 1,000 nodes; each may hold about 1 MiB of encoded frames while it does not read",
);
pub(super) static MAX_SUBSCRIPTIONS_PER_CLIENT: Setting = text(
    SERVE,
    "max-subscriptions-per-client",
    "COUNT",
    Some("256"),
    "The same for one client, that is, one certificate at one address",
    "an agent has one or two, and many may come by one translated address; a quarter of all leaves room for others",
);
pub(super) static ACCESS_POLICY: Setting = text(
    SERVE,
    "access-policy",
    "FILE",
    None,
    "YAML that says which names of clients' certificates may do what and see which clusters; read again as it changes",
    "without it, whoever the CAs in tls-client-ca vouch for may do everything",
);
pub(super) static RESUME_HISTORY_MEMORY: Setting = text(
    SERVE,
    "resume-history-memory",
    "MIB",
    Some("64"),
    "MiB of replaced versions that are kept for subscribers that come back with a token; 0 keeps none",
    "twenty thousand changes, estimated at 3 KiB each; with less, more of those that come back get everything anew",
);
pub(super) static RESUME_HISTORY_AGE: Setting = text(
    SERVE,
    "resume-history-age",
    "TIME",
    Some("10m"),
    "How long after it was replaced a version is kept at most",
    "longer than the restart of a node takes",
);
pub(super) static SUBSCRIBER_HOLD_LIMIT: Setting = text(
    SERVE,
    "subscriber-hold-limit",
    "TIME",
    Some("5m"),
    "How long an old version is held for a subscriber that does not read; then it is sent away, with tokens to come back with",
    "longer than any pause of a live client; half of resume-history-age, so that it can resume",
);
pub(super) static SUBSCRIBER_MAX_AGE: Setting = text(
    SERVE,
    "subscriber-max-age",
    "TIME|never",
    Some("never"),
    "How old a stream may grow, give or take a fifth; then its client is told to come back, and resumes",
    "streams stay where they are; give an hour where a load balancer should spread them anew",
);
pub(super) static HTTP_LISTEN: Setting = text(
    SERVE,
    "http-listen",
    "IP:PORT",
    Some("127.0.0.1:4281"),
    "Where /metrics, /livez and /readyz are served, without TLS",
    "readable for the host only, until somebody decides otherwise",
);
pub(super) static SHUTDOWN_GRACE: Setting = text(
    SERVE,
    "shutdown-grace",
    "TIME",
    Some("10s"),
    "How long streams may take to end once the gateway stops; then they are cut",
    "well below the 30 s that Kubernetes waits before it kills",
);

pub(super) static LOG_FORMAT: Setting =
    text(LOGS, "log-format", "text|json", Some("text"), "How log lines look, on standard error", "for people");
pub(super) static LOG_LEVEL: Setting = text(
    LOGS,
    "log-level",
    "LEVEL",
    Some("info"),
    "off, error, warn, info, debug, trace; or directives like info,meshgate::kvstore=debug",
    "every change of state of a peer, nothing that repeats with each event",
);

/// All settings, in the order of `--help`.
pub(super) static ALL: [&Setting; 53] = [
    &CLUSTER_NAME,
    &CLUSTER_ID,
    &MAX_CONNECTED_CLUSTERS,
    &KVSTORE_OPT,
    &CLUSTERMESH_CONFIG,
    &PEER_RESCAN_INTERVAL,
    &PEER_READINESS_WAIT,
    &STATE_DIR,
    &PEER_TTL,
    &DIAL_TIMEOUT,
    &CALL_TIMEOUT,
    &KEEPALIVE_INTERVAL,
    &KEEPALIVE_TIMEOUT,
    &PROGRESS_INTERVAL,
    &LIVENESS_TIMEOUT,
    &RESOLVE_INTERVAL,
    &HEARTBEAT_TIMEOUT,
    &PEER_HEARTBEAT,
    &AUDIT_INTERVAL,
    &LIST_READS,
    &BACKOFF_BASE,
    &BACKOFF_MAX,
    &LIST_PAGE_SIZE,
    &ENABLE_ALLOCATOR,
    &NODE_NAME,
    &KVSTORE_LEASE_TTL,
    &KVSTORE_LOCK_LEASE_TTL,
    &KVSTORE_PERIODIC_SYNC,
    &ALLOCATOR_LIST_TIMEOUT,
    &RELEASE_ON_SHUTDOWN,
    &ENABLE_GC,
    &IDENTITY_GC_INTERVAL,
    &IDENTITY_GC_RATE_LIMIT,
    &IDENTITY_GC_RATE_INTERVAL,
    &LOCK_GC_INTERVAL,
    &ANNOUNCE_CLUSTER,
    &ANNOUNCE_INTERVAL,
    &LISTEN,
    &TLS_CERT,
    &TLS_KEY,
    &TLS_CLIENT_CA,
    &PLAINTEXT,
    &ACCESS_POLICY,
    &MAX_SUBSCRIBERS,
    &MAX_SUBSCRIPTIONS_PER_CLIENT,
    &RESUME_HISTORY_MEMORY,
    &RESUME_HISTORY_AGE,
    &SUBSCRIBER_HOLD_LIMIT,
    &SUBSCRIBER_MAX_AGE,
    &HTTP_LISTEN,
    &SHUTDOWN_GRACE,
    &LOG_FORMAT,
    &LOG_LEVEL,
];

/// The setting of that name.
pub(super) fn named(name: &str) -> Option<&'static Setting> {
    ALL.into_iter().find(|setting| setting.name == name)
}
