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
pub fn labels_of(key_string: &str) -> impl Iterator<Item = LabelRef<'_>> + Clone {
    parts_of(key_string).map(|part| part.label)
}

/// As [`labels_of`], with the text that each label stands in.
#[must_use]
pub const fn parts_of(key_string: &str) -> Parts<'_> {
    Parts { rest: key_string }
}

/// A label and the text between two `;` that it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The text, without the `;`.
    pub text: &'a str,
    /// What it says.
    pub label: LabelRef<'a>,
}

impl Part<'_> {
    /// Whether the text is the label's stored form already, so that it need not be rendered: then it is the source, `:`,
    /// the key, `=`, the value. Two bytes and a length decide, for a label lies in its text.
    #[must_use]
    pub fn is_stored_form(&self) -> bool {
        let Self { text, label } = self;
        let colon = label.source.len();
        let equals = colon + 1 + label.key.len();
        text.len() + 1 == label.stored_len()
            && text.as_bytes().get(colon) == Some(&b':')
            && text.as_bytes().get(equals) == Some(&b'=')
    }
}

/// Iterator of [`parts_of`].
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Parts<'a> {
    type Item = Part<'a>;

    fn next(&mut self) -> Option<Part<'a>> {
        while !self.rest.is_empty() {
            let end = memchr::memchr(b';', self.rest.as_bytes()).unwrap_or(self.rest.len());
            let (text, rest) = self.rest.split_at(end);
            self.rest = rest.get(1..).unwrap_or_default();
            let label = LabelRef::parse(text);
            if !label.key.is_empty() {
                return Some(Part { text, label });
            }
        }
        None
    }
}

impl FusedIterator for Parts<'_> {}

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
