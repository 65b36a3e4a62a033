//! What this process uses: label set, number, how often. Pure.

use std::collections::HashMap;

use super::Key;
use crate::identity::NumericIdentity;

/// One label set in local use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Local {
    number: NumericIdentity,
    /// Users. 0 while its reference in the store is being deleted, and in no other case.
    users: u32,
    /// Its reference is known to be in the store. Until then it behaves as absent.
    verified: bool,
}

/// What giving back a use did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Others use it still.
    InUse,
    /// That was the last use: the reference in the store is to be deleted, then [`LocalKeys::forget`] is due.
    LastUse(NumericIdentity),
    /// It was not in use.
    NotFound,
}

/// The label sets in local use. One label set has one number, and one number one label set.
#[derive(Clone, Debug, Default)]
pub struct LocalKeys {
    by_key: HashMap<Key, Local>,
    by_number: HashMap<NumericIdentity, Key>,
    /// How many have users.
    used: usize,
}

impl LocalKeys {
    /// One more user of a verified label set: its number.
    pub fn use_verified(&mut self, key: &Key) -> Option<NumericIdentity> {
        let local = self.by_key.get_mut(key).filter(|local| local.verified)?;
        local.users += 1;
        Some(local.number)
    }

    /// The store has the reference: `users` more users, verified. Whether they are the first ones.
    ///
    /// # Errors
    /// The label set has another number here, or the number another label set; nothing is changed.
    pub fn confirm(&mut self, key: &Key, number: NumericIdentity, users: u32) -> Result<bool, OtherUse> {
        if self.by_key.get(key).is_some_and(|local| local.number != number)
            || self.by_number.get(&number).is_some_and(|other| other != key)
        {
            return Err(OtherUse);
        }
        let local = self.by_key.entry(key.clone()).or_insert(Local { number, users: 0, verified: false });
        self.by_number.entry(number).or_insert_with(|| key.clone());
        let first = local.users == 0;
        self.used += usize::from(first && users > 0);
        local.users += users;
        local.verified = true;
        Ok(first)
    }

    /// One user less. After the last one the label set behaves as absent; its number stays known until
    /// [`Self::forget`], so that whoever comes meanwhile takes up the same number again.
    pub fn release(&mut self, key: &Key) -> Released {
        match self.by_key.get_mut(key) {
            Some(local) if local.users > 0 => {
                local.users -= 1;
                if local.users > 0 {
                    return Released::InUse;
                }
                local.verified = false;
                self.used -= 1;
                Released::LastUse(local.number)
            }
            _ => Released::NotFound,
        }
    }

    /// The reference is not known to be in the store any more; the users stay.
    pub fn unverify(&mut self, key: &Key) {
        if let Some(local) = self.by_key.get_mut(key) {
            local.verified = false;
        }
    }

    /// Forgets a label set without users; whether it was one.
    pub fn forget(&mut self, key: &Key) -> bool {
        let unused = self.by_key.get(key).is_some_and(|local| local.users == 0);
        if unused && let Some(local) = self.by_key.remove(key) {
            self.by_number.remove(&local.number);
        }
        unused
    }

    /// The number of a label set, verified or not.
    #[must_use]
    pub fn number_of(&self, key: &Key) -> Option<NumericIdentity> {
        self.by_key.get(key).map(|local| local.number)
    }

    /// How many use it.
    #[must_use]
    pub fn users_of(&self, key: &Key) -> u32 {
        self.by_key.get(key).map_or(0, |local| local.users)
    }

    /// The label set of a number that has users.
    #[must_use]
    pub fn key_in_use(&self, number: NumericIdentity) -> Option<&Key> {
        self.by_number.get(&number).filter(|key| self.users_of(key) > 0)
    }

    /// All label sets that have users.
    pub fn in_use(&self) -> impl Iterator<Item = (&Key, NumericIdentity)> {
        self.by_key.iter().filter(|(_, local)| local.users > 0).map(|(key, local)| (key, local.number))
    }

    /// How many label sets have users.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.used
    }

    /// Whether none has.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }
}

