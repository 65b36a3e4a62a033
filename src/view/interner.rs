//! Labels interned across all clusters, freed when unused.

/// The table of labels in use; cheap to clone, shared by every [`super::ClusterBuilder`].
#[derive(Clone, Debug, Default)]
pub struct Interner {}

impl Interner {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Labels held.
    #[must_use]
    pub fn len(&self) -> usize {
        unimplemented!("skeleton")
    }
}
