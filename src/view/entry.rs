//! What exists a million times: one label, one identity.

use crate::identity::{LabelRef, NumericIdentity};

/// An interned label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {}

impl Label {
    /// `source:key=value`: the stored form without its final `;`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        unimplemented!("skeleton")
    }

    /// Its parts.
    #[must_use]
    pub fn parts(&self) -> LabelRef<'_> {
        unimplemented!("skeleton")
    }
}

/// One identity: immutable, cheap to clone (one pointer).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {}

impl Identity {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> NumericIdentity {
        unimplemented!("skeleton")
    }

    /// Its labels in stored order.
    #[must_use]
    pub fn labels(&self) -> &[Label] {
        unimplemented!("skeleton")
    }

    /// Its key string, rendered.
    #[must_use]
    pub fn key_string(&self) -> String {
        unimplemented!("skeleton")
    }

    /// The `mod_revision` of the store key it came from; 0 where there is none.
    #[must_use]
    pub fn revision(&self) -> i64 {
        unimplemented!("skeleton")
    }
}
