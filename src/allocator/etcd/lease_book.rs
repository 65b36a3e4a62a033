//! Which keys hang on which lease, and what is due when. Pure: time and answers come in, decisions go out.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// A lease, as etcd names it.
pub type LeaseId = i64;

/// A key that hangs on a lease.
pub type LeasedKey = Arc<str>;

/// How leases of one kind are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Time to live that is asked for.
    pub ttl: Duration,
    /// Keys on one lease: a write costs etcd more the more keys hang on its lease already (G4).
    pub max_keys: usize,
}

impl LeaseTerms {
    /// For references: WIRE.md, "Constants that others expect".
    pub const REFERENCES: Self = Self { ttl: Duration::from_mins(15), max_keys: 1000 };
    /// For locks.
    pub const LOCKS: Self = Self { ttl: Duration::from_secs(25), max_keys: 10_000 };
}

#[derive(Clone, Debug)]
struct Lease {
    ttl: Duration,
    /// Until then etcd keeps it for certain, by our clock and counted from before the last renewal was sent.
    deadline: Instant,
    renew_at: Instant,
    keys: HashSet<LeasedKey>,
    /// Not renewed any more, and takes no more keys; it is given back when the last key is gone.
    retired: bool,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Renew it now.
    Renew(LeaseId),
    /// Its time is over, and no renewal came through: treat it as lost.
    Expired(LeaseId),
    /// Nothing hangs on it and it is not needed: give it back.
    Unneeded(LeaseId),
}

/// The books of one kind of leases.
#[derive(Clone, Debug)]
pub struct LeaseBook {
    terms: LeaseTerms,
    leases: BTreeMap<LeaseId, Lease>,
    keys: HashMap<LeasedKey, LeaseId>,
}

impl LeaseBook {
    /// No leases yet.
    #[must_use]
    pub fn new(terms: LeaseTerms) -> Self {
        Self { terms, leases: BTreeMap::new(), keys: HashMap::new() }
    }

    /// The terms.
    #[must_use]
    pub const fn terms(&self) -> LeaseTerms {
        self.terms
    }

    /// The lease for a key: the one it hangs on already, or the fullest with room, so that leases empty out and can be given
    /// back. `None`: one must be granted first.
    pub fn attach(&mut self, key: &LeasedKey) -> Option<LeaseId> {
        if let Some(&lease) = self.keys.get(key)
            && self.leases.get(&lease).is_some_and(|lease| !lease.retired)
        {
            return Some(lease);
        }
        let max_keys = self.terms.max_keys;
        let (&id, lease) = (self.leases.iter_mut())
            .filter(|(_, lease)| !lease.retired && lease.keys.len() < max_keys)
            .max_by_key(|(_, lease)| lease.keys.len())?;
        lease.keys.insert(key.clone());
        if let Some(before) = self.keys.insert(key.clone(), id)
            && let Some(before) = self.leases.get_mut(&before)
        {
            before.keys.remove(key);
        }
        Some(id)
    }

    /// The key is gone.
    pub fn detach(&mut self, key: &str) {
        if let Some(lease) = self.keys.remove(key).and_then(|lease| self.leases.get_mut(&lease)) {
            lease.keys.remove(key);
        }
    }

    /// The key is gone from a retired lease; it may hang on another by now, and stays there.
    pub fn detach_from_retired(&mut self, key: &str) {
        if self.keys.get(key).and_then(|id| self.leases.get(id)).is_some_and(|lease| lease.retired) {
            self.detach(key);
        }
    }

    /// The lease that a key hangs on.
    #[must_use]
    pub fn lease_of(&self, key: &str) -> Option<LeaseId> {
        self.keys.get(key).copied()
    }

    /// Etcd granted a lease that was asked for at `asked`.
    pub fn granted(&mut self, id: LeaseId, ttl: Duration, asked: Instant) {
        let lease =
            Lease { ttl, deadline: asked + ttl, renew_at: renew_at(asked, ttl), keys: HashSet::new(), retired: false };
        self.leases.insert(id, lease);
    }

    /// A renewal that was sent at `sent` came through.
    pub fn renewed(&mut self, id: LeaseId, sent: Instant) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.deadline = lease.deadline.max(sent + lease.ttl);
            lease.renew_at = renew_at(sent, lease.ttl);
        }
    }

    /// A renewal failed otherwise than by the lease's being gone: tries again soon, until the deadline (G5).
    pub fn not_renewed(&mut self, id: LeaseId, now: Instant) {
        if let Some(lease) = self.leases.get_mut(&id) {
            let pause = (lease.ttl / 60).clamp(Duration::from_millis(200), Duration::from_secs(5));
            lease.renew_at = now + pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        }
    }

    /// The lease is gone: the keys that hung on it. The second time there are none.
    pub fn lost(&mut self, id: LeaseId) -> Vec<LeasedKey> {
        let Some(lease) = self.leases.remove(&id) else { return Vec::new() };
        let lost: Vec<_> = lease.keys.into_iter().filter(|key| self.keys.get(key) == Some(&id)).collect();
        for key in &lost {
            self.keys.remove(key);
        }
        lost
    }

    /// Forgets a lease on which nothing hangs; whether it did.
    pub fn give_back(&mut self, id: LeaseId) -> bool {
        let unneeded = self.leases.get(&id).is_some_and(|lease| lease.keys.is_empty());
        if unneeded {
            self.leases.remove(&id);
        }
        unneeded
    }

    /// Never renews that lease again: what hangs on it ends with it.
    pub fn retire(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.retired = true;
        }
    }

    /// Whether so little room is left that the next lease should be asked for, before somebody has to wait for it.
    #[must_use]
    pub fn is_short(&self) -> bool {
        let room: usize = self.usable().map(|lease| self.terms.max_keys.saturating_sub(lease.keys.len())).sum();
        room <= self.terms.max_keys / 8
    }

    /// What is due now, the most urgent first.
    #[must_use]
    pub fn due(&self, now: Instant) -> Vec<Due> {
        let spare = self.usable().filter(|lease| lease.keys.len() < self.terms.max_keys).count();
        let mut unneeded = spare.saturating_sub(1);
        let mut due: Vec<(Instant, Due)> = Vec::new();
        for (&id, lease) in &self.leases {
            if lease.deadline <= now {
                due.push((lease.deadline, Due::Expired(id)));
            } else if lease.keys.is_empty() && (lease.retired || unneeded > 0) {
                unneeded -= usize::from(!lease.retired);
                due.push((now, Due::Unneeded(id)));
            } else if !lease.retired && lease.renew_at <= now {
                due.push((lease.deadline, Due::Renew(id)));
            }
        }
        due.sort_by_key(|(deadline, _)| *deadline);
        due.into_iter().map(|(_, due)| due).collect()
    }

    /// When [`Self::due`] may have something next.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let next = |lease: &Lease| if lease.retired { lease.deadline } else { lease.renew_at.min(lease.deadline) };
        self.leases.values().map(next).min()
    }

    /// How many leases are held, retired ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether none is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// How many keys hang on leases.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The leases held.
    pub fn ids(&self) -> impl Iterator<Item = LeaseId> {
        self.leases.keys().copied()
    }

    fn usable(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values().filter(|lease| !lease.retired)
    }
}

