//! Whether a subscriber that comes back with a token can go on from there. Pure but for the look into the view's history.

use std::sync::Arc;

use super::token::Token;
use crate::view::{ClusterView, SourcePosition, View};

/// What becomes of a token.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// Its state is this version. No batch may follow before the source was followed to that revision, if one is named: the
    /// client has seen what led there and back.
    Resume(Arc<ClusterView>, Option<i64>),
    /// The gateway is behind it, or has nothing complete yet.
    Wait(&'static str),
    /// It is no use here; why.
    Snapshot(&'static str),
}

/// Judges a token against `now`, the current version. `applied` was asked for before `now` was loaded: whatever is known to
/// be applied is in it.
pub(super) fn judge(view: &View, now: &Arc<ClusterView>, applied: Option<SourcePosition>, token: &Token) -> Verdict {
    let Some(position) = now.told().filter(|_| now.is_synced()) else {
        return Verdict::Wait("the gateway has not read all of the cluster yet");
    };
    let same_etcd = position.etcd_cluster_id == token.contents.etcd_cluster_id;
    let applied = applied.filter(|applied| applied.etcd_cluster_id == position.etcd_cluster_id);
    let applied = applied.map_or(position.revision, |applied| applied.revision.max(position.revision));
    let behind = same_etcd && applied < token.revision;
    match view.find(now, &token.contents) {
        Some(version) => {
            let seen = version.told().is_some_and(|position| position.revision >= token.revision);
            Verdict::Resume(version, (behind && !seen).then_some(token.revision))
        }
        None if behind => Verdict::Wait("the gateway is behind what the token stands for"),
        None if same_etcd => Verdict::Snapshot("what the token stands for is not in the history kept here"),
        None => Verdict::Snapshot("the cluster's store is another one than the token names"),
    }
}
