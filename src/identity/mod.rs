//! Labels, key strings, numeric identities, scopes, ranges, reserved identities: pure values, no I/O, no tokio.
//!
//! Knows no other room. The rules come from the etcd layout that Cilium writes; `tests/golden/` holds what a real one
//! wrote, and every row of it that concerns this room is a test.

mod checksum;
mod cluster;
mod cluster_label;
mod key_string;
mod label;
mod numeric;
mod range;
mod reserved;
mod scope;

pub use checksum::{contribution, contribution_of_hash, key_hash};
pub use cluster::{
    ClusterError, ClusterId, ClusterIdError, ClusterName, ClusterNameError, MaxConnectedClusters, validate_cluster,
};
pub use cluster_label::{CLUSTER_LABEL_KEY, ClusterLabelError, check_cluster_label};
pub use key_string::{
    KeyStringError, Part, Parts, key_string_from_bytes, labels_of, parts_of, render_key_string, sorted_key_string,
};
pub use label::{LabelRef, SOURCE_K8S, SOURCE_RESERVED, SOURCE_UNSPEC};
pub use numeric::{NumericIdentity, ParseNumericIdentityError};
pub use range::{IdentityRange, RangeError};
pub use reserved::{FIXED_IDENTITY_LABEL_KEY, ReservedIdentities, ReservedIdentity, UserReservedError};
pub use scope::Scope;
