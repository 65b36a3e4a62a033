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
