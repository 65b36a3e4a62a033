//! Reserved, well-known and user-reserved identities, and scopes.

use meshgate::identity::{
    ClusterName, FIXED_IDENTITY_LABEL_KEY, LabelRef, NumericIdentity, ReservedIdentities, Scope, UserReservedError,
    labels_of,
};

use super::Label;
use super::tables::{self, ReservedRow, Static};

fn reserved_of(table: &Static) -> ReservedIdentities {
    ReservedIdentities::new(&ClusterName::new(&table.well_known_cluster_name).unwrap(), &table.well_known_namespace)
}

fn parsed(labels: &[String]) -> impl Iterator<Item = LabelRef<'_>> + Clone {
    labels.iter().map(|label| LabelRef::parse(label))
}

#[test]
fn names_have_cilium_s_numbers() {
    let reserved = ReservedIdentities::default();
    for row in tables::both().into_iter().flat_map(|table| table.reserved_names) {
        // Cilium answers 0 for a name it does not know, and "cluster" and "none" are such.
        let number = reserved.by_name(&row.name).map_or(0, NumericIdentity::get);
        assert_eq!(number, row.id, "{row:?}");
    }
}

#[test]
fn reserved_and_well_known_identities_are_cilium_s() {
    for table in tables::both() {
        let reserved = reserved_of(&table);
        assert_eq!(table.well_known_identities.len(), table.well_known_count);
        let rows: Vec<&ReservedRow> = table.reserved_identities.iter().chain(&table.well_known_identities).collect();
        for row in &rows {
            let number = NumericIdentity::new(row.id);
            let entry = reserved.by_number(number).unwrap_or_else(|| panic!("{row:?}"));
            assert_eq!(*entry.key_string, row.sorted_list, "{row:?}");
            let shown: Vec<_> = labels_of(&entry.key_string).map(|label| label.to_string()).collect();
            assert_eq!(shown, row.labels, "{row:?}");
            assert_eq!(reserved.by_labels(labels_of(&row.sorted_list)), Some(number), "{row:?}");
            assert!(!reserved.needs_global_identity(labels_of(&row.sorted_list)), "{row:?}");
        }
        let ours: Vec<_> = reserved.iter().map(|entry| entry.number.get()).collect();
        let theirs: Vec<_> = rows.iter().map(|row| row.id).collect();
        assert_eq!(ours, theirs, "no more, no fewer");
    }
}

#[test]
fn well_known_identities_are_off_by_default() {
    let [table, _] = tables::both();
    let reserved = ReservedIdentities::default();
    for row in table.well_known_identities {
        assert_eq!(reserved.by_number(NumericIdentity::new(row.id)), None, "{row:?}");
        assert!(reserved.needs_global_identity(labels_of(&row.sorted_list)), "{row:?}");
    }
}

/// The golden namespace is `kube-system` itself. That DNS stays there wherever Cilium is installed is from Cilium's
/// `InitWellKnownIdentities`.
#[test]
fn only_cilium_s_own_components_are_in_its_namespace() {
    let reserved = ReservedIdentities::new(&ClusterName::new("cluster-a").unwrap(), "cilium");
    for number in 100..=115 {
        let entry = reserved.by_number(NumericIdentity::new(number)).unwrap();
        let expected = match number {
            102..=104 | 106 | 110..=112 | 114 => "kube-system",
            _ => "cilium",
        };
        for label in labels_of(&entry.key_string).filter(|label| label.key.contains("namespace")) {
            assert_eq!(label.value, expected, "{number}");
        }
    }
}

#[test]
fn a_label_set_has_cilium_s_scope_and_reserved_number() {
    for table in tables::both() {
        let reserved = reserved_of(&table);
        for row in &table.scopes {
            let input = row.labels_input.as_deref().unwrap_or_default();
            let labels = input.iter().map(Label::as_ref);
            let scope = Scope::of_labels(labels.clone());
            assert_eq!((scope.as_str(), scope.bits()), (&*row.scope, row.scope_bits), "{row:?}");
            assert_eq!(reserved.by_labels(labels.clone()).map(NumericIdentity::get), row.reserved_id, "{row:?}");
            assert_eq!(reserved.needs_global_identity(labels.clone()), row.needs_global_identity, "{row:?}");
            // Shown in the order of the whole text, not that of storage.
            let mut shown: Vec<_> = labels.map(|label| label.to_string()).collect();
            shown.sort();
            if row.name == "cidr6" {
                // A label that Cilium made from a network shows it as such; one read from a store, as here, does not (golden
                // `parse_label`, `cidr:fd00--1/128`).
                assert_eq!(
                    (&*shown, &*row.labels),
                    (&["cidr:fd00--0/8".to_owned()][..], &["cidr:fd00::/8".to_owned()][..])
                );
            } else {
                assert_eq!(shown, row.labels, "{row:?}");
            }
        }
    }
}

#[test]
fn a_user_s_number_is_had_by_its_label() {
    for table in tables::both() {
        let row = table.user_defined_fixed_identity;
        let number = NumericIdentity::new(row.id);
        let label = parsed(&row.labels).find(|label| label.key == FIXED_IDENTITY_LABEL_KEY).unwrap();
        let unconfigured = ReservedIdentities::default();
        let configured = unconfigured.clone().with_user_reserved(number, label.value).unwrap();

        assert_eq!(configured.by_labels(parsed(&row.labels)), Some(number));
        assert!(!configured.needs_global_identity(parsed(&row.labels)));
        assert_eq!((configured.by_name(label.value), configured.name_of(number)), (Some(number), Some(label.value)));
        assert_eq!(unconfigured.by_labels(parsed(&row.labels)), None);
        assert!(unconfigured.needs_global_identity(parsed(&row.labels)));
    }
}

#[test]
fn a_fixed_identity_label_outweighs_reserved_labels_and_takes_no_number_of_cilium_s() {
    let reserved = ReservedIdentities::default().with_user_reserved(NumericIdentity::new(200), "mine").unwrap();
    let by = |key_string: &'static str| reserved.by_labels(labels_of(key_string)).map(NumericIdentity::get);
    assert_eq!(by("k8s:io.cilium.fixed-identity=mine;reserved:host=;"), Some(200));
    assert_eq!(by("k8s:io.cilium.fixed-identity=yours;reserved:host=;"), None);
    assert_eq!(by("k8s:io.cilium.fixed-identity=host;"), None);
    assert_eq!(by("reserved:mine=;"), None);
}

#[test]
fn a_user_s_mapping_is_checked() {
    let refused = |number, name| {
        let mine = ReservedIdentities::default().with_user_reserved(NumericIdentity::new(200), "mine").unwrap();
        mine.with_user_reserved(NumericIdentity::new(number), name).unwrap_err()
    };
    assert_eq!(refused(127, "a"), UserReservedError::Number(NumericIdentity::new(127)));
    assert_eq!(refused(256, "a"), UserReservedError::Number(NumericIdentity::new(256)));
    assert_eq!(refused(201, ""), UserReservedError::Name(String::new()));
    assert_eq!(refused(201, "a;b"), UserReservedError::Name("a;b".into()));
    assert_eq!(refused(200, "a"), UserReservedError::NumberTaken(NumericIdentity::new(200)));
    for (name, holder) in [("mine", 200), ("host", 1)] {
        let holder = NumericIdentity::new(holder);
        assert_eq!(refused(201, name), UserReservedError::NameTaken { name: name.into(), holder });
    }
}
