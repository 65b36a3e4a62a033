//! One cluster as one subscriber holds it. Pure: versions in, frames out.
//!
//! A feed never queues anything. It knows the version that the client holds, and, while a difference is on its way in
//! parts, the version that this leads to and how far it has come. Whatever was published in between is in the next
//! difference.

use std::sync::Arc;

use prost::Message as _;

use super::request::{FrameLimits, Plan};
use crate::api::pb::subscribe_response::Frame;
use crate::api::{convert, pb};
use crate::identity::{ClusterId, ClusterName, NumericIdentity};
use crate::view::{Change, ClusterView, diff_after};

/// Most that a frame takes beside its identities and numbers: names, counts, position, and the tags around them.
const ENVELOPE: usize = 256;
/// Most that one item takes beside its own bytes: a tag, and a length below 4 GiB.
const ITEM: usize = 6;

/// One cluster and what the client holds of it.
#[derive(Debug)]
pub(super) struct Feed {
    name: ClusterName,
    id: ClusterId,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Nothing; or, if `begun`, chunks of a first list that was withdrawn since, which the next `SnapshotBegin` discards.
    Waiting { begun: bool },
    /// Chunks, which add up to `held`, and, if `on_the_way`, a part of what leads from there to its target.
    Loading { held: Option<Arc<ClusterView>>, on_the_way: Option<OnTheWay> },
    /// All of `held`, and, if `on_the_way`, a part of what leads from there to its target.
    Live {
        held: Arc<ClusterView>,
        on_the_way: Option<OnTheWay>,
        /// The client believes that the cluster is stale.
        told_stale: bool,
    },
}

/// A difference that is told in parts.
#[derive(Debug)]
pub(super) struct OnTheWay {
    target: Arc<ClusterView>,
    /// Everything up to this number is told.
    told: Option<NumericIdentity>,
}

impl OnTheWay {
    fn to(target: &Arc<ClusterView>) -> Self {
        Self { target: Arc::clone(target), told: None }
    }
}

impl Feed {
    pub(super) fn new(name: ClusterName, id: ClusterId) -> Self {
        Self { name, id, state: State::Waiting { begun: false } }
    }

    pub(super) fn name(&self) -> &ClusterName {
        &self.name
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, State::Live { .. })
    }

    /// Whether the client holds the cluster as it was last known, and was told so.
    pub(super) fn is_told_stale(&self) -> bool {
        matches!(self.state, State::Live { told_stale: true, .. })
    }

    /// Looks at the version that is in the view now, or at its absence. If differences do not lead from what the client
    /// holds to there, the feed begins anew; and if the client may believe what is not so any more, the frame that says so
    /// is returned. `id_passed_on` says that another cluster has the ID now.
    pub(super) fn judge(&mut self, now: Option<&Arc<ClusterView>>, id_passed_on: bool) -> Option<Frame> {
        let (told, complete) = match &self.state {
            State::Waiting { begun } => (*begun, false),
            State::Loading { held, on_the_way } => {
                let latest = on_the_way.as_ref().map(|way| &way.target).or(held.as_ref());
                (true, latest.is_some_and(|latest| latest.is_synced()))
            }
            State::Live { .. } => (true, true),
        };
        // A complete picture never becomes incomplete: where it seems to, it was drained, and another one has begun.
        let goes_on = now.is_some_and(|now| now.is_synced() || !complete);
        if goes_on || !told {
            return None;
        }
        // A first list that broke off is no removal: the client may hold the cluster from an earlier stream, and nothing is
        // known against it. Unless another cluster has the ID: then the old numbers must go before the new ones come.
        let removed = complete || id_passed_on;
        self.state = State::Waiting { begun: !removed };
        removed.then(|| {
            let (cluster, cluster_id) = (self.name.to_string(), self.id.get().into());
            Frame::ClusterRemoved(pb::ClusterRemoved { cluster, cluster_id })
        })
    }

    /// The next frame that brings the client closer to `now`, a version of this cluster that [`Self::judge`] has seen; none
    /// if the client holds that.
    pub(super) fn step(&mut self, now: &Arc<ClusterView>, plan: &Plan) -> Option<Frame> {
        if let Some(confirmed) = self.confirm() {
            return Some(confirmed);
        }
        match &mut self.state {
            State::Waiting { .. } => Some(self.begin(now)),
            State::Loading { .. } => self.load(now, plan),
            State::Live { held, on_the_way, .. } => {
                if on_the_way.is_none() && Arc::ptr_eq(held, now) {
                    return None;
                }
                let way = on_the_way.get_or_insert_with(|| OnTheWay::to(now));
                let (part, told) = Part::cut(Some(held), way, plan);
                let batch = (!part.is_empty()).then(|| part.batch(&way.target, told.is_some()));
                if told.is_some() {
                    way.told = told;
                } else {
                    *held = Arc::clone(&way.target);
                    *on_the_way = None;
                }
                // Nothing but that it is in step may be all the news there is.
                batch.or_else(|| self.confirm())
            }
        }
    }

    /// What the client was told is stale is not any more.
    fn confirm(&mut self) -> Option<Frame> {
        let State::Live { held, on_the_way: None, told_stale } = &mut self.state else { return None };
        if !*told_stale || held.is_stale() {
            return None;
        }
        *told_stale = false;
        Some(confirmed(held))
    }

    fn begin(&mut self, now: &Arc<ClusterView>) -> Frame {
        self.state = State::Loading { held: None, on_the_way: Some(OnTheWay::to(now)) };
        Frame::SnapshotBegin(pb::SnapshotBegin {
            cluster: self.name.to_string(),
            cluster_id: self.id.get().into(),
            expected: now.len() as u64,
        })
    }

    fn load(&mut self, now: &Arc<ClusterView>, plan: &Plan) -> Option<Frame> {
        loop {
            let State::Loading { held, on_the_way } = &mut self.state else { return None };
            let Some(way) = on_the_way else {
                let held = held.as_ref()?;
                if held.is_synced() {
                    let synced = synced(held);
                    let told_stale = held.is_stale();
                    self.state = State::Live { held: Arc::clone(held), on_the_way: None, told_stale };
                    return Some(synced);
                }
                if Arc::ptr_eq(held, now) {
                    return None;
                }
                // The list was withdrawn and begun again before the absence could be seen.
                if held.generation() != now.generation() {
                    return Some(self.begin(now));
                }
                *on_the_way = Some(OnTheWay::to(now));
                continue;
            };
            let (part, told) = Part::cut(held.as_deref(), way, plan);
            // Chunks only add. A list that takes something back is another list.
            if !part.removed.is_empty() {
                return Some(self.begin(now));
            }
            if told.is_some() {
                way.told = told;
            } else {
                *held = Some(Arc::clone(&way.target));
                *on_the_way = None;
            }
            if !part.upserted.is_empty() {
                let cluster = self.name.to_string();
                return Some(Frame::SnapshotChunk(pb::SnapshotChunk { cluster, identities: part.upserted }));
            }
        }
    }
}

