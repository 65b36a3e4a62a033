//! The range of numbers that one cluster allocates from.

use super::{ClusterId, MaxConnectedClusters, NumericIdentity};

/// Inclusive range of the numbers of one cluster (WIRE.md, "Numeric identities").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityRange {
    min: u32,
    max: u32,
}

impl IdentityRange {
    /// The allocation range of `cluster`; cluster 0 begins at 256.
    #[must_use]
    pub const fn of(cluster: ClusterId, width: MaxConnectedClusters) -> Self {
        let id = cluster.get() as u32;
        let min = if id == 0 { 256 } else { id << width.shift() };
        Self { min, max: ((id + 1) << width.shift()) - 1 }
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

    /// Whether `number` lies in the range.
    #[must_use]
    pub const fn contains(self, number: NumericIdentity) -> bool {
        self.min <= number.get() && number.get() <= self.max
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