/// A label set or a number is in local use otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("in local use otherwise")]
pub struct OtherUse;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn key(n: u8) -> Key {
        Key::parse(&format!("k8s:n={n};")).unwrap()
    }

    fn number(n: u8) -> NumericIdentity {
        NumericIdentity::new(u32::from(n))
    }

    #[test]
    fn an_unverified_key_behaves_as_absent() {
        let mut local = LocalKeys::default();
        assert_eq!(local.use_verified(&key(1)), None);
        assert_eq!(local.confirm(&key(1), number(7), 1), Ok(true));
        local.unverify(&key(1));
        assert_eq!(local.use_verified(&key(1)), None);
        assert_eq!((local.number_of(&key(1)), local.users_of(&key(1))), (Some(number(7)), 1));
        assert_eq!(local.confirm(&key(1), number(7), 1), Ok(false), "it has a user");
        assert_eq!(local.use_verified(&key(1)), Some(number(7)));
    }

    #[test]
    fn a_released_key_can_be_taken_up_until_it_is_forgotten() {
        let mut local = LocalKeys::default();
        local.confirm(&key(1), number(7), 1).unwrap();
        assert_eq!(local.release(&key(1)), Released::LastUse(number(7)));
        assert_eq!(local.release(&key(1)), Released::NotFound);
        assert_eq!((local.use_verified(&key(1)), local.number_of(&key(1))), (None, Some(number(7))));
        assert_eq!(local.key_in_use(number(7)), None);
        local.confirm(&key(1), number(7), 1).unwrap();
        assert!(!local.forget(&key(1)), "in use again");
        local.release(&key(1));
        assert!(local.forget(&key(1)) && !local.forget(&key(1)));
        assert_eq!(local.number_of(&key(1)), None);
    }

    #[derive(Clone, Debug)]
    enum Call {
        Use(u8),
        Confirm(u8, u8, u8),
        Release(u8),
        Unverify(u8),
        Forget(u8),
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let (k, n) = (0..5u8, 0..5u8);
        let call = prop_oneof![
            k.clone().prop_map(Call::Use),
            (k.clone(), n, 1..3u8).prop_map(|(k, n, users)| Call::Confirm(k, n, users)),
            k.clone().prop_map(Call::Release),
            k.clone().prop_map(Call::Unverify),
            k.prop_map(Call::Forget),
        ];
        prop::collection::vec(call, 0..200)
    }

    proptest! {
        /// One key one number, one number one key; a count rises by what was confirmed or used and falls by one a release.
        #[test]
        fn keeps_its_books(calls in calls()) {
            let mut local = LocalKeys::default();
            let mut model: BTreeMap<u8, (u8, u32, bool)> = BTreeMap::new();
            for call in calls {
                match call {
                    Call::Use(k) => {
                        let expected = model.get_mut(&k).filter(|entry| entry.2).map(|entry| {
                            entry.1 += 1;
                            number(entry.0)
                        });
                        prop_assert_eq!(local.use_verified(&key(k)), expected);
                    }
                    Call::Confirm(k, n, users) => {
                        let clash = model.iter().any(|(&k2, entry)| (k2 == k) != (entry.0 == n));
                        let expected = if clash { Err(OtherUse) } else {
                            let entry = model.entry(k).or_insert((n, 0, false));
                            let first = entry.1 == 0;
                            entry.1 += u32::from(users);
                            entry.2 = true;
                            Ok(first)
                        };
                        prop_assert_eq!(local.confirm(&key(k), number(n), users.into()), expected);
                    }
                    Call::Release(k) => {
                        let expected = match model.get_mut(&k) {
                            Some((_, users @ 2.., _)) => { *users -= 1; Released::InUse }
                            Some((n, users @ 1, verified)) => { *users = 0; *verified = false; Released::LastUse(number(*n)) }
                            _ => Released::NotFound,
                        };
                        prop_assert_eq!(local.release(&key(k)), expected);
                    }
                    Call::Unverify(k) => {
                        if let Some(entry) = model.get_mut(&k) { entry.2 = false; }
                        local.unverify(&key(k));
                    }
                    Call::Forget(k) => {
                        let unused = model.get(&k).is_some_and(|entry| entry.1 == 0);
                        if unused { model.remove(&k); }
                        prop_assert_eq!(local.forget(&key(k)), unused);
                    }
                }
                prop_assert_eq!(local.len(), model.values().filter(|entry| entry.1 > 0).count());
                for (&k, &(n, users, _)) in &model {
                    prop_assert_eq!((local.number_of(&key(k)), local.users_of(&key(k))), (Some(number(n)), users));
                    prop_assert_eq!(local.key_in_use(number(n)).is_some(), users > 0);
                }
            }
        }
    }
}
