//! The order-independent checksum by which two holders of a cluster prove that they agree.

use crate::identity::NumericIdentity;

/// What one (number, key string) adds, modulo 2^64, to a cluster's checksum.
#[must_use]
pub fn contribution(_number: NumericIdentity, _key_string: &str) -> u64 {
    unimplemented!("skeleton")
}
