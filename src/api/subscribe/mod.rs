//! `Subscribe`: the merged picture of the mesh, then every change, to any number of subscribers.
//!
//! [`request`] checks what is asked for, [`stream`] decides which frame comes next, [`feed`] makes the frames of one cluster,
//! [`expected`] knows what the subscriber still waits for. Here a subscription is opened, counted and ended.

mod expected;
mod feed;
mod request;
mod stream;
#[cfg(test)]
mod tests;

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

use self::expected::Expected;
pub use self::request::FrameLimits;
use self::request::Plan;
use self::stream::Session;
use super::pb::subscribe_response::Frame;
use super::{PeerInfo, convert, pb};
use crate::telemetry::{FrameKind, LogLimiter, Metrics, StatusBoard, SubscriptionEnd, SubscriptionGuard};
use crate::view::View;

/// Refusals come from clients that try again, all at once: one line in so long says it.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

const STOPPING: &str = "the gateway stops";

/// The frames of one subscription. Ends with a `GoAway` and a status that is never OK.
pub(super) type FrameStream = Pin<Box<dyn Stream<Item = Result<pb::SubscribeResponse, Status>> + Send>>;

/// What subscriptions may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Streams at a time; further ones are told to go away.
    pub max_subscribers: usize,
    /// Most that one frame may hold.
    pub limits: FrameLimits,
    /// How long `AllSynced` waits for clusters that the gateway itself does not have.
    pub all_synced_wait: Duration,
    /// Clients that are sent away come back within this time, spread evenly.
    pub reconnect_spread: Duration,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        Self {
            // An agent on each of 1,000 nodes.
            max_subscribers: 1_024,
            limits: FrameLimits::default(),
            // As long as readiness waits for peers: several times what a large one takes.
            all_synced_wait: Duration::from_secs(30),
            // 1,000 subscribers are 200 a second for the replicas that are left.
            reconnect_spread: Duration::from_secs(5),
        }
    }
}

/// Opens subscriptions.
#[derive(Debug)]
pub(super) struct Subscriptions {
    pub(super) view: View,
    pub(super) status: StatusBoard,
    pub(super) metrics: Metrics,
    pub(super) ready: watch::Receiver<bool>,
    pub(super) cluster: String,
    pub(super) options: SubscribeOptions,
    pub(super) stop: CancellationToken,
    instance: String,
    permits: Arc<Semaphore>,
    log: LogLimiter,
}

impl Subscriptions {
    pub(super) fn new(parts: super::Parts, options: SubscribeOptions, stop: CancellationToken) -> Self {
        let super::Parts { cluster, view, status, metrics, ready } = parts;
        let permits = Arc::new(Semaphore::new(options.max_subscribers.min(Semaphore::MAX_PERMITS)));
        Self {
            view,
            status,
            metrics,
            ready,
            cluster: cluster.to_string(),
            options,
            stop,
            instance: format!("{:016x}", fastrand::u64(..)),
            permits,
            log: LogLimiter::new(1, LOG_INTERVAL),
        }
    }

    /// A stream for that request.
    pub(super) fn open(&self, request: pb::SubscribeRequest, peer: Option<PeerInfo>) -> Result<FrameStream, Status> {
        let guard = self.metrics.subscription();
        let plan = match Plan::new(request, self.options.limits) {
            Ok(plan) => plan,
            Err(status) => {
                guard.end(SubscriptionEnd::Invalid);
                return Err(status);
            }
        };
        let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            if let Some(suppressed) = self.log.allow("overloaded") {
                let most = self.options.max_subscribers;
                tracing::warn!(peer, most, suppressed, "a subscriber is sent away: there are as many as allowed");
            }
            guard.end(SubscriptionEnd::Overloaded);
            return Ok(self.send_away());
        };
        tracing::debug!(peer, clusters = ?plan.clusters, "subscribed");
        let wait = Instant::now() + self.options.all_synced_wait;
        let expected = Expected::new(self.status.clone(), self.ready.clone(), wait);
        let mut session = Session::new(plan, self.view.clone(), expected, self.stop.clone());
        let hello = pb::Hello {
            instance: self.instance.clone(),
            cluster: self.cluster.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            clusters: session.modes(),
        };
        let open = Open {
            metrics: self.metrics.clone(),
            stop: self.stop.clone(),
            reconnect_spread: self.options.reconnect_spread,
            guard: Some(guard),
            peer,
            _permit: permit,
        };
        Ok(open.frames(session, Frame::Hello(hello)))
    }

    fn send_away(&self) -> FrameStream {
        let most = self.options.max_subscribers;
        let message = format!("this gateway has {most} subscribers, as many as it may");
        let frame = go_away(pb::GoAwayReason::Overloaded, &message, self.options.reconnect_spread);
        self.metrics.frame(FrameKind::GoAway);
        Box::pin(futures_util::stream::iter([Ok(response(frame)), Err(Status::resource_exhausted(message))]))
    }
}

