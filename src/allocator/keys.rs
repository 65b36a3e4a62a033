//! Where the allocator's keys are in the store (WIRE.md, "Prefixes"). Pure.

use super::{AllocError, Key};
use crate::identity::NumericIdentity;

/// Paths of one allocator: a base shared with everybody, and the suffix that is this node's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    base: String,
    node: String,
}

impl Paths {
    /// Below `base`, such as `cilium/state/identities/v1`; `node` tells this node's references from others'.
    ///
    /// # Errors
    /// A base or a node name that is not made of plain path segments; in the node's case, of exactly one.
    pub fn new(base: &str, node: &str) -> Result<Self, AllocError> {
        if !base.split('/').all(is_plain) {
            return Err(AllocError::Refused(format!("{base:?} is no path of plain segments")));
        }
        if !Self::is_node(node) {
            return Err(AllocError::Refused(format!("{node:?} cannot tell a node: it must be one plain path segment")));
        }
        Ok(Self { base: base.to_owned(), node: node.to_owned() })
    }

    /// Whether that name can tell a node: exactly one plain path segment.
    #[must_use]
    pub fn is_node(name: &str) -> bool {
        is_plain(name) && !name.contains('/')
    }

    /// What everything is below.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Prefix of all master keys.
    #[must_use]
    pub fn masters(&self) -> String {
        format!("{}/id/", self.base)
    }

    /// A number's master key.
    #[must_use]
    pub fn master(&self, number: NumericIdentity) -> String {
        format!("{}/id/{number}", self.base)
    }

    /// The number of a master key.
    #[must_use]
    pub fn number_of_master(&self, path: &[u8]) -> Option<NumericIdentity> {
        let rest = path.strip_prefix(self.base.as_bytes())?.strip_prefix(b"/id/")?;
        NumericIdentity::parse_canonical(rest).ok()
    }

    /// Prefix of all references.
    #[must_use]
    pub fn all_slaves(&self) -> String {
        format!("{}/value/", self.base)
    }

    /// Prefix of a label set's references, with the final `/`. What is below it belongs to the label set only if
    /// [`is_slave_of`] says so: one key string can be the beginning of another, and labels contain slashes (A1).
    ///
    /// # Errors
    /// The labels contain path steps that lead out of the allocator's own folders.
    pub fn slaves(&self, key: &Key) -> Result<String, AllocError> {
        self.below("value", key.as_str())
    }

    /// The same of labels that somebody else wrote.
    #[must_use]
    pub fn slaves_of_text(&self, key_string: &str) -> Option<String> {
        self.below("value", key_string).ok()
    }

    /// This node's reference to a label set.
    ///
    /// # Errors
    /// As [`Self::slaves`].
    pub fn slave(&self, key: &Key) -> Result<String, AllocError> {
        self.slaves(key).map(|prefix| prefix + &self.node)
    }

    /// Prefix of everybody's locks.
    #[must_use]
    pub fn all_locks(&self) -> String {
        format!("{}/locks/", self.base)
    }

    /// Prefix of a label set's lock, with the final `/`: the holder's and the waiters' keys are below it.
    ///
    /// # Errors
    /// As [`Self::slaves`].
    pub fn locks(&self, key: &Key) -> Result<String, AllocError> {
        self.below("locks", key.as_str())
    }

    /// The same of labels that somebody else wrote.
    #[must_use]
    pub fn locks_of_text(&self, key_string: &str) -> Option<String> {
        self.below("locks", key_string).ok()
    }

    /// Prefix of the lock that a garbage collector takes on a number.
    #[must_use]
    pub fn gc_locks(&self, number: NumericIdentity) -> String {
        format!("{}/locks/id/{number}/", self.base)
    }

    /// `<base>/<folder>/<key string>/`, cleaned as Cilium's path handling does.
    fn below(&self, folder: &str, key_string: &str) -> Result<String, AllocError> {
        let folder = format!("{}/{folder}", self.base);
        let path = clean(&format!("{folder}/{key_string}"));
        match path.strip_prefix(&folder) {
            Some(rest) if rest.starts_with('/') => Ok(path + "/"),
            _ => Err(AllocError::InvalidLabels("path steps lead out of the allocator's folders".to_owned())),
        }
    }
}

fn is_plain(segment: &str) -> bool {
    !matches!(segment, "" | "." | "..")
}

/// Whether `path` is a reference below `prefix` and of exactly that label set: nothing but a node name follows.
#[must_use]
pub fn is_slave_of(prefix: &str, path: &[u8]) -> bool {
    path.strip_prefix(prefix.as_bytes()).is_some_and(|node| !node.is_empty() && !node.contains(&b'/'))
}

