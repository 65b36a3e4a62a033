//! The one jittered backoff.

use std::time::Duration;

/// Exponential backoff with full jitter: the n-th delay is uniform in `(0, min(max, base × 2ⁿ)]`.
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    attempt: u32,
}

impl Backoff {
    /// A backoff from `base` to `max`. `base` above `max` is `max`.
    #[must_use]
    pub fn new(base: Duration, max: Duration) -> Self {
        Self { base: base.min(max), max, attempt: 0 }
    }

    /// The next delay.
    pub fn next_delay(&mut self) -> Duration {
        let ceiling =
            self.base.saturating_mul(1u32.checked_shl(self.attempt.min(31)).unwrap_or(u32::MAX)).min(self.max);
        self.attempt = self.attempt.saturating_add(1);
        ceiling.mul_f64(1.0 - fastrand::f64())
    }

    /// Back to the first delay, after a success.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }
}

/// A tenth to either side, so that those who began together do not stay in step.
#[must_use]
pub fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + fastrand::f64() / 5.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_ceiling_and_starts_over() {
        let (base, max) = (Duration::from_millis(10), Duration::from_millis(100));
        for _ in 0..200 {
            let mut backoff = Backoff::new(base, max);
            for n in 0..100u32 {
                let ceiling = base.saturating_mul(2u32.saturating_pow(n)).min(max);
                let delay = backoff.next_delay();
                assert!(delay > Duration::ZERO && delay <= ceiling, "attempt {n}: {delay:?}");
            }
            backoff.reset();
            assert!(backoff.next_delay() <= base);
        }
    }

    #[test]
    fn is_spread_over_the_whole_range() {
        let mut delays: Vec<Duration> =
            (0..1000).map(|_| Backoff::new(Duration::from_secs(1), Duration::from_secs(1)).next_delay()).collect();
        delays.sort();
        assert!(delays[100] < Duration::from_millis(300) && delays[900] > Duration::from_millis(700));
    }

    #[test]
    fn a_base_above_the_ceiling_is_the_ceiling() {
        let mut backoff = Backoff::new(Duration::from_secs(9), Duration::from_millis(1));
        assert!(backoff.next_delay() <= Duration::from_millis(1));
    }
}
