//! `Subscribe`: the merged picture of the mesh, then every change, to any number of subscribers.
//!
//! [`request`] checks what is asked for ([`selector`], [`filter`], [`token`]), [`stream`] waits and [`session`] decides which frame comes next,
//! [`feed`] follows one cluster, [`resume`] judges tokens, [`part`] cuts and shares what is told, [`expected`] knows what the
//! subscriber still waits for, [`wire`] carries it. Here a subscription is opened, counted and ended.

mod admission;
mod expected;
mod feed;
mod filter;
mod message;
mod part;
mod request;
mod reserved;
mod resume;
mod selector;
mod session;
mod stream;
#[cfg(test)]
mod tests;
mod token;
mod watchdog;
mod wire;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::coop::consume_budget;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use self::admission::{Admission, PerClient};
use self::expected::Expected;
use self::message::Message;
use self::part::Shelf;
pub use self::request::FrameLimits;
use self::request::Plan;
use self::session::Session;
use self::stream::{End, Next, Reader, Shared, lock};
pub(super) use self::token::Token;
use self::watchdog::Watchdog;
pub(super) use self::wire::WithSubscribe;
use super::pb::subscribe_response::Frame;
use super::{PeerInfo, convert, pb};
use crate::access::{Access, Grant};
use crate::identity::ReservedIdentities;
use crate::telemetry::{
    ClientRefusal, FrameKind, HistoryGauges, LogLimiter, Metrics, StatusBoard, SubscriptionEnd, SubscriptionGuard,
};

/// Refusals come from clients that try again, all at once: one line in so long says it.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

const STOPPING: &str = "the gateway stops";
/// How long a client that was given up may take to read what it was sent before, and why it was given up.
const GOODBYE: Duration = Duration::from_secs(10);

/// The frames of one subscription. Ends with a `GoAway` and a status that is never OK.
type FrameStream = Pin<Box<dyn Stream<Item = Result<Arc<Message>, Status>> + Send>>;

/// What subscriptions may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Streams at a time; further ones are told to go away.
    pub max_subscribers: usize,
    /// The same for one client: one certificate at one address.
    pub max_per_client: usize,
    /// Most that one frame may hold.
    pub limits: FrameLimits,
    /// How long `AllSynced` waits for clusters that the gateway itself does not have.
    pub all_synced_wait: Duration,
    /// Clients that are sent away come back within this time, spread evenly.
    pub reconnect_spread: Duration,
    /// How long a stream whose token is ahead of this gateway waits for it to catch up.
    pub resume_wait: Duration,
    /// How long a version is held for a client that does not read; then its stream ends.
    pub hold: Duration,
    /// How old a stream grows, give or take a fifth; none for any age.
    pub max_age: Option<Duration>,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        Self {
            // An agent on each of 1,000 nodes.
            max_subscribers: 1_024,
            // An agent has one or two, but many may come by one translated address with one certificate.
            max_per_client: 256,
            limits: FrameLimits::default(),
            // As long as readiness waits for peers: several times what a large one takes.
            all_synced_wait: Duration::from_secs(30),
            // 1,000 subscribers are 200 a second for the replicas that are left.
            reconnect_spread: Duration::from_secs(5),
            // Three times as long as a quiet store takes to say how far it is.
            resume_wait: Duration::from_secs(30),
            // Half of the age of the history: whoever comes back at once still finds what it left.
            hold: Duration::from_mins(5),
            max_age: None,
        }
    }
}

/// Opens subscriptions.
#[derive(Debug)]
pub(super) struct Subscriptions {
    shared: Shared,
    status: StatusBoard,
    metrics: Metrics,
    ready: watch::Receiver<bool>,
    cluster: String,
    options: SubscribeOptions,
    instance: String,
    permits: Arc<Semaphore>,
    per_client: PerClient,
    access: Access,
    /// How long streams may take to end once the gateway stops.
    drain: Duration,
    log: LogLimiter,
    watchdog: Watchdog,
}

