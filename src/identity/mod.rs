//! Labels, key strings, numeric identities, scopes, ranges, reserved identities: pure values, no I/O, no tokio.
//!
//! Knows no other room. The rules come from the etcd layout that Cilium writes; `tests/golden/` holds what a real one
//! wrote, and every row of it that concerns this room is a test.

mod cluster;
mod key_string;
mod label;
mod numeric;
mod range;
mod reserved;
mod scope;

pub use cluster::{ClusterId, ClusterIdError, ClusterName, ClusterNameError, MaxConnectedClusters};
pub use key_string::{KeyStringError, Labels, key_string_from_bytes, labels_of, render_key_string, sorted_key_string};
pub use label::{LabelRef, SOURCE_K8S, SOURCE_RESERVED, SOURCE_UNSPEC};
pub use numeric::{NumericIdentity, ParseNumericIdentityError};
pub use range::{IdentityRange, RangeError};
pub use reserved::ReservedIdentities;
pub use scope::Scope;

/// Key of the label that names the cluster an identity belongs to; its source must be `k8s` (WIRE.md, "Remote clusters").
pub const CLUSTER_LABEL_KEY: &str = "io.cilium.k8s.policy.cluster";
