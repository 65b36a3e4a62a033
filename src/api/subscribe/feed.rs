//! One cluster as one subscriber holds it. Versions in, frames out.
//!
//! A feed never queues anything. It knows the version that the client holds, and, while a difference is on its way in
//! parts, the version that this leads to and how far it has come. Whatever was published in between is in the next
//! difference.

use std::sync::Arc;

use prost::bytes::Bytes;
use tokio::time::Instant;

use super::filter::Tally;
use super::message::Message;
use super::part::{Cut, Loading, Shelf, Use, token};
use super::request::{Plan, Start};
use super::token::Token;
use crate::api::pb::subscribe_response::Frame;
use crate::api::{convert, pb};
use crate::identity::{ClusterId, ClusterName, NumericIdentity};
use crate::view::ClusterView;

/// One cluster and what the client holds of it.
#[derive(Debug)]
pub(super) struct Feed {
    name: ClusterName,
    id: ClusterId,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Nothing of this stream; or, if `begun`, chunks of a first list that was withdrawn since, which the next
    /// `SnapshotBegin` discards. With `pending`, what the client holds from an earlier stream.
    Waiting { begun: bool, pending: Option<Pending> },
    /// Chunks, which add up to `held`, and, if `on_the_way`, a part of what leads from there to its target.
    Loading { held: Option<Arc<ClusterView>>, on_the_way: Option<OnTheWay>, tally: Tally, _loading: Loading },
    /// All of `held`, and, if `on_the_way`, a part of what leads from there to its target.
    Live(Live),
}

#[derive(Debug)]
struct Live {
    held: Arc<ClusterView>,
    on_the_way: Option<OnTheWay>,
    tally: Tally,
    /// `held` is what this token stands for, which may name a later revision of the same contents: the next difference is
    /// what was missed.
    resumed: Option<Token>,
    /// The client believes that the cluster is stale.
    told_stale: bool,
}

/// A token that is not judged yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) token: Token,
    /// When the gateway is not waited for any longer; runs from the first look at a complete version.
    pub(super) until: Option<Instant>,
}

/// A difference that is told in parts.
#[derive(Debug)]
pub(super) struct OnTheWay {
    target: Arc<ClusterView>,
    /// Everything up to this number is told.
    told: Option<NumericIdentity>,
    /// Of what is told.
    tally: Tally,
}

impl OnTheWay {
    fn to(target: &Arc<ClusterView>, tally: Tally) -> Self {
        Self { target: Arc::clone(target), told: None, tally }
    }
}

/// What a feed has to tell.
#[derive(Debug)]
pub(super) enum Told {
    /// Nothing: the client holds all there is.
    Nothing,
    /// A frame; `more` of the same batch follow.
    Frame { message: Arc<Message>, more: bool },
}

impl Told {
    fn frame(frame: Frame) -> Self {
        Self::Frame { message: Arc::new(Message::new(frame)), more: false }
    }
}

impl Feed {
    pub(super) fn new(name: ClusterName, id: ClusterId, token: Option<Token>) -> Self {
        let pending = token.map(|token| Pending { token, until: None });
        Self { name, id, state: State::Waiting { begun: false, pending } }
    }

