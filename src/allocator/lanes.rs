//! One at a time for each label set: whatever writes its record or reference holds its lane, so that allocation, release,
//! repair and sync exclude each other (G1) without holding up other label sets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::Key;

type Lane = Arc<AsyncMutex<()>>;

/// The lanes of all label sets that something is being done for.
#[derive(Debug, Default)]
pub struct Lanes(Mutex<HashMap<Key, Lane>>);

/// A held lane.
#[derive(Debug)]
pub struct InLane<'a> {
    lanes: &'a Lanes,
    key: Key,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Lanes {
    /// Waits for the lane.
    pub async fn enter(&self, key: &Key) -> InLane<'_> {
        let lane = {
            let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(lanes.entry(key.clone()).or_default())
        };
        // The place is given up with the guard below, also if this wait is dropped.
        let mut place = InLane { lanes: self, key: key.clone(), guard: None };
        place.guard = Some(lane.lock_owned().await);
        place
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Drop for InLane<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let mut lanes = self.lanes.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Who waits or holds has a share of its own.
        if lanes.get(&self.key).is_some_and(|lane| Arc::strong_count(lane) == 1) {
            lanes.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_label_set_one_at_a_time_and_nothing_is_left() {
        let lanes = Lanes::default();
        let (a, b) = (Key::parse("k8s:a=1;").unwrap(), Key::parse("k8s:b=1;").unwrap());
        let held = lanes.enter(&a).await;
        let other = lanes.enter(&b).await;
        assert!(timeout(Duration::from_secs(1), lanes.enter(&a)).await.is_err());
        assert_eq!(lanes.len(), 2, "a wait that was given up leaves nothing");
        let ((), again) = tokio::join!(async { drop(held) }, lanes.enter(&a));
        assert_eq!(lanes.len(), 2);
        drop((again, other));
        assert_eq!(lanes.len(), 0);
    }
}