/// An open subscription: counted for as long as it lives, and its end however it comes.
struct Open {
    metrics: Metrics,
    stop: CancellationToken,
    reconnect_spread: Duration,
    guard: Option<SubscriptionGuard>,
    peer: String,
    _permit: OwnedSemaphorePermit,
}

/// Where a stream is in its life.
enum Phase {
    Hello(Box<Session>, Frame),
    Running(Box<Session>),
    GoneAway,
    Ended,
}

impl Open {
    fn frames(self, session: Session, hello: Frame) -> FrameStream {
        let start = (self, Phase::Hello(Box::new(session), hello));
        Box::pin(unfold(start, |(open, phase)| async move {
            let (frame, phase) = match phase {
                Phase::Hello(session, hello) => (hello, Phase::Running(session)),
                Phase::Running(mut session) => {
                    // A client that reads as fast as we write must not keep the worker for itself.
                    consume_budget().await;
                    if let Some(frame) = session.next().await {
                        (frame, Phase::Running(session))
                    } else {
                        let frame = go_away(pb::GoAwayReason::Shutdown, STOPPING, open.reconnect_spread);
                        (frame, Phase::GoneAway)
                    }
                }
                Phase::GoneAway => {
                    return Some((Err(Status::unavailable(STOPPING)), (open, Phase::Ended)));
                }
                Phase::Ended => return None,
            };
            open.metrics.frame(kind(&frame));
            Some((Ok(response(frame)), (open, phase)))
        }))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // A stream that is dropped before we stop was left by its client.
        let reason = if self.stop.is_cancelled() { SubscriptionEnd::Shutdown } else { SubscriptionEnd::Client };
        tracing::debug!(peer = self.peer, reason = reason.name(), "subscription ended");
        if let Some(guard) = self.guard.take() {
            guard.end(reason);
        }
    }
}

/// The last frame of a stream. All clients are sent away at once; they must not come back so.
fn go_away(reason: pb::GoAwayReason, message: &str, spread: Duration) -> Frame {
    Frame::GoAway(pb::GoAway {
        reason: reason.into(),
        message: message.to_owned(),
        reconnect_after: Some(convert::duration(spread.mul_f64(fastrand::f64()))),
    })
}

fn response(frame: Frame) -> pb::SubscribeResponse {
    pb::SubscribeResponse { frame: Some(frame) }
}

const fn kind(frame: &Frame) -> FrameKind {
    match frame {
        Frame::Hello(_) => FrameKind::Hello,
        Frame::SnapshotBegin(_) => FrameKind::SnapshotBegin,
        Frame::SnapshotChunk(_) => FrameKind::SnapshotChunk,
        Frame::Synced(_) => FrameKind::Synced,
        Frame::AllSynced(_) => FrameKind::AllSynced,
        Frame::Batch(_) => FrameKind::Batch,
        Frame::ClusterRemoved(_) => FrameKind::ClusterRemoved,
        Frame::Heartbeat(_) => FrameKind::Heartbeat,
        Frame::GoAway(_) => FrameKind::GoAway,
        Frame::Confirmed(_) => FrameKind::Confirmed,
    }
}
