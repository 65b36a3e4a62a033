//! Keeping in the store what is in local use: sync, rewriting after the loss of a lease, protection of records.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::sleep;

use super::backend::{Backend, Update};
use super::masters::Inserted;
use super::service::Allocator;
use super::{AllocError, Key};
use crate::identity::NumericIdentity;
use crate::kvstore::Backoff;

/// Ceilings of the pauses between attempts to write something again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));

/// What writing again what is missing of a label set came to.
enum Restored {
    /// It is in the store, or somebody has to look why it cannot be.
    Yes,
    /// It was, and has left again since.
    Left,
    /// It is not in use any more.
    Unused,
}

impl<B: Backend> Allocator<B> {
    /// The periodic sync.
    pub(super) async fn keep_in_step(&self) {
        loop {
            // Not all gateways at once.
            sleep(self.0.settings.sync.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
            self.sync().await;
        }
    }

    /// Checks the store for everything in local use, and writes what is missing or hangs on a foreign lease.
    pub async fn sync(&self) {
        self.clear_doubtful().await;
        let held: Vec<_> = self.0.state().local.in_use().map(|(key, number)| (key.clone(), number)).collect();
        self.write_again(held).await;
    }

    /// Writes again at once what hung on a lease that was lost.
    pub(super) async fn rewrite_after_losses(&self) {
        let mut losses = self.0.backend.losses();
        let mut counted = 0;
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        loop {
            // The backend keeps the other end.
            if losses.changed().await.is_err() {
                return std::future::pending().await;
            }
            let lost = *losses.borrow_and_update();
            self.0.metrics.lost_leases(lost - counted);
            counted = lost;
            loop {
                let lost: Vec<_> = (self.0.state().local.in_use())
                    .filter(|(key, _)| !self.0.backend.keeps_reference(key))
                    .map(|(key, number)| (key.clone(), number))
                    .collect();
                self.0.missing.send_replace(lost.len());
                if lost.is_empty() {
                    backoff.reset();
                    break;
                }
                tracing::info!(references = lost.len(), "writing again what hung on a lost lease");
                if self.write_again(lost).await {
                    self.0.missing.send_replace(0);
                    backoff.reset();
                    break;
                }
                sleep(backoff.next_delay()).await;
            }
        }
    }

    /// Writes what is missing of those that are still in use; whether all of it is there now, but for conflicts.
    async fn write_again(&self, held: Vec<(Key, NumericIdentity)>) -> bool {
        stream::iter(held)
            .map(|(key, number)| async move {
                let restored = self.restore(&key, number).await;
                if let Ok(Restored::Left) = restored {
                    self.protect(number, key);
                }
                restored.is_ok()
            })
            .buffer_unordered(self.0.settings.sync_width)
            .fold(true, |all, restored| async move { all && restored })
            .await
    }

    /// Writes what is missing of one label set, if it is still in use.
    async fn restore(&self, key: &Key, number: NumericIdentity) -> Result<Restored, AllocError> {
        let _lane = self.0.lanes.enter(key).await;
        {
            let state = self.0.state();
            if state.local.users_of(key) == 0 || state.local.number_of(key) != Some(number) {
                return Ok(Restored::Unused);
            }
        }
        match self.0.backend.update(number, key, Update::IfDifferent, None).await {
            Ok(updated) => {
                if updated.master {
                    tracing::warn!(%number, %key, "missing identity re-created");
                    self.0.metrics.recreated();
                }
                Ok(match self.0.masters.insert(number, key, updated.revision) {
                    Inserted::Seen => Restored::Yes,
                    Inserted::Left => Restored::Left,
                })
            }
            // Trying again would not help; it is counted and logged each time it is found.
            Err(AllocError::Conflict { number }) => {
                self.conflict(number, key);
                Ok(Restored::Yes)
            }
            Err(error) => {
                tracing::debug!(%number, %key, %error, "not written again yet");
                Err(error)
            }
        }
    }

    /// The record of a number in local use left the store: writes it again until it exists or is not used any more (A6).
    pub(super) fn protect(&self, number: NumericIdentity, key: Key) {
        let allocator = self.clone();
        self.0.tasks.spawn(async move {
            let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
            loop {
                match allocator.restore(&key, number).await {
                    Ok(Restored::Yes) => return,
                    Ok(Restored::Unused) => {
                        allocator.0.state().pool.insert(number);
                        allocator.0.masters.forget(number);
                        return;
                    }
                    Ok(Restored::Left) | Err(_) => {}
                }
                tokio::select! {
                    () = sleep(backoff.next_delay()) => {}
                    () = allocator.0.cancel.cancelled() => return,
                }
            }
        });
    }
}
