//! The state of one subscription: which frame comes next, from the versions of the moment.

mod comparing;
mod resuming;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use self::resuming::CatchingUp;
use super::expected::Expected;
use super::feed::{Feed, Told};
use super::message::Message;
use super::request::{Plan, Start};
use super::reserved::reserved;
use super::resume::{self, Verdict};
use super::stream::{End, Next, Shared, Step};
use crate::api::pb::subscribe_response::Frame;
use crate::api::{convert, pb};
use crate::identity::ClusterId;
use crate::view::MeshView;

/// When a batch may be sent: at once, or not before.
type Due = Option<Instant>;

/// The state of one subscription.
#[derive(Debug)]
pub(super) struct Session {
    plan: Plan,
    pub(super) shared: Shared,
    /// Says whether there were transitions since they were looked at.
    transitions: watch::Receiver<()>,
    /// The version that the feeds were last compared with.
    mesh: Arc<MeshView>,
    feeds: BTreeMap<ClusterId, Feed>,
    /// Live feeds that may be behind the view, and when the subscriber wants to hear of them.
    behind: BTreeMap<ClusterId, Due>,
    /// Feeds that are not live and have something to tell.
    loading: BTreeSet<ClusterId>,
    /// Feeds that wait until the gateway has caught up with what the subscriber has seen, and how long.
    catching_up: BTreeMap<ClusterId, CatchingUp>,
    /// The live feed that was served last, so that each gets its turn.
    served: ClusterId,
    /// Whether it is the turn of the loading feeds, where both kinds have something to tell.
    loading_next: bool,
    /// What comes before anything else: the reserved identities at the start, removals; at most one a cluster.
    first: VecDeque<Frame>,
    /// Clusters whose token has come to its feed.
    used: BTreeSet<String>,
    not_resumable: Option<String>,
    expected: Expected,
    last_frame: Instant,
    /// When the client asked last.
    last_step: Instant,
    /// When the stream has reached its greatest age.
    max_age: Option<Instant>,
    /// It was given up, with what the client held then.
    given_up: Option<(End, HashMap<String, Vec<u8>>)>,
}

impl Session {
    /// A subscription that was told nothing yet, and ends by itself at `max_age`.
    pub(super) fn new(plan: Plan, shared: Shared, expected: Expected, max_age: Option<Instant>) -> Self {
        let transitions = shared.status.transitions();
        let mesh = shared.view.load();
        let clusters: Vec<_> = mesh.clusters().map(|cluster| cluster.id()).collect();
        let mut session = Self {
            first: if plan.reserved { reserved(&plan, &shared.reserved) } else { VecDeque::new() },
            plan,
            shared,
            transitions,
            mesh,
            feeds: BTreeMap::new(),
            behind: BTreeMap::new(),
            loading: BTreeSet::new(),
            catching_up: BTreeMap::new(),
            served: ClusterId::UNSET,
            loading_next: true,
            used: BTreeSet::new(),
            not_resumable: None,
            expected,
            last_frame: Instant::now(),
            last_step: Instant::now(),
            max_age,
            given_up: None,
        };
        for id in clusters {
            session.compare(id);
        }
        session
    }

    /// The clusters and how they will be served.
    pub(super) fn modes(&mut self) -> Vec<pb::ClusterMode> {
        let Self { plan, shared, mesh, expected, .. } = self;
        expected.modes(plan, mesh, |cluster| {
            if plan.start == Start::LiveOnly {
                return (pb::ServeMode::Live, "");
            }
            match plan.tokens.get(cluster.name().as_str()) {
                None => (pb::ServeMode::Snapshot, ""),
                Some(Err(error)) => (pb::ServeMode::Snapshot, error.words()),
                Some(Ok(token)) => {
                    // For the record: what is done is judged again, from newer versions, when it is the cluster's turn.
                    let applied = shared.view.applied(cluster.id());
                    match resume::judge(&shared.view, cluster, applied, token) {
                        Verdict::Resume(..) => (pb::ServeMode::Resumed, ""),
                        Verdict::Wait(why) => (pb::ServeMode::Waiting, why),
                        Verdict::Snapshot(why) => (pb::ServeMode::Snapshot, why),
                    }
                }
            }
        })
    }

