//! What our own cluster says of itself to readers of its etcd: heartbeat, configuration, canary. The operator of a Cilium
//! cluster may write the same already; then this is switched off.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{LeaseTerms, LeasedKey, Leases, Store};
use crate::allocator::backend::rfc3339;
use crate::identity::{ClusterId, ClusterName, MaxConnectedClusters};
use crate::kvstore::SessionError;

/// Where the heartbeat is.
const HEARTBEAT: &str = "cilium/.heartbeat";
/// How soon a failed write is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// What to say.
#[derive(Clone, Debug)]
pub struct Presence {
    /// Our cluster's name.
    pub name: ClusterName,
    /// Its ID.
    pub id: ClusterId,
    /// How the mesh splits its numbers.
    pub width: MaxConnectedClusters,
    /// The prefix that the canary vouches for: everything in it is ours and complete.
    pub prefix: String,
    /// How often the heartbeat is rewritten, and the rest looked at; readers think it lost after 120 s.
    pub interval: Duration,
}

impl Presence {
    /// The configuration as JSON, zero values left out as Cilium does.
    #[must_use]
    pub fn config_json(&self) -> String {
        let mut config = Map::new();
        if self.id.get() != 0 {
            config.insert("id".to_owned(), json!(self.id.get()));
        }
        let capabilities = json!({ "syncedCanaries": true, "maxConnectedClusters": self.width.max_id() });
        config.insert("capabilities".to_owned(), capabilities);
        Value::Object(config).to_string()
    }

    /// Key and value of everything but the heartbeat. The canary is last: it vouches for the rest.
    fn entries(&self, now: SystemTime) -> [(String, String); 2] {
        [
            (format!("cilium/cluster-config/{}", self.name), self.config_json()),
            (format!("cilium/synced/{}/{}", self.name, self.prefix), rfc3339(now)),
        ]
    }

    /// Writes, and writes again whatever somebody deleted or changed, until cancelled. What is there then ends with its
    /// lease.
    pub async fn assert(&self, store: &Store, cancel: CancellationToken) {
        let terms = LeaseTerms { max_keys: 16, ..LeaseTerms::REFERENCES };
        let leases = Leases::new(store.clone(), terms);
        let writing = async {
            let mut losses = leases.losses();
            loop {
                let pause = match self.write(store, &leases).await {
                    Ok(()) => self.interval,
                    Err(error) => {
                        tracing::warn!(%error, "heartbeat and configuration not written");
                        RETRY
                    }
                };
                tokio::select! {
                    () = sleep(pause) => {}
                    // The sender lives as long as `leases`.
                    _ = losses.changed() => {}
                }
            }
        };
        tokio::select! {
            // Boxed: both are large, and live as long as the gateway.
            () = Box::pin(leases.clone().run(cancel)) => {}
            () = Box::pin(writing) => {}
        }
    }

    async fn write(&self, store: &Store, leases: &Leases) -> Result<(), SessionError> {
        let now = SystemTime::now();
        for (key, value) in self.entries(now) {
            let handle: LeasedKey = key.as_str().into();
            let lease = leases.attach(&handle).await?;
            let found = store.get(&key).await?;
            // The canary's time is that of its first writing; its presence is what counts.
            let same = |entry: &crate::kvstore::KeyValue| {
                entry.lease == lease && (entry.value == value.as_bytes() || key.starts_with("cilium/synced/"))
            };
            if !found.as_ref().is_some_and(same) {
                put(store, leases, &key, value, lease).await?;
            }
        }
        let lease = leases.attach(&HEARTBEAT.into()).await?;
        put(store, leases, HEARTBEAT, rfc3339(now), lease).await
    }
}

async fn put(store: &Store, leases: &Leases, key: &str, value: String, lease: i64) -> Result<(), SessionError> {
    let written = store.put(key, value, lease).await.map(drop);
    if matches!(written, Err(SessionError::LeaseNotFound)) {
        leases.not_found(lease);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_cilium_says_in_the_same_words() {
        let width = MaxConnectedClusters::C511;
        let presence = Presence {
            name: ClusterName::new("cfg-noexports").unwrap(),
            id: ClusterId::new(300, width).unwrap(),
            width,
            prefix: "cilium/state/identities/v1".to_owned(),
            interval: Duration::from_mins(1),
        };
        let path = format!("{}/tests/golden/etcd_mesh.json", env!("CARGO_MANIFEST_DIR"));
        let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let entry = (golden["entries"].as_array().unwrap().iter())
            .find(|entry| entry["key"] == "cilium/cluster-config/cfg-noexports")
            .unwrap();
        let ours: Value = serde_json::from_str(&presence.config_json()).unwrap();
        let theirs: Value = serde_json::from_str(entry["value"].as_str().unwrap()).unwrap();
        assert_eq!(ours, theirs);
        let keys = presence.entries(SystemTime::UNIX_EPOCH).map(|(key, _)| key);
        assert_eq!(keys[1], "cilium/synced/cfg-noexports/cilium/state/identities/v1");
    }
}
