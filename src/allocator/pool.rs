//! The numbers of the cluster's range: available, leased to an allocation that is under way, or in use. Pure.

use crate::identity::{IdentityRange, NumericIdentity, RangeError};

/// A set of numbers as a bit each: 65,536 of them are 8 KiB.
#[derive(Clone, Debug)]
struct Bits {
    words: Box<[u64]>,
    count: u32,
}

impl Bits {
    fn new(size: u32) -> Self {
        Self { words: vec![0; (size as usize).div_ceil(64)].into_boxed_slice(), count: 0 }
    }

    fn full(size: u32) -> Self {
        let mut bits = Self::new(size);
        bits.words.fill(u64::MAX);
        if let (Some(last), rest @ 1..) = (bits.words.last_mut(), size % 64) {
            *last = (1 << rest) - 1;
        }
        bits.count = size;
        bits
    }

    fn contains(&self, bit: u32) -> bool {
        self.words[bit as usize / 64] & (1 << (bit % 64)) != 0
    }

    /// Whether it was not there.
    fn insert(&mut self, bit: u32) -> bool {
        let new = !self.contains(bit);
        self.words[bit as usize / 64] |= 1 << (bit % 64);
        self.count += u32::from(new);
        new
    }

    /// Whether it was there.
    fn remove(&mut self, bit: u32) -> bool {
        let there = self.contains(bit);
        self.words[bit as usize / 64] &= !(1 << (bit % 64));
        self.count -= u32::from(there);
        there
    }

    /// The `n`-th bit that is set, counted from 0.
    fn select(&self, mut n: u32) -> Option<u32> {
        for (index, &word) in (0u32..).zip(&self.words) {
            let ones = word.count_ones();
            if n < ones {
                let mut rest = word;
                for _ in 0..n {
                    rest &= rest - 1;
                }
                return Some(index * 64 + rest.trailing_zeros());
            }
            n -= ones;
        }
        None
    }
}

/// The numbers that an allocator hands out, both ends included: not empty, and from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberRange {
    min: u32,
    max: u32,
}

impl NumberRange {
    /// From `min` to `max`, all of which must carry `mask` (WIRE.md: the mask is `ORed` into what is handed out, and both
    /// must agree).
    ///
    /// # Errors
    /// The range is empty, begins below 1, or holds numbers without the mask.
    pub const fn new(min: u32, max: u32, mask: u32) -> Result<Self, RangeError> {
        // The bits above the highest in which the ends differ are common to all numbers between them.
        let differing = (min ^ max).leading_zeros();
        let common = if differing == 32 { u32::MAX } else { !(u32::MAX >> differing) };
        if min < 1 || max < min || mask & common & min != mask {
            return Err(RangeError { min, max });
        }
        Ok(Self { min, max })
    }

    /// How many numbers these are.
    #[must_use]
    pub const fn size(self) -> u32 {
        self.max - self.min + 1
    }

    /// Whether it is one of them.
    #[must_use]
    pub const fn contains(self, number: NumericIdentity) -> bool {
        self.min <= number.get() && number.get() <= self.max
    }
}

impl TryFrom<IdentityRange> for NumberRange {
    type Error = RangeError;

    fn try_from(range: IdentityRange) -> Result<Self, RangeError> {
        Self::new(range.min(), range.max(), 0)
    }
}

/// The pool of one cluster's numbers. A number is in exactly one of three states: *available*; *leased*, that is, handed out
/// and not yet seen in the store; *in use*. Numbers outside the range are never available, and every call ignores them.
#[derive(Clone, Debug)]
pub struct IdPool {
    min: u32,
    size: u32,
    available: Bits,
    leased: Bits,
}

impl IdPool {
    /// All of those numbers, all available.
    #[must_use]
    pub fn new(range: NumberRange) -> Self {
        Self {
            min: range.min,
            size: range.size(),
            available: Bits::full(range.size()),
            leased: Bits::new(range.size()),
        }
    }

