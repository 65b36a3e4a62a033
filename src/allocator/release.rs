//! Giving back: the last use deletes our reference; records are never deleted here.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::backend::Backend;
use super::service::Allocator;
use super::{AllocError, Key, Released};
use crate::identity::NumericIdentity;
use crate::kvstore::Backoff;

/// Ceilings of the pauses between attempts to delete a reference.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));

impl<B: Backend> Allocator<B> {
    /// Gives one use back; whether it was the last one. Then our reference is deleted from the store, and this waits for it
    /// until the deadline; the delete goes on after that until it is done or the label set is used again.
    ///
    /// # Errors
    /// The label set is not in use here; the first list did not come in time.
    pub async fn release(&self, key: &Key, deadline: Instant) -> Result<bool, AllocError> {
        self.first_list(deadline).await?;
        let released = self.0.state().local.release(key);
        match released {
            Released::NotFound => Err(AllocError::NotInUse),
            Released::InUse => Ok(false),
            Released::LastUse(number) => {
                let deleted = self.0.tasks.spawn(Self::delete_reference(self.clone(), key.clone(), number));
                if timeout_at(deadline, deleted).await.is_err() {
                    tracing::debug!(%key, "the reference is still being deleted");
                }
                Ok(true)
            }
        }
    }

    /// Deletes our reference to what nobody uses any more, until it is done, it is used again, or the process stops: then
    /// the reference ends with its lease.
    pub(super) async fn delete_reference(self, key: Key, number: NumericIdentity) {
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        loop {
            {
                let _lane = self.0.lanes.enter(&key).await;
                {
                    let state = self.0.state();
                    // Taken up again while we waited, or given back again and done by somebody else.
                    if state.local.users_of(&key) > 0 || state.local.number_of(&key) != Some(number) {
                        return;
                    }
                }
                match self.0.backend.release(number, &key).await {
                    Ok(()) => {
                        let local = {
                            let mut state = self.0.state();
                            state.local.forget(&key);
                            state.local.len()
                        };
                        self.0.metrics.references(local, self.0.backend.leases());
                        return;
                    }
                    Err(error) => tracing::debug!(%key, %error, "reference not deleted yet"),
                }
            }
            tokio::select! {
                () = sleep(backoff.next_delay()) => {}
                () = self.0.cancel.cancelled() => return,
            }
        }
    }

    /// Takes away what attempts may have written for a label set that nobody uses. The caller holds its lane.
    pub(super) async fn clear(&self, key: &Key, numbers: Vec<NumericIdentity>) {
        let mut failed = Vec::new();
        for number in numbers {
            if self.0.backend.release(number, key).await.is_err() {
                failed.push(number);
            }
        }
        if !failed.is_empty() {
            self.0.state().doubtful.insert(key.clone(), failed);
        }
    }

    /// What could not be taken away when its allocation failed, again.
    pub(super) async fn clear_doubtful(&self) {
        let doubtful = std::mem::take(&mut self.0.state().doubtful);
        for (key, numbers) in doubtful {
            let _lane = self.0.lanes.enter(&key).await;
            if self.0.state().local.users_of(&key) == 0 {
                self.clear(&key, numbers).await;
            }
        }
    }
}
