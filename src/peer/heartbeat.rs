//! Whether a peer's store is alive, by the key that its owner rewrites every minute. Pure: values and time come in.
//!
//! Only that the value moves counts, by our clock: the time in it is by another one.

use std::time::Duration;

use tokio::time::Instant;

/// What a peer's heartbeat means to us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeartbeatPolicy {
    /// A peer whose store has the key must keep moving it; one that never had it is taken as it is.
    #[default]
    IfPresent,
    /// Every peer must have the key and keep moving it.
    Required,
    /// Nothing.
    Ignored,
}

/// The heartbeat of one peer, over all its sessions.
#[derive(Clone, Debug)]
pub(super) struct Heartbeat {
    policy: HeartbeatPolicy,
    /// How long it may stand still.
    timeout: Duration,
    etcd_cluster_id: u64,
    value: Option<Vec<u8>>,
    /// When the value changed last, or when we began to look.
    moved: Instant,
    /// Sessions that were given up since then, in vain.
    given_up: u32,
    /// The session in use began then.
    session: Instant,
}

/// Sessions in vain after which the time between two of them grows no more: 32 × the timeout.
const MAX_DOUBLINGS: u32 = 5;

impl Heartbeat {
    pub(super) fn new(policy: HeartbeatPolicy, timeout: Duration, now: Instant) -> Self {
        Self { policy, timeout, etcd_cluster_id: 0, value: None, moved: now, given_up: 0, session: now }
    }

    /// A session begins. Another etcd has another heartbeat.
    pub(super) fn session(&mut self, etcd_cluster_id: u64, now: Instant) {
        if self.etcd_cluster_id != etcd_cluster_id {
            *self = Self { etcd_cluster_id, ..Self::new(self.policy, self.timeout, now) };
        }
        self.session = now;
    }

    /// The key was read; whether its value moved.
    pub(super) fn saw(&mut self, value: Option<&[u8]>, now: Instant) -> bool {
        let moved = value.is_some() && self.value.as_deref() != value;
        if moved {
            self.value = value.map(<[u8]>::to_vec);
            (self.moved, self.given_up) = (now, 0);
        }
        moved
    }

    /// Whether it has stood still for too long.
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        let counts = match self.policy {
            HeartbeatPolicy::Ignored => false,
            HeartbeatPolicy::IfPresent => self.value.is_some(),
            HeartbeatPolicy::Required => true,
        };
        counts && now.duration_since(self.moved) > self.timeout
    }

    /// Whether the session in use has had its chance: another one may reach a replica that is better off. Each one in vain
    /// is given twice the time of the one before.
    pub(super) fn is_session_over(&self, now: Instant) -> bool {
        let chance = match self.given_up {
            0 => Duration::ZERO,
            n => self.timeout * (1 << (n - 1).min(MAX_DOUBLINGS)),
        };
        self.is_stale(now) && now.duration_since(self.session) > chance
    }

    pub(super) fn give_up(&mut self) {
        self.given_up += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn e04_a_heartbeat_that_stands_still_ends_sessions_less_and_less_often() {
        let start = Instant::now();
        let at = |seconds: u32| start + SECOND * seconds;
        let mut heartbeat = Heartbeat::new(HeartbeatPolicy::IfPresent, 120 * SECOND, start);
        heartbeat.session(7, at(0));
        assert!(!heartbeat.is_stale(at(1000)), "it never had one");
        assert!(heartbeat.saw(Some(b"a"), at(1000)));
        assert!(!heartbeat.saw(Some(b"a"), at(1100)) && !heartbeat.saw(None, at(1119)));
        assert!(!heartbeat.is_stale(at(1120)) && heartbeat.is_stale(at(1121)));
        assert!(heartbeat.is_session_over(at(1121)), "the first one at once");
        for (begin, chance) in [(1130, 120), (1300, 240), (1600, 480)] {
            heartbeat.give_up();
            heartbeat.session(7, at(begin));
            assert!(heartbeat.is_stale(at(begin)), "a new connection proves nothing");
            assert!(!heartbeat.is_session_over(at(begin + chance)), "{begin}");
            assert!(heartbeat.is_session_over(at(begin + chance + 1)), "{begin}");
        }
        assert!(heartbeat.saw(Some(b"b"), at(3000)));
        assert!(!heartbeat.is_stale(at(3120)));
        heartbeat.session(8, at(9000));
        assert!(!heartbeat.is_stale(at(9999)), "another etcd, of which nothing is known");
    }

    #[tokio::test(start_paused = true)]
    async fn e04_the_first_one_is_bounded_where_it_is_required() {
        let start = Instant::now();
        let later = start + 121 * SECOND;
        let is_stale = |policy| Heartbeat::new(policy, 120 * SECOND, start).is_stale(later);
        assert!(is_stale(HeartbeatPolicy::Required));
        assert!(!is_stale(HeartbeatPolicy::IfPresent) && !is_stale(HeartbeatPolicy::Ignored));
    }
}