    pub(super) fn name(&self) -> &ClusterName {
        &self.name
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, State::Live(_))
    }

    /// The token that is to be judged before anything is told.
    pub(super) fn pending(&mut self) -> Option<&mut Pending> {
        match &mut self.state {
            State::Waiting { pending, .. } => pending.as_mut(),
            State::Loading { .. } | State::Live(_) => None,
        }
    }

    /// Whether a token is not judged yet, or waits for the gateway.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self.state, State::Waiting { pending: Some(_), .. })
    }

    /// The token of what the client holds of a live cluster, and whether it is that version.
    pub(super) fn progress(&self, now: Option<&Arc<ClusterView>>, plan: &Plan) -> Option<(Bytes, bool)> {
        let State::Live(live) = &self.state else { return None };
        let behind = live.on_the_way.is_some() || now.is_none_or(|now| !Arc::ptr_eq(now, &live.held));
        Some((live.token(plan), behind))
    }

    /// Whether the client holds the cluster as it was last known, and was told so.
    pub(super) fn is_told_stale(&self) -> bool {
        matches!(self.state, State::Live(Live { told_stale: true, .. }))
    }

    /// Looks at the version that is in the view now, or at its absence. If differences do not lead from what the client
    /// holds to there, the feed begins anew; and if the client may believe what is not so any more, the frame that says so
    /// is returned. `id_passed_on` says that another cluster has the ID now.
    pub(super) fn judge(&mut self, now: Option<&Arc<ClusterView>>, id_passed_on: bool) -> Option<Frame> {
        let (told, complete) = match &self.state {
            State::Waiting { begun, pending } => (*begun || (pending.is_some() && id_passed_on), false),
            State::Loading { held, on_the_way, .. } => {
                let latest = on_the_way.as_ref().map(|way| &way.target).or(held.as_ref());
                (true, latest.is_some_and(|latest| latest.is_synced()))
            }
            State::Live(_) => (true, true),
        };
        // A complete picture never becomes incomplete: where it seems to, it was drained, and another one has begun.
        let goes_on = now.is_some_and(|now| now.is_synced() || !complete);
        if goes_on || !told {
            return None;
        }
        // A first list that broke off is no removal: the client may hold the cluster from an earlier stream, and nothing is
        // known against it. Unless another cluster has the ID: then the old numbers must go before the new ones come.
        let removed = complete || id_passed_on;
        self.state = State::Waiting { begun: !removed, pending: None };
        let reason = if id_passed_on { pb::RemovalReason::IdReassigned } else { pb::RemovalReason::Withdrawn };
        removed.then(|| {
            let (cluster, cluster_id) = (self.name.to_string(), self.id.get().into());
            Frame::ClusterRemoved(pb::ClusterRemoved { cluster, cluster_id, reason: reason.into() })
        })
    }

    /// The token is good: the client holds `version`, and is told so. `stale` says that the gateway is not in step itself.
    pub(super) fn resume(&mut self, version: Arc<ClusterView>, given: Token, stale: bool, plan: &Plan) -> Told {
        let tally = Tally::of(&version, &plan.shape.filter);
        let live = Live { held: version, on_the_way: None, tally, resumed: Some(given), told_stale: stale };
        let mut synced = synced(&live.held, tally, plan);
        (synced.resumed, synced.stale) = (true, stale);
        // A client that has seen a later revision must not forget that: another gateway may be behind it.
        synced.token = live.token(plan).to_vec();
        if let Some(position) = &mut synced.position
            && position.etcd_cluster_id == given.contents.etcd_cluster_id
        {
            position.revision = position.revision.max(given.revision);
        }
        self.state = State::Live(live);
        Told::frame(Frame::Synced(synced))
    }

    /// The token is no use.
    pub(super) fn forget_token(&mut self) {
        if let State::Waiting { pending, .. } = &mut self.state {
            *pending = None;
        }
    }

    /// The next frame that brings the client closer to `now`, a version of this cluster that [`Self::judge`] has seen;
    /// nothing if the client holds that. `fresh`: a snapshot has to be of that version, not of one a moment older.
    pub(super) fn step(&mut self, now: &Arc<ClusterView>, plan: &Plan, shelf: &Shelf, fresh: bool) -> Told {
        match &mut self.state {
            State::Waiting { .. } if plan.start == Start::LiveOnly => {
                if now.is_synced() {
                    let tally = Tally::of(now, &plan.shape.filter);
                    let held = Arc::clone(now);
                    self.state = State::Live(Live { held, on_the_way: None, tally, resumed: None, told_stale: false });
                }
                Told::Nothing
            }
            State::Waiting { .. } => self.begin(now, shelf, fresh),
            State::Loading { .. } => self.load(now, plan, shelf),
            State::Live(live) => live.step(now, plan, shelf),
        }
    }

    fn begin(&mut self, now: &Arc<ClusterView>, shelf: &Shelf, fresh: bool) -> Told {
        let (version, loading) = shelf.begin(now, fresh);
        let expected = version.len() as u64;
        let tally = Tally::default();
        let on_the_way = Some(OnTheWay::to(&version, tally));
        self.state = State::Loading { held: None, on_the_way, tally, _loading: loading };
        Told::frame(Frame::SnapshotBegin(pb::SnapshotBegin {
            cluster: self.name.to_string(),
            cluster_id: self.id.get().into(),
            expected,
        }))
    }

    fn load(&mut self, now: &Arc<ClusterView>, plan: &Plan, shelf: &Shelf) -> Told {
        loop {
            let State::Loading { held, on_the_way, tally, .. } = &mut self.state else { return Told::Nothing };
            let Some(way) = on_the_way else {
                let Some(held) = held else { return Told::Nothing };
                if held.is_synced() {
                    let (held, tally) = (Arc::clone(held), *tally);
                    let synced = Frame::Synced(synced(&held, tally, plan));
                    let told_stale = held.is_stale();
                    self.state = State::Live(Live { held, on_the_way: None, tally, resumed: None, told_stale });
                    return Told::frame(synced);
                }
                if Arc::ptr_eq(held, now) {
                    return Told::Nothing;
                }
                // The list was withdrawn and begun again before the absence could be seen.
                if held.generation() != now.generation() {
                    return self.begin(now, shelf, true);
                }
                *on_the_way = Some(OnTheWay::to(now, *tally));
                continue;
            };
            let cut = Cut {
                held: held.as_deref(),
                target: &way.target,
                told: way.told,
                tally: way.tally,
                purpose: Use::Snapshot,
            };
            let part = shelf.part(&cut, &plan.shape);
            // Chunks only add. A list that takes something back is another list.
            if part.takes_back {
                return self.begin(now, shelf, true);
            }
            if part.told.is_some() {
                (way.told, way.tally) = (part.told, part.tally);
            } else {
                *held = Some(Arc::clone(&way.target));
                *tally = part.tally;
                *on_the_way = None;
            }
            if let Some(message) = &part.message {
                return Told::Frame { message: Arc::clone(message), more: false };
            }
        }
    }
}

