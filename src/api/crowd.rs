//! Handshakes in progress: bounded, and so that those who stall stand in nobody's way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Where there would be more of them than may be, the oldest gives way: an honest client is done in milliseconds, so what
/// has been at it for longest among so many is one that stalls. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Crowd {
    most: usize,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// By arrival.
    tokens: BTreeMap<u64, CancellationToken>,
}

/// A handshake in progress; dropped when it is done.
#[derive(Debug)]
pub(super) struct Place {
    crowd: Crowd,
    arrival: u64,
    /// Cancelled when it has to give way.
    pub(super) must_leave: CancellationToken,
}

impl Crowd {
    pub(super) fn new(most: usize) -> Self {
        Self { most: most.max(1), waiting: Arc::default() }
    }

    pub(super) fn enter(&self) -> Place {
        let must_leave = CancellationToken::new();
        let mut waiting = self.waiting();
        if waiting.tokens.len() >= self.most
            && let Some((_, oldest)) = waiting.tokens.pop_first()
        {
            oldest.cancel();
        }
        let arrival = waiting.next;
        waiting.next += 1;
        waiting.tokens.insert(arrival, must_leave.clone());
        drop(waiting);
        Place { crowd: self.clone(), arrival, must_leave }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Every change is complete before anything can panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.waiting().tokens.remove(&self.arrival);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_gives_way() {
        let crowd = Crowd::new(2);
        let places = [crowd.enter(), crowd.enter()];
        let third = crowd.enter();
        let left = |place: &Place| place.must_leave.is_cancelled();
        assert_eq!([left(&places[0]), left(&places[1]), left(&third)], [true, false, false]);
        drop(third);
        let fourth = crowd.enter();
        assert!(!left(&places[1]) && !left(&fourth));
        drop((places, fourth));
        assert!(crowd.waiting().tokens.is_empty());
    }
}
