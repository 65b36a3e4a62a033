//! What subscription streams count: that they are there, what they sent, why they ended.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};

use super::{always, register, table};

/// Why a subscription ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionEnd {
    /// The client cancelled, or its connection is gone.
    Client,
    /// The gateway stops.
    Shutdown,
    /// Refused or ended because of a limit.
    Overloaded,
    /// The request could not be served.
    Invalid,
    /// A token could not be resumed, and the client wanted nothing else.
    NotResumable,
    /// The client did not read for too long.
    TooSlow,
    /// The stream was old enough.
    MaxAge,
    /// The access policy does not let the client see what it asked for, or not any more.
    Denied,
    /// A fault of ours.
    Internal,
}

impl SubscriptionEnd {
    /// All of them, in the order of their counters.
    const ALL: [Self; 9] = [
        Self::Client,
        Self::Shutdown,
        Self::Overloaded,
        Self::Invalid,
        Self::NotResumable,
        Self::TooSlow,
        Self::MaxAge,
        Self::Denied,
        Self::Internal,
    ];

    /// The name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Shutdown => "shutdown",
            Self::Overloaded => "overloaded",
            Self::Invalid => "invalid",
            Self::NotResumable => "not-resumable",
            Self::TooSlow => "too-slow",
            Self::MaxAge => "max-age",
            Self::Denied => "denied",
            Self::Internal => "internal",
        }
    }
}

/// The kind of a frame on a subscription stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// First frame of a stream.
    Hello,
    /// A cluster's snapshot begins.
    SnapshotBegin,
    /// A part of it.
    SnapshotChunk,
    /// It is complete.
    Synced,
    /// All clusters are.
    AllSynced,
    /// Changes.
    Batch,
    /// A cluster is gone.
    ClusterRemoved,
    /// Nothing happened.
    Heartbeat,
    /// The stream ends.
    GoAway,
    /// A cluster's state changed.
    ClusterStatus,
    /// What was stale is in step.
    Confirmed,
}

impl FrameKind {
    /// All of them, in the order of their counters.
    const ALL: [Self; 11] = [
        Self::Hello,
        Self::SnapshotBegin,
        Self::SnapshotChunk,
        Self::Synced,
        Self::AllSynced,
        Self::Batch,
        Self::ClusterRemoved,
        Self::Heartbeat,
        Self::GoAway,
        Self::ClusterStatus,
        Self::Confirmed,
    ];

    /// The name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::SnapshotBegin => "snapshot_begin",
            Self::SnapshotChunk => "snapshot_chunk",
            Self::Synced => "synced",
            Self::AllSynced => "all_synced",
            Self::Batch => "batch",
            Self::ClusterRemoved => "cluster_removed",
            Self::Heartbeat => "heartbeat",
            Self::GoAway => "go_away",
            Self::ClusterStatus => "cluster_status",
            Self::Confirmed => "confirmed",
        }
    }
}

#[derive(Debug)]
pub(super) struct Subscriptions {
    open: IntGauge,
    ends: [IntCounter; SubscriptionEnd::ALL.len()],
    frames: [IntCounter; FrameKind::ALL.len()],
}

impl Subscriptions {
    pub(super) fn new(registry: &Registry) -> Self {
        let counters = |spec: table::Spec| {
            let vec = always(IntCounterVec::new(spec.opts(), spec.labels));
            register(registry, &vec);
            vec
        };
        let open = always(IntGauge::with_opts(table::SUBSCRIBERS.opts()));
        register(registry, &open);
        let ends = counters(table::SUBSCRIPTION_ENDS);
        let frames = counters(table::FRAMES);
        Self {
            open,
            ends: SubscriptionEnd::ALL.map(|end| ends.with_label_values(&[end.name()])),
            frames: FrameKind::ALL.map(|kind| frames.with_label_values(&[kind.name()])),
        }
    }

    pub(super) fn frame(&self, kind: FrameKind) {
        self.frames[kind as usize].inc();
    }

    pub(super) fn count(&self) -> u64 {
        u64::try_from(self.open.get()).unwrap_or_default()
    }

    /// An open subscription, from now on.
    pub(super) fn open(&self) -> SubscriptionGuard {
        self.open.inc();
        SubscriptionGuard { open: self.open.clone(), ends: self.ends.clone(), reason: SubscriptionEnd::Client }
    }
}

/// Counts one open subscription, and its end however it comes.
#[derive(Debug)]
#[must_use = "the subscription counts as open for as long as this lives"]
pub struct SubscriptionGuard {
    open: IntGauge,
    ends: [IntCounter; SubscriptionEnd::ALL.len()],
    reason: SubscriptionEnd,
}

impl SubscriptionGuard {
    /// Ends the subscription for that reason. Dropped without this, the client went away: that is how a server sees it,
    /// its stream is dropped between two polls.
    pub fn end(mut self, reason: SubscriptionEnd) {
        self.reason = reason;
    }
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        self.open.dec();
        self.ends[self.reason as usize].inc();
    }
}
