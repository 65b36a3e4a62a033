//! One label, one key string: `parse_label`, `new_label`, `put_key`.

use meshgate::identity::{
    KeyStringError, LabelRef, key_string_from_bytes, labels_of, parts_of, render_key_string, sorted_key_string,
};

use super::{owned, tables};

#[test]
fn a_label_is_parsed_as_cilium_parses_it() {
    for row in tables::both().into_iter().flat_map(|table| table.parse_label) {
        let label = LabelRef::parse(&row.r#in);
        assert_eq!(label, LabelRef { source: &row.source, key: &row.key, value: &row.value }, "{row:?}");
        assert_eq!(render_key_string([label]), row.kvstore, "{row:?}");
        assert_eq!(label.stored_len(), row.kvstore.len(), "{row:?}");
        // Cilium shows an empty key with an empty value as `source:`, and so do we.
        assert_eq!(label.to_string(), row.string, "{row:?}");
    }
}

#[test]
fn a_label_from_parts_is_what_cilium_makes_of_them() {
    for row in tables::both().into_iter().flat_map(|table| table.new_label) {
        let label = LabelRef::from_parts(&row.source_in, &row.key_in, &row.value_in);
        assert_eq!(label, LabelRef { source: &row.source, key: &row.key, value: &row.value }, "{row:?}");
        assert_eq!(render_key_string([label]), row.kvstore, "{row:?}");
    }
}

#[test]
fn a_stored_key_string_is_read_as_cilium_reads_it() {
    for row in tables::both().into_iter().flat_map(|table| table.put_key) {
        assert_eq!(owned(labels_of(&row.r#in)), row.labels.clone().unwrap_or_default(), "{row:?}");
        assert_eq!(render_key_string(labels_of(&row.r#in)), row.get_key, "{row:?}");
        let shown: Vec<_> = labels_of(&row.r#in).map(|label| label.to_string()).collect();
        assert_eq!(format!("[{}]", shown.join(" ")), row.string, "{row:?}");
    }
}

#[test]
fn only_what_is_stored_as_it_would_be_rendered_counts_as_stored_form() {
    for row in tables::both().into_iter().flat_map(|table| table.parse_label) {
        for part in parts_of(&row.r#in) {
            assert_eq!(part.is_stored_form(), format!("{};", part.text) == row.kvstore, "{row:?}");
        }
    }
}

#[test]
fn labels_are_sorted_by_key_alone_and_keep_their_order_within_a_key() {
    let labels = ["k8s:b=1", "any:b=0", "cidr:a=", "k8s:a.b=", "k8s:a=", "k8s:B="].map(LabelRef::parse);
    assert_eq!(sorted_key_string(labels), "k8s:B=;cidr:a=;k8s:a=;k8s:a.b=;k8s:b=1;any:b=0;");
    assert_eq!(sorted_key_string([]), "");
}

#[test]
fn bytes_that_are_not_utf8_are_refused_where_they_begin() {
    assert_eq!(key_string_from_bytes("k8s:app=köln;".as_bytes()), Ok("k8s:app=köln;"));
    assert_eq!(key_string_from_bytes(b"k8s:app=\xff;"), Err(KeyStringError::NotUtf8(8)));
    // An overlong `/`.
    assert_eq!(key_string_from_bytes(b"\xc0\xaf"), Err(KeyStringError::NotUtf8(0)));
    // NUL is a character like any other.
    assert_eq!(key_string_from_bytes(b"k8s:a=\0;"), Ok("k8s:a=\0;"));
}