/// A path as Go's `path.Join` leaves it, which Cilium puts every key through: empty segments and `.` vanish, `..` takes the
/// segment before with it.
fn clean(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                if segments.last().is_none_or(|&last| last == "..") {
                    segments.push(segment);
                } else {
                    segments.pop();
                }
            }
            plain => segments.push(plain),
        }
    }
    segments.join("/")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const BASE: &str = "cilium/state/identities/v1";

    fn paths(node: &str) -> Paths {
        Paths::new(BASE, node).unwrap()
    }

    fn key(text: &str) -> Key {
        Key::parse(text).unwrap()
    }

    fn golden(file: &str) -> serde_json::Value {
        let path = format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    /// Every label set that a real Cilium allocated, except those that would not read back as what they were.
    #[test]
    fn writes_the_keys_that_cilium_writes() {
        let mut checked = 0;
        for file in ["identities_node_a.json", "identities_node_b.json"] {
            let golden = golden(file);
            let paths = paths(golden["node_suffix"].as_str().unwrap());
            for set in golden["sets"].as_array().unwrap() {
                let (Some(master), Some(slave)) = (set["master_key"].as_str(), set["slave_key"].as_str()) else {
                    continue;
                };
                let Ok(key) = Key::parse(set["get_key"].as_str().unwrap()) else { continue };
                assert_eq!(paths.slave(&key).unwrap(), slave);
                assert!(is_slave_of(&paths.slaves(&key).unwrap(), slave.as_bytes()));
                let number = NumericIdentity::new(u32::try_from(set["id"].as_u64().unwrap()).unwrap());
                assert_eq!(paths.master(number), master);
                assert_eq!(paths.number_of_master(master.as_bytes()), Some(number));
                checked += 1;
            }
        }
        assert!(checked > 30, "{checked}");
    }

    /// In a store that a real Cilium filled, every reference belongs to the label set of the master it names, and to it alone.
    #[test]
    fn a01_finds_each_reference_of_a_real_store_under_its_own_labels_only() {
        let golden = golden("etcd_alloc.json");
        let entries: BTreeMap<&str, &str> = golden["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| (entry["key"].as_str().unwrap(), entry["value"].as_str().unwrap()))
            .collect();
        let paths = paths("10.1.0.11");
        let masters: BTreeMap<&str, String> = (entries.iter())
            .filter_map(|(path, labels)| {
                let number = paths.number_of_master(path.as_bytes())?;
                Some((*labels, number.to_string())).filter(|_| !labels.is_empty())
            })
            .collect();
        let mut references = 0;
        for (labels, number) in &masters {
            let prefix = paths.slaves_of_text(labels).unwrap();
            for (path, value) in &entries {
                if is_slave_of(&prefix, path.as_bytes()) {
                    assert_eq!(value, number, "{path}");
                    references += 1;
                }
            }
        }
        let slaves = entries.keys().filter(|path| path.starts_with(&paths.all_slaves())).count();
        assert!(slaves - references <= 1, "{references} of {slaves}; one is of the empty label set");
    }

    #[test]
    fn a01_a_label_set_that_begins_another_has_only_its_own_references() {
        let paths = paths("n1");
        let prefix = paths.slaves(&key("k8s:a=1;")).unwrap();
        let others = ["k8s:a=1;k8s:b=2;/n1", "k8s:a=1;k8s:app.kubernetes.io/name=x;/n1", "k8s:a=1;/x;/n1", "k8s:a=1;/"];
        for other in others {
            assert!(!is_slave_of(&prefix, format!("{BASE}/value/{other}").as_bytes()), "{other}");
        }
        for node in ["n1", "n11", "10.1.0.11"] {
            assert!(is_slave_of(&prefix, format!("{BASE}/value/k8s:a=1;/{node}").as_bytes()));
        }
    }

    #[test]
    fn locks_are_where_cilium_takes_them() {
        let paths = paths("10.1.0.11");
        let steps = golden("allocator_trace.json");
        let written: Vec<&str> = (steps["steps"].as_array().unwrap().iter())
            .flat_map(|step| step["etcd_writes"].as_array().into_iter().flatten())
            .filter_map(|write| write["key"].as_str())
            .collect();
        let master = *written.iter().find(|path| path.starts_with(&paths.masters())).unwrap();
        let number = paths.number_of_master(master.as_bytes()).unwrap();
        let slave = *written.iter().find(|path| path.starts_with(&paths.all_slaves())).unwrap();
        let labels = slave.strip_prefix(&paths.all_slaves()).and_then(|rest| rest.strip_suffix("/10.1.0.11")).unwrap();
        for expected in [paths.locks(&key(labels)).unwrap(), paths.gc_locks(number)] {
            let lock = format!("{expected}<lease-id-hex>");
            assert!(written.contains(&lock.as_str()), "{lock}");
        }
    }

    #[test]
    fn refuses_labels_that_lead_out_of_the_folder() {
        let paths = paths("n1");
        let inside = key("k8s:a=x/../y;");
        assert_eq!(paths.slaves(&inside).unwrap(), format!("{BASE}/value/y;/"));
        for out in ["k8s:a=/../../../id/300;", "k8s:a=/../../..;", "k8s:a=/../../valuer;"] {
            assert_eq!(paths.slaves(&key(out)).unwrap_err().reason(), "invalid-labels", "{out}");
            assert_eq!(paths.locks(&key(out)).unwrap_err().reason(), "invalid-labels", "{out}");
        }
        for node in ["", "a/b", "..", "."] {
            assert!(Paths::new(BASE, node).is_err());
        }
        assert!(Paths::new("cilium//state", "n1").is_err());
    }
}
