//! The time in which a peer holds a cluster ID: the claim, and what is shown under it, which go together.

use std::sync::Arc;
use std::time::Duration;

use crate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters};
use crate::kvstore::ListWatchOptions;
use crate::mirror::{Admission, Follower, Mirror, Reporter};
use crate::picture::Picture;
use crate::view::{ClusterBuilder, Interner, View};

use super::register::Claim;
use super::state::Plan;

/// What a tenure is made with.
#[derive(Clone, Debug)]
pub(super) struct Makings {
    pub(super) view: View,
    pub(super) interner: Interner,
    pub(super) width: MaxConnectedClusters,
    pub(super) list_watch: ListWatchOptions,
    pub(super) max_key_string: usize,
    pub(super) audit_interval: Duration,
}

/// A claim and its entries. Dropped without [`Self::drain`], both stay: the gateway stops, or the task panicked and the next
/// one of the same peer resumes.
#[derive(Debug)]
pub(super) struct Tenure {
    claim: Claim,
    prefix: String,
    view: View,
    /// What the peer's store says goes through here.
    pub(super) follower: Follower,
}

impl Tenure {
    pub(super) fn begin(claim: Claim, peer: &ClusterName, prefix: String, makings: &Makings) -> Self {
        let range = IdentityRange::of(claim.id(), makings.width);
        let builder = ClusterBuilder::new(makings.interner.clone(), peer.clone(), claim.id(), range);
        let admission = Admission::peer(range, peer.clone()).with_max_key_string(makings.max_key_string);
        let mut mirror = Mirror::new(prefix.clone().into_bytes(), admission, builder);
        // What an earlier task of this peer showed is the base of the next list; what it did not complete is not.
        let shown = makings.view.load().cluster(claim.id()).filter(|shown| shown.name() == peer).cloned();
        match shown {
            Some(shown) if shown.is_synced() => mirror = mirror.on_top_of(shown),
            Some(_) => makings.view.withdraw(claim.id()),
            None => {}
        }
        let view = makings.view.clone();
        let follower =
            Follower::new(mirror, prefix.clone().into_bytes(), makings.list_watch.clone(), makings.view.clone())
                .auditing_every(makings.audit_interval);
        Self { claim, prefix, view, follower }
    }

    /// Begins with what an earlier process knew, which is shown from now on.
    pub(super) fn restore(claim: Claim, peer: &ClusterName, picture: &Picture, makings: &Makings) -> Self {
        makings.view.publish(Arc::clone(&picture.version));
        let mut tenure = Self::begin(claim, peer, picture.prefix.clone(), makings);
        tenure.follower.continue_from(picture.position);
        tenure
    }

    pub(super) const fn id(&self) -> ClusterId {
        self.claim.id()
    }

    /// Reads where the plan says.
    pub(super) fn read_as(&mut self, plan: &Plan, reporter: &Reporter) {
        if self.prefix != plan.prefix {
            tracing::info!(
                peer = reporter.cluster(),
                from = self.prefix,
                to = plan.prefix,
                "the peer's identities move"
            );
            self.prefix.clone_from(&plan.prefix);
            self.follower.move_to(plan.prefix.clone().into_bytes(), reporter);
        }
    }

    /// Withdraws the entries, then frees the ID: in this order, or the next owner's entries would mix with ours.
    pub(super) fn drain(self, reporter: &Reporter) {
        tracing::info!(
            peer = reporter.cluster(),
            cluster_id = self.id().get(),
            identities = self.follower.current().len(),
            "draining"
        );
        self.view.withdraw(self.claim.id());
        reporter.shown(None);
        reporter.cluster_id(0);
        self.claim.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::layout;
    use crate::peer::ClusterIdRegister;
    use crate::telemetry::{Metrics, StatusBoard};
    use crate::view::SourcePosition;

    const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;

    #[test]
    fn r22_the_next_task_of_a_peer_goes_on_from_what_the_last_one_completed() {
        let id = ClusterId::new(2, WIDTH).unwrap();
        let (blue, view, interner) =
            (ClusterName::new("blue").unwrap(), View::new(WIDTH, ClusterId::default()), Interner::new());
        let makings = Makings {
            view: view.clone(),
            interner: interner.clone(),
            width: WIDTH,
            list_watch: ListWatchOptions::default(),
            max_key_string: 1_000,
            audit_interval: Duration::from_mins(10),
        };
        let register = ClusterIdRegister::new(ClusterId::default());
        let begin = |claim| Tenure::begin(claim, &blue, layout::state_ids(), &makings);
        drop(begin(register.claim(id, &blue).unwrap()));

        let mut builder = ClusterBuilder::new(interner, blue.clone(), id, IdentityRange::of(id, WIDTH));
        view.publish(builder.build());
        drop(begin(register.adopt(&blue).unwrap()));
        assert!(view.load().cluster(id).is_none(), "half a first list is nothing to go on from");

        builder.set_synced(SourcePosition { etcd_cluster_id: 1, revision: 1 });
        view.publish(builder.build());
        let tenure = begin(register.adopt(&blue).unwrap());
        assert!(view.load().cluster(id).is_some(), "still shown");
        assert!(tenure.follower.current().is_synced(), "and the base of the next list");

        let board = StatusBoard::default();
        tenure.drain(&Reporter::new("blue", false, board.clone(), Metrics::new(board)));
        assert!(view.load().cluster(id).is_none());
        register.claim(id, &ClusterName::new("red").unwrap()).unwrap().free();
    }
}
