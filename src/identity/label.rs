//! One label: source, key, value.

/// A label, borrowed from the text it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LabelRef<'a> {
    /// Where the label comes from: `k8s`, `reserved`, `cidr`, `unspec`…
    pub source: &'a str,
    /// Name; may contain `:` but no `=`.
    pub key: &'a str,
    /// Value; may contain `=` and `:`.
    pub value: &'a str,
}

impl<'a> LabelRef<'a> {
    /// Parses `source:key=value` by the rules of WIRE.md; never fails, an empty key is the caller's to judge.
    #[must_use]
    pub fn parse(_text: &'a str) -> Self {
        unimplemented!("skeleton")
    }
}
