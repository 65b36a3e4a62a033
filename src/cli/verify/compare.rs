//! Two pictures of one cluster, compared. Pure.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::client::Cluster;

/// One identity that two pictures do not have alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Difference {
    pub(super) number: u32,
    /// Its labels in the first picture; none where it has no such number.
    pub(super) here: Option<Vec<String>>,
    /// The same for the other one.
    pub(super) there: Option<Vec<String>>,
}

/// Whether count and checksum are the same; cheap.
pub(super) fn is_equal(here: &Cluster, there: &Cluster) -> bool {
    here.identities.len() == there.identities.len() && here.checksum() == there.checksum()
}

/// All identities that differ, by number.
pub(super) fn differences(here: &Cluster, there: &Cluster) -> BTreeSet<Difference> {
    let numbers: BTreeSet<_> = here.identities.keys().chain(there.identities.keys()).collect();
    let labels = |cluster: &Cluster, number: u32| Some(cluster.identities.get(&number)?.labels.clone());
    let each = numbers.into_iter().map(|&number| Difference {
        number,
        here: labels(here, number),
        there: labels(there, number),
    });
    each.filter(|difference| difference.here != difference.there).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Fold;
    use crate::pb;
    use crate::pb::subscribe_response::Frame;

    fn cluster(identities: &[(u32, &str)]) -> Cluster {
        let identities = identities.iter().map(|(number, label)| pb::Identity {
            number: *number,
            labels: vec![(*label).to_owned()],
            ..Default::default()
        });
        let identities: Vec<_> = identities.collect();
        let mut fold = Fold::new(false);
        let name = || "a".to_owned();
        fold.apply(Frame::SnapshotBegin(pb::SnapshotBegin { cluster: name(), cluster_id: 1, ..Default::default() }))
            .unwrap();
        let contributions = identities.iter().map(|identity| {
            let key_string = format!("{};", identity.labels[0]);
            crate::identity::contribution(crate::identity::NumericIdentity::new(identity.number), &key_string)
        });
        let checksum = contributions.fold(0, u64::wrapping_add);
        let count = identities.len() as u64;
        fold.apply(Frame::SnapshotChunk(pb::SnapshotChunk { cluster: name(), identities })).unwrap();
        fold.apply(Frame::Synced(pb::Synced { cluster: name(), count, checksum, ..Default::default() })).unwrap();
        fold.mesh()["a"].clone()
    }

    #[test]
    fn what_differs_is_named_with_both_sides() {
        let here = cluster(&[(1, "k8s:a=1"), (2, "k8s:a=2"), (3, "k8s:a=3")]);
        let there = cluster(&[(1, "k8s:a=1"), (2, "k8s:a=x"), (4, "k8s:a=4")]);
        assert!(is_equal(&here, &here) && !is_equal(&here, &there));
        assert!(differences(&here, &here).is_empty());
        let named: Vec<_> = differences(&here, &there).into_iter().collect();
        let labels = |label: &str| Some(vec![label.to_owned()]);
        assert_eq!(
            named,
            [
                Difference { number: 2, here: labels("k8s:a=2"), there: labels("k8s:a=x") },
                Difference { number: 3, here: labels("k8s:a=3"), there: None },
                Difference { number: 4, here: None, there: labels("k8s:a=4") },
            ]
        );
    }
}
