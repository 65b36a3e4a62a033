//! A bound on the pages that a whole process fetches at once: hundreds of peers that all come back would otherwise list
//! together, and each page in flight is megabytes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// As many pages as keep two cores busy decoding (STACK.md, 6).
const SLOTS: usize = 8;
/// A store that stalls holds its slot until its call's deadline. It must not hold up the others (R16), so whoever waited for
/// this long goes ahead without a slot.
const PATIENCE: Duration = Duration::from_secs(2);

/// Shared by all list-and-watches whose options are clones of one another.
#[derive(Clone, Debug)]
pub struct ListGate(Arc<Semaphore>);

impl Default for ListGate {
    fn default() -> Self {
        Self::new(SLOTS)
    }
}

impl ListGate {
    /// Of that many pages at once.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self(Arc::new(Semaphore::new(slots)))
    }

    /// Waits for a slot, but not for long. Hold what it returns while the page is in flight.
    pub(super) async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        timeout(PATIENCE, Arc::clone(&self.0).acquire_owned()).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_long_goes_ahead() {
        let gate = ListGate::new(1);
        let stalled = gate.clone().enter().await;
        assert!(stalled.is_some());
        assert!(gate.enter().await.is_none(), "goes ahead without a slot");
        drop(stalled);
        assert!(gate.enter().await.is_some());
    }
}
