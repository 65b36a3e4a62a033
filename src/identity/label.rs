//! One label: source, key, value.

use std::fmt;

/// Source of a label that names none.
pub const SOURCE_UNSPEC: &str = "unspec";
/// Source of what Cilium labels itself: hosts, the world, its own components.
pub const SOURCE_RESERVED: &str = "reserved";
/// Source of what Kubernetes says of a pod and its namespace.
pub const SOURCE_K8S: &str = "k8s";

/// A label, borrowed from the text it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LabelRef<'a> {
    /// Where the label comes from: `k8s`, `reserved`, `cidr`, `unspec`…
    pub source: &'a str,
    /// Name; may contain `:`, and `=` only as read from `reserved:=…`.
    pub key: &'a str,
    /// Value; may contain `=` and `:`.
    pub value: &'a str,
}

impl<'a> LabelRef<'a> {
    /// Parses `source:key=value` by the rules of WIRE.md ("Labels and the key string"); never fails, an empty key is the
    /// caller's to judge.
    #[must_use]
    pub fn parse(text: &'a str) -> Self {
        let (source, rest) = split_source(text);
        let (key, value) = match memchr::memchr(b'=', rest.as_bytes()) {
            None => (rest, ""),
            // `reserved:=host`: what stands for the value is the key, whatever it holds.
            Some(0) if source == Some(SOURCE_RESERVED) => (&rest[1..], ""),
            Some(equals) => (&rest[..equals], &rest[equals + 1..]),
        };
        Self { source: source.unwrap_or(SOURCE_UNSPEC), key, value }
    }

    /// A label from parts that a user gave. `key` may carry a source of its own (`k8s:app`, `$host`, `reserved.host`),
    /// which counts only where `source` is empty; the key of `reserved:` is the value.
    #[must_use]
    pub fn from_parts(source: &'a str, key: &'a str, value: &'a str) -> Self {
        let (in_key, key) = split_source(key);
        let source = if source.is_empty() { in_key.unwrap_or(SOURCE_UNSPEC) } else { source };
        if in_key == Some(SOURCE_RESERVED) && key.is_empty() {
            Self { source, key: value, value: "" }
        } else {
            Self { source, key, value }
        }
    }

    /// Appends the stored form, `source:key=value;`.
    pub fn push_stored_form(&self, out: &mut String) {
        out.reserve(self.stored_len());
        for part in [self.source, ":", self.key, "=", self.value, ";"] {
            out.push_str(part);
        }
    }

    /// Length of the stored form in bytes.
    #[must_use]
    pub const fn stored_len(&self) -> usize {
        self.source.len() + self.key.len() + self.value.len() + ":=;".len()
    }
}

/// For people: `source:key=value`, without the `=` where the value is empty.
impl fmt::Display for LabelRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.source, self.key)?;
        if self.value.is_empty() { Ok(()) } else { write!(f, "={}", self.value) }
    }
}

/// The source that `text` names, if any, and what follows it.
fn split_source(text: &str) -> (Option<&str>, &str) {
    if let Some(rest) = text.strip_prefix('$') {
        return (Some(SOURCE_RESERVED), rest);
    }
    match memchr::memchr(b':', text.as_bytes()) {
        Some(0) => (None, &text[1..]),
        Some(colon) => (Some(&text[..colon]), &text[colon + 1..]),
        None => match text.strip_prefix("reserved.") {
            Some(rest) => (Some(SOURCE_RESERVED), rest),
            None => (None, text),
        },
    }
}
