//! Who owns which cluster ID: one peer each, ours to nobody.
//!
//! A [`Claim`] is given back by [`Claim::free`] only, which belongs behind the drain of the owner's entries. A claim that is
//! dropped any other way (its task panicked, the gateway stops) keeps the ID from everyone but the peer of the same name:
//! its entries are still shown.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::identity::{ClusterId, ClusterName};

/// The register; cheap to clone.
#[derive(Clone, Debug)]
pub struct ClusterIdRegister(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ours: ClusterId,
    owners: Mutex<BTreeMap<ClusterId, Owner>>,
    freed: watch::Sender<()>,
}

#[derive(Debug)]
struct Owner {
    name: ClusterName,
    /// No task holds the claim.
    abandoned: bool,
}

/// Why an ID cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// It is our own.
    #[error("cluster ID {0} is our own")]
    Ours(ClusterId),
    /// Another peer has it.
    #[error("cluster ID {id} belongs to the peer {owner}, whose entries use it")]
    Taken {
        /// The ID.
        id: ClusterId,
        /// Who has it.
        owner: ClusterName,
    },
}

impl ClaimError {
    /// Bounded set of names; a metric label.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Ours(_) => "cluster-id-ours",
            Self::Taken { .. } => "cluster-id-taken",
        }
    }

    /// What to do.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Ours(_) => "every cluster of a mesh needs an ID of its own: change that cluster's or ours".into(),
            Self::Taken { owner, .. } => format!(
                "give one of the two another cluster.id, or remove {owner}'s file; this peer takes over by itself then"
            ),
        }
    }
}

impl ClusterIdRegister {
    /// All IDs are free but `ours`.
    #[must_use]
    pub fn new(ours: ClusterId) -> Self {
        Self(Arc::new(Inner { ours, owners: Mutex::default(), freed: watch::Sender::new(()) }))
    }

    /// Takes an ID for a peer.
    ///
    /// # Errors
    /// [`ClaimError`]; [`Self::freed`] says when to try again.
    pub fn claim(&self, id: ClusterId, name: &ClusterName) -> Result<Claim, ClaimError> {
        if id == self.0.ours {
            return Err(ClaimError::Ours(id));
        }
        let mut owners = self.owners();
        match owners.get(&id) {
            Some(owner) if !(owner.abandoned && owner.name == *name) => {
                Err(ClaimError::Taken { id, owner: owner.name.clone() })
            }
            _ => {
                owners.insert(id, Owner { name: name.clone(), abandoned: false });
                Ok(Claim { register: self.clone(), id, freed: false })
            }
        }
    }

    /// The claim that an earlier task of that peer left behind.
    #[must_use]
    pub fn adopt(&self, name: &ClusterName) -> Option<Claim> {
        let mut owners = self.owners();
        let (&id, owner) = owners.iter_mut().find(|(_, owner)| owner.abandoned && owner.name == *name)?;
        owner.abandoned = false;
        Some(Claim { register: self.clone(), id, freed: false })
    }

    /// Wakes whenever an ID becomes free.
    #[must_use]
    pub fn freed(&self) -> watch::Receiver<()> {
        self.0.freed.subscribe()
    }

    fn owners(&self) -> MutexGuard<'_, BTreeMap<ClusterId, Owner>> {
        // Every change is a single insertion, removal or flag: nothing is ever half done.
        self.0.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ownership of one ID.
#[derive(Debug)]
pub struct Claim {
    register: ClusterIdRegister,
    id: ClusterId,
    freed: bool,
}

impl Claim {
    /// The ID.
    #[must_use]
    pub const fn id(&self) -> ClusterId {
        self.id
    }

    /// Gives the ID back, once nothing of the owner's is shown under it any more.
    pub fn free(mut self) {
        self.freed = true;
        self.register.owners().remove(&self.id);
        self.register.0.freed.send_replace(());
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.freed
            && let Some(owner) = self.register.owners().get_mut(&self.id)
        {
            owner.abandoned = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::MaxConnectedClusters;

    fn id(id: u32) -> ClusterId {
        ClusterId::new(id, MaxConnectedClusters::C255).unwrap()
    }

    fn name(name: &str) -> ClusterName {
        ClusterName::new(name).unwrap()
    }

    #[test]
    fn p06_one_owner_an_id_and_ours_to_nobody() {
        let register = ClusterIdRegister::new(id(1));
        assert_eq!(register.claim(id(1), &name("a")).unwrap_err(), ClaimError::Ours(id(1)));
        let claim = register.claim(id(5), &name("a")).unwrap();
        let taken = ClaimError::Taken { id: id(5), owner: name("a") };
        assert_eq!(register.claim(id(5), &name("b")).unwrap_err(), taken);
        assert_eq!(register.claim(id(5), &name("a")).unwrap_err(), taken, "not even twice to one peer");
        let mut freed = register.freed();
        assert!(!freed.has_changed().unwrap());
        claim.free();
        assert!(freed.has_changed().unwrap());
        freed.mark_unchanged();
        register.claim(id(5), &name("b")).unwrap().free();
    }

    #[test]
    fn r22_a_claim_that_was_dropped_waits_for_its_own_peer() {
        let register = ClusterIdRegister::new(id(1));
        let freed = register.freed();
        drop(register.claim(id(5), &name("a")).unwrap());
        assert!(!freed.has_changed().unwrap());
        register.claim(id(5), &name("b")).unwrap_err();
        assert!(register.adopt(&name("b")).is_none());
        let adopted = register.adopt(&name("a")).unwrap();
        assert_eq!(adopted.id(), id(5));
        assert!(register.adopt(&name("a")).is_none(), "it has one owner again");
        drop(adopted);
        register.claim(id(5), &name("a")).unwrap().free();
        register.claim(id(5), &name("b")).unwrap().free();
    }
}
