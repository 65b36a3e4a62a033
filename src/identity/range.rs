//! The range of numbers that one cluster allocates from.

use std::fmt;

use super::{ClusterId, MaxConnectedClusters, NumericIdentity};

/// Inclusive range of the numbers of one cluster (WIRE.md, "Numeric identities").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityRange {
    min: u32,
    max: u32,
}

impl IdentityRange {
    /// The allocation range of `cluster`, which is valid in `width`; cluster 0 begins above the reserved numbers. The
    /// pool hands out these numbers as they are: they carry [`Self::prefix_mask`] already.
    #[must_use]
    pub const fn of(cluster: ClusterId, width: MaxConnectedClusters) -> Self {
        let mask = Self::prefix_mask(cluster, width);
        let min = if mask == 0 { NumericIdentity::MIN_ALLOCATED.get() } else { mask };
        Self { min, max: mask | ((1 << width.shift()) - 1) }
    }

    /// The numbers from `min` to `max`, both included.
    ///
    /// # Errors
    /// [`RangeError`] if there are none, or if 0 ("unknown") is among them.
    pub const fn new(min: u32, max: u32) -> Result<Self, RangeError> {
        if min == 0 || min > max { Err(RangeError { min, max }) } else { Ok(Self { min, max }) }
    }

    /// The bits that every number of `cluster` carries, in place.
    #[must_use]
    pub const fn prefix_mask(cluster: ClusterId, width: MaxConnectedClusters) -> u32 {
        (cluster.get() as u32) << width.shift()
    }

    /// Lowest number.
    #[must_use]
    pub const fn min(self) -> u32 {
        self.min
    }

    /// Highest number.
    #[must_use]
    pub const fn max(self) -> u32 {
        self.max
    }

    /// How many numbers there are, at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub const fn len(self) -> u64 {
        (self.max - self.min) as u64 + 1
    }

    /// Whether `number` lies in the range.
    #[must_use]
    pub const fn contains(self, number: NumericIdentity) -> bool {
        self.min <= number.get() && number.get() <= self.max
    }
}

/// `min` to `max`, both included.
impl fmt::Display for IdentityRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// Why two bounds are not a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the range {min} to {max} is empty or begins below 1")]
pub struct RangeError {
    /// Lowest number asked for.
    pub min: u32,
    /// Highest number asked for.
    pub max: u32,
}
