//! The gRPC services and the server that they run on. Sees `view` and `telemetry`, never `peer` or `kvstore`.
//!
//! [`serve`] accepts connections (`server`, `connection`), lets clients do what they may
//! (`authorize`), runs the services on them (`mesh`, `subscribe`, health,
//! reflection) and ends within its deadline when told to stop.

mod acknowledged;
mod authorize;
mod connection;
mod convert;
mod crowd;
mod health;
mod mesh;
mod peer_info;
mod server;
mod status;
mod subscribe;
mod unary;

pub use peer_info::PeerInfo;
pub use server::{Security, ServeError, ServerOptions, TlsSource, serve};
pub use subscribe::{FrameLimits, SubscribeOptions};

pub use crate::pb;

use crate::access::Access;
use crate::identity::ClusterName;
use crate::telemetry::{Metrics, Readiness, StatusBoard};
use crate::view::View;

/// What the services read.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Name of the gateway's own cluster.
    pub cluster: ClusterName,
    /// The merged picture.
    pub view: View,
    /// The state of every cluster.
    pub status: StatusBoard,
    /// Everything that is counted.
    pub metrics: Metrics,
    /// Whether traffic may come: the health service says so, and `AllSynced` waits for it.
    pub readiness: Readiness,
    /// Who may do what.
    pub access: Access,
}
