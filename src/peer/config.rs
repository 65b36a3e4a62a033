//! What a cluster says about itself (WIRE.md, "Remote clusters"), and whether it fits us. Pure.

use serde::Deserialize;

use crate::identity::{ClusterId, ClusterIdError, ClusterName, MaxConnectedClusters};

/// Our own side of the comparison.
#[derive(Clone, Debug)]
pub struct Us {
    /// Our cluster's name; a peer file of that name is ours and ignored.
    pub name: ClusterName,
    /// Our cluster's ID.
    pub id: ClusterId,
    /// How the mesh splits its numbers.
    pub width: MaxConnectedClusters,
}

/// A cluster's configuration as announced: whatever is absent is zero or false, whatever is unknown is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Wire")]
pub struct ClusterConfig {
    /// 0 where none is announced.
    pub id: u32,
    /// The cluster says by canaries when its data is complete.
    pub synced_canaries: bool,
    /// The etcd holds a cache of the cluster's data, under the cache prefix.
    pub cached: bool,
    /// 0 where none is announced, which means 255.
    pub max_connected_clusters: u32,
}

/// As it is written. Go reads an explicit `null` as "absent", hence the options.
#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    id: Option<u32>,
    #[serde(default)]
    capabilities: Option<Capabilities>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Capabilities {
    #[serde(default)]
    synced_canaries: Option<bool>,
    #[serde(default)]
    cached: Option<bool>,
    #[serde(default)]
    max_connected_clusters: Option<u32>,
}

impl From<Wire> for ClusterConfig {
    fn from(wire: Wire) -> Self {
        let capabilities = wire.capabilities.unwrap_or_default();
        Self {
            id: wire.id.unwrap_or_default(),
            synced_canaries: capabilities.synced_canaries.unwrap_or_default(),
            cached: capabilities.cached.unwrap_or_default(),
            max_connected_clusters: capabilities.max_connected_clusters.unwrap_or_default(),
        }
    }
}

/// Why a cluster cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The announced ID is none that this mesh can have.
    #[error("{0}")]
    Id(#[from] ClusterIdError),
    /// The announced ID is our own.
    #[error("the cluster announces ID {0}, which is our own")]
    IdOurs(ClusterId),
    /// The two split the numbers at different bits, so each would misread the other's.
    #[error("the cluster's numbers are made for {theirs} clusters, ours for {ours}")]
    Width {
        /// What it announces.
        theirs: u32,
        /// What we are set to.
        ours: u16,
    },
}

impl ConfigError {
    /// Bounded set of names; a metric label.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Id(ClusterIdError::Zero) => "cluster-id-unset",
            Self::Id(ClusterIdError::AboveMaximum { .. }) => "cluster-id-out-of-range",
            Self::IdOurs(_) => "cluster-id-ours",
            Self::Width { .. } => "max-connected-clusters",
        }
    }

    /// What to do.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Id(ClusterIdError::Zero) => "set cluster.id in that cluster's Cilium configuration".into(),
            Self::Id(ClusterIdError::AboveMaximum { max, .. }) => {
                format!("give that cluster an ID from 1 to {max}, or run the whole mesh with maxConnectedClusters 511")
            }
            Self::IdOurs(_) => "every cluster of a mesh needs an ID of its own: change that cluster's or ours".into(),
            Self::Width { .. } => {
                "set maxConnectedClusters (ours: --max-connected-clusters) to the same value in every cluster of the mesh"
                    .into()
            }
        }
    }
}

impl ClusterConfig {
    /// Reads the value of a cluster-config key.
    ///
    /// # Errors
    /// Not JSON, or a field of another type.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        // By way of an object: serde would take an array for the fields in order.
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json)?;
        serde_json::from_value(object.into())
    }

    /// The cluster's ID, if the cluster fits `us`.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn validate(&self, us: &Us) -> Result<ClusterId, ConfigError> {
        // The width first: another width is the reason why an ID above the maximum is there.
        if MaxConnectedClusters::from_number(self.max_connected_clusters) != Some(us.width) {
            let theirs = if self.max_connected_clusters == 0 { 255 } else { self.max_connected_clusters };
            return Err(ConfigError::Width { theirs, ours: us.width.max_id() });
        }
        let id = ClusterId::new(self.id, us.width)?;
        if id == us.id { Err(ConfigError::IdOurs(id)) } else { Ok(id) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(width: MaxConnectedClusters) -> Us {
        Us { name: ClusterName::new("us").unwrap(), id: ClusterId::new(1, width).unwrap(), width }
    }

    fn validate(json: &str, width: MaxConnectedClusters) -> Result<u16, &'static str> {
        ClusterConfig::parse(json.as_bytes()).unwrap().validate(&us(width)).map(ClusterId::get).map_err(|e| e.reason())
    }

    #[test]
    fn reads_what_cilium_writes() {
        let full = ClusterConfig::parse(
            br#"{"id":9,"capabilities":{"syncedCanaries":true,"cached":true,"maxConnectedClusters":511,"serviceExportsEnabled":false}}"#,
        );
        let all = ClusterConfig { id: 9, synced_canaries: true, cached: true, max_connected_clusters: 511 };
        assert_eq!(full.unwrap(), all);
        for nearly_empty in [r#"{"capabilities":{}}"#, "{}", r#"{"id":null,"capabilities":null,"new":[1]}"#] {
            assert_eq!(ClusterConfig::parse(nearly_empty.as_bytes()).unwrap(), ClusterConfig::default());
        }
        for broken in ["", "x", "[]", r#"{"id":-1}"#, r#"{"id":"7"}"#, r#"{"id":7"#, r#"{"capabilities":true}"#] {
            assert!(ClusterConfig::parse(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    #[test]
    fn p05_the_widths_must_agree() {
        use MaxConnectedClusters::{C255, C511};
        let with = |width: u32| format!(r#"{{"id":7,"capabilities":{{"maxConnectedClusters":{width}}}}}"#);
        assert_eq!(validate(&with(511), C511), Ok(7));
        for wrong in [r#"{"id":7}"#.to_owned(), with(255), with(300)] {
            assert_eq!(validate(&wrong, C511), Err("max-connected-clusters"));
        }
        assert_eq!(validate(r#"{"id":7}"#, C255), Ok(7));
        assert_eq!(validate(&with(255), C255), Ok(7));
        assert_eq!(validate(&with(511), C255), Err("max-connected-clusters"));
    }

    #[test]
    fn p06_refuses_our_id_zero_and_what_is_too_high() {
        let c255 = MaxConnectedClusters::C255;
        assert_eq!(validate(r#"{"id":1}"#, c255), Err("cluster-id-ours"));
        assert_eq!(validate("{}", c255), Err("cluster-id-unset"));
        assert_eq!(validate(r#"{"id":256}"#, c255), Err("cluster-id-out-of-range"));
        assert_eq!(validate(r#"{"id":255}"#, c255), Ok(255));
    }
}
