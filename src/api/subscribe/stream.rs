//! One subscription: which frame comes next, and what is waited for when there is none.
//!
//! Driven by its reader alone: a frame is made when the one before was taken, from the versions of that moment. There is no
//! task and no queue behind it, so a reader that stops costs the versions that it holds, and nobody waits for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::expected::Expected;
use super::feed::Feed;
use super::request::Plan;
use crate::api::pb::subscribe_response::Frame;
use crate::api::{convert, pb};
use crate::identity::ClusterId;
use crate::view::{ClusterView, MeshView, View};

/// When a batch may be sent: at once, or not before.
type Due = Option<Instant>;

/// The state of one subscription.
#[derive(Debug)]
pub(super) struct Session {
    plan: Plan,
    view: View,
    changes: watch::Receiver<u64>,
    /// The version that the feeds were last compared with.
    mesh: Arc<MeshView>,
    feeds: BTreeMap<ClusterId, Feed>,
    /// Live feeds that may be behind the view, and when the subscriber wants to hear of them.
    behind: BTreeMap<ClusterId, Due>,
    /// Feeds that are not live and have something to tell.
    loading: BTreeSet<ClusterId>,
    /// The live feed that was served last, so that each gets its turn.
    served: ClusterId,
    /// Whether it is the turn of the loading feeds, where both kinds have something to tell.
    loading_next: bool,
    /// Removals, which come before anything else: at most one a cluster.
    removals: VecDeque<Frame>,
    expected: Expected,
    last_frame: Instant,
    stop: CancellationToken,
}

impl Session {
    /// A subscription that was told nothing yet.
    pub(super) fn new(plan: Plan, view: View, expected: Expected, stop: CancellationToken) -> Self {
        let changes = view.changes();
        let mesh = view.load();
        let clusters: Vec<_> = mesh.clusters().map(|cluster| cluster.id()).collect();
        let mut session = Self {
            plan,
            view,
            changes,
            mesh,
            feeds: BTreeMap::new(),
            behind: BTreeMap::new(),
            loading: BTreeSet::new(),
            served: ClusterId::UNSET,
            loading_next: true,
            removals: VecDeque::new(),
            expected,
            last_frame: Instant::now(),
            stop,
        };
        for id in clusters {
            session.compare(id);
        }
        session
    }

    /// The clusters and how they will be served.
    pub(super) fn modes(&mut self) -> Vec<pb::ClusterMode> {
        self.expected.modes(&self.plan, &self.mesh)
    }

    /// The next frame; none when the gateway stops. Cancel-safe: it changes nothing before it waits that a later call would
    /// not do again.
    pub(super) async fn next(&mut self) -> Option<Frame> {
        let frame = loop {
            if self.stop.is_cancelled() {
                return None;
            }
            self.refresh();
            if let Some(frame) = self.ready() {
                break frame;
            }
            let heartbeat = self.last_frame + self.plan.heartbeat;
            if Instant::now() >= heartbeat {
                break Frame::Heartbeat(pb::Heartbeat { at: Some(convert::timestamp(SystemTime::now())) });
            }
            self.idle(heartbeat).await;
        };
        self.last_frame = Instant::now();
        Some(frame)
    }

    /// Whatever there is to tell at once.
    fn ready(&mut self) -> Option<Frame> {
        if let Some(removal) = self.removals.pop_front() {
            return Some(removal);
        }
        // In turns: a large snapshot must not delay changes, nor endless changes a snapshot.
        let loading_first = self.loading_next;
        self.loading_next = !loading_first;
        let frame =
            if loading_first { self.load().or_else(|| self.batch()) } else { self.batch().or_else(|| self.load()) };
        frame.or_else(|| {
            let is_live = |name: &str| {
                let id = self.mesh.cluster_named(name).map(|cluster| cluster.id());
                id.and_then(|id| self.feeds.get(&id)).is_some_and(Feed::is_live)
            };
            let mut frame = self.expected.all_synced(&self.plan, &self.mesh, is_live);
            if let Some(Frame::AllSynced(all_synced)) = &mut frame {
                let stale = self.feeds.values().filter(|feed| feed.is_told_stale());
                all_synced.stale = stale.map(|feed| feed.name().to_string()).collect();
            }
            frame
        })
    }

    /// A part of a snapshot. One cluster's is told to its end before the next one begins, our own first; those that wait for
    /// the gateway's own list are passed over.
    fn load(&mut self) -> Option<Frame> {
        loop {
            let local = self.mesh.local();
            let id = self.loading.get(&local).or(self.loading.first()).copied()?;
            let frame = self.step(id);
            let live = self.feeds.get(&id).is_some_and(Feed::is_live);
            if live {
                // What came while it was told is next.
                self.behind.insert(id, None);
            }
            if live || frame.is_none() {
                self.loading.remove(&id);
            }
            if frame.is_some() {
                return frame;
            }
        }
    }