impl Subscriptions {
    pub(super) fn new(
        parts: super::Parts,
        reserved: Arc<ReservedIdentities>,
        options: SubscribeOptions,
        drain: Duration,
        stop: CancellationToken,
    ) -> Self {
        let super::Parts { cluster, view, status, metrics, readiness, access } = parts;
        let permits = Arc::new(Semaphore::new(options.max_subscribers.min(Semaphore::MAX_PERMITS)));
        let shelf = Shelf::default();
        let (kept, history) = (shelf.clone(), view.clone());
        metrics.read_history(move || {
            let size = history.history_size();
            HistoryGauges {
                versions: size.versions as u64,
                bytes: size.bytes as u64,
                evicted: size.evicted,
                encoded_bytes: kept.bytes() as u64,
            }
        });
        Self {
            shared: Shared {
                view,
                shelf,
                reserved,
                resume_wait: options.resume_wait,
                hold: options.hold,
                status: status.clone(),
                stop,
            },
            status,
            metrics,
            ready: readiness.changes(),
            cluster: cluster.to_string(),
            options,
            instance: format!("{:016x}", fastrand::u64(..)),
            permits,
            per_client: PerClient::default(),
            access,
            drain,
            log: LogLimiter::new(1, LOG_INTERVAL),
            watchdog: Watchdog::default(),
        }
    }

    /// Looks after the subscriptions; never returns.
    pub(super) async fn look_after(&self) {
        self.watchdog.run(self.options.hold, GOODBYE).await;
    }

    /// A stream for that request, which `cut` ends by force.
    fn open(
        &self,
        request: pb::SubscribeRequest,
        peer: Option<PeerInfo>,
        grant: Grant,
        cut: CancellationToken,
    ) -> Result<FrameStream, Status> {
        let guard = self.metrics.subscription();
        let plan = match Plan::new(request, self.options.limits) {
            Ok(plan) => plan,
            Err(status) => {
                guard.end(SubscriptionEnd::Invalid);
                return Err(status);
            }
        };
        let plan = match plan.within(grant.visible.clone()) {
            Ok(plan) => plan,
            Err(status) => {
                self.metrics.client_refused(ClientRefusal::HiddenCluster);
                guard.end(SubscriptionEnd::Denied);
                return Err(status);
            }
        };
        let name = peer.as_ref().map(ToString::to_string).unwrap_or_default();
        let most = self.options.max_per_client;
        let Ok(place) = self.per_client.enter(peer.as_ref(), most) else {
            self.metrics.client_refused(ClientRefusal::ClientStreams);
            let message = format!("this client has {most} subscriptions here, as many as one may; close some of them");
            return Ok(self.send_away(guard, &name, most, message));
        };
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            let most = self.options.max_subscribers;
            let message = format!("this gateway has {most} subscribers, as many as it may");
            return Ok(self.send_away(guard, &name, most, message));
        };
        let admission = Admission::new(self.access.clone(), peer, grant);
        let peer = name;
        tracing::debug!(peer, ?plan, "subscribed");
        let wait = Instant::now() + self.options.all_synced_wait;
        let expected = Expected::new(self.status.clone(), self.ready.clone(), wait);
        let age = self.options.max_age.map(|age| Instant::now() + age.mul_f64(0.8 + 0.4 * fastrand::f64()));
        let mut session = Session::new(plan, self.shared.clone(), expected, age);
        let hello = pb::Hello {
            instance: self.instance.clone(),
            cluster: self.cluster.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            clusters: session.modes(),
        };
        let open = Open {
            metrics: self.metrics.clone(),
            stop: self.shared.stop.clone(),
            cut: cut.clone(),
            reconnect_spread: self.options.reconnect_spread,
            drain: self.drain,
            guard: Some(guard),
            ended: None,
            peer,
            _places: (permit, place),
        };
        let reader = Reader::new(session, self.ready.clone(), admission);
        self.watchdog.add(reader.session(), cut);
        Ok(open.frames(reader, Frame::Hello(hello)))
    }

    fn send_away(&self, guard: SubscriptionGuard, peer: &str, most: usize, message: String) -> FrameStream {
        if let Some(suppressed) = self.log.allow("overloaded") {
            tracing::warn!(peer, most, suppressed, "a subscriber is sent away: there are as many as allowed");
        }
        guard.end(SubscriptionEnd::Overloaded);
        let spread = self.options.reconnect_spread;
        let frame = go_away(pb::GoAwayReason::Overloaded, &message, spread, None, HashMap::new());
        self.metrics.frame(FrameKind::GoAway);
        let goodbye = [Ok(Arc::new(Message::new(frame))), Err(Status::resource_exhausted(message))];
        Box::pin(futures_util::stream::iter(goodbye))
    }
}

