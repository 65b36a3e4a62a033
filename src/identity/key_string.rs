//! Key strings: the stored form of a label set.

use std::iter::FusedIterator;

use super::LabelRef;

/// Why bytes are not a key string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyStringError {
    /// Not UTF-8.
    #[error("not UTF-8 from byte {0} on")]
    NotUtf8(usize),
}

impl KeyStringError {
    /// A word for metrics and counters, from a bounded set.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NotUtf8(_) => "not_utf8",
        }
    }
}

/// The text of a stored value. Cilium takes any bytes for a key string; we refuse what protobuf, JSON and a terminal
/// could not carry, as an error of that one entry.
///
/// # Errors
/// [`KeyStringError::NotUtf8`] with the offset of the first byte that is not.
pub fn key_string_from_bytes(bytes: &[u8]) -> Result<&str, KeyStringError> {
    std::str::from_utf8(bytes).map_err(|error| KeyStringError::NotUtf8(error.valid_up_to()))
}

/// The labels of a key string in stored order, parts with an empty key left out. Borrows; allocates nothing.
#[must_use]
pub fn labels_of(key_string: &str) -> Labels<'_> {
    Labels { rest: key_string }
}

/// Iterator of [`labels_of`].
#[derive(Clone, Debug)]
pub struct Labels<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Labels<'a> {
    type Item = LabelRef<'a>;

    fn next(&mut self) -> Option<LabelRef<'a>> {
        while !self.rest.is_empty() {
            let part = match memchr::memchr(b';', self.rest.as_bytes()) {
                Some(end) => {
                    let part = &self.rest[..end];
                    self.rest = &self.rest[end + 1..];
                    part
                }
                None => std::mem::take(&mut self.rest),
            };
            let label = LabelRef::parse(part);
            if !label.key.is_empty() {
                return Some(label);
            }
        }
        None
    }
}

impl FusedIterator for Labels<'_> {}

/// Renders labels as a key string, in the order given: `source:key=value;` each.
pub fn render_key_string<'a>(labels: impl IntoIterator<Item = LabelRef<'a>>) -> String {
    let mut out = String::new();
    for label in labels {
        label.push_stored_form(&mut out);
    }
    out
}

/// The key string of a label set: sorted bytewise by label key, the source not considered. Labels that share a key (no
/// set of Cilium's has such) keep their order.
pub fn sorted_key_string<'a>(labels: impl IntoIterator<Item = LabelRef<'a>>) -> String {
    let mut labels: Vec<_> = labels.into_iter().collect();
    labels.sort_by_key(|label| label.key);
    let mut out = String::with_capacity(labels.iter().map(LabelRef::stored_len).sum());
    for label in &labels {
        label.push_stored_form(&mut out);
    }
    out
}
