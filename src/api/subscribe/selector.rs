//! Label selectors in Kubernetes' syntax, matched against labels that have a source.
//!
//! A key that names a source (`k8s:app`) matches labels of that source; `any:app` and plain `app` those of any, as in
//! Cilium's policies. With `!=`, `notin` and `!key` a selector matches what has no such label, as in Kubernetes.

use std::fmt;

use crate::identity::LabelRef;
use crate::view::Identity;

/// Longer than any that a person writes; each identity of the mesh is matched against it.
const MAX_LENGTH: usize = 4_096;
/// Cilium's word for "whatever the source".
const ANY: &str = "any";

/// Why a text is no selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub(super) struct SelectorError {
    what: String,
    at: usize,
}

/// All requirements hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Requirement {
    /// `None` is any.
    source: Option<Box<str>>,
    key: Box<str>,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operator {
    Exists,
    DoesNotExist,
    /// Sorted.
    In(Vec<Box<str>>),
    /// Sorted.
    NotIn(Vec<Box<str>>),
}

impl Selector {
    /// Parses; `None` for a text that asks for nothing.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, SelectorError> {
        if text.len() > MAX_LENGTH {
            let what = format!("{} bytes are given, at most {MAX_LENGTH} are allowed; the rest begins", text.len());
            return Err(SelectorError { what, at: MAX_LENGTH });
        }
        let mut parser = Parser { text, at: 0 };
        parser.skip_space();
        if parser.rest().is_empty() {
            return Ok(None);
        }
        let mut requirements = vec![parser.requirement()?];
        while parser.eat(",") {
            requirements.push(parser.requirement()?);
        }
        if !parser.rest().is_empty() {
            return Err(parser.expected("`,` or the end"));
        }
        requirements.sort();
        requirements.dedup();
        Ok(Some(Self { requirements }))
    }

    /// Whether these labels are selected.
    pub(super) fn matches<'a, I>(&self, labels: &I) -> bool
    where
        I: Iterator<Item = LabelRef<'a>> + Clone,
    {
        self.requirements.iter().all(|requirement| requirement.holds(labels.clone()))
    }

    pub(super) fn selects(&self, identity: &Identity) -> bool {
        self.matches(&identity.labels().iter().map(crate::view::Label::parts))
    }
}

/// The same text for selectors that are the same.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, requirement) in self.requirements.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{requirement}")?;
        }
        Ok(())
    }
}

