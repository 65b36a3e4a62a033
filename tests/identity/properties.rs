//! What holds for any input.

use meshgate::identity::{
    LabelRef, NumericIdentity, key_string_from_bytes, labels_of, parts_of, render_key_string, sorted_key_string,
};
use proptest::prelude::*;

use super::{Label, owned};

/// A label whose stored form says what it is: nothing in it ends a part too early.
fn storable() -> impl Strategy<Value = Label> {
    ("k8s|reserved|cidr|[^:;$][^:;]{0,6}", "[^=;]{1,24}", "[^;]{0,24}").prop_map(|(source, key, value)| Label {
        source,
        key,
        value,
    })
}

/// Text that meets the parser's corners far more often than chance would.
fn crooked() -> impl Strategy<Value = String> {
    prop::collection::vec(prop_oneof!["[:;=$.]", Just("reserved".to_owned()), "[a-zß]{1,2}"], 0..12)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn rendering_what_was_parsed_gives_the_stored_form_back(labels in prop::collection::vec(storable(), 0..12)) {
        let stored = render_key_string(labels.iter().map(Label::as_ref));
        prop_assert_eq!(owned(labels_of(&stored)), labels);
        prop_assert_eq!(render_key_string(labels_of(&stored)), stored.as_str());
        prop_assert!(parts_of(&stored).all(|part| part.is_stored_form()));
    }

    #[test]
    fn a_part_is_in_stored_form_exactly_if_rendering_changes_nothing(text in crooked()) {
        for part in parts_of(&text) {
            prop_assert_eq!(part.label, LabelRef::parse(part.text));
            let rendered = render_key_string([part.label]);
            prop_assert_eq!(rendered.len(), part.label.stored_len());
            prop_assert_eq!(part.is_stored_form(), rendered.strip_suffix(';') == Some(part.text), "{:?}", part);
        }
    }

    #[test]
    fn any_bytes_can_be_parsed(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = NumericIdentity::parse_canonical(&bytes);
        match key_string_from_bytes(&bytes) {
            Ok(text) => {
                let _ = NumericIdentity::parse_user_input(text);
                prop_assert!(labels_of(text).all(|label| !label.key.is_empty()));
            }
            Err(_) => prop_assert!(std::str::from_utf8(&bytes).is_err()),
        }
    }

    #[test]
    fn any_text_can_be_parsed(text in prop_oneof![any::<String>(), crooked()]) {
        let label = LabelRef::parse(&text);
        prop_assert!(!label.source.is_empty());
        prop_assert!(!label.key.contains('=') || label.source == "reserved");
        let _ = LabelRef::from_parts("", &text, &text);
        let _ = NumericIdentity::parse_user_input(&text);
        prop_assert!(labels_of(&text).all(|label| !label.key.is_empty()));
    }

    #[test]
    fn the_order_of_labels_with_distinct_keys_does_not_matter(
        (sorted, shuffled) in prop::collection::btree_map("[^=;]{1,8}", ("[a-z]{1,4}", "[^;]{0,8}"), 0..16)
            .prop_map(|labels| labels.into_iter().map(|(key, (source, value))| Label { source, key, value }).collect())
            .prop_flat_map(|labels: Vec<Label>| (Just(labels.clone()), Just(labels).prop_shuffle()))
    ) {
        // Strings sort bytewise, as the keys of the map did.
        let expected = render_key_string(sorted.iter().map(Label::as_ref));
        prop_assert_eq!(sorted_key_string(shuffled.iter().map(Label::as_ref)), expected);
    }

    #[test]
    fn a_number_is_read_back_from_every_form(number in any::<u32>()) {
        let expected = Ok(NumericIdentity::new(number));
        let shown = NumericIdentity::new(number).to_string();
        prop_assert_eq!(NumericIdentity::parse_canonical(shown.as_bytes()), expected.clone());
        for typed in [shown, format!("{number:#x}"), format!("{number:#b}"), format!("{number:#o}"), format!("0{number:o}")] {
            prop_assert_eq!(NumericIdentity::parse_user_input(&typed), expected.clone(), "{}", typed);
        }
    }

    #[test]
    fn a_canonical_number_is_exactly_what_is_printed(text in "[+-]?0{0,2}[0-9]{0,11}[ _x/]?") {
        let printed = text.parse().ok().map(NumericIdentity::new).filter(|number| number.to_string() == text);
        prop_assert_eq!(NumericIdentity::parse_canonical(text.as_bytes()).ok(), printed);
    }
}
