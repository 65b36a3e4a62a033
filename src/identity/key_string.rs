//! Key strings: the stored form of a label set.

use super::LabelRef;

/// Why bytes are not a key string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyStringError {
    /// Not UTF-8.
    #[error("not UTF-8 from byte {0} on")]
    NotUtf8(usize),
}

/// The labels of a key string in stored order, parts with an empty key left out. Borrows; allocates nothing.
pub fn labels_of(_key_string: &str) -> impl Iterator<Item = LabelRef<'_>> + Clone {
    std::iter::empty()
}

/// Renders labels as a key string, in the order given: `source:key=value;` each.
pub fn render_key_string<'a>(_labels: impl IntoIterator<Item = LabelRef<'a>>) -> String {
    unimplemented!("skeleton")
}
