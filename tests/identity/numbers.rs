//! Numbers, ranges, cluster IDs and cluster names.

use meshgate::identity::{
    ClusterError, ClusterId, ClusterIdError, ClusterName, ClusterNameError, IdentityRange, MaxConnectedClusters,
    NumericIdentity, RangeError, Scope, validate_cluster,
};

use super::tables;

#[test]
fn numbers_split_and_classify_as_in_cilium() {
    for table in tables::both() {
        for row in &table.numeric_identities {
            let number = NumericIdentity::new(row.id);
            let shown = number.reserved_name().map_or_else(|| number.to_string(), str::to_owned);
            assert_eq!(shown, row.string, "{row:?}");
            let scope = number.scope().map_or_else(|| format!("{:#010x}", row.scope_bits), |scope| scope.to_string());
            assert_eq!(scope, row.scope, "{row:?}");
            assert_eq!(number.scope(), Scope::from_bits(row.scope_bits), "{row:?}");
            assert_eq!(number.scope() == Some(Scope::NodeLocal), row.has_local_scope, "{row:?}");
            assert_eq!(number.scope() == Some(Scope::RemoteNode), row.has_remote_node_scope, "{row:?}");
            assert_eq!(number.cluster_id(table.width()).get(), row.cluster_id, "{row:?}");
            assert_eq!(number.is_cluster(), row.is_cluster, "{row:?}");
            assert_eq!(number.is_reserved(), row.is_reserved, "{row:?}");
            assert_eq!(number.is_user_reserved(), row.is_user_reserved, "{row:?}");
            assert_eq!(number.is_world(), row.is_world, "{row:?}");
        }
    }
}

#[test]
fn the_boundaries_are_cilium_s() {
    for table in tables::both() {
        assert_eq!(table.width().shift(), table.cluster_id_shift);
        assert_eq!(u32::from(table.width().max_id()), table.max_connected_clusters);
        assert_eq!(NumericIdentity::MIN_USER_RESERVED.get(), table.user_reserved_numeric_identity);
        assert_eq!(NumericIdentity::MIN_ALLOCATED.get(), table.minimal_numeric_identity);
        assert_eq!(Scope::NodeLocal.bits(), 1 << table.numeric_identity_bitlength);
        assert_eq!(Scope::NodeLocal.bits() | 1, table.min_local_identity);
        assert_eq!(Scope::RemoteNode.bits() - 1, table.max_local_identity);
    }
}

#[test]
fn a_cluster_allocates_from_cilium_s_range() {
    for table in tables::both() {
        let width = table.width();
        for row in &table.cluster_ranges {
            let id = match ClusterId::new(row.cluster_id, width) {
                Ok(id) => id,
                // Cilium computes this range too, outside any mesh.
                Err(ClusterIdError::Zero) => ClusterId::UNSET,
                // Cilium refuses the ID as we do, yet computes a range for it, up into the next scope. Here no such
                // `ClusterId` can be made.
                Err(ClusterIdError::AboveMaximum { id, max }) => {
                    assert_eq!((id, max), (row.cluster_id, width.max_id()), "{row:?}");
                    assert_eq!(row.error, Some(format!("ClusterID > {max} is not supported")));
                    continue;
                }
            };
            assert_eq!(id != ClusterId::UNSET, row.valid, "{row:?}");
            let range = IdentityRange::of(id, width);
            assert_eq!((range.min(), range.max()), (row.min, row.max), "{row:?}");
            assert_eq!(range.len(), u64::from(row.max - row.min) + 1, "{row:?}");
            assert_eq!(IdentityRange::prefix_mask(id, width), row.prefix_mask, "{row:?}");
            // What the pool hands out carries the mask already, and belongs to the cluster.
            for number in [range.min(), range.max()] {
                assert_eq!(number | row.prefix_mask, number, "{row:?}");
                assert_eq!(NumericIdentity::new(number).cluster_id(width), id, "{row:?}");
                assert!(range.contains(NumericIdentity::new(number)), "{row:?}");
            }
            assert!(!range.contains(NumericIdentity::new(range.min() - 1)), "{row:?}");
            assert!(!range.contains(NumericIdentity::new(range.max() + 1)), "{row:?}");
        }
    }
}