    /// Leases a number, chosen evenly among those available, so that nodes rarely choose the same; `None` when exhausted.
    pub fn lease(&mut self) -> Option<NumericIdentity> {
        if self.available.count == 0 {
            return None;
        }
        let bit = self.available.select(fastrand::u32(..self.available.count))?;
        self.available.remove(bit);
        self.leased.insert(bit);
        Some(NumericIdentity::new(self.min + bit))
    }

    /// A leased number is in use now; whether it was leased.
    pub fn use_leased(&mut self, number: NumericIdentity) -> bool {
        self.bit(number).is_some_and(|bit| self.leased.remove(bit))
    }

    /// A leased number is available again; whether it was leased.
    pub fn release(&mut self, number: NumericIdentity) -> bool {
        self.bit(number).is_some_and(|bit| self.leased.remove(bit) && self.available.insert(bit))
    }

    /// A number left the store: it is available again, unless it is leased; whether it became available.
    pub fn insert(&mut self, number: NumericIdentity) -> bool {
        self.bit(number).is_some_and(|bit| !self.leased.contains(bit) && self.available.insert(bit))
    }

    /// A number appeared in the store: it is in use, leased before or not; whether it was available.
    pub fn remove(&mut self, number: NumericIdentity) -> bool {
        self.bit(number).is_some_and(|bit| {
            self.leased.remove(bit);
            self.available.remove(bit)
        })
    }

    /// A list told all numbers that the store holds: exactly those are in use, and what is leased stays so unless it is
    /// among them.
    pub fn reset_to(&mut self, in_use: impl IntoIterator<Item = NumericIdentity>) {
        let mut available = Bits::full(self.size);
        for number in in_use {
            if let Some(bit) = self.bit(number) {
                available.remove(bit);
                self.leased.remove(bit);
            }
        }
        for (free, &leased) in available.words.iter_mut().zip(&self.leased.words) {
            *free &= !leased;
        }
        available.count = available.words.iter().map(|word| word.count_ones()).sum();
        self.available = available;
    }

    /// How many numbers there are in all.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// How many can be leased.
    #[must_use]
    pub const fn available(&self) -> u32 {
        self.available.count
    }

    /// How many are leased.
    #[must_use]
    pub const fn leased(&self) -> u32 {
        self.leased.count
    }

    /// How many are in use.
    #[must_use]
    pub const fn in_use(&self) -> u32 {
        self.size - self.available.count - self.leased.count
    }

    /// Whether the pool hands out this number at some time.
    #[must_use]
    pub const fn contains(&self, number: NumericIdentity) -> bool {
        number.get() >= self.min && number.get() - self.min < self.size
    }

