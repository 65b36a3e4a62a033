//! Versions and diffs: the picture of the mesh that subscribers see.
//!
//! A [`ClusterView`] is one immutable version of one cluster's identities; a [`ClusterBuilder`] makes the next one; a
//! [`View`] publishes versions joined into a [`MeshView`] with one atomic swap. Knows only `identity`.

mod builder;
mod cluster;
mod diff;
mod entry;
mod history;
mod index;
mod interner;
mod mesh;
mod pages;
#[cfg(test)]
mod tests;

pub use crate::identity::contribution;
pub use builder::{BuildError, ClusterBuilder, Effect};
pub use cluster::{ClusterView, SourcePosition, SyncState};
pub use diff::{Change, diff, diff_after};
pub use entry::{Identity, Label};
pub use history::{Contents, HistoryLimits, HistorySize};
pub use interner::Interner;
pub use mesh::{MeshView, View};
