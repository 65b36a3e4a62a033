//! One subscription: which frame comes next, and what is waited for when there is none.
//!
//! Driven by its reader alone: a frame is made when the one before was taken, from the versions of that moment. There is no
//! task and no queue behind it, so a reader that stops costs the versions that it holds, and nobody waits for it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::expected::Expected;
use super::feed::{Feed, Pending, Told};
use super::filter::Tally;
use super::message::Message;
use super::part::Shelf;
use super::request::{Plan, Start};
use super::resume::{self, Verdict};
use crate::api::pb::subscribe_response::Frame;
use crate::api::{convert, pb};
use crate::identity::{ClusterId, ReservedIdentities};
use crate::telemetry::StatusBoard;
use crate::view::{ClusterView, MeshView, View};

/// When a batch may be sent: at once, or not before.
type Due = Option<Instant>;

/// What all subscriptions share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) view: View,
    pub(super) shelf: Shelf,
    pub(super) reserved: Arc<ReservedIdentities>,
    /// How long a gateway that is behind a token is waited for.
    pub(super) resume_wait: Duration,
    /// How long a version is held for a client that does not read.
    pub(super) hold: Duration,
    /// Wakes after transitions of clusters.
    pub(super) status: StatusBoard,
    pub(super) stop: CancellationToken,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum Next {
    Message(Arc<Message>),
    /// Nothing any more.
    End(End),
}

/// Why a subscription ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The gateway stops.
    Stop,
    /// A token cannot be resumed, and nothing else is wanted. Says why.
    NotResumable(String),
    /// The client did not read for longer than a version is held for it.
    TooSlow,
    /// The stream is old enough.
    MaxAge,
}

/// What there is to do at the moment.
#[derive(Debug)]
enum Step {
    Next(Next),
    /// To look again when anything changes, at the latest at that time. Whether the progress of a source counts as well.
    Idle(Instant, bool),
}

/// A subscription as its stream has it. The state behind it is locked for moments only, never while something is waited
/// for, so that it can be given up from outside while the client does not read.
#[derive(Debug)]
pub(super) struct Reader {
    session: Arc<Mutex<Session>>,
    changes: watch::Receiver<u64>,
    progress: watch::Receiver<()>,
    transitions: watch::Receiver<()>,
    ready: watch::Receiver<bool>,
    stop: CancellationToken,
}

impl Reader {
    pub(super) fn new(session: Session, ready: watch::Receiver<bool>) -> Self {
        let Shared { view, status, stop, .. } = &session.shared;
        let (changes, progress) = (view.changes(), view.progress());
        let (transitions, stop) = (status.transitions(), stop.clone());
        Self { session: Arc::new(Mutex::new(session)), changes, progress, transitions, ready, stop }
    }

    pub(super) fn session(&self) -> &Arc<Mutex<Session>> {
        &self.session
    }

    /// The next frame, or the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> Next {
        loop {
            // Before anything is looked at: what happens after that wakes us.
            self.changes.mark_unchanged();
            self.progress.mark_unchanged();
            self.transitions.mark_unchanged();
            self.ready.mark_unchanged();
            let step = lock(&self.session).step();
            let (deadline, progress) = match step {
                Step::Next(next) => return next,
                Step::Idle(deadline, progress) => (deadline, progress),
            };
            tokio::select! {
                () = self.stop.cancelled() => {}
                // The senders live in the view and the board that the session holds: an error cannot be.
                _ = self.changes.changed() => {}
                _ = self.transitions.changed() => {}
                _ = self.progress.changed(), if progress => {}
                // An error means that whoever knows has ended: the deadline decides then.
                Ok(()) = self.ready.changed() => {}
                () = sleep_until(deadline) => {}
            }
        }
    }
}

