//! Keys and values of one cluster's store (the names are Cilium's; `tests/golden/` shows what a real one wrote).

use std::time::SystemTime;

use serde::Serialize;

use crate::identity::MaxConnectedClusters;

/// Rewritten by every healthy cluster once a minute.
pub const HEARTBEAT_KEY: &str = "cilium/.heartbeat";

/// What a cluster writes a canary for: each is a prefix below `cilium/state/` or `cilium/cache/`.
const RESOURCES: [&str; 5] = ["identities/v1", "ip/v1", "nodes/v1", "serviceexports/v1", "services/v1"];

/// A cluster, as far as its store shows it. Nothing is checked, so that a test can build a wrong one.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// Its ID.
    pub id: u32,
    /// How many clusters its numbers can tell apart.
    pub width: MaxConnectedClusters,
    /// Announces canaries.
    pub synced_canaries: bool,
    /// The store is another cluster's mirror of this one: the cache prefixes hold the data.
    pub cached: bool,
    /// Exports services, or not, or does not know of it.
    pub service_exports: Option<bool>,
}

#[derive(Serialize)]
struct Config {
    #[serde(skip_serializing_if = "is_zero")]
    id: u32,
    capabilities: Capabilities,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Capabilities {
    #[serde(skip_serializing_if = "is_false")]
    synced_canaries: bool,
    #[serde(skip_serializing_if = "is_false")]
    cached: bool,
    #[serde(skip_serializing_if = "is_zero")]
    max_connected_clusters: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_exports_enabled: Option<bool>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl Cluster {
    /// As a Cilium 1.18 announces itself.
    #[must_use]
    pub fn new(name: &str, id: u32) -> Self {
        Self {
            name: name.to_owned(),
            id,
            width: MaxConnectedClusters::C255,
            synced_canaries: true,
            cached: false,
            service_exports: Some(true),
        }
    }

    /// The same cluster in a mirror.
    #[must_use]
    pub fn cached(mut self) -> Self {
        self.cached = true;
        self
    }

    /// Where the configuration is.
    #[must_use]
    pub fn config_key(&self) -> String {
        format!("cilium/cluster-config/{}", self.name)
    }

    /// The configuration: zero values left out, fields in Cilium's order.
    #[must_use]
    pub fn config_json(&self) -> String {
        let config = Config {
            id: self.id,
            capabilities: Capabilities {
                synced_canaries: self.synced_canaries,
                cached: self.cached,
                max_connected_clusters: u32::from(self.width.max_id()),
                service_exports_enabled: self.service_exports,
            },
        };
        // Numbers, flags and fixed names always are JSON; without them there would be no value.
        serde_json::to_string(&config).unwrap_or_default()
    }

    /// Below which identities are, numbers following.
    #[must_use]
    pub fn identity_prefix(&self) -> String {
        if self.cached {
            format!("cilium/cache/identities/v1/{}/id/", self.name)
        } else {
            "cilium/state/identities/v1/id/".to_owned()
        }
    }

    /// Key of one identity.
    #[must_use]
    pub fn identity_key(&self, number: u32) -> String {
        format!("{}{number}", self.identity_prefix())
    }

    /// Key of one node's reference to an identity; the value is the number.
    #[must_use]
    pub fn reference_key(&self, key_string: &str, node: &str) -> String {
        format!("cilium/state/identities/v1/value/{key_string}/{node}")
    }

    /// Key of the canary that says the identities are complete.
    #[must_use]
    pub fn canary_key(&self) -> String {
        self.canary(RESOURCES[0])
    }

    /// All canaries.
    pub fn canary_keys(&self) -> impl Iterator<Item = String> {
        RESOURCES.iter().map(|resource| self.canary(resource))
    }

    fn canary(&self, resource: &str) -> String {
        let tree = if self.cached { "cache" } else { "state" };
        format!("cilium/synced/{}/cilium/{tree}/{resource}", self.name)
    }

    /// Lowest and highest number of the cluster.
    #[must_use]
    pub fn numbers(&self) -> std::ops::RangeInclusive<u32> {
        let base = self.id << self.width.shift();
        let reserved = if self.id == 0 { 256 } else { 0 };
        base + reserved..=base + (1 << self.width.shift()) - 1
    }

    /// How many numbers the cluster has.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.numbers().end() - self.numbers().start() + 1
    }
}

/// Time as canaries and heartbeats have it.
pub(super) fn timestamp() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
