//! What an operator sees: metrics, the status of every cluster, health, logs. Every room may know this one.

pub mod metrics;
mod status;

pub use metrics::{ClusterMetrics, FrameKind, Metrics, SubscriptionEnd, SubscriptionGuard};
pub use status::{ClusterState, ClusterStatus, LastError, RejectExample, StatusBoard};
