//! The identity room against what a real Cilium said: every row of `tests/golden/` that concerns it.
//!
//! Rows are read into structs that refuse unknown fields, so that nothing in these files goes unread.

mod labels;
mod numbers;
mod properties;
mod remote;
mod reserved;
mod stored;
mod tables;

use std::path::Path;

use meshgate::identity::LabelRef;
use serde::Deserialize;
use serde::de::DeserializeOwned;

fn golden<T: DeserializeOwned>(file: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Label {
    source: String,
    key: String,
    value: String,
}

impl Label {
    fn as_ref(&self) -> LabelRef<'_> {
        LabelRef { source: &self.source, key: &self.key, value: &self.value }
    }
}

impl From<LabelRef<'_>> for Label {
    fn from(label: LabelRef<'_>) -> Self {
        Self { source: label.source.into(), key: label.key.into(), value: label.value.into() }
    }
}

fn owned<'a>(labels: impl Iterator<Item = LabelRef<'a>>) -> Vec<Label> {
    labels.map(Label::from).collect()
}