/// An open subscription: counted for as long as it lives, and its end however it comes.
struct Open {
    metrics: Metrics,
    stop: CancellationToken,
    /// The watchdog's.
    cut: CancellationToken,
    reconnect_spread: Duration,
    drain: Duration,
    guard: Option<SubscriptionGuard>,
    /// Why we ended it; none as long as we did not.
    ended: Option<SubscriptionEnd>,
    peer: String,
    _places: (OwnedSemaphorePermit, Option<admission::Place>),
}

/// Where a stream is in its life.
enum Phase {
    Hello(Box<Reader>, Frame),
    Running(Box<Reader>),
    GoneAway(Status),
    Ended,
}

impl Open {
    fn frames(self, reader: Reader, hello: Frame) -> FrameStream {
        let start = (self, Phase::Hello(Box::new(reader), hello));
        Box::pin(unfold(start, |(mut open, phase)| async move {
            let (message, phase) = match phase {
                Phase::Hello(reader, hello) => (Arc::new(Message::new(hello)), Phase::Running(reader)),
                Phase::Running(mut reader) => {
                    // A client that reads as fast as we write must not keep the worker for itself.
                    consume_budget().await;
                    match reader.next().await {
                        Next::Message(message) => (message, Phase::Running(reader)),
                        Next::End(end) => open.end(end, lock(reader.session()).tokens()),
                    }
                }
                Phase::GoneAway(status) => return Some((Err(status), (open, Phase::Ended))),
                Phase::Ended => return None,
            };
            open.metrics.frame(message.kind());
            Some((Ok(message), (open, phase)))
        }))
    }

    /// The last frame, and what follows it.
    fn end(&mut self, why: End, tokens: HashMap<String, Vec<u8>>) -> (Arc<Message>, Phase) {
        let deadline = match why {
            End::Stop => Some(self.drain),
            End::TooSlow => Some(GOODBYE),
            End::NotResumable(_) | End::MaxAge | End::Denied { .. } => None,
        };
        let (reason, end, status) = match why {
            End::Stop => (pb::GoAwayReason::Shutdown, SubscriptionEnd::Shutdown, Status::unavailable(STOPPING)),
            End::Denied { for_good } => {
                let status = if for_good {
                    Status::permission_denied("the access policy has changed, and lets this client subscribe no more")
                } else {
                    Status::unavailable(
                        "the access policy has changed; the next stream shows what this client may see now",
                    )
                };
                (pb::GoAwayReason::AccessChanged, SubscriptionEnd::Denied, status)
            }
            End::NotResumable(why) => {
                (pb::GoAwayReason::NotResumable, SubscriptionEnd::NotResumable, Status::out_of_range(why))
            }
            End::TooSlow => {
                let why = "nothing was read for longer than a version is held";
                (pb::GoAwayReason::TooSlow, SubscriptionEnd::TooSlow, Status::resource_exhausted(why))
            }
            End::MaxAge => {
                let why = "the stream is as old as streams may get here; the next one goes on from the token";
                (pb::GoAwayReason::MaxAge, SubscriptionEnd::MaxAge, Status::unavailable(why))
            }
        };
        self.ended = Some(end);
        let frame = go_away(reason, status.message(), self.reconnect_spread, deadline, tokens);
        (Arc::new(Message::new(frame)), Phase::GoneAway(status))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // A stream that is dropped before we stop was left by its client.
        let left = match () {
            () if self.stop.is_cancelled() => SubscriptionEnd::Shutdown,
            () if self.cut.is_cancelled() => SubscriptionEnd::TooSlow,
            () => SubscriptionEnd::Client,
        };
        let reason = self.ended.unwrap_or(left);
        tracing::debug!(peer = self.peer, reason = reason.name(), "subscription ended");
        if let Some(guard) = self.guard.take() {
            guard.end(reason);
        }
    }
}

/// The last frame of a stream. All clients are sent away at once; they must not come back so.
fn go_away(
    reason: pb::GoAwayReason,
    message: &str,
    spread: Duration,
    deadline: Option<Duration>,
    resume_tokens: HashMap<String, Vec<u8>>,
) -> Frame {
    Frame::GoAway(pb::GoAway {
        reason: reason.into(),
        message: message.to_owned(),
        reconnect_after: Some(convert::duration(spread.mul_f64(fastrand::f64()))),
        deadline: deadline.map(convert::duration),
        resume_tokens,
    })
}
