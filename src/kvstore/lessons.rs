//! What a store's sessions taught about it, for the next one.

use std::time::Duration;

use super::session::{A_PAGE, A_WATCH, Ending};
use super::{SessionError, Timing};

/// What earlier sessions have taught about this etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lessons {
    /// How often the deadline of a page or a watch is doubled: what is slow now was too slow before (R16).
    patience: u32,
    /// How often the interval of pings is doubled: the server refuses them as too many (E6).
    calm: u32,
}

impl Lessons {
    /// A session ended.
    pub(super) fn learn(&mut self, ending: &Ending, steady: Duration) {
        match ending.verdict() {
            Some((SessionError::Deadline(what), _)) if [A_PAGE, A_WATCH].contains(what) => {
                self.patience = (self.patience + 1).min(MAX_DOUBLINGS);
            }
            Some((SessionError::TooManyPings, _)) => self.calm = (self.calm + 1).min(MAX_DOUBLINGS),
            Some((_, lived)) if *lived >= steady => self.patience = 0,
            _ => {}
        }
    }

    /// The timing of the next one.
    pub(super) fn apply(self, timing: &Timing) -> Timing {
        let patient =
            |deadline: Duration| deadline.saturating_mul(1 << self.patience).min(timing.patience_max.max(deadline));
        Timing {
            page: patient(timing.page),
            watch_created: patient(timing.watch_created),
            keepalive_interval: timing.keepalive_interval.saturating_mul(1 << self.calm),
            ..timing.clone()
        }
    }
}

/// A thousandfold is for ever.
const MAX_DOUBLINGS: u32 = 10;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn ended(error: SessionError) -> Arc<Ending> {
        let ending = Ending::new(Arc::default());
        ending.end(error);
        ending
    }

    #[test]
    fn r16_what_was_too_slow_is_given_more_time_up_to_a_bound() {
        let timing = Timing::default();
        let mut lessons = Lessons::default();
        assert_eq!(format!("{:?}", lessons.apply(&timing)), format!("{timing:?}"));
        lessons.learn(&ended(SessionError::Deadline(A_PAGE)), Duration::ZERO);
        lessons.learn(&ended(SessionError::Deadline(A_WATCH)), Duration::ZERO);
        let patient = lessons.apply(&timing);
        assert_eq!((patient.page, patient.watch_created), (timing.page * 4, timing.watch_created * 4));
        assert_eq!(
            (patient.call, patient.dial),
            (timing.call, timing.dial),
            "a read of one key has no reason to be slow"
        );
        for _ in 0..20 {
            lessons.learn(&ended(SessionError::Deadline(A_PAGE)), Duration::ZERO);
        }
        assert_eq!(lessons.apply(&timing).page, timing.patience_max);
        lessons.learn(&ended(SessionError::ConnectionLost(String::new())), Duration::from_secs(1));
        assert_eq!(lessons.apply(&timing).page, timing.patience_max, "it did not live long enough to show anything");
        lessons.learn(&ended(SessionError::ConnectionLost(String::new())), Duration::ZERO);
        assert_eq!(lessons.apply(&timing).page, timing.page);
    }

    #[test]
    fn e06_pings_become_rarer_and_stay_so() {
        let (timing, mut lessons) = (Timing::default(), Lessons::default());
        lessons.learn(&ended(SessionError::TooManyPings), Duration::ZERO);
        lessons.learn(&ended(SessionError::Deadline(A_PAGE)), Duration::ZERO);
        lessons.learn(&ended(SessionError::ConnectionLost(String::new())), Duration::ZERO);
        assert_eq!(lessons.apply(&timing).keepalive_interval, timing.keepalive_interval * 2);
    }
}
