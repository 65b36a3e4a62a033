//! Etcd's own lock recipe (WIRE.md, "Locks"), fenced: whoever writes under a lock proves in the same transaction that it
//! still holds it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::lease::Leases;
use super::lease_book::{LeaseId, LeasedKey};
use super::store::{Compare, Op, Store, Txn};
use crate::allocator::AllocError;
use crate::allocator::backend::Lock;
use crate::kvstore::SessionError;

/// A held lock.
#[derive(Debug)]
pub struct EtcdLock {
    held: Held,
    revision: i64,
}

/// A lock key that may be in the store. Dropped without a confirmed delete, it takes its lease down with it: the lease is
/// not renewed again, so the key ends by itself even if the delete that follows does not come through (G6).
#[derive(Debug)]
struct Held {
    key: LeasedKey,
    lease: LeaseId,
    leases: Leases,
    store: Store,
    /// The key may be in the store.
    armed: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.armed {
            self.leases.abandon(self.lease, &self.key, format!("{}{:x}", self.key, self.lease));
        }
    }
}

impl EtcdLock {
    /// Takes the lock at `prefix` (which ends in `/`), waiting its turn until `deadline`.
    ///
    /// # Errors
    /// Deadline, or the store. Nothing is left behind that does not end by itself.
    pub async fn acquire(prefix: &str, leases: &Leases, store: &Store, deadline: Instant) -> Result<Self, AllocError> {
        let acquire = async {
            loop {
                match Self::enqueue(prefix, leases, store).await {
                    Ok(lock) => return lock.wait_for_turn(prefix).await,
                    // It was replaced; the next attempt has another.
                    Err(SessionError::LeaseNotFound) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        };
        match timeout_at(deadline, Box::pin(acquire)).await {
            Ok(result) => result,
            Err(_) => Err(AllocError::Deadline("waiting for the lock on the label set")),
        }
    }

    /// Puts our key in the queue.
    async fn enqueue(prefix: &str, leases: &Leases, store: &Store) -> Result<Self, SessionError> {
        // The key's name holds the lease, so the lease is chosen by the prefix, which is one lock of ours at a time.
        let handle: LeasedKey = Arc::from(prefix);
        let lease = leases.attach(&handle).await?;
        let key = format!("{prefix}{lease:x}");
        let mut held = Held { key: handle, lease, leases: leases.clone(), store: store.clone(), armed: true };
        let txn = Txn {
            when: vec![Compare::Absent(key.clone())],
            then: vec![Op::Put { key: key.clone(), value: Vec::new(), lease }],
            or_else: vec![Op::Get(key)],
        };
        match store.txn(txn).await {
            Ok(answer) => {
                let found = answer.read(0).first().map(|entry| entry.create_revision);
                Ok(Self { held, revision: found.unwrap_or(answer.revision) })
            }
            Err(SessionError::LeaseNotFound) => {
                held.armed = false;
                leases.detach(prefix);
                leases.not_found(lease);
                Err(SessionError::LeaseNotFound)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until no older key is left. Dropping the future gives up the place in the queue.
    async fn wait_for_turn(self, prefix: &str) -> Result<Self, AllocError> {
        loop {
            let ahead = self.held.store.txn(Txn { then: vec![Op::List(prefix.to_owned())], ..Txn::default() }).await?;
            let own = self.key();
            let keys = ahead.read(0);
            if !keys.iter().any(|entry| entry.key == own.as_bytes() && entry.create_revision == self.revision) {
                // Our own key went while we waited: its lease ended.
                self.held.leases.not_found(self.held.lease);
                return Err(AllocError::LockLost);
            }
            let next = keys
                .iter()
                .filter(|entry| entry.create_revision < self.revision)
                .max_by_key(|entry| entry.create_revision);
            match next {
                None => return Ok(self),
                Some(entry) => match self.held.store.deleted(&entry.key, ahead.revision + 1).await {
                    Ok(()) | Err(SessionError::Compacted) => {}
                    Err(error) => return Err(error.into()),
                },
            }
        }
    }

    /// Our key.
    fn key(&self) -> String {
        format!("{}{:x}", self.held.key, self.held.lease)
    }

    /// Until the lock is known to be held no longer. (That it is not known yet proves nothing: only the fence does.)
    pub async fn lost(&self) {
        loop {
            match self.held.store.deleted(self.key().as_bytes(), self.revision + 1).await {
                Ok(()) => return,
                // Cannot watch from there, or not now: look.
                Err(_) => match self.held.store.get(&self.key()).await {
                    Ok(Some(entry)) if entry.create_revision == self.revision => {}
                    Ok(_) => return,
                    // The lease tells in the end.
                    Err(_) if self.held.leases.lease_of(&self.held.key) != Some(self.held.lease) => return,
                    Err(_) => {}
                },
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// That the lock is still held.
    #[must_use]
    pub fn is_held(&self) -> Compare {
        Compare::Created(self.key(), self.revision)
    }
}

impl Lock for EtcdLock {
    async fn unlock(mut self) {
        let key = self.key();
        // Ours, or nobody's: never the key of somebody who came later.
        let txn = Txn { when: vec![self.is_held()], then: vec![Op::Delete(key)], or_else: Vec::new() };
        match self.held.store.txn(txn).await {
            Ok(_) => {
                self.held.armed = false;
                self.held.leases.detach(&self.held.key);
            }
            // `held` is dropped armed.
            Err(error) => {
                tracing::warn!(%error, lock = %self.held.key, "unlock is uncertain: its lease is not renewed again");
            }
        }
    }
}
