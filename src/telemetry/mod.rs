//! What an operator sees: metrics, the status of every cluster, health, logs. Every room may know this one.

mod status;

pub use status::{ClusterState, ClusterStatus, LastError, RejectExample, StatusBoard};