#[test]
fn an_empty_range_and_one_that_begins_at_zero_are_refused() {
    assert_eq!(IdentityRange::new(0, 10), Err(RangeError { min: 0, max: 10 }));
    assert_eq!(IdentityRange::new(11, 10), Err(RangeError { min: 11, max: 10 }));
    assert_eq!(IdentityRange::new(10, 10).unwrap().len(), 1);
    assert_eq!(IdentityRange::new(1, u32::MAX).unwrap().len(), u64::from(u32::MAX));
}

#[test]
fn a_number_typed_by_a_person_is_read_as_go_reads_it() {
    for row in tables::both().into_iter().flat_map(|table| table.parse_numeric_identity) {
        let expected = (!row.error).then_some(NumericIdentity::new(row.out));
        assert_eq!(NumericIdentity::parse_user_input(&row.r#in).ok(), expected, "{row:?}");
    }
    // Beyond the golden rows: what Go's documentation of ParseUint and of number literals says.
    for (text, number) in [("0X_1f", 0x1f), ("0o17", 15), ("0O17", 15), ("0B1_0", 2), ("0_7", 7), ("00", 0)] {
        assert_eq!(NumericIdentity::parse_user_input(text), Ok(NumericIdentity::new(number)), "{text}");
    }
    for text in ["0x", "0b", "0o", "0_", "_1", "1_", "1__0", "0x_", "08", "0b2", "0xg", "1e3", "1 ", "0x1_0000_0000"] {
        assert!(NumericIdentity::parse_user_input(text).is_err(), "{text}");
    }
}

#[test]
fn a_number_in_a_path_is_canonical() {
    for (text, number) in [("0", 0), ("1", 1), ("131094", 131_094), ("4294967295", u32::MAX)] {
        assert_eq!(NumericIdentity::parse_canonical(text.as_bytes()), Ok(NumericIdentity::new(number)), "{text}");
    }
    for text in
        ["", "00", "000131094", "+1", "-1", " 1", "1 ", "0x1", "1_0", "4294967296", "99999999999999999999", "1/x"]
    {
        assert!(NumericIdentity::parse_canonical(text.as_bytes()).is_err(), "{text}");
    }
    assert!(NumericIdentity::parse_canonical(b"1\xff").is_err());
}

#[test]
fn cluster_names_are_judged_as_by_cilium() {
    for row in tables::both().into_iter().flat_map(|table| table.cluster_names) {
        let error = ClusterName::new(&row.name).err();
        assert_eq!(error.is_none(), row.valid, "{row:?}");
        let expected = match error {
            None => None,
            Some(ClusterNameError::Empty) => Some("must not be empty"),
            Some(ClusterNameError::TooLong(_)) => Some("must not be more than 32 characters"),
            Some(ClusterNameError::Characters) => Some(
                "must consist of lower case alphanumeric characters and '-', and must start and end with an \
                 alphanumeric character",
            ),
        };
        assert_eq!(expected, row.error.as_deref(), "{row:?}");
    }
}

#[test]
fn the_default_name_goes_with_no_id_only() {
    let width = MaxConnectedClusters::C255;
    let (name, id) = validate_cluster("default", 0, width).unwrap();
    assert_eq!((name.as_str(), id), ("default", ClusterId::UNSET));
    let (name, id) = validate_cluster("cluster-a", 255, width).unwrap();
    assert_eq!((name.as_str(), id.get()), ("cluster-a", 255));

    let refused = |name, id| validate_cluster(name, id, width).unwrap_err();
    assert!(matches!(refused("default", 1), ClusterError::DefaultName(id) if id.get() == 1));
    assert_eq!(refused("Default", 1), ClusterError::Name(ClusterNameError::Characters));
    assert_eq!(refused("default", 256), ClusterError::Id(ClusterIdError::AboveMaximum { id: 256, max: 255 }));
    assert!(validate_cluster("cluster-a", 256, MaxConnectedClusters::C511).is_ok());
    assert!(validate_cluster("arn:aws:eks:x", 1, width).is_err());
}

#[test]
fn a_mesh_has_255_or_511_clusters() {
    for (number, width) in
        [(0, MaxConnectedClusters::C255), (255, MaxConnectedClusters::C255), (511, MaxConnectedClusters::C511)]
    {
        assert_eq!(MaxConnectedClusters::from_number(number), Some(width));
    }
    for number in [1, 254, 256, 510, 512, u32::MAX] {
        assert_eq!(MaxConnectedClusters::from_number(number), None);
    }
}
