//! Limits on what is asked of etcd, as Cilium's options have them: calls a second, calls in flight, and a higher rate until
//! the first list is in. Nothing is limited, and nothing is paid for it, unless it is set.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

/// The limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Calls a second.
    pub per_second: Option<u32>,
    /// Calls in flight.
    pub in_flight: Option<u32>,
    /// Calls a second until [`Limiter::bootstrapped`].
    pub bootstrap_per_second: Option<u32>,
}

/// Keeps to limits; cheap to clone.
#[derive(Clone, Debug)]
pub struct Limiter(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    rates: Mutex<Rates>,
    in_flight: Option<Arc<Semaphore>>,
}

#[derive(Debug)]
struct Rates {
    now: Option<u32>,
    later: Option<u32>,
    next: Instant,
}

impl Limiter {
    /// With those limits.
    #[must_use]
    pub fn new(limits: RateLimits) -> Self {
        let rates = Rates {
            now: limits.bootstrap_per_second.or(limits.per_second),
            later: limits.per_second,
            next: Instant::now(),
        };
        let in_flight = limits.in_flight.map(|most| Arc::new(Semaphore::new(most.max(1) as usize)));
        let limited = limits != RateLimits::default();
        Self(limited.then(|| Arc::new(Inner { rates: Mutex::new(rates), in_flight })))
    }

    /// The start is over: the rate for later holds.
    pub fn bootstrapped(&self) {
        if let Some(inner) = &self.0 {
            let mut rates = inner.rates.lock().unwrap_or_else(PoisonError::into_inner);
            rates.now = rates.later;
        }
    }

    /// Waits until a call may begin; it counts as in flight while what is returned is held.
    pub async fn admit(&self) -> Option<OwnedSemaphorePermit> {
        let inner = self.0.as_ref()?;
        // Never closed.
        let permit = match &inner.in_flight {
            Some(in_flight) => Arc::clone(in_flight).acquire_owned().await.ok(),
            None => None,
        };
        let turn = {
            let mut rates = inner.rates.lock().unwrap_or_else(PoisonError::into_inner);
            rates.now.map(|rate| {
                let gap = Duration::from_secs(1) / rate.max(1);
                // Up to a tenth of a second's calls may come at once after a pause.
                let turn = rates.next.max(Instant::now().checked_sub(Duration::from_millis(100)).unwrap_or(rates.next));
                rates.next = turn + gap;
                turn
            })
        };
        if let Some(turn) = turn {
            sleep_until(turn).await;
        }
        permit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn keeps_to_the_rate_and_to_another_at_the_start() {
        let limits = RateLimits { per_second: Some(20), in_flight: None, bootstrap_per_second: Some(1000) };
        let limiter = Limiter::new(limits);
        let since = Instant::now();
        for _ in 0..1000 {
            limiter.admit().await;
        }
        assert!((900..=1000).contains(&since.elapsed().as_millis()), "{:?}", since.elapsed());
        limiter.bootstrapped();
        let since = Instant::now();
        for _ in 0..100 {
            limiter.admit().await;
        }
        assert!((4_800..=5_000).contains(&since.elapsed().as_millis()), "{:?}", since.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_to_the_number_in_flight() {
        let limiter = Limiter::new(RateLimits { in_flight: Some(2), ..RateLimits::default() });
        let (one, _two) = (limiter.admit().await, limiter.admit().await);
        let third = tokio::time::timeout(Duration::from_secs(1), limiter.admit());
        assert!(third.await.is_err());
        drop(one);
        assert!(limiter.admit().await.is_some());
        assert!(Limiter::new(RateLimits::default()).admit().await.is_none(), "no limits, no cost");
    }
}
