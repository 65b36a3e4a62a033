//! Reserved and well-known identities: numbers that need no allocation.

mod names;
mod well_known;

use super::{ClusterName, LabelRef, NumericIdentity, SOURCE_RESERVED, Scope, sorted_key_string};

/// Key of the label that gives a workload a number that a user reserved; the value is the name given to the number.
pub const FIXED_IDENTITY_LABEL_KEY: &str = "io.cilium.fixed-identity";

/// The tables of one cluster: a few dozen entries, built once, searched from front to back.
#[derive(Clone, Debug)]
pub struct ReservedIdentities {
    entries: Vec<ReservedIdentity>,
}

/// A number that stands for certain labels without having been allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedIdentity {
    /// The number.
    pub number: NumericIdentity,
    /// Its name; well-known components have none.
    pub name: Option<Box<str>>,
    /// The labels, as they would be stored.
    pub key_string: Box<str>,
}

/// What every cluster has: the numbers that Cilium reserves by name.
impl Default for ReservedIdentities {
    fn default() -> Self {
        let entries = names::LABELLED.map(|(number, key_string)| ReservedIdentity {
            number,
            name: number.reserved_name().map(Into::into),
            key_string: key_string.into(),
        });
        Self { entries: entries.into() }
    }
}

impl ReservedIdentities {
    /// The default ones and the well-known components of a cluster whose Cilium runs in `namespace`. Agents have the
    /// latter only if they are so configured (`--enable-well-known-identities`).
    #[must_use]
    pub fn new(cluster_name: &ClusterName, namespace: &str) -> Self {
        let mut reserved = Self::default();
        reserved.entries.extend(
            well_known::well_known(cluster_name, namespace).map(|(number, key_string)| ReservedIdentity {
                number,
                name: None,
                key_string: key_string.into(),
            }),
        );
        reserved
    }

    /// Adds a number that a user reserved under a name, for workloads with the label `io.cilium.fixed-identity=<name>`
    /// (Cilium's `--fixed-identity-mapping`).
    ///
    /// # Errors
    /// A number outside 128 to 255; a name that is empty or would not survive in a key string; either used before.
    pub fn with_user_reserved(mut self, number: NumericIdentity, name: &str) -> Result<Self, UserReservedError> {
        if !number.is_user_reserved() {
            return Err(UserReservedError::Number(number));
        }
        if name.is_empty() || name.contains([':', ';', '=']) {
            return Err(UserReservedError::Name(name.to_owned()));
        }
        if self.by_number(number).is_some() {
            return Err(UserReservedError::NumberTaken(number));
        }
        if let Some(holder) = self.by_name(name) {
            return Err(UserReservedError::NameTaken { name: name.to_owned(), holder });
        }
        let label = LabelRef { source: SOURCE_RESERVED, key: name, value: "" };
        let key_string = sorted_key_string([label]).into();
        self.entries.push(ReservedIdentity { number, name: Some(name.into()), key_string });
        Ok(self)
    }

    /// All of them: those of Cilium by number, then those of users in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = &ReservedIdentity> {
        self.entries.iter()
    }

    /// The reserved identity with this number.
    #[must_use]
    pub fn by_number(&self, number: NumericIdentity) -> Option<&ReservedIdentity> {
        self.entries.iter().find(|entry| entry.number == number)
    }

    /// The name of a number, Cilium's or a user's.
    #[must_use]
    pub fn name_of(&self, number: NumericIdentity) -> Option<&str> {
        number.reserved_name().or_else(|| self.by_number(number)?.name.as_deref())
    }

    /// The number with this name, Cilium's or a user's.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<NumericIdentity> {
        NumericIdentity::from_reserved_name(name).or_else(|| {
            let entry = self.entries.iter().find(|entry| entry.name.as_deref() == Some(name))?;
            Some(entry.number)
        })
    }

    /// The reserved identity that a label set has, whatever its scope. More sets have one than the tables list: a node
    /// keeps its identity with any labels beside `reserved:host` or `reserved:remote-node`.
    #[must_use]
    pub fn by_labels<'a>(&self, labels: impl Iterator<Item = LabelRef<'a>> + Clone) -> Option<NumericIdentity> {
        let key_string = sorted_key_string(labels.clone());
        let listed = self.entries.iter().find(|entry| *entry.key_string == key_string);
        // A user's number is had by its fixed-identity label alone, not by naming it as a reserved label.
        if let Some(listed) = listed.filter(|entry| !entry.number.is_user_reserved()) {
            return Some(listed.number);
        }
        if let Some(fixed) = labels.clone().find(|label| label.key == FIXED_IDENTITY_LABEL_KEY) {
            // With an unknown name the set is an ordinary one, even if it has reserved labels too.
            return self.by_name(fixed.value).filter(|number| number.is_user_reserved());
        }
        let has = |key| labels.clone().any(|label| label == LabelRef { source: SOURCE_RESERVED, key, value: "" });
        if has("host") {
            return NumericIdentity::from_reserved_name("host");
        }
        if has("remote-node") {
            let name = if has("kube-apiserver") { "kube-apiserver" } else { "remote-node" };
            return NumericIdentity::from_reserved_name(name);
        }
        // What is left for a single label is a value, which does not count: `reserved:world=x`.
        let mut rest = labels;
        match (rest.next(), rest.next()) {
            (Some(label), None) if label.source == SOURCE_RESERVED => {
                NumericIdentity::from_reserved_name(label.key).filter(|&number| self.by_number(number).is_some())
            }
            _ => None,
        }
    }

    /// Whether a label set needs a number from the cluster's allocator: it is global and not reserved.
    #[must_use]
    pub fn needs_global_identity<'a>(&self, labels: impl Iterator<Item = LabelRef<'a>> + Clone) -> bool {
        Scope::of_labels(labels.clone()) == Scope::Global && self.by_labels(labels).is_none()
    }
}

/// Why a user's number cannot be reserved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserReservedError {
    /// Not one of the users' numbers.
    #[error("{0} cannot be reserved, users have the numbers 128 to 255")]
    Number(NumericIdentity),
    /// Empty, or would end or split in the wrong place in a key string.
    #[error("'{0}' cannot name a reserved number: a name is not empty and has no ':', ';' or '='")]
    Name(String),
    /// Reserved under another name already.
    #[error("{0} is reserved twice")]
    NumberTaken(NumericIdentity),
    /// The name belongs to another number.
    #[error("the name '{name}' is taken by {holder}")]
    NameTaken {
        /// The name.
        name: String,
        /// The number it has.
        holder: NumericIdentity,
    },
}
