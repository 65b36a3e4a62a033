//! One replica at a time: etcd's leader election, which is its lock recipe held for long.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{EtcdBackend, EtcdLock};
use crate::allocator::backend::Lock;
use crate::kvstore::Backoff;

/// A campaign that lasts longer begins anew; that costs the place in the queue and nothing else.
const CAMPAIGN: Duration = Duration::from_hours(1);
/// A leader that is told to stop says so to the store for so long; after that its lease does.
const RESIGNATION: Duration = Duration::from_secs(3);

impl EtcdBackend {
    /// Campaigns for the leadership at `prefix` until cancelled, and runs `reign` while it is held. What it does must be
    /// safe even if it goes on for a moment after the leadership is lost: a process can be suspended at any point.
    pub async fn while_leading<F: Future<Output = ()> + Send>(
        &self,
        prefix: &str,
        cancel: &CancellationToken,
        mut reign: impl FnMut() -> F + Send,
    ) {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        while !cancel.is_cancelled() {
            let led = tokio::select! {
                led = self.campaign(prefix, cancel, &mut reign) => led,
                // Who leads sees the cancellation there, and resigns.
                () = async { cancel.cancelled().await; sleep(RESIGNATION).await } => return,
            };
            if led {
                backoff.reset();
            }
            tokio::select! {
                () = sleep(backoff.next_delay()) => {}
                () = cancel.cancelled() => {}
            }
        }
    }

    /// One campaign, and the term that follows if it is won; whether it was.
    async fn campaign<F: Future<Output = ()> + Send>(
        &self,
        prefix: &str,
        cancel: &CancellationToken,
        reign: &mut (impl FnMut() -> F + Send),
    ) -> bool {
        let deadline = Instant::now() + CAMPAIGN;
        let won = tokio::select! {
            won = EtcdLock::acquire(prefix, &self.0.locks, &self.0.store, deadline) => won,
            () = cancel.cancelled() => return false,
        };
        match won {
            Ok(lock) => {
                tracing::info!(prefix, "leading");
                tokio::select! {
                    () = reign() => {}
                    () = lock.lost() => tracing::warn!(prefix, "leadership lost"),
                    () = cancel.cancelled() => {}
                }
                lock.unlock().await;
                true
            }
            Err(error) => {
                tracing::debug!(prefix, %error, "not leading");
                false
            }
        }
    }
}
