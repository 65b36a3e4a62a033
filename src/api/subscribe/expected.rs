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
    /// Of each cluster, as it was last looked at.
    states: BTreeMap<String, ClusterState>,
    /// It was sent, for good.
    all_synced: bool,
    /// It was sent before the gateway knew its peers.
    unsettled: bool,
}

impl Expected {
    pub(super) fn new(status: StatusBoard, ready: watch::Receiver<bool>, give_up: Instant) -> Self {
        let states = status.read(|board| board.iter().map(|(name, status)| (name.clone(), status.state)).collect());
        Self { status, ready, waiting: BTreeMap::new(), give_up, states, all_synced: false, unsettled: false }
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
            stale: mesh.cluster_named(&cluster).is_some_and(|cluster| cluster.is_stale()),
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

    /// `AllSynced`, once it is due. A cluster that is merely on its way to this subscriber is never left out, unless it waits
    /// for the gateway to catch up.
    pub(super) fn all_synced(
        &mut self,
        plan: &Plan,
        mesh: &MeshView,
        is_live: impl Fn(&str) -> bool,
        is_catching_up: impl Fn(&str) -> bool,
    ) -> Option<Frame> {
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
            let hopeless = |name: &String| board.get(name).is_some_and(|status| status.state.is_hopeless());
            let on_its_way = |name: &String| {
                mesh.cluster_named(name).is_some_and(|cluster| cluster.is_synced()) && !is_catching_up(name)
            };
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
        Some(Frame::AllSynced(pb::AllSynced { left_out, details, unsettled: !ready, stale: Vec::new() }))
    }

    /// A cluster that never came and is not configured any more. To be asked after a transition, until there is none.
    pub(super) fn gone(&mut self, mesh: &MeshView) -> Option<String> {
        let name = self.status.read(|board| {
            // What the view has is for the view to take away.
            let gone = |(name, known): &(&String, &bool)| {
                **known && !board.contains_key(*name) && mesh.cluster_named(name).is_none()
            };
            self.waiting.iter().find(gone).map(|(name, _)| name.clone())
        })?;
        self.waiting.remove(&name);
        Some(name)
    }

    /// How clusters are doing whose state is another one than it was; `told` says which are of interest. To be asked after a
    /// transition.
    pub(super) fn transitions(&mut self, is_told: impl Fn(&str) -> bool) -> Vec<pb::ClusterStatus> {
        let Self { status, states, .. } = self;
        status.read(|board| {
            states.retain(|name, _| board.contains_key(name));
            let mut changed = Vec::new();
            for (name, status) in board {
                let before = states.insert(name.clone(), status.state);
                if before.is_some_and(|before| before != status.state) && is_told(name) {
                    changed.push(pb::ClusterStatus {
                        cluster: name.clone(),
                        state: convert::state(status.state).into(),
                        why: if status.state == ClusterState::Synced { String::new() } else { why(status) },
                    });
                }
            }
            changed
        })
    }
}

/// Why a cluster is not there yet, in plain words.
fn why(status: &ClusterStatus) -> String {
    match &status.last_error {
        Some(error) => format!("{}: {}", status.state.name(), error.message),
        None => status.state.name().to_owned(),
    }
}
