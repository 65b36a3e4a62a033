//! Where things are in an etcd that Cilium shares (WIRE.md, "Prefixes").

use crate::identity::ClusterName;

/// Identities of the cluster that owns the etcd, without the final `/id/`.
pub const STATE_PREFIX: &str = "cilium/state/identities/v1";

/// Identities of other clusters, cached for readers: the cluster's name follows.
pub const CACHE_PREFIX: &str = "cilium/cache/identities/v1";

/// Rewritten every minute by whoever owns the etcd; RFC 3339 time.
pub const HEARTBEAT_KEY: &str = "cilium/.heartbeat";

/// Prefix of the master keys of the cluster that owns the etcd. The final `/` matters: a sibling such as `…/id131095` names
/// no identity.
#[must_use]
pub fn state_ids() -> String {
    format!("{STATE_PREFIX}/id/")
}

/// Prefix of the master keys that were cached for `cluster`.
#[must_use]
pub fn cached_ids(cluster: &ClusterName) -> String {
    format!("{CACHE_PREFIX}/{cluster}/id/")
}

/// Key of a cluster's configuration.
#[must_use]
pub fn cluster_config_key(cluster: &ClusterName) -> String {
    format!("cilium/cluster-config/{cluster}")
}

/// Key that says that `prefix` ([`STATE_PREFIX`] or [`CACHE_PREFIX`]) holds all there is of `cluster`.
#[must_use]
pub fn canary_key(cluster: &ClusterName, prefix: &str) -> String {
    format!("cilium/synced/{cluster}/{prefix}")
}
