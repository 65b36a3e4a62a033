//! All clusters joined, published atomically.

use std::sync::Arc;

use tokio::sync::watch;

use super::{ClusterView, Identity};
use crate::identity::{ClusterId, MaxConnectedClusters, NumericIdentity};

/// One immutable version of the whole mesh.
#[derive(Clone, Debug)]
pub struct MeshView {}

impl MeshView {
    /// Rises with every publication.
    #[must_use]
    pub fn version(&self) -> u64 {
        unimplemented!("skeleton")
    }
    /// The clusters, ascending by ID.
    pub fn clusters(&self) -> impl Iterator<Item = &Arc<ClusterView>> {
        std::iter::empty()
    }
    /// The cluster of that ID.
    #[must_use]
    pub fn cluster(&self, _id: ClusterId) -> Option<&Arc<ClusterView>> {
        unimplemented!("skeleton")
    }
    /// The identity of that number, in whichever cluster's range it lies.
    #[must_use]
    pub fn get(&self, _number: NumericIdentity) -> Option<&Identity> {
        unimplemented!("skeleton")
    }
    /// The identity of that key string: the local cluster first, then the one that its cluster label names.
    #[must_use]
    pub fn lookup(&self, _key_string: &str) -> Option<&Identity> {
        unimplemented!("skeleton")
    }
}

/// The one holder of the current [`MeshView`]; cheap to clone.
#[derive(Clone, Debug)]
pub struct View {}

impl View {
    /// An empty mesh seen from cluster `local`.
    #[must_use]
    pub fn new(_width: MaxConnectedClusters, _local: ClusterId) -> Self {
        unimplemented!("skeleton")
    }
    /// The current version. Lock-free.
    #[must_use]
    pub fn load(&self) -> Arc<MeshView> {
        unimplemented!("skeleton")
    }
    /// Wakes on every publication; carries the version number.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        unimplemented!("skeleton")
    }
    /// Publishes the next version of one cluster (in its ID's place).
    pub fn publish(&self, _cluster: Arc<ClusterView>) {
        unimplemented!("skeleton")
    }
    /// Publishes the mesh without that cluster.
    pub fn withdraw(&self, _id: ClusterId) {
        unimplemented!("skeleton")
    }
}
