//! Numeric identities: 32 bits, of which the high 8 are the scope and, in the global scope, the low 24 hold cluster ID and
//! cluster-local ID.

use std::fmt;

use super::{ClusterId, MaxConnectedClusters, Scope};

/// A security identity's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct NumericIdentity(u32);

impl NumericIdentity {
    /// The first number that users may reserve.
    pub const MIN_USER_RESERVED: Self = Self(128);
    /// The first number that an allocator hands out.
    pub const MIN_ALLOCATED: Self = Self(256);

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
    #[expect(clippy::cast_possible_truncation, reason = "24 bits less the shift are at most 9")]
    pub const fn cluster_id(self, width: MaxConnectedClusters) -> ClusterId {
        ClusterId::new_unchecked(((self.0 & 0x00ff_ffff) >> width.shift()) as u16)
    }

    /// Whether the number is reserved by name: 0 to 10, see [`Self::reserved_name`].
    #[must_use]
    pub const fn is_reserved(self) -> bool {
        self.reserved_name().is_some()
    }

    /// Whether the number is in the users' part of the reserved ones, 128 to 255.
    #[must_use]
    pub const fn is_user_reserved(self) -> bool {
        Self::MIN_USER_RESERVED.0 <= self.0 && self.0 < Self::MIN_ALLOCATED.0
    }

    /// Whether the number stands for what is outside every cluster: `world`, `world-ipv4`, `world-ipv6`.
    #[must_use]
    pub const fn is_world(self) -> bool {
        matches!(self.0, 2 | 9 | 10)
    }

    /// Whether the number stands for something inside a cluster: neither the world nor local to a node.
    #[must_use]
    pub const fn is_cluster(self) -> bool {
        !self.is_world() && !matches!(self.scope(), Some(Scope::NodeLocal))
    }

    /// Parses what a person typed: Go's `ParseUint` with base 0, as Cilium's own tools do. Decimal, `0x`, `0b`, `0o` or a
    /// leading `0` for octal, with `_` between digits.
    ///
    /// # Errors
    /// Signs, spaces, anything else, and what does not fit in 32 bits.
    pub fn parse_user_input(text: &str) -> Result<Self, ParseNumericIdentityError> {
        parse_base_0(text).map(Self)
    }

    /// Parses the canonical decimal form that store paths use: digits only, no sign, no leading zero, at most 32 bits.
    ///
    /// # Errors
    /// Anything else is a [`ParseNumericIdentityError`] that says which rule broke.
    pub fn parse_canonical(text: &[u8]) -> Result<Self, ParseNumericIdentityError> {
        match text {
            [] => return Err(ParseNumericIdentityError::EMPTY),
            [b'0', _, ..] => return Err(ParseNumericIdentityError::LEADING_ZERO),
            _ => {}
        }
        let mut number = 0_u32;
        for &byte in text {
            if !byte.is_ascii_digit() {
                return Err(ParseNumericIdentityError::DIGIT);
            }
            number = number
                .checked_mul(10)
                .and_then(|tens| tens.checked_add(u32::from(byte - b'0')))
                .ok_or(ParseNumericIdentityError::TOO_LARGE)?;
        }
        Ok(Self(number))
    }
}

/// The plain decimal number, as in store paths; a reserved number's name is [`NumericIdentity::reserved_name`].
impl fmt::Display for NumericIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn parse_base_0(text: &str) -> Result<u32, ParseNumericIdentityError> {
    let (radix, digits) = match text.as_bytes() {
        [] => return Err(ParseNumericIdentityError::EMPTY),
        [b'0', b'x' | b'X', digits @ ..] if !digits.is_empty() => (16, digits),
        [b'0', b'o' | b'O', digits @ ..] if !digits.is_empty() => (8, digits),
        [b'0', b'b' | b'B', digits @ ..] if !digits.is_empty() => (2, digits),
        [b'0', digits @ ..] => (8, digits),
        digits => (10, digits),
    };
    let mut number = 0_u32;
    // A `_` stands between two digits, and a prefix counts as a digit.
    let mut digit_before = radix != 10;
    for &byte in digits {
        if byte == b'_' && digit_before {
            digit_before = false;
            continue;
        }
        let digit = char::from(byte).to_digit(radix).ok_or(ParseNumericIdentityError::DIGIT)?;
        number = number
            .checked_mul(radix)
            .and_then(|shifted| shifted.checked_add(digit))
            .ok_or(ParseNumericIdentityError::TOO_LARGE)?;
        digit_before = true;
    }
    if digit_before { Ok(number) } else { Err(ParseNumericIdentityError::DIGIT) }
}

/// Why a text is not a number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseNumericIdentityError(pub &'static str);

impl ParseNumericIdentityError {
    const EMPTY: Self = Self("empty");
    const DIGIT: Self = Self("contains something else than digits");
    const LEADING_ZERO: Self = Self("has a leading zero");
    const TOO_LARGE: Self = Self("does not fit in 32 bits");
}
