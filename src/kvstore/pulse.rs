//! Signs of life of a quiet watch: when to ask for one, and when to give up. Pure: time comes in.

use std::time::Duration;

use tokio::time::Instant;

/// When something was heard last, and what was asked since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pulse {
    interval: Duration,
    /// How long a question may stay unanswered.
    patience: Duration,
    heard: Instant,
    /// Since then: the first question, and the latest.
    asked: Option<(Instant, Instant)>,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing until then.
    At(Instant),
    /// A question.
    Ask,
    /// No question was answered in time.
    GiveUp,
}

impl Pulse {
    /// Asks after `interval` of silence. Nothing heard for `liveness` is the end, unless nobody asked meanwhile: if it was
    /// we who did not look for so long, that says nothing about the other side.
    pub(super) fn new(interval: Duration, liveness: Duration, now: Instant) -> Self {
        Self { interval, patience: liveness.saturating_sub(interval), heard: now, asked: None }
    }

    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.asked = None;
    }

    pub(super) fn asked(&mut self, now: Instant) {
        let (first, _) = self.asked.unwrap_or((now, now));
        self.asked = Some((first, now));
    }

    pub(super) fn due(&self, now: Instant) -> Due {
        let Some((first, latest)) = self.asked else {
            let ask = self.heard + self.interval;
            return if now >= ask { Due::Ask } else { Due::At(ask) };
        };
        let (ask, end) = (latest + self.interval, first + self.patience);
        if now >= end {
            Due::GiveUp
        } else if now >= ask {
            // A server that was still catching up with us when we asked does not answer that question at all.
            Due::Ask
        } else {
            Due::At(ask.min(end))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn asks_when_quiet_and_gives_up_in_time() {
        let start = Instant::now();
        let at = |seconds: u32| start + SECOND * seconds;
        let mut pulse = Pulse::new(10 * SECOND, 30 * SECOND, start);
        assert_eq!(pulse.due(at(3)), Due::At(at(10)));
        assert_eq!(pulse.due(at(10)), Due::Ask);
        pulse.asked(at(10));
        assert_eq!(pulse.due(at(10)), Due::At(at(20)));
        assert_eq!(pulse.due(at(20)), Due::Ask);
        pulse.asked(at(20));
        assert_eq!(pulse.due(at(20)), Due::At(at(30)));
        assert_eq!(pulse.due(at(30)), Due::GiveUp);
        pulse.heard(at(31));
        assert_eq!(pulse.due(at(31)), Due::At(at(41)));
    }

    #[tokio::test(start_paused = true)]
    async fn our_own_absence_proves_nothing() {
        let start = Instant::now();
        let mut pulse = Pulse::new(10 * SECOND, 30 * SECOND, start);
        let later = start + 1000 * SECOND;
        assert_eq!(pulse.due(later), Due::Ask);
        pulse.asked(later);
        assert_eq!(pulse.due(later + 19 * SECOND), Due::Ask);
        assert_eq!(pulse.due(later + 20 * SECOND), Due::GiveUp);
    }
}
