//! The decisions of a list-and-watch, without its I/O.

use crate::kvstore::Position;

/// How to go on, on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// List.
    List,
    /// The store seems to be older than what was applied: look again before believing it.
    Confirm(Position),
    /// Watch from the next revision.
    Resume(Position),
}

/// What is applied and where the store stands decide.
pub(super) fn plan(applied: Option<Position>, store: Position, max_replay: i64) -> Plan {
    match applied {
        None => Plan::List,
        // Revisions of another etcd mean nothing here.
        Some(applied) if applied.etcd_cluster_id != store.etcd_cluster_id => Plan::List,
        Some(applied) if applied.revision > store.revision => Plan::Confirm(applied),
        // Etcd replays many times slower than it lists.
        Some(applied) if store.revision - applied.revision > max_replay => Plan::List,
        Some(applied) => Plan::Resume(applied),
    }
}

/// Where the next page begins, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::kvstore) enum NextPage {
    /// At that key.
    From(Vec<u8>),
    /// That was the last one.
    None,
    /// The answer cannot be: a list that believes it never ends.
    Impossible(&'static str),
}

/// From what a page was asked for, its last key, and whether etcd says that there is more.
pub(in crate::kvstore) fn next_page(asked_from: &[u8], last_key: Option<&[u8]>, more: bool) -> NextPage {
    match last_key {
        Some(last) if last < asked_from => NextPage::Impossible("a page begins before where it was asked to"),
        Some(last) if more => NextPage::From([last, b"\0"].concat()),
        None if more => NextPage::Impossible("an empty page says that there is more"),
        _ => NextPage::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(etcd_cluster_id: u64, revision: i64) -> Position {
        Position { etcd_cluster_id, revision }
    }

    #[test]
    fn resumes_lists_or_looks_again() {
        for (applied, store, expected) in [
            (None, at(1, 50), Plan::List),
            (Some(at(1, 50)), at(1, 50), Plan::Resume(at(1, 50))),
            (Some(at(1, 50)), at(1, 60), Plan::Resume(at(1, 50))),
            (Some(at(1, 50)), at(1, 61), Plan::List),
            (Some(at(1, 50)), at(1, 49), Plan::Confirm(at(1, 50))),
            (Some(at(1, 50)), at(2, 50), Plan::List),
            (Some(at(1, 50)), at(2, 49), Plan::List),
        ] {
            assert_eq!(plan(applied, store, 10), expected, "{applied:?} {store:?}");
        }
        assert_eq!(plan(Some(at(1, i64::MAX)), at(1, 1), 10), Plan::Confirm(at(1, i64::MAX)));
    }

    #[test]
    fn pages_end() {
        assert_eq!(next_page(b"a/", Some(b"a/7"), true), NextPage::From(b"a/7\0".to_vec()));
        assert_eq!(next_page(b"a/7\0", Some(b"a/7\0"), true), NextPage::From(b"a/7\0\0".to_vec()));
        assert_eq!(next_page(b"a/", Some(b"a/7"), false), NextPage::None);
        assert_eq!(next_page(b"a/", None, false), NextPage::None);
        assert!(matches!(next_page(b"a/", None, true), NextPage::Impossible(_)));
        assert!(matches!(next_page(b"a/7\0", Some(b"a/7"), true), NextPage::Impossible(_)));
    }
}