    /// A batch of a live cluster that is behind, each in its turn.
    fn batch(&mut self) -> Option<Frame> {
        let now = Instant::now();
        loop {
            let is_due = |(_, due): &(&ClusterId, &Due)| due.is_none_or(|due| due <= now);
            let after_served = (Bound::Excluded(self.served), Bound::Unbounded);
            let next = self.behind.range(after_served).find(is_due).or_else(|| self.behind.iter().find(is_due));
            let id = *next?.0;
            self.served = id;
            let Some(frame) = self.step(id) else {
                self.behind.remove(&id);
                continue;
            };
            let is_part = matches!(&frame, Frame::Batch(batch) if batch.more);
            if !is_part && !self.plan.min_interval.is_zero() {
                self.behind.insert(id, Some(now + self.plan.min_interval));
            }
            return Some(frame);
        }
    }

    fn step(&mut self, id: ClusterId) -> Option<Frame> {
        let now = self.mesh.cluster(id)?;
        self.feeds.get_mut(&id)?.step(now, &self.plan)
    }

    /// Compares the feeds with the current version of the view.
    fn refresh(&mut self) {
        // Before the version is read: what is published after that wakes us.
        self.changes.mark_unchanged();
        if self.view.read(MeshView::version) == self.mesh.version() {
            return;
        }
        let before = std::mem::replace(&mut self.mesh, self.view.load());
        for id in changed(&before, &self.mesh) {
            self.compare(id);
        }
    }

    /// Compares one ID's feed with the cluster that has the ID now.
    fn compare(&mut self, id: ClusterId) {
        let now = self.mesh.cluster(id);
        let wanted = now.filter(|now| self.plan.wants(now.name().as_str()) && self.is_where_its_name_is(now));
        if let Some(feed) = self.feeds.get_mut(&id) {
            let passed_on = now.is_some_and(|now| now.name() != feed.name());
            if let Some(removal) = feed.judge(wanted.filter(|now| now.name() == feed.name()), passed_on) {
                self.expected.removed(feed.name().as_str());
                self.removals.push_back(removal);
            }
        }
        match wanted.map(|now| now.name().clone()) {
            None => {
                self.loading.remove(&id);
                self.behind.remove(&id);
            }
            Some(name) => {
                let is_new = self.feeds.get(&id).is_none_or(|feed| *feed.name() != name);
                if is_new {
                    self.feeds.insert(id, Feed::new(name.clone(), id));
                }
                if self.feeds.get(&id).is_some_and(Feed::is_live) {
                    self.behind.entry(id).or_insert(None);
                } else {
                    self.behind.remove(&id);
                    self.loading.insert(id);
                }
                // A cluster that moved to this ID is gone from the one that it had, whether or not that is cleared already.
                let moved = self.feeds.iter().find(|(other, feed)| **other != id && *feed.name() == name);
                if let Some(other) = moved.filter(|_| is_new).map(|(other, _)| *other) {
                    self.compare(other);
                }
            }
        }
    }

    /// Frames name a cluster, not an ID. While a name stands at two IDs, the newer one counts.
    fn is_where_its_name_is(&self, cluster: &ClusterView) -> bool {
        self.mesh.cluster_named(cluster.name().as_str()).is_none_or(|named| named.id() == cluster.id())
    }

    /// Waits until there may be something to tell.
    async fn idle(&mut self, heartbeat: Instant) {
        let due = self.behind.values().copied().flatten().chain(self.expected.deadline());
        let deadline = due.fold(heartbeat, Instant::min);
        tokio::select! {
            () = self.stop.cancelled() => {}
            // The sender lives in the view that we hold: an error cannot be.
            _ = self.changes.changed() => {}
            () = sleep_until(deadline) => {}
            removed = self.expected.changed(&self.mesh) => self.removals.extend(removed.map(|cluster| {
                Frame::ClusterRemoved(pb::ClusterRemoved { cluster, cluster_id: 0 })
            })),
        }
    }
}

/// The IDs whose clusters differ between two versions of the mesh; both name them in ascending order.
fn changed(before: &MeshView, now: &MeshView) -> Vec<ClusterId> {
    let (mut before, mut now) = (before.clusters().peekable(), now.clusters().peekable());
    let mut changed = Vec::new();
    loop {
        let (old, new) = (before.peek().copied(), now.peek().copied());
        let id = match (old, new) {
            (None, None) => return changed,
            (Some(one), None) | (None, Some(one)) => one.id(),
            (Some(old), Some(new)) => old.id().min(new.id()),
        };
        let old = before.next_if(|old| old.id() == id);
        let new = now.next_if(|new| new.id() == id);
        if !matches!((old, new), (Some(old), Some(new)) if Arc::ptr_eq(old, new)) {
            changed.push(id);
        }
    }
}
