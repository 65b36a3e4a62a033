//! The label by which an identity says which cluster it belongs to, and what a peer's identities must say there.

use super::{LabelRef, SOURCE_K8S};

/// Key of the label that names the cluster an identity belongs to; its source must be `k8s` (WIRE.md, "Remote clusters").
pub const CLUSTER_LABEL_KEY: &str = "io.cilium.k8s.policy.cluster";

/// Checks that a remote identity says of itself that it belongs to `expected_cluster`. Every label with the key counts,
/// so that none can contradict another; the first wrong one is reported.
///
/// # Errors
/// No such label, or one with another source or another cluster.
pub fn check_cluster_label<'a>(
    labels: impl IntoIterator<Item = LabelRef<'a>>,
    expected_cluster: &str,
) -> Result<(), ClusterLabelError> {
    let mut found = false;
    for label in labels {
        if label.key != CLUSTER_LABEL_KEY {
            continue;
        }
        if label.source != SOURCE_K8S {
            return Err(ClusterLabelError::WrongSource { got: label.source.to_owned() });
        }
        if label.value != expected_cluster {
            return Err(ClusterLabelError::WrongCluster { got: label.value.to_owned() });
        }
        found = true;
    }
    if found { Ok(()) } else { Err(ClusterLabelError::Missing) }
}

/// Why a remote identity's cluster label is refused. What was got comes from the peer: any length, any characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterLabelError {
    /// No label has the key.
    #[error("could not find expected label {CLUSTER_LABEL_KEY}")]
    Missing,
    /// The label is there, but not from Kubernetes.
    #[error("unexpected source for cluster label: got {got:?}, expected {SOURCE_K8S:?}")]
    WrongSource {
        /// The source found.
        got: String,
    },
    /// The label names another cluster.
    #[error("unexpected cluster name: got {got:?}")]
    WrongCluster {
        /// The name found.
        got: String,
    },
}

impl ClusterLabelError {
    /// A word for metrics and counters, from a bounded set.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Missing => "cluster_label_missing",
            Self::WrongSource { .. } => "cluster_label_source",
            Self::WrongCluster { .. } => "cluster_label_mismatch",
        }
    }
}