impl Requirement {
    fn holds<'a>(&self, labels: impl Iterator<Item = LabelRef<'a>>) -> bool {
        let mut named = labels.filter(|label| {
            *label.key == *self.key && self.source.as_deref().is_none_or(|source| source == label.source)
        });
        let is_one_of = |values: &[Box<str>], label: &LabelRef<'_>| {
            values.binary_search_by(|value| (**value).cmp(label.value)).is_ok()
        };
        match &self.operator {
            Operator::Exists => named.next().is_some(),
            Operator::DoesNotExist => named.next().is_none(),
            Operator::In(values) => named.any(|label| is_one_of(values, &label)),
            Operator::NotIn(values) => !named.any(|label| is_one_of(values, &label)),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = self.source.as_deref().unwrap_or(ANY);
        let key = &self.key;
        match &self.operator {
            Operator::Exists => write!(f, "{source}:{key}"),
            Operator::DoesNotExist => write!(f, "!{source}:{key}"),
            Operator::In(values) => write!(f, "{source}:{key} in ({})", values.join(",")),
            Operator::NotIn(values) => write!(f, "{source}:{key} notin ({})", values.join(",")),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
            self.skip_space();
        }
        found
    }

    fn expected(&self, what: &str) -> SelectorError {
        let found = match self.rest().chars().next() {
            Some(char) => format!("`{}`", char.escape_debug()),
            None => "the end".to_owned(),
        };
        SelectorError { what: format!("expected {what}, found {found}"), at: self.at }
    }

    /// Everything up to what ends a key or a value; may be empty.
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|char: char| char.is_whitespace() || ",()=!<>".contains(char)).unwrap_or(rest.len());
        self.at += end;
        self.skip_space();
        &rest[..end]
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let is_negated = self.eat("!");
        let begin = self.at;
        let name = self.word();
        let (source, key) = match name.split_once(':') {
            Some((source, key)) => (Some(source).filter(|source| *source != ANY), key),
            None => (None, name),
        };
        if key.is_empty() {
            return Err(Self { text: self.text, at: begin }.expected("a label key"));
        }
        let operator = match (is_negated, self.operator()?) {
            (true, Operator::Exists) => Operator::DoesNotExist,
            (true, _) => {
                let what = "`!` before a key asks for its absence, and no value can follow; requirement".to_owned();
                return Err(SelectorError { what, at: begin });
            }
            (false, operator) => operator,
        };
        Ok(Requirement { source: source.map(Into::into), key: key.into(), operator })
    }

    fn operator(&mut self) -> Result<Operator, SelectorError> {
        if self.eat("==") || self.eat("=") {
            return Ok(Operator::In(vec![self.word().into()]));
        }
        if self.eat("!=") {
            return Ok(Operator::NotIn(vec![self.word().into()]));
        }
        if self.rest().is_empty() || self.rest().starts_with(',') {
            return Ok(Operator::Exists);
        }
        let begin = self.at;
        match self.word() {
            "in" => Ok(Operator::In(self.values()?)),
            "notin" => Ok(Operator::NotIn(self.values()?)),
            _ => Err(Self { text: self.text, at: begin }.expected("`=`, `==`, `!=`, `in`, `notin`, `,` or the end")),
        }
    }

    fn values(&mut self) -> Result<Vec<Box<str>>, SelectorError> {
        if !self.eat("(") {
            return Err(self.expected("`(` and values"));
        }
        let mut values: Vec<Box<str>> = vec![self.word().into()];
        while self.eat(",") {
            values.push(self.word().into());
        }
        if !self.eat(")") {
            return Err(self.expected("`,` or `)`"));
        }
        values.sort();
        values.dedup();
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::labels_of;

    fn matches(selector: &str, key_string: &str) -> bool {
        Selector::parse(selector).unwrap().is_none_or(|selector| selector.matches(&labels_of(key_string)))
    }

    // The cases of k8s.io/apimachinery/pkg/labels/selector_test.go, the comparisons of numbers left out.
    #[test]
    fn means_what_it_means_in_kubernetes() {
        let both = "k8s:x=y;k8s:z=w;";
        for (selector, key_string, expected) in [
            ("", "k8s:x=y;", true),
            ("x=y", "k8s:x=y;", true),
            ("x=y,z=w", both, true),
            ("x!=y,z!=w", "k8s:x=z;k8s:z=a;", true),
            ("notin=in", "k8s:notin=in;", true),
            ("x", "k8s:x=z;", true),
            ("!x", "k8s:y=z;", true),
            ("x=z", "", false),
            ("x=y", "k8s:x=z;", false),
            ("x=y,z=w", "k8s:x=w;k8s:z=w;", false),
            ("x!=y,z!=w", "k8s:x=z;k8s:z=w;", false),
            ("x", "k8s:y=z;", false),
            ("!x", "k8s:x=z;", false),
            ("x in (a,b)", "k8s:x=b;", true),
            ("x in (a,b)", "k8s:y=b;", false),
            ("x notin (a,b)", "k8s:x=c;", true),
            ("x notin (a,b)", "k8s:y=a;", true),
            ("x notin (a,b)", "k8s:x=a;", false),
            ("x=", "k8s:x=;", true),
            ("x in (a,)", "k8s:x=;", true),
            ("foo=bar,foobar=bar,baz=blah", "k8s:foo=bar;k8s:baz=blah;", false),
        ] {
            assert_eq!(matches(selector, key_string), expected, "{selector} on {key_string}");
        }
    }

    #[test]
    fn a_source_counts_where_it_is_named() {
        let labels = "container:app=a;k8s:app=b;reserved:host=;";
        for (selector, expected) in [
            ("app=a", true),
            ("k8s:app=a", false),
            ("any:app=b", true),
            ("k8s:app!=a", true),
            ("app!=a", false),
            ("reserved:host", true),
            ("!k8s:host", true),
            ("!cidr:app,container:app", true),
        ] {
            assert_eq!(matches(selector, labels), expected, "{selector}");
        }
    }

    #[test]
    fn the_same_selector_has_the_same_text() {
        let text = |selector: &str| Selector::parse(selector).unwrap().map(|selector| selector.to_string());
        assert_eq!(text("  b in ( y , x,y ) ,!c , any:a == v,b in (x,y)"), text("a=v,b in (x,y),!c"));
        assert_eq!(text("a=v,b in (x,y),!c").as_deref(), Some("any:a in (v),any:b in (x,y),!any:c"));
        assert_eq!(text("  "), None);
        // And what it says can be read again.
        assert_eq!(text(&text("k8s:a notin (1,2),!b").unwrap()), text("!b,k8s:a notin (2,1)"));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (selector, message) in [
            ("a=b,", "expected a label key, found the end at byte 4"),
            ("=b", "expected a label key, found `=` at byte 0"),
            ("k8s:", "expected a label key, found `k` at byte 0"),
            ("a b", "expected `=`, `==`, `!=`, `in`, `notin`, `,` or the end, found `b` at byte 2"),
            ("a in b", "expected `(` and values, found `b` at byte 5"),
            ("a in (b", "expected `,` or `)`, found the end at byte 7"),
            ("a=b)", "expected `,` or the end, found `)` at byte 3"),
            ("!a=b", "`!` before a key asks for its absence, and no value can follow; requirement at byte 1"),
            ("ä>1", "expected `=`, `==`, `!=`, `in`, `notin`, `,` or the end, found `>` at byte 2"),
        ] {
            assert_eq!(Selector::parse(selector).unwrap_err().to_string(), message, "{selector}");
        }
        assert!(Selector::parse(&"a,".repeat(3_000)).unwrap_err().to_string().contains("6000 bytes are given"));
    }
}
