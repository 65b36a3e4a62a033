//! The gRPC services and the server that they run on. Sees `view` and `telemetry`, never `peer` or `kvstore`.
//!
//! [`serve`] accepts connections (`server`, `connection`), runs the services on them (`mesh`, `subscribe`, health,
//! reflection) and ends within its deadline when told to stop.

mod connection;
mod convert;
mod health;
mod mesh;
mod peer_info;
mod server;
mod subscribe;

use tokio::sync::watch;

pub use peer_info::PeerInfo;
pub use server::{Security, ServeError, ServerOptions, TlsSource, serve};
pub use subscribe::{FrameLimits, SubscribeOptions};

use crate::identity::ClusterName;
use crate::telemetry::{Metrics, StatusBoard};
use crate::view::View;

/// Types and services generated from `proto/meshgate/v1`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated; its documentation is the proto's"
)]
pub mod pb {
    tonic::include_proto!("meshgate.v1");
    /// The descriptors of this package, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/meshgate_descriptor.bin"));
}

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
    pub ready: watch::Receiver<bool>,
}
