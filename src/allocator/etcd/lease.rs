//! Leases of one kind: granted once for many waiters, renewed by their deadlines, replaced when they are lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::lease_book::{Due, LeaseBook, LeaseId, LeaseTerms, LeasedKey};
use super::store::Store;
use crate::kvstore::{Backoff, SessionError};

/// A lease that lived for less does not count as a success: leases that die at once are not asked for in a hot loop (G2).
const STEADY: Duration = Duration::from_secs(10);

/// Longest wait for a grant: a store that cannot grant cannot write either.
const GRANT_WAIT: Duration = Duration::from_secs(10);

/// Leases of one kind; cheap to clone. [`Self::run`] must run for anything to be granted.
#[derive(Clone, Debug)]
pub struct Leases(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Store,
    book: Mutex<LeaseBook>,
    /// Wakes the task: a lease is wanted, lost, retired.
    work: Notify,
    /// Counts grants and failures, so that waiters look again.
    grants: watch::Sender<u64>,
    /// Counts lost leases, for whoever can write their keys again.
    losses: watch::Sender<u64>,
    /// Keys that their owner could not delete, with what their leases know them by.
    abandoned: Mutex<Vec<(LeasedKey, String)>>,
    /// Nothing is granted or renewed any more.
    ended: CancellationToken,
}

impl Leases {
    /// Leases on those terms.
    #[must_use]
    pub fn new(store: Store, terms: LeaseTerms) -> Self {
        Self(Arc::new(Shared {
            store,
            book: Mutex::new(LeaseBook::new(terms)),
            work: Notify::new(),
            grants: watch::Sender::new(0),
            losses: watch::Sender::new(0),
            abandoned: Mutex::default(),
            ended: CancellationToken::new(),
        }))
    }

    /// The lease that a key is to hang on. Waits for a grant where none has room.
    ///
    /// # Errors
    /// None is granted in time, or none is kept any more.
    pub async fn attach(&self, key: &LeasedKey) -> Result<LeaseId, SessionError> {
        let attached = async {
            let mut grants = self.0.grants.subscribe();
            loop {
                let (lease, short) = {
                    let mut book = self.book();
                    (book.attach(key), book.is_short())
                };
                if short {
                    self.0.work.notify_one();
                }
                match lease {
                    Some(lease) => return Ok(lease),
                    None if self.0.ended.is_cancelled() => {
                        return Err(SessionError::Unavailable("leases are not kept any more".to_owned()));
                    }
                    // The sender lives as long as `self`.
                    None => tokio::select! {
                        _ = grants.changed() => {}
                        () = self.0.ended.cancelled() => {}
                    },
                }
            }
        };
        match timeout(GRANT_WAIT, attached).await {
            Ok(result) => result,
            Err(_) => Err(SessionError::Deadline("the grant of a lease")),
        }
    }

    /// The key is gone from the store.
    pub fn detach(&self, key: &str) {
        self.book().detach(key);
    }

    /// The lease that a key should hang on by our books.
    #[must_use]
    pub fn lease_of(&self, key: &str) -> Option<LeaseId> {
        self.book().lease_of(key)
    }

    /// Some operation found the lease gone: it is replaced, and [`Self::losses`] rises (G2).
    pub fn not_found(&self, lease: LeaseId) {
        let (known, keys) = {
            let mut book = self.book();
            let known = book.ids().any(|id| id == lease);
            (known, book.lost(lease))
        };
        if !known {
            return;
        }
        tracing::warn!(lease = format_args!("{lease:x}"), keys = keys.len(), "lease lost");
        self.0.losses.send_modify(|losses| *losses += 1);
        self.0.work.notify_one();
    }

    /// The owner of `key`, known here as `handle`, went without being sure that it is deleted. Its lease is never renewed
    /// again, so that its end deletes the key if nothing else does (G6); and a delete is tried.
    pub fn abandon(&self, lease: LeaseId, handle: &LeasedKey, key: String) {
        self.book().retire(lease);
        self.abandoned().push((handle.clone(), key));
        self.0.work.notify_one();
    }

    /// How many leases there are, and how many keys hang on them.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let book = self.book();
        (book.len(), book.keys())
    }

    /// How many leases were lost. The keys that hung on them hang on none now: [`Self::lease_of`].
    #[must_use]
    pub fn losses(&self) -> watch::Receiver<u64> {
        self.0.losses.subscribe()
    }

    /// Ends all leases, and with them the keys that hang on them.
    ///
    /// # Errors
    /// The first failure; the others are tried nevertheless.
    pub async fn revoke_all(&self) -> Result<(), SessionError> {
        let ids: Vec<_> = self.book().ids().collect();
        let mut result = Ok(());
        for id in ids {
            match self.0.store.revoke(id).await {
                Ok(()) | Err(SessionError::LeaseNotFound) => drop(self.book().lost(id)),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    /// Grants, renews and gives back until cancelled. What is held then stays in the store for its time to live.
    pub async fn run(self, cancel: CancellationToken) {
        let _ended = self.0.ended.clone().drop_guard();
        cancel.run_until_cancelled(self.work()).await;
    }

    async fn work(&self) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let mut last_grant: Option<Instant> = None;
        loop {
            let abandoned = std::mem::take(&mut *self.abandoned());
            for (handle, key) in abandoned {
                if self.0.store.delete(&key).await.is_ok() {
                    self.book().detach_from_retired(&handle);
                }
            }
            let due = self.book().due(Instant::now());
            // All at once: none waits for another's answer (G5).
            join_all(due.into_iter().map(|due| self.settle(due))).await;
            if self.book().is_short() {
                match last_grant {
                    Some(at) if at.elapsed() < STEADY && self.book().is_empty() => sleep(backoff.next_delay()).await,
                    Some(at) if at.elapsed() >= STEADY => backoff.reset(),
                    _ => {}
                }
                if self.grant().await {
                    last_grant = Some(Instant::now());
                } else {
                    sleep(backoff.next_delay()).await;
                }
                continue;
            }
            let next = self.book().next_due();
            tokio::select! {
                () = self.0.work.notified() => {}
                () = async { match next { Some(next) => sleep_until(next).await, None => std::future::pending().await } } => {}
            }
        }
    }

    async fn grant(&self) -> bool {
        let asked = Instant::now();
        let ttl = self.book().terms().ttl;
        match self.0.store.grant(ttl).await {
            Ok(id) => {
                self.book().granted(id, ttl, asked);
                self.0.grants.send_modify(|grants| *grants += 1);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "no lease granted");
                false
            }
        }
    }

    async fn settle(&self, due: Due) {
        let sent = Instant::now();
        match due {
            Due::Renew(id) => match self.0.store.renew(id).await {
                Ok(()) => self.book().renewed(id, sent),
                Err(SessionError::LeaseNotFound) => self.not_found(id),
                Err(error) => {
                    tracing::debug!(%error, lease = format_args!("{id:x}"), "lease not renewed yet");
                    self.book().not_renewed(id, Instant::now());
                }
            },
            Due::Expired(id) => self.not_found(id),
            Due::Unneeded(id) => {
                // Out of the books first: nothing can be attached to it while it is being revoked. If that fails the lease
                // ends by itself.
                let unneeded = self.book().give_back(id);
                if unneeded {
                    let _ = self.0.store.revoke(id).await;
                }
            }
        }
    }

    fn abandoned(&self) -> MutexGuard<'_, Vec<(LeasedKey, String)>> {
        self.0.abandoned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn book(&self) -> MutexGuard<'_, LeaseBook> {
        // Every change of the book is complete before anything can panic.
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
