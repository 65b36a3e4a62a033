//! What an operator sees: metrics, the status of every cluster, health, logs. Every room may know this one.

mod health;
pub mod http;
pub mod logging;
pub mod metrics;
mod status;

pub use health::{Guard, GuardReport, Readiness, Report};
pub use logging::LogLimiter;
pub use metrics::{
    AcknowledgedGauges, AllocatorSeries, ClientRefusal, ClusterMetrics, FrameKind, HistoryGauges, Metrics,
    SubscriptionEnd, SubscriptionGuard,
};
pub use status::{AllocatorStatus, ClusterState, ClusterStatus, LastError, RejectExample, StatusBoard};