/// After a thirtieth to a twentieth of the time to live, and not all leases at once: whenever the store is lost, almost the
/// whole time is left. A renewal is no write to the store's log, and leases are few.
fn renew_at(from: Instant, ttl: Duration) -> Instant {
    from + ttl.mul_f64((1.0 + fastrand::f64() / 2.0) / 30.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: LeaseTerms = LeaseTerms { ttl: Duration::from_mins(15), max_keys: 10 };

    fn key(n: usize) -> LeasedKey {
        format!("k{n}").into()
    }

    fn book_with(leases: std::ops::Range<LeaseId>, now: Instant) -> LeaseBook {
        let mut book = LeaseBook::new(TERMS);
        for id in leases {
            book.granted(id, TERMS.ttl, now);
        }
        book
    }

    #[test]
    fn g04_a_lease_holds_no_more_keys_than_its_cap() {
        let now = Instant::now();
        let mut book = book_with(1..2, now);
        assert!((0..10).all(|n| book.attach(&key(n)) == Some(1)));
        assert_eq!((book.attach(&key(10)), book.is_short()), (None, true));
        assert_eq!(book.attach(&key(3)), Some(1), "it hangs there already");
        book.granted(2, TERMS.ttl, now);
        assert_eq!(book.attach(&key(10)), Some(2));
        book.detach("k3");
        assert_eq!(book.attach(&key(11)), Some(1), "the fullest with room");
        assert_eq!((book.len(), book.keys()), (2, 11));
        assert_eq!(book.lost(2), [key(10)], "its keys only");
        assert_eq!((book.lost(2), book.keys()), (Vec::new(), 10));
    }

    #[test]
    fn g04_leases_without_keys_are_given_back_but_one() {
        let now = Instant::now();
        let mut book = book_with(1..4, now);
        assert_eq!(book.due(now), [Due::Unneeded(1), Due::Unneeded(2)]);
        assert_eq!(book.attach(&key(0)), Some(3));
        assert_eq!(book.due(now).len(), 2);
        book.lost(1);
        book.lost(2);
        assert_eq!(book.due(now), []);
    }

    #[test]
    fn g05_a_lease_that_cannot_be_renewed_is_tried_until_its_own_deadline() {
        let start = Instant::now();
        let mut book = book_with(1..2, start);
        book.attach(&key(0));
        let due_at = book.next_due().unwrap();
        assert!(due_at >= start + TERMS.ttl / 30 && due_at <= start + TERMS.ttl / 20);
        let mut attempts = 0;
        let now = loop {
            let now = book.next_due().unwrap();
            match book.due(now)[..] {
                [Due::Renew(1)] => book.not_renewed(1, now),
                [Due::Expired(1)] => break now,
                ref other => panic!("{other:?}"),
            }
            attempts += 1;
        };
        assert_eq!(now, start + TERMS.ttl);
        assert!((100..400).contains(&attempts), "{attempts}");
        assert_eq!(book.lost(1), [key(0)]);
    }

    #[test]
    fn g05_the_deadline_counts_from_before_the_renewal_was_sent() {
        let start = Instant::now();
        let mut book = book_with(1..2, start);
        book.attach(&key(0));
        book.renewed(1, start + Duration::from_mins(5));
        assert_eq!(book.due(start + Duration::from_secs(1199)), [Due::Renew(1)]);
        assert_eq!(book.due(start + Duration::from_mins(20)), [Due::Expired(1)]);
    }

    #[test]
    fn g06_a_retired_lease_is_never_renewed_and_takes_no_keys() {
        let start = Instant::now();
        let mut book = book_with(1..2, start);
        book.attach(&key(0));
        book.retire(1);
        assert_eq!((book.attach(&key(0)), book.attach(&key(1))), (None, None));
        assert_eq!(book.next_due(), Some(start + TERMS.ttl));
        assert_eq!(book.due(start + TERMS.ttl / 2), []);
        book.granted(2, TERMS.ttl, start);
        assert_eq!(book.attach(&key(0)), Some(2), "moved");
        assert_eq!(book.due(start), [Due::Unneeded(1)], "nothing hangs on it any more");
    }
}
