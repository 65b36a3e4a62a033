//! The file that says who may do what.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::{Grant, Pattern, PatternError, Role, Visible};
use crate::identity::ClusterName;
use crate::tls::CertFacts;

/// Rules, of which every one that a client matches counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessPolicy(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    clients: Vec<Pattern>,
    roles: BTreeSet<Role>,
    visible: Visible,
}

/// Why a file is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Not there, or not ours to read.
    #[error("{path}: cannot be read: {why}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// What is in it.
    #[error("{path}: {error}", path = .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: RuleError,
    },
}

/// What is wrong in a policy, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// Not this YAML.
    #[error("{0}; write `rules:` and a list of `clients`, `roles` and, if not all may be seen, `clusters`")]
    Yaml(String),
    /// A pattern that is none.
    #[error("rules[{rule}].clients[{at}]: `{text}`: {error}")]
    Client {
        /// Position of the rule.
        rule: usize,
        /// Position in the rule.
        at: usize,
        /// As it was written.
        text: String,
        /// What is wrong.
        error: PatternError,
    },
    /// A cluster name that is none.
    #[error("rules[{rule}].clusters[{at}]: `{text}`: {error}")]
    Cluster {
        /// Position of the rule.
        rule: usize,
        /// Position in the rule.
        at: usize,
        /// As it was written.
        text: String,
        /// What is wrong.
        error: crate::identity::ClusterNameError,
    },
    /// A rule that says nothing.
    #[error("rules[{rule}].{field}: is empty, so the rule is for nobody or for nothing; leave the rule out")]
    Empty {
        /// Position of the rule.
        rule: usize,
        /// What is empty.
        field: &'static str,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPolicy {
    rules: Vec<WrittenRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    clients: Vec<String>,
    roles: BTreeSet<Role>,
    clusters: Option<Vec<String>>,
}

impl AccessPolicy {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is no policy.
    pub fn from_file(path: &Path) -> Result<Self, PolicyError> {
        let unreadable = |why: String| PolicyError::Unreadable { path: path.to_owned(), why };
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        Self::from_yaml(&text).map_err(|error| PolicyError::Malformed { path: path.to_owned(), error })
    }

    /// Reads a text.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn from_yaml(text: &str) -> Result<Self, RuleError> {
        let written: WrittenPolicy =
            serde_saphyr::from_str_with_options(text, serde_saphyr::options! { with_snippet: false })
                .map_err(|error| RuleError::Yaml(error.to_string()))?;
        written.rules.into_iter().enumerate().map(|(at, rule)| Rule::read(at, rule)).collect::<Result<_, _>>().map(Self)
    }

    /// What a client with that certificate may do: the roles of all rules that it matches, and to see the clusters of all
    /// of them; an admin sees all.
    #[must_use]
    pub fn grant(&self, certificate: &CertFacts) -> Grant {
        let mut grant = Grant::none();
        for rule in self.0.iter().filter(|rule| rule.clients.iter().any(|client| client.matches(certificate))) {
            grant.roles.extend(&rule.roles);
            grant.visible = match (&grant.visible, &rule.visible) {
                (Visible::Only(before), Visible::Only(more)) => Visible::Only(Arc::new(&**before | &**more)),
                (Visible::All, _) | (_, Visible::All) => Visible::All,
            };
        }
        if grant.is(Role::Admin) {
            grant.visible = Visible::All;
        }
        grant
    }
}

impl Rule {
    fn read(rule: usize, written: WrittenRule) -> Result<Self, RuleError> {
        let WrittenRule { clients, roles, clusters } = written;
        let empty = [
            ("clients", clients.is_empty()),
            ("roles", roles.is_empty()),
            ("clusters", clusters.as_ref().is_some_and(Vec::is_empty)),
        ];
        if let Some((field, _)) = empty.into_iter().find(|(_, empty)| *empty) {
            return Err(RuleError::Empty { rule, field });
        }
        let client =
            |(at, text): (usize, String)| text.parse().map_err(|error| RuleError::Client { rule, at, text, error });
        let cluster = |(at, text): (usize, String)| match ClusterName::new(&text) {
            Ok(_) => Ok(text),
            Err(error) => Err(RuleError::Cluster { rule, at, text, error }),
        };
        let visible = match clusters {
            None => Visible::All,
            Some(clusters) => {
                let clusters: BTreeSet<_> = clusters.into_iter().enumerate().map(cluster).collect::<Result<_, _>>()?;
                Visible::Only(Arc::new(clusters))
            }
        };
        Ok(Self { clients: clients.into_iter().enumerate().map(client).collect::<Result<_, _>>()?, roles, visible })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_one() {
        let example = AccessPolicy::from_yaml(include_str!("../../deploy/access.yaml")).unwrap();
        assert_eq!(example.0.len(), 4);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, words) in [
            ("rules: [{clients: ['dns:a'], roles: [king]}]", "king"),
            ("rules: [{clients: ['dns:a'], roles: [admin], cluster: [a]}]", "cluster"),
            ("roles: []", "rules"),
            ("rules: [{clients: [], roles: [admin]}]", "rules[0].clients: is empty"),
            ("rules: [{clients: ['dns:a'], roles: []}]", "rules[0].roles: is empty"),
            ("rules: [{clients: ['dns:a'], roles: [admin], clusters: []}]", "rules[0].clusters: is empty"),
            ("rules: [{clients: ['dns:a', 'b'], roles: [admin]}]", "rules[0].clients[1]: `b`: a client is"),
            ("rules: [{clients: ['dns:a'], roles: [subscriber], clusters: [Blue]}]", "rules[0].clusters[0]: `Blue`"),
        ] {
            let error = AccessPolicy::from_yaml(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
