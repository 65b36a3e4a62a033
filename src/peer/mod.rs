//! Other clusters: who they are, whether they may be used, and the life of each.
//!
//! [`directory`] watches the folder that names the peers; [`PeerManager`] keeps one task a peer in step with it; the life of
//! one peer is in `lifecycle`, its decisions, which are pure, in [`state`]. [`ClusterConfig`] is what a peer says about itself,
//! [`ClusterIdRegister`] who owns which cluster ID. What a peer's store holds goes through [`crate::mirror`].

mod config;
mod crew;
pub mod directory;
mod heartbeat;
mod keeping;
mod lifecycle;
mod manager;
mod pursuit;
mod register;
pub mod state;
mod tenure;

pub use config::{ClusterConfig, ConfigError, Us};
pub use heartbeat::HeartbeatPolicy;
pub use keeping::KeepSettings;
pub use lifecycle::PeerTiming;
pub use manager::{PeerManager, PeerSettings};
pub use register::{Claim, ClaimError, ClusterIdRegister};
