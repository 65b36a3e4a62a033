//! The end of an unattended demo: is what a subscriber has folded what the stores hold?

use std::collections::BTreeMap;
use std::fmt;

use crate::devkit::fill::Contents;

/// Identities by the name of their cluster.
pub(super) type Picture = BTreeMap<String, Contents>;

/// Examples of each kind of difference that are shown.
const EXAMPLES: usize = 3;

/// How one cluster differs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    cluster: String,
    /// In the store, not at the subscriber.
    missing: Vec<u32>,
    /// At the subscriber, not in the store.
    surplus: Vec<u32>,
    /// At both, with other labels.
    relabelled: Vec<u32>,
}

/// All differences; none says that both are the same.
pub(super) fn differences(stored: &Picture, seen: &Picture) -> Vec<Difference> {
    let nothing = Contents::new();
    let names: std::collections::BTreeSet<&String> = stored.keys().chain(seen.keys()).collect();
    names
        .into_iter()
        .filter_map(|name| difference(name, stored.get(name).unwrap_or(&nothing), seen.get(name).unwrap_or(&nothing)))
        .collect()
}

fn difference(cluster: &str, stored: &Contents, seen: &Contents) -> Option<Difference> {
    let without = |of: &Contents, other: &Contents| -> Vec<u32> {
        of.keys().filter(|number| !other.contains_key(number)).copied().collect()
    };
    let relabelled = stored.iter().filter(|(number, set)| seen.get(number).is_some_and(|other| other != *set));
    let difference = Difference {
        cluster: cluster.to_owned(),
        missing: without(stored, seen),
        surplus: without(seen, stored),
        relabelled: relabelled.map(|(&number, _)| number).collect(),
    };
    let same = difference.missing.is_empty() && difference.surplus.is_empty() && difference.relabelled.is_empty();
    (!same).then_some(difference)
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.cluster)?;
        let kinds = [(&self.missing, "missing"), (&self.surplus, "too many"), (&self.relabelled, "with other labels")];
        let mut separator = "";
        for (numbers, what) in kinds.into_iter().filter(|(numbers, _)| !numbers.is_empty()) {
            let examples: Vec<String> = numbers.iter().take(EXAMPLES).map(u32::to_string).collect();
            let more = if numbers.len() > EXAMPLES { ", …" } else { "" };
            write!(f, "{separator} {} {what} ({}{more})", numbers.len(), examples.join(", "))?;
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(cluster: &str, identities: &[(u32, &str)]) -> Picture {
        let contents = identities.iter().map(|&(number, set)| (number, set.to_owned())).collect();
        Picture::from([(cluster.to_owned(), contents)])
    }

    #[test]
    fn same_pictures_do_not_differ() {
        let one = picture("a", &[(1, "x"), (2, "y")]);
        assert_eq!(differences(&one, &one.clone()), []);
        // A cluster of nothing and no cluster are the same to a subscriber's map.
        assert_eq!(differences(&Picture::new(), &picture("a", &[])), []);
    }

    #[test]
    fn says_what_differs() {
        let stored = picture("a", &[(1, "x"), (2, "y"), (3, "z")]);
        let said = differences(&stored, &picture("a", &[(2, "other"), (3, "z"), (4, ""), (5, ""), (6, ""), (7, "")]));
        assert_eq!(said.len(), 1);
        assert_eq!(said[0].to_string(), "a: 1 missing (1), 4 too many (4, 5, 6, …), 1 with other labels (2)");
        assert_eq!(differences(&stored, &Picture::new())[0].to_string(), "a: 3 missing (1, 2, 3)");
        assert_eq!(differences(&Picture::new(), &stored)[0].to_string(), "a: 3 too many (1, 2, 3)");
    }
}