    fn bit(&self, number: NumericIdentity) -> Option<u32> {
        self.contains(number).then(|| number.get() - self.min)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::identity::{ClusterId, MaxConnectedClusters};

    fn pool(min: u32, max: u32) -> IdPool {
        IdPool::new(NumberRange::new(min, max, 0).unwrap())
    }

    #[test]
    fn the_numbers_of_a_cluster_cost_kilobytes() {
        let pool = pool(1 << 16, (2 << 16) - 1);
        let bytes: usize = [&pool.available, &pool.leased].iter().map(|bits| size_of_val(&*bits.words)).sum();
        assert_eq!((pool.available(), bytes), (65_536, 16 << 10));
    }

    #[test]
    fn a08_ranges_follow_from_the_cluster_id() {
        for (id, width, min, max) in [
            (1, MaxConnectedClusters::C255, 65_536, 131_071),
            (3, MaxConnectedClusters::C255, 196_608, 262_143),
            (255, MaxConnectedClusters::C255, 16_711_680, 16_777_215),
            (1, MaxConnectedClusters::C511, 32_768, 65_535),
            (255, MaxConnectedClusters::C511, 8_355_840, 8_388_607),
            (256, MaxConnectedClusters::C511, 8_388_608, 8_421_375),
            (511, MaxConnectedClusters::C511, 16_744_448, 16_777_215),
        ] {
            let cluster = ClusterId::new(id, width).unwrap();
            let mut pool = IdPool::new(IdentityRange::of(cluster, width).try_into().unwrap());
            assert_eq!(pool.size(), max - min + 1);
            let inside = [min, max].map(NumericIdentity::new);
            let outside = [min - 1, max + 1].map(NumericIdentity::new);
            assert!(inside.iter().all(|&number| pool.contains(number) && pool.remove(number)));
            assert!(outside.iter().all(|&number| !pool.contains(number) && !pool.remove(number)));
            // The mask of WIRE.md is in every number of the range.
            assert!(NumberRange::new(min, max, id << width.shift()).is_ok());
        }
        let zero = IdentityRange::of(ClusterId::default(), MaxConnectedClusters::C255);
        let zero = IdPool::new(zero.try_into().unwrap());
        assert!(!zero.contains(NumericIdentity::new(255)) && zero.contains(NumericIdentity::new(256)));
        assert!(zero.contains(NumericIdentity::new(65_535)) && !zero.contains(NumericIdentity::new(65_536)));
    }

    #[test]
    fn a08_refuses_ranges_that_are_empty_below_1_or_at_odds_with_the_mask() {
        for (min, max, mask) in [(0, 10, 0), (11, 10, 0), (65_536, 131_071, 1 << 17), (65_536, 196_608, 1 << 16)] {
            assert_eq!(NumberRange::new(min, max, mask).unwrap_err(), RangeError { min, max });
        }
        assert_eq!(NumberRange::new(7, 7, 0).unwrap().size(), 1);
    }

    #[test]
    fn chooses_evenly() {
        let mut pool = pool(1, 4);
        let mut seen = [0; 4];
        for _ in 0..4_000 {
            let number = pool.lease().unwrap();
            seen[number.get() as usize - 1] += 1;
            pool.release(number);
        }
        assert!(seen.iter().all(|&times| (800..1_200).contains(&times)), "{seen:?}");
    }

    #[derive(Clone, Debug)]
    enum Call {
        Lease,
        Use(u32),
        Release(u32),
        Insert(u32),
        Remove(u32),
        Reset(Vec<u32>),
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let number = 98..174u32; // The range and its neighbours.
        let call = prop_oneof![
            3 => Just(Call::Lease),
            2 => number.clone().prop_map(Call::Use),
            2 => number.clone().prop_map(Call::Release),
            2 => number.clone().prop_map(Call::Insert),
            2 => number.clone().prop_map(Call::Remove),
            1 => prop::collection::vec(number, 0..20).prop_map(Call::Reset),
        ];
        prop::collection::vec(call, 0..300)
    }

    proptest! {
        /// Against the obvious model: two hash sets.
        #[test]
        fn keeps_its_books(calls in calls()) {
            let range = 100..=171u32;
            let mut pool = pool(100, 171);
            let mut available: HashSet<u32> = range.clone().collect();
            let mut leased = HashSet::new();
            for call in calls {
                match call {
                    Call::Lease => match pool.lease() {
                        Some(number) => {
                            prop_assert!(available.remove(&number.get()));
                            prop_assert!(leased.insert(number.get()));
                        }
                        None => prop_assert!(available.is_empty()),
                    },
                    Call::Use(n) => prop_assert_eq!(pool.use_leased(NumericIdentity::new(n)), leased.remove(&n)),
                    Call::Release(n) => {
                        let was = leased.remove(&n);
                        if was { available.insert(n); }
                        prop_assert_eq!(pool.release(NumericIdentity::new(n)), was);
                    }
                    Call::Insert(n) => {
                        let new = range.contains(&n) && !leased.contains(&n) && available.insert(n);
                        prop_assert_eq!(pool.insert(NumericIdentity::new(n)), new);
                    }
                    Call::Remove(n) => {
                        leased.remove(&n);
                        prop_assert_eq!(pool.remove(NumericIdentity::new(n)), available.remove(&n));
                    }
                    Call::Reset(numbers) => {
                        leased.retain(|n| !numbers.contains(n));
                        available = range.clone().filter(|n| !numbers.contains(n) && !leased.contains(n)).collect();
                        pool.reset_to(numbers.into_iter().map(NumericIdentity::new));
                    }
                }
                prop_assert_eq!(pool.available() as usize, available.len());
                prop_assert_eq!(pool.leased() as usize, leased.len());
                prop_assert_eq!(pool.in_use() as usize, 72 - available.len() - leased.len());
            }
        }
    }
}
