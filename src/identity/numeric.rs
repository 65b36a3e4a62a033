//! Numeric identities: 32 bits, of which the high 8 are the scope and, in the global scope, the low 24 hold cluster ID and
//! cluster-local ID.

use std::fmt;

use super::{ClusterId, MaxConnectedClusters, Scope};

/// A security identity's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct NumericIdentity(u32);

impl NumericIdentity {
    /// Wraps a raw number; every 32-bit value is a number, valid or not.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The raw number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The scope, from the high 8 bits.
    #[must_use]
    pub const fn scope(self) -> Option<Scope> {
        Scope::from_bits(self.0 & 0xff00_0000)
    }

    /// The cluster ID in the low 24 bits; meaningful in the global scope only.
    #[must_use]
    pub const fn cluster_id(self, width: MaxConnectedClusters) -> ClusterId {
        ClusterId::new_unchecked(((self.0 & 0x00ff_ffff) >> width.shift()) as u16)
    }

    /// Parses the canonical decimal form that store paths use: digits only, no sign, no leading zero, at most 32 bits.
    ///
    /// # Errors
    /// Anything else is a [`ParseNumericIdentityError`] that says which rule broke.
    pub fn parse_canonical(text: &[u8]) -> Result<Self, ParseNumericIdentityError> {
        match text {
            [] => return Err(ParseNumericIdentityError("empty")),
            [b'0', _, ..] => return Err(ParseNumericIdentityError("has a leading zero")),
            _ => {}
        }
        let mut number = 0_u32;
        for &byte in text {
            if !byte.is_ascii_digit() {
                return Err(ParseNumericIdentityError("contains something else than digits"));
            }
            number = number
                .checked_mul(10)
                .and_then(|tens| tens.checked_add(u32::from(byte - b'0')))
                .ok_or(ParseNumericIdentityError("does not fit in 32 bits"))?;
        }
        Ok(Self(number))
    }
}

impl fmt::Display for NumericIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a text is not a number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseNumericIdentityError(pub &'static str);
