//! A bound on the pages that a whole process fetches at once: hundreds of peers that all come back would otherwise list
//! together, and each page in flight is megabytes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// As many pages as keep two cores busy decoding (STACK.md, 6).
const SLOTS: usize = 8;
/// A slot is lent for so long. Who needs longer is waiting for a slow or dead store, not decoding, and must not hold up the
/// others (R16).
const LOAN: Duration = Duration::from_millis(500);

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

    /// Fetches something in its turn.
    pub(super) async fn pass<T>(&self, fetch: impl Future<Output = T>) -> T {
        let slot = self.0.acquire().await;
        let mut fetch = std::pin::pin!(fetch);
        if let Ok(fetched) = timeout(LOAN, &mut fetch).await {
            return fetched;
        }
        drop(slot);
        fetch.await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn turns_are_taken() {
        let gate = ListGate::new(2);
        let begun = Instant::now();
        let fetch = || gate.pass(async { tokio::time::sleep(Duration::from_millis(100)).await });
        tokio::join!(fetch(), fetch(), fetch(), fetch(), fetch());
        assert_eq!(begun.elapsed(), Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn who_stalls_gives_its_slot_back() {
        let gate = ListGate::new(1);
        let stalled = gate.clone();
        let stalled = tokio::spawn(async move { stalled.pass(pending::<()>()).await });
        tokio::task::yield_now().await;
        let begun = Instant::now();
        gate.pass(async {}).await;
        assert_eq!(begun.elapsed(), LOAN);
        assert!(!stalled.is_finished());
        stalled.abort();
    }
}