    /// The next frame, or what is to be waited for.
    pub(super) fn step(&mut self) -> Step {
        let now = Instant::now();
        self.last_step = now;
        if let Some((end, _)) = &self.given_up {
            return Step::Next(Next::End(end.clone()));
        }
        if self.shared.stop.is_cancelled() {
            return Step::Next(Next::End(End::Stop));
        }
        if self.max_age.is_some_and(|max_age| max_age <= now) {
            return Step::Next(Next::End(End::MaxAge));
        }
        self.refresh();
        self.look_at_transitions();
        self.look_again();
        let heartbeat = self.last_frame + self.plan.heartbeat;
        let message = match self.ready() {
            Some(message) => message,
            None if self.not_resumable.is_some() => {
                let why = self.not_resumable.take().unwrap_or_default();
                return Step::Next(Next::End(End::NotResumable(why)));
            }
            None if heartbeat <= now => Arc::new(Message::new(self.heartbeat())),
            None => {
                let due = self.behind.values().copied().flatten().chain(self.expected.deadline()).chain(self.max_age);
                let due = due.chain(self.catching_up.values().map(|wait| wait.until));
                return Step::Idle(due.fold(heartbeat, Instant::min), !self.catching_up.is_empty());
            }
        };
        self.last_frame = now;
        Step::Next(Next::Message(message))
    }

    /// Lets go of the versions that are held for a client that has not asked for anything in too long, though there is
    /// something new. Returns for how long it has been given up already, if it has.
    pub(super) fn give_up_if_too_slow(&mut self, now: Instant) -> Option<Duration> {
        let silent = now.duration_since(self.last_step);
        if self.given_up.is_some() {
            return Some(silent.saturating_sub(self.shared.hold));
        }
        let news = self.shared.view.read(MeshView::version) != self.mesh.version();
        if silent < self.shared.hold || !news {
            return None;
        }
        self.given_up = Some((End::TooSlow, self.tokens()));
        (self.feeds, self.behind, self.loading) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        self.first.clear();
        self.mesh = Arc::new(self.mesh.emptied());
        Some(Duration::ZERO)
    }

    /// The tokens of what the client holds of each cluster that is synced in this stream.
    pub(super) fn tokens(&self) -> HashMap<String, Vec<u8>> {
        if let Some((_, tokens)) = &self.given_up {
            return tokens.clone();
        }
        let tokens = self.feeds.values().filter_map(|feed| {
            let (token, _) = feed.progress(None, &self.plan)?;
            Some((feed.name().to_string(), token.to_vec()))
        });
        tokens.filter(|(_, token)| !token.is_empty()).collect()
    }

    fn look_at_transitions(&mut self) {
        if !self.transitions.has_changed().unwrap_or_default() {
            return;
        }
        self.transitions.mark_unchanged();
        while let Some(cluster) = self.expected.gone(&self.mesh) {
            let reason = pb::RemovalReason::Withdrawn.into();
            self.first.push_back(Frame::ClusterRemoved(pb::ClusterRemoved { cluster, cluster_id: 0, reason }));
        }
        let live: BTreeSet<_> =
            self.feeds.values().filter(|feed| feed.is_live()).map(|feed| feed.name().as_str()).collect();
        let changed = self.expected.transitions(|name| live.contains(name));
        // Of each cluster the latest only: whoever reads slowly gets no queue of them.
        self.first.retain(|frame| match frame {
            Frame::ClusterStatus(queued) => !changed.iter().any(|changed| changed.cluster == queued.cluster),
            _ => true,
        });
        self.first.extend(changed.into_iter().map(Frame::ClusterStatus));
    }

