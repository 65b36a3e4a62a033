//! The allocator's backend on etcd, key for key and lock for lock as Cilium's agents have it.
//!
//! [`Store`] makes the calls, on whatever session a [`SessionKeeper`] has up; [`Leases`] (with the pure [`LeaseBook`]) decides what hangs on which lease; [`EtcdLock`] is
//! etcd's own lock recipe, fenced. The transactions are in `writes` and `collect`, and nowhere else.

mod backend;
mod collect;
mod election;
mod lease;
mod lease_book;
mod limit;
mod lock;
mod presence;
mod sessions;
mod store;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use lease::Leases;
pub use lease_book::{Due, LeaseBook, LeaseId, LeaseTerms, LeasedKey};
pub use limit::{Limiter, RateLimits};
pub use lock::EtcdLock;
pub use presence::Presence;
pub use sessions::{SessionKeeper, Sessions};
pub use store::{Answer, Compare, Op, Store, Txn, TxnAnswer};

use super::keys::Paths;
use super::pool::NumberRange;

/// How the backend uses etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtcdTerms {
    /// Leases that references hang on.
    pub references: LeaseTerms,
    /// Leases that locks hang on.
    pub locks: LeaseTerms,
    /// Longest wait for a lock: WIRE.md, "Constants that others expect".
    pub lock_wait: Duration,
    /// Whether the transactions that need no lock are used at all.
    pub fast_path: bool,
}

impl Default for EtcdTerms {
    fn default() -> Self {
        Self {
            references: LeaseTerms::REFERENCES,
            locks: LeaseTerms::LOCKS,
            lock_wait: Duration::from_mins(1),
            fast_path: true,
        }
    }
}

/// The backend; cheap to clone. [`Self::run`] must run.
#[derive(Clone, Debug)]
pub struct EtcdBackend(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    paths: Paths,
    store: Store,
    /// References by other numbers count as absent (G9).
    numbers: NumberRange,
    terms: EtcdTerms,
    references: Leases,
    locks: Leases,
}

impl EtcdBackend {
    /// On that store, with keys at those paths, for those numbers.
    #[must_use]
    pub fn new(store: Store, paths: Paths, numbers: NumberRange, terms: EtcdTerms) -> Self {
        let references = Leases::new(store.clone(), terms.references);
        let locks = Leases::new(store.clone(), terms.locks);
        Self(Arc::new(Inner { paths, store, numbers, terms, references, locks }))
    }

    /// Where its keys are.
    #[must_use]
    pub fn paths(&self) -> &Paths {
        &self.0.paths
    }

    /// The store under it.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The leases that references hang on.
    #[must_use]
    pub fn reference_leases(&self) -> &Leases {
        &self.0.references
    }

    /// The leases that locks hang on.
    #[must_use]
    pub fn lock_leases(&self) -> &Leases {
        &self.0.locks
    }

    /// Keeps the leases until cancelled; they end by themselves after that.
    pub async fn run(self, cancel: CancellationToken) {
        let (references, locks) = (self.0.references.clone(), self.0.locks.clone());
        // Boxed: both are large, and live as long as the gateway.
        tokio::join!(Box::pin(references.run(cancel.clone())), Box::pin(locks.run(cancel)));
    }
}
