//! A label set that can be allocated: its key string, checked up front. Pure.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use super::AllocError;
use crate::identity::{LabelRef, labels_of, sorted_key_string};

/// Longest key string that is taken, in bytes. Readers of the store refuse more (the mirror's limit is the same), and
/// etcd would refuse from 1.5 MiB on, for ever (FIELD-FAULTS, A14).
pub const MAX_KEY_STRING: usize = 16 * 1024;

/// The canonical key string of a label set; cheap to clone. It reads back as exactly the labels it was made of, which not
/// every set does: a `;` in a value would end the label there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// From labels, in any order.
    ///
    /// # Errors
    /// [`AllocError::InvalidLabels`]: none, too many, two of one key, or a label that would not read back as it is.
    pub fn from_labels<'a>(labels: impl IntoIterator<Item = LabelRef<'a>>) -> Result<Self, AllocError> {
        let mut labels: Vec<LabelRef<'a>> = labels.into_iter().collect();
        labels.sort_by_key(|label| label.key);
        let text = sorted_key_string(labels.iter().copied());
        for label in &labels {
            let stored = sorted_key_string([*label]);
            let mut read = labels_of(&stored);
            if read.next() != Some(*label) || read.next().is_some() {
                return Err(invalid(format!(
                    "the label {:?} would not read back as it is",
                    shortened(&label.to_string())
                )));
            }
        }
        Self::checked(&text, &labels)
    }

    /// From a key string in stored form.
    ///
    /// # Errors
    /// As [`Self::from_labels`], and a key string that is not in stored form.
    pub fn parse(text: &str) -> Result<Self, AllocError> {
        if text.len() > MAX_KEY_STRING {
            return Err(too_long(text));
        }
        let labels: Vec<LabelRef<'_>> = labels_of(text).collect();
        if sorted_key_string(labels.iter().copied()) != text {
            return Err(invalid(format!("{:?} is not a sorted list of labels in stored form", shortened(text))));
        }
        Self::checked(text, &labels)
    }

    /// `labels` are those of `text`, sorted.
    fn checked(text: &str, labels: &[LabelRef<'_>]) -> Result<Self, AllocError> {
        if labels.is_empty() {
            return Err(invalid("there are none".to_owned()));
        }
        if text.len() > MAX_KEY_STRING {
            return Err(too_long(text));
        }
        if let Some(pair) = labels.windows(2).find(|pair| pair[0].key == pair[1].key) {
            return Err(invalid(format!("two labels have the key {:?}", shortened(pair[0].key))));
        }
        if text.contains('\0') {
            return Err(invalid("a zero byte".to_owned()));
        }
        Ok(Self(text.into()))
    }

    /// The key string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn invalid(problem: String) -> AllocError {
    AllocError::InvalidLabels(problem)
}

fn too_long(text: &str) -> AllocError {
    invalid(format!("the key string has {} bytes, at most {MAX_KEY_STRING} are taken", text.len()))
}

/// For messages: a user's text can have any length.
fn shortened(text: &str) -> &str {
    text.char_indices().nth(64).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label<'a>(source: &'a str, key: &'a str, value: &'a str) -> LabelRef<'a> {
        LabelRef { source, key, value }
    }

    #[test]
    fn a10_odd_labels_round_trip_or_are_refused_up_front() {
        let long = "x".repeat(300);
        for value in ["", "a=b==c", r"back\slash", "reg.example:5000/app:v1", "köln-東京", &long] {
            let key = Key::from_labels([label("k8s", "k", value)]).unwrap();
            assert_eq!(labels_of(key.as_str()).collect::<Vec<_>>(), [label("k8s", "k", value)]);
            assert_eq!(Key::parse(key.as_str()).unwrap(), key);
        }
        for (source, key, value) in [
            ("k8s", "k", "a;b"),
            ("k8s", "", "v"),
            ("k8s", "a=b", "v"),
            ("a:b", "k", "v"),
            ("$x", "k", ""),
            ("", "k", "v"),
        ] {
            let error = Key::from_labels([label(source, key, value)]).unwrap_err();
            assert_eq!(error.reason(), "invalid-labels", "{source}:{key}={value}");
        }
    }

    #[test]
    fn a14_a_request_larger_than_the_store_allows_is_refused_for_good() {
        let huge = "x".repeat(2 << 20);
        for error in [
            Key::from_labels([label("k8s", "k", &huge)]).unwrap_err(),
            Key::parse(&format!("k8s:k={huge};")).unwrap_err(),
        ] {
            assert_eq!((error.reason(), error.is_retryable()), ("invalid-labels", false));
            assert!(error.to_string().len() < 200);
        }
    }

    #[test]
    fn refuses_what_is_no_set() {
        assert!(Key::from_labels([]).is_err());
        assert!(Key::parse("").is_err());
        assert!(Key::from_labels([label("k8s", "a", "1"), label("any", "a", "2")]).is_err());
        assert!(Key::parse("k8s:b=1;k8s:a=2;").is_err(), "not sorted");
        assert!(Key::parse("k8s:a=1").is_err(), "not in stored form");
        let sorted = Key::from_labels([label("k8s", "b", "1"), label("any", "a", "2")]).unwrap();
        assert_eq!(sorted.as_str(), "any:a=2;k8s:b=1;");
    }
}
