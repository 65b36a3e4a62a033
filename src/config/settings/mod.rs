//! Every setting, in one table: flags, variables, file keys, help and defaults are made from it.
//!
//! Where Cilium has a setting for the same thing, its name is Cilium's.

mod allocating;
mod serving;
mod stores;

pub(super) use allocating::*;
pub(super) use serving::*;
pub(super) use stores::*;

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
