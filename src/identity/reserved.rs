//! Reserved and well-known identities: numbers that need no allocation.

/// The tables for one cluster (well-known identities name the cluster and the namespace of its agents).
#[derive(Clone, Debug)]
pub struct ReservedIdentities {}