/// The state of a subscription; a panic elsewhere does not make it wrong.
pub(super) fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of one subscription.
#[derive(Debug)]
pub(super) struct Session {
    plan: Plan,
    shared: Shared,
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

/// How far the gateway must follow a cluster's source before anything more is told of it.
#[derive(Clone, Copy, Debug)]
struct CatchingUp {
    /// To that revision of the same etcd; none if the token is to be judged again.
    revision: Option<i64>,
    until: Instant,
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
    fn step(&mut self) -> Step {
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

    /// Those that wait for the gateway to catch up are due for another look.
    fn look_again(&mut self) {
        for (id, wait) in &self.catching_up {
            if wait.revision.is_some() {
                self.behind.entry(*id).or_insert(None);
            } else {
                self.loading.insert(*id);
            }
        }
        self.catching_up.retain(|_, wait| wait.revision.is_some());
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

    /// Judges a token that is pending, from the newest versions. None when there is none, or none any more.
    fn resume(&mut self, id: ClusterId) -> Option<Told> {
        if let Some(Err(error)) = self.plan.tokens.get(self.feeds.get(&id)?.name().as_str()).copied()
            && self.plan.start == Start::ResumeOnly
        {
            return Some(self.give_up(id, error.words()));
        }
        let Pending { token, until } = *self.feeds.get_mut(&id)?.pending()?;
        let applied = self.shared.view.applied(id);
        self.refresh();
        let now = Arc::clone(self.mesh.cluster(id)?);
        let feed = self.feeds.get_mut(&id)?;
        // The refresh may have shown that the ID is another cluster's.
        feed.pending()?;
        let until = until.unwrap_or_else(|| Instant::now() + self.shared.resume_wait);
        let why = match resume::judge(&self.shared.view, &now, applied, &token) {
            Verdict::Resume(version, revision) => {
                if revision.is_some() {
                    self.catching_up.insert(id, CatchingUp { revision, until });
                }
                return Some(feed.resume(version, token, now.is_stale(), &self.plan));
            }
            // A cluster that has no version yet, or an old one only, wakes us when it has: until then the client's is better.
            Verdict::Wait(_) if !now.is_synced() || now.is_stale() => return Some(Told::Nothing),
            Verdict::Wait(_) if Instant::now() < until => {
                if let Some(pending) = feed.pending() {
                    pending.until = Some(until);
                }
                self.catching_up.insert(id, CatchingUp { revision: None, until });
                return Some(Told::Nothing);
            }
            Verdict::Wait(why) | Verdict::Snapshot(why) => why,
        };
        if self.plan.start == Start::ResumeOnly {
            return Some(self.give_up(id, why));
        }
        tracing::debug!(cluster = %feed.name(), why, "a token is not resumed");
        feed.forget_token();
        None
    }

    fn give_up(&mut self, id: ClusterId, why: &str) -> Told {
        self.not_resumable = self.feeds.get(&id).map(|feed| format!("cluster {}: {why}", feed.name()));
        Told::Nothing
    }

    /// Whether a live cluster has to wait until the gateway has seen what its client has seen; forgets it when not.
    fn is_catching_up(&mut self, id: ClusterId, now: Instant) -> bool {
        let Some(CatchingUp { revision: Some(revision), until }) = self.catching_up.get(&id).copied() else {
            return false;
        };
        let applied = self.shared.view.applied(id);
        // What was published up to there is what is told next.
        self.refresh();
        let position = self.mesh.cluster(id).and_then(|cluster| cluster.told());
        let reached = [applied, position].into_iter().flatten().any(|position| position.revision >= revision);
        let waits = !reached && now < until;
        if !waits {
            self.catching_up.remove(&id);
        }
        waits
    }

    /// Compares the feeds with the current version of the view.
    fn refresh(&mut self) {
        if self.shared.view.read(MeshView::version) == self.mesh.version() {
            return;
        }
        let before = std::mem::replace(&mut self.mesh, self.shared.view.load());
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
                self.first.push_back(removal);
            }
        }
        match wanted.map(|now| now.name().clone()) {
            None => {
                self.loading.remove(&id);
                self.behind.remove(&id);
                self.catching_up.remove(&id);
            }
            Some(name) => {
                let is_new = self.feeds.get(&id).is_none_or(|feed| *feed.name() != name);
                if is_new {
                    // A token counts once: what is removed in this stream is not held any more.
                    let token = self.plan.tokens.get(name.as_str()).and_then(|token| token.ok());
                    let token = token.filter(|_| self.used.insert(name.to_string()));
                    self.feeds.insert(id, Feed::new(name.clone(), id, token));
                    self.catching_up.remove(&id);
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
}

/// What every cluster has without an allocation, as the snapshot of a cluster without a name.
fn reserved(plan: &Plan, reserved: &ReservedIdentities) -> VecDeque<Frame> {
    let passing = reserved.iter().filter(|identity| plan.shape.filter.passes_key_string(&identity.key_string));
    let mut tally = Tally::default();
    let mut identities = Vec::new();
    for identity in passing {
        tally.count += 1;
        let contribution = crate::view::contribution(identity.number, &identity.key_string);
        tally.checksum = tally.checksum.wrapping_add(contribution);
        let mut identity = convert::reserved(identity);
        if plan.shape.numbers_only {
            identity.labels.clear();
        }
        identities.push(identity);
    }
    let begin = pb::SnapshotBegin { expected: tally.count, ..pb::SnapshotBegin::default() };
    let synced = pb::Synced { count: tally.count, checksum: tally.checksum, ..pb::Synced::default() };
    let mut frames = VecDeque::from([Frame::SnapshotBegin(begin)]);
    // Two dozen small ones, which fit any limit on bytes but the smallest.
    for identities in identities.chunks(plan.shape.limits.items.clamp(1, 16)) {
        frames.push_back(Frame::SnapshotChunk(pb::SnapshotChunk {
            cluster: String::new(),
            identities: identities.into(),
        }));
    }
    frames.push_back(Frame::Synced(synced));
    frames
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