impl Live {
    /// Of what the client holds, at the latest revision that anybody knows it to be of.
    fn token(&self, plan: &Plan) -> Bytes {
        let own = self.held.told().map_or(0, |position| position.revision);
        match self.resumed.filter(|given| given.revision > own) {
            Some(given) => given.encode(self.held.name().as_str(), plan.shape.fingerprint()),
            None => token(&self.held, &plan.shape),
        }
    }

    /// What the client was told is stale is not any more.
    fn confirm(&mut self) -> Told {
        if !self.told_stale || self.held.is_stale() || self.on_the_way.is_some() {
            return Told::Nothing;
        }
        self.told_stale = false;
        Told::frame(confirmed(&self.held))
    }

    fn step(&mut self, now: &Arc<ClusterView>, plan: &Plan, shelf: &Shelf) -> Told {
        if let confirmed @ Told::Frame { .. } = self.confirm() {
            return confirmed;
        }
        if self.on_the_way.is_none() && Arc::ptr_eq(&self.held, now) {
            return Told::Nothing;
        }
        let way = self.on_the_way.get_or_insert_with(|| OnTheWay::to(now, self.tally));
        let reason = if self.resumed.is_some() {
            pb::BatchReason::Resumed
        } else if !way.target.follows(&self.held) {
            pb::BatchReason::Coalesced
        } else if way.target.is_by_list() {
            pb::BatchReason::Drained
        } else {
            pb::BatchReason::Live
        };
        let purpose = Use::Batch(reason);
        let cut = Cut { held: Some(&self.held), target: &way.target, told: way.told, tally: way.tally, purpose };
        let part = shelf.part(&cut, &plan.shape);
        if part.told.is_some() {
            (way.told, way.tally) = (part.told, part.tally);
        } else {
            self.held = Arc::clone(&way.target);
            self.tally = part.tally;
            self.on_the_way = None;
            self.resumed = None;
        }
        match &part.message {
            Some(message) => Told::Frame { message: Arc::clone(message), more: part.told.is_some() },
            // Nothing but that it is in step may be all the news there is.
            None => self.confirm(),
        }
    }
}

fn synced(version: &ClusterView, tally: Tally, plan: &Plan) -> pb::Synced {
    pb::Synced {
        cluster: version.name().to_string(),
        cluster_id: version.id().get().into(),
        count: tally.count,
        checksum: tally.checksum,
        position: version.position().map(convert::position),
        resumed: false,
        token: token(version, &plan.shape).to_vec(),
        stale: version.is_stale(),
    }
}

fn confirmed(version: &ClusterView) -> Frame {
    Frame::Confirmed(pb::Confirmed {
        cluster: version.name().to_string(),
        cluster_id: version.id().get().into(),
        position: version.position().map(convert::position),
    })
}