fn synced(version: &ClusterView) -> Frame {
    Frame::Synced(pb::Synced {
        cluster: version.name().to_string(),
        cluster_id: version.id().get().into(),
        count: version.len() as u64,
        checksum: version.checksum(),
        position: version.position().map(convert::position),
        stale: version.is_stale(),
    })
}

fn confirmed(version: &ClusterView) -> Frame {
    Frame::Confirmed(pb::Confirmed {
        cluster: version.name().to_string(),
        cluster_id: version.id().get().into(),
        position: version.position().map(convert::position),
    })
}

/// As much of a difference as fits in a frame.
#[derive(Debug, Default)]
struct Part {
    upserted: Vec<pb::Identity>,
    removed: Vec<u32>,
}

impl Part {
    /// What follows on the part told already, and, if it is not the last, the number up to which it goes.
    fn cut(held: Option<&ClusterView>, way: &OnTheWay, plan: &Plan) -> (Self, Option<NumericIdentity>) {
        let FrameLimits { items, bytes } = plan.limits;
        let (mut part, mut size, mut told) = (Self::default(), ENVELOPE, way.told);
        for change in diff_after(held, &way.target, way.told) {
            if part.len() >= items {
                return (part, told);
            }
            match change {
                Change::Upserted(identity) => {
                    let identity = convert::identity_in_frame(identity, plan.numbers_only);
                    size += identity.encoded_len() + ITEM;
                    if size > bytes && !part.is_empty() {
                        return (part, told);
                    }
                    part.upserted.push(identity);
                }
                Change::Removed(number) => {
                    // Packed: up to 5 bytes each.
                    size += ITEM;
                    if size > bytes && !part.is_empty() {
                        return (part, told);
                    }
                    part.removed.push(number.get());
                }
            }
            told = Some(change.number());
        }
        (part, None)
    }

    fn len(&self) -> usize {
        self.upserted.len() + self.removed.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn batch(self, target: &ClusterView, more: bool) -> Frame {
        Frame::Batch(pb::Batch {
            cluster: target.name().to_string(),
            upserted: self.upserted,
            removed: self.removed,
            more,
            position: target.position().map(convert::position),
            count: target.len() as u64,
            checksum: target.checksum(),
        })
    }
}
