//! The own cluster, its store, and the peers.

use super::{CLUSTER, STORES, Setting, Shape, text};

pub(in crate::config) static CLUSTER_NAME: Setting = text(
    CLUSTER,
    "cluster-name",
    "NAME",
    Some("default"),
    "Name of the gateway's own cluster",
    "Cilium's default; a cluster of a mesh needs a name of its own",
);
pub(in crate::config) static CLUSTER_ID: Setting = text(
    CLUSTER,
    "cluster-id",
    "ID",
    Some("0"),
    "ID of the gateway's own cluster, unique in the mesh: 1 to max-connected-clusters",
    "Cilium's default, 0, means not set: allowed only without peers",
);
pub(in crate::config) static MAX_CONNECTED_CLUSTERS: Setting = text(
    CLUSTER,
    "max-connected-clusters",
    "255|511",
    Some("255"),
    "How many clusters the mesh's identity numbers can tell apart; the same in every cluster",
    "Cilium's default",
);

pub(in crate::config) static KVSTORE_OPT: Setting = Setting {
    name: "kvstore-opt",
    group: STORES,
    value: "KEY=VALUE",
    shape: Shape::Pairs,
    default: None,
    help: "Options of the cluster's own store: etcd.config=PATH names its etcd client YAML; etcd.qps, etcd.bootstrapQps and \
           etcd.maxInflight limit what the allocator asks of it",
    why: "the first is required: the gateway reads its own cluster's identities there; without limits there are none",
};
pub(in crate::config) static CLUSTERMESH_CONFIG: Setting = text(
    STORES,
    "clustermesh-config",
    "DIRECTORY",
    None,
    "Directory with one etcd client YAML per peer cluster; a file's name is the cluster's name",
    "without it there are no peers",
);
pub(in crate::config) static PEER_RESCAN_INTERVAL: Setting = text(
    STORES,
    "peer-rescan-interval",
    "TIME",
    Some("5s"),
    "How often that directory is read again",
    "reading it costs less than a millisecond, and no notification reports every way in which Kubernetes swaps a mount",
);
pub(in crate::config) static PEER_READINESS_WAIT: Setting = text(
    STORES,
    "peer-readiness-wait",
    "TIME",
    Some("30s"),
    "How long readiness waits for the first sync of the peers; it goes on without those that are missing then",
    "several times what a large peer takes; bounded, so that two gateways that wait for each other both start",
);
pub(in crate::config) static STATE_DIR: Setting = text(
    STORES,
    "state-dir",
    "DIRECTORY",
    None,
    "Where a picture of each peer is kept, which is shown after a restart until the peer is reached; made if need be",
    "without it the gateway knows nothing of peers that are away when it starts; each gateway needs one of its own",
);
pub(in crate::config) static PEER_TTL: Setting = text(
    STORES,
    "peer-ttl",
    "TIME|never",
    Some("never"),
    "How long a peer may be out of step, for whatever cause, before its entries are withdrawn",
    "what was true of a peer is a better guess than nothing, until somebody removes its file",
);
pub(in crate::config) static DIAL_TIMEOUT: Setting = text(
    STORES,
    "dial-timeout",
    "TIME",
    Some("4s"),
    "Deadline of each of name resolution, TCP and TLS, per endpoint",
    "two lost SYN packets are retried within it (1 s, 3 s), and one dead endpoint costs less than 5 s",
);
pub(in crate::config) static CALL_TIMEOUT: Setting = text(
    STORES,
    "call-timeout",
    "TIME",
    Some("15s"),
    "Deadline of one etcd call, and of the confirmation of a watch",
    "a page of a list on a slow link takes 2 s; an etcd that elects a leader answers within 5 s",
);
pub(in crate::config) static KEEPALIVE_INTERVAL: Setting = text(
    STORES,
    "keepalive-interval",
    "TIME",
    Some("10s"),
    "How often an etcd connection is pinged; at least 5s",
    "with the timeout below, a dead connection is noticed in 15 s; etcd closes connections that ping more often than every 5 s",
);
pub(in crate::config) static KEEPALIVE_TIMEOUT: Setting = text(
    STORES,
    "keepalive-timeout",
    "TIME",
    Some("5s"),
    "How long a ping may stay unanswered",
    "more than the longest pause that a busy etcd makes",
);
pub(in crate::config) static PROGRESS_INTERVAL: Setting = text(
    STORES,
    "progress-interval",
    "TIME",
    Some("10s"),
    "How often a quiet watch is asked how far it is",
    "costs a few bytes; shows that etcd itself, not only its connection, is alive",
);
pub(in crate::config) static LIVENESS_TIMEOUT: Setting = text(
    STORES,
    "liveness-timeout",
    "TIME",
    Some("30s"),
    "How long a watch may show no sign of life before its session is given up",
    "three unanswered questions",
);
pub(in crate::config) static RESOLVE_INTERVAL: Setting = text(
    STORES,
    "resolve-interval",
    "TIME",
    Some("5m"),
    "How often the name of a store in use is resolved again, to follow it to another address",
    "names move seldom; a look-up that fails changes nothing",
);
pub(in crate::config) static AUDIT_INTERVAL: Setting = text(
    STORES,
    "audit-interval",
    "TIME",
    Some("10m"),
    "How often what is held of a cluster is compared with all keys of its store",
    "65,000 keys without their values are 4 MB; after each resumed watch it is done for what changed anyway",
);
pub(in crate::config) static HEARTBEAT_TIMEOUT: Setting = text(
    STORES,
    "heartbeat-timeout",
    "TIME",
    Some("2m"),
    "How long a peer's heartbeat may stand still before the peer is degraded and another connection is tried",
    "two of Cilium's beats",
);
pub(in crate::config) static PEER_HEARTBEAT: Setting = text(
    STORES,
    "peer-heartbeat",
    "if-present|required|ignored",
    Some("if-present"),
    "Whether a peer's store must have a heartbeat",
    "every Cilium since 1.10 writes one; a store without is no reason to refuse it",
);
pub(in crate::config) static LIST_READS: Setting = text(
    STORES,
    "list-reads",
    "linearizable|serializable",
    Some("linearizable"),
    "Whether a list asks the store's leader, or takes what the member at hand has (a stale member is noticed)",
    "right before cheap",
);
pub(in crate::config) static BACKOFF_BASE: Setting = text(
    STORES,
    "backoff-base",
    "TIME",
    Some("200ms"),
    "Longest wait before the first retry; doubles with each, and each wait is a random part of it",
    "a restarted etcd answers again after a few hundred milliseconds",
);
pub(in crate::config) static BACKOFF_MAX: Setting = text(
    STORES,
    "backoff-max",
    "TIME",
    Some("30s"),
    "Longest wait before any retry",
    "an etcd that returns is noticed within half a minute; hundreds of gateways that wait so long do not hurt it",
);
pub(in crate::config) static LIST_PAGE_SIZE: Setting = text(
    STORES,
    "list-page-size",
    "KEYS",
    Some("8192"),
    "Keys in one page of a list",
    "etcd counts the whole rest for every page, so small ones are slow; large ones are held whole",
);
