//! The rows of `static_255.json` and `static_511.json`.

use meshgate::identity::MaxConnectedClusters;
use serde::Deserialize;

use super::{Label, golden};

/// Both files; what does not depend on the width is in either.
pub fn both() -> [Static; 2] {
    [golden("static_255.json"), golden("static_511.json")]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Static {
    pub cluster_id_shift: u32,
    pub cluster_names: Vec<ClusterNameRow>,
    pub cluster_ranges: Vec<ClusterRangeRow>,
    pub max_connected_clusters: u32,
    pub max_local_identity: u32,
    pub min_local_identity: u32,
    pub minimal_numeric_identity: u32,
    pub new_label: Vec<NewLabelRow>,
    pub numeric_identities: Vec<NumericIdentityRow>,
    pub numeric_identity_bitlength: u32,
    pub parse_label: Vec<ParseLabelRow>,
    pub parse_numeric_identity: Vec<ParseNumericIdentityRow>,
    pub put_key: Vec<PutKeyRow>,
    pub reserved_identities: Vec<ReservedRow>,
    pub reserved_names: Vec<NameRow>,
    pub scopes: Vec<ScopeRow>,
    pub user_defined_fixed_identity: FixedRow,
    pub user_reserved_numeric_identity: u32,
    pub well_known_cluster_name: String,
    pub well_known_count: usize,
    pub well_known_identities: Vec<ReservedRow>,
    pub well_known_namespace: String,
}

impl Static {
    pub fn width(&self) -> MaxConnectedClusters {
        MaxConnectedClusters::from_number(self.max_connected_clusters).unwrap()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterNameRow {
    pub name: String,
    pub valid: bool,
    pub error: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterRangeRow {
    pub cluster_id: u32,
    pub min: u32,
    pub max: u32,
    pub prefix_mask: u32,
    pub valid: bool,
    pub error: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewLabelRow {
    pub source_in: String,
    pub key_in: String,
    pub value_in: String,
    pub source: String,
    pub key: String,
    pub value: String,
    pub kvstore: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "the row's own columns")]
pub struct NumericIdentityRow {
    pub id: u32,
    pub string: String,
    pub scope: String,
    pub scope_bits: u32,
    pub cluster_id: u16,
    pub has_local_scope: bool,
    pub has_remote_node_scope: bool,
    pub is_cluster: bool,
    pub is_reserved: bool,
    pub is_user_reserved: bool,
    pub is_world: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParseLabelRow {
    pub r#in: String,
    pub source: String,
    pub key: String,
    pub value: String,
    pub kvstore: String,
    pub string: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParseNumericIdentityRow {
    pub r#in: String,
    pub out: u32,
    #[serde(default)]
    pub error: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PutKeyRow {
    pub r#in: String,
    pub labels: Option<Vec<Label>>,
    pub get_key: String,
    pub string: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReservedRow {
    pub id: u32,
    pub labels: Vec<String>,
    pub sorted_list: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameRow {
    pub id: u32,
    pub name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScopeRow {
    pub name: String,
    pub labels: Vec<String>,
    pub labels_input: Option<Vec<Label>>,
    pub scope: String,
    pub scope_bits: u32,
    pub reserved_id: Option<u32>,
    pub needs_global_identity: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedRow {
    pub id: u32,
    pub labels: Vec<String>,
}
