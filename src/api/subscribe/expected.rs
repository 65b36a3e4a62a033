//! The clusters that a subscriber was told to expect: what Hello says of them, and when `AllSynced` is due.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;
use tokio::time::Instant;

use super::request::Plan;
use crate::api::pb::subscribe_response::Frame;
use crate::api::{convert, pb};
use crate::telemetry::{ClusterState, ClusterStatus, StatusBoard};
use crate::view::{ClusterView, MeshView};

/// What is still to come.
#[derive(Debug)]
pub(super) struct Expected {
    status: StatusBoard,
    /// The gateway has read its peers and waited for them as long as it does.
    ready: watch::Receiver<bool>,
    /// Named in Hello and not synced in this stream yet; whether the status board knew it.
    waiting: BTreeMap<String, bool>,
    /// No longer than this is waited for clusters that the gateway itself does not have.
    give_up: Instant,
    /// It was sent, for good.
    all_synced: bool,
    /// It was sent before the gateway knew its peers.
    unsettled: bool,
}

impl Expected {
    pub(super) fn new(status: StatusBoard, ready: watch::Receiver<bool>, give_up: Instant) -> Self {
        Self { status, ready, waiting: BTreeMap::new(), give_up, all_synced: false, unsettled: false }
    }

    /// How each known or requested cluster will be served; `serve` says it of a complete one.
    pub(super) fn modes(
        &mut self,
        plan: &Plan,
        mesh: &MeshView,
        serve: impl Fn(&Arc<ClusterView>) -> (pb::ServeMode, &'static str),
    ) -> Vec<pb::ClusterMode> {
        let mut modes: BTreeMap<String, (pb::ServeMode, String)> = BTreeMap::new();
        for cluster in plan.named() {
            let why = "no cluster of this name is configured".to_owned();
            modes.insert(cluster.to_owned(), (pb::ServeMode::Waiting, why));
        }
        self.status.read(|board| {
            for (name, status) in board.iter().filter(|(name, _)| plan.wants(name)) {
                modes.insert(name.clone(), (pb::ServeMode::Waiting, why(status)));
                self.waiting.insert(name.clone(), true);
            }
        });
        for cluster in mesh.clusters().filter(|cluster| plan.wants(cluster.name().as_str())) {
            let name = cluster.name().to_string();
            let mode = if cluster.is_synced() {
                let (mode, why) = serve(cluster);
                (mode, why.to_owned())
            } else {
                (pb::ServeMode::Waiting, ClusterState::Listing.name().to_owned())
            };
            self.waiting.entry(name.clone()).or_insert(false);
            modes.insert(name, mode);
        }
        let is_waited_for = |name: &String| match plan.wait_for {
            pb::WaitFor::Unspecified => true,
            pb::WaitFor::OwnCluster => mesh.cluster(mesh.local()).is_none_or(|own| own.name().as_str() == name),
            pb::WaitFor::Complete => mesh.cluster_named(name).is_some_and(|cluster| cluster.is_synced()),
        };
        self.waiting.retain(|name, _| is_waited_for(name));
        let mode = |(cluster, (mode, why)): (String, (pb::ServeMode, String))| pb::ClusterMode {
            cluster,
            mode: mode.into(),
            why,
        };
        modes.into_iter().map(mode).collect()
    }

    /// How a cluster is doing, and since when.
    pub(super) fn state(&self, cluster: &str) -> (Option<ClusterState>, Option<SystemTime>) {
        self.status.read(|board| board.get(cluster).map_or((None, None), |status| (Some(status.state), status.since)))
    }

    /// The subscriber was told that the cluster is gone.
    pub(super) fn removed(&mut self, cluster: &str) {
        self.waiting.remove(cluster);
    }

    /// When [`Self::all_synced`] wants to be asked though nothing has happened.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.all_synced).then_some(self.give_up).filter(|&give_up| Instant::now() < give_up)
    }

    /// `AllSynced`, once it is due. A cluster that is merely on its way to this subscriber is never left out.
    pub(super) fn all_synced(&mut self, plan: &Plan, mesh: &MeshView, is_live: impl Fn(&str) -> bool) -> Option<Frame> {
        if self.all_synced {
            return None;
        }
        self.waiting.retain(|name, _| !is_live(name));
        let gave_up = Instant::now() >= self.give_up;
        let ready = *self.ready.borrow();
        if self.unsettled && !ready {
            return None;
        }
        // Only whoever waits for everything has to wait until everything is known.
        if plan.wait_for == pb::WaitFor::Unspecified && !gave_up && !ready {
            return None;
        }
        let details = self.status.read(|board| {
            let hopeless = |name: &String| board.get(name).is_some_and(|status| status.state == ClusterState::Refused);
            let on_its_way = |name: &String| mesh.cluster_named(name).is_some_and(|cluster| cluster.is_synced());
            if self.waiting.keys().any(|name| on_its_way(name) || !(gave_up || hopeless(name))) {
                return None;
            }
            let known = board.keys().map(String::as_str).chain(mesh.clusters().map(|cluster| cluster.name().as_str()));
            let left_out: BTreeSet<_> = known.filter(|name| plan.wants(name) && !is_live(name)).collect();
            let details = left_out.into_iter().map(|name| pb::LeftOut {
                cluster: name.to_owned(),
                state: convert::state(board.get(name).map_or(ClusterState::Listing, |status| status.state)).into(),
                why: board.get(name).map(why).unwrap_or_default(),
            });
            Some(details.collect::<Vec<_>>())
        })?;
        (self.all_synced, self.unsettled) = (ready, !ready);
        let left_out = details.iter().map(|left_out| left_out.cluster.clone()).collect();
        Some(Frame::AllSynced(pb::AllSynced { left_out, details, unsettled: !ready }))
    }

    /// Waits until a cluster that never came is not configured any more, and names it; or until `AllSynced` may have become
    /// due by something that the view does not show.
    pub(super) async fn changed(&mut self, mesh: &MeshView) -> Option<String> {
        let Self { status, ready, waiting, all_synced, .. } = self;
        // What the view has is for the view to take away.
        let gone = |board: &BTreeMap<String, ClusterStatus>| {
            let gone = |(name, known): &(&String, &bool)| {
                **known && !board.contains_key(*name) && mesh.cluster_named(name).is_none()
            };
            waiting.iter().find(gone).map(|(name, _)| name.clone())
        };
        let settled = |board: &BTreeMap<String, ClusterStatus>| {
            waiting.keys().all(|name| board.get(name).is_some_and(|status| status.state == ClusterState::Refused))
        };
        let was_settled = *all_synced || status.read(settled);
        tokio::select! {
            () = status.wait_for(|board| gone(board).is_some() || (!was_settled && settled(board))), if !waiting.is_empty() => {
                let name = status.read(gone)?;
                waiting.remove(&name);
                Some(name)
            }
            // An error means that whoever knows has ended: the deadline decides then.
            Ok(()) = async { ready.wait_for(|ready| *ready).await.map(drop) }, if !*all_synced && !*ready.borrow() => None,
            else => std::future::pending().await,
        }
    }
}

/// Why a cluster is not there yet, in plain words.
fn why(status: &ClusterStatus) -> String {
    match &status.last_error {
        Some(error) => format!("{}: {}", status.state.name(), error.message),
        None => status.state.name().to_owned(),
    }
}