    fn heartbeat(&self) -> Frame {
        let clusters = self.feeds.iter().filter_map(|(id, feed)| {
            let (token, behind) = feed.progress(self.mesh.cluster(*id), &self.plan)?;
            let (state, since) = self.expected.state(feed.name().as_str());
            Some(pb::ClusterProgress {
                cluster: feed.name().to_string(),
                token: token.to_vec(),
                behind,
                applied: self.shared.view.applied(*id).map(convert::position),
                state: state.map(convert::state).unwrap_or_default().into(),
                since: since.map(convert::timestamp),
            })
        });
        Frame::Heartbeat(pb::Heartbeat {
            at: Some(convert::timestamp(SystemTime::now())),
            clusters: clusters.collect(),
        })
    }

    /// Whatever there is to tell at once.
    fn ready(&mut self) -> Option<Arc<Message>> {
        if let Some(first) = self.first.pop_front() {
            return Some(Arc::new(Message::new(first)));
        }
        // In turns: a large snapshot must not delay changes, nor endless changes a snapshot.
        let loading_first = self.loading_next;
        self.loading_next = !loading_first;
        let message =
            if loading_first { self.load().or_else(|| self.batch()) } else { self.batch().or_else(|| self.load()) };
        message.or_else(|| {
            if self.not_resumable.is_some() {
                return None;
            }
            let feed = |name: &str| {
                let id = self.mesh.cluster_named(name).map(|cluster| cluster.id());
                id.and_then(|id| self.feeds.get(&id))
            };
            let is_live = |name: &str| feed(name).is_some_and(Feed::is_live);
            let is_catching_up = |name: &str| feed(name).is_some_and(Feed::is_pending);
            let mut frame = self.expected.all_synced(&self.plan, &self.mesh, is_live, is_catching_up)?;
            if let Frame::AllSynced(all_synced) = &mut frame {
                let stale = self.feeds.values().filter(|feed| feed.is_told_stale());
                all_synced.stale = stale.map(|feed| feed.name().to_string()).collect();
            }
            Some(Arc::new(Message::new(frame)))
        })
    }

    /// A part of a snapshot. One cluster's is told to its end before the next one begins, our own first; those that wait for
    /// the gateway's own list are passed over.
    fn load(&mut self) -> Option<Arc<Message>> {
        loop {
            if self.not_resumable.is_some() {
                return None;
            }
            let local = self.mesh.local();
            let id = self.loading.get(&local).or(self.loading.first()).copied()?;
            let told = match self.resume(id) {
                Some(told) => told,
                None => self.tell(id),
            };
            let live = self.feeds.get(&id).is_some_and(Feed::is_live);
            if live {
                // What came while it was told is next.
                self.behind.insert(id, None);
            }
            if live || matches!(told, Told::Nothing) {
                self.loading.remove(&id);
            }
            if let Told::Frame { message, .. } = told {
                return Some(message);
            }
        }
    }

    /// A batch of a live cluster that is behind, each in its turn.
    fn batch(&mut self) -> Option<Arc<Message>> {
        let now = Instant::now();
        loop {
            let is_due = |(_, due): &(&ClusterId, &Due)| due.is_none_or(|due| due <= now);
            let after_served = (Bound::Excluded(self.served), Bound::Unbounded);
            let next = self.behind.range(after_served).find(is_due).or_else(|| self.behind.iter().find(is_due));
            let id = *next?.0;
            self.served = id;
            let told = if self.is_catching_up(id, now) { Told::Nothing } else { self.tell(id) };
            let Told::Frame { message, more } = told else {
                self.behind.remove(&id);
                continue;
            };
            if !more && !self.plan.min_interval.is_zero() {
                self.behind.insert(id, Some(now + self.plan.min_interval));
            }
            return Some(message);
        }
    }

    fn tell(&mut self, id: ClusterId) -> Told {
        let (Some(now), Some(feed)) = (self.mesh.cluster(id), self.feeds.get_mut(&id)) else { return Told::Nothing };
        // Whoever came with tokens may hold the newest there is, and must not be sent back a moment.
        let fresh = !self.plan.tokens.is_empty();
        feed.step(now, &self.plan, &self.shared.shelf, fresh)
    }
}
