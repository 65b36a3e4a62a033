//! The order-independent checksum by which two holders of a cluster prove that they agree.
//!
//! A cluster's checksum is the sum, modulo 2^64, of one contribution an identity. A contribution is
//! `XXH3_64(seed = number, input = le64(XXH3_64(seed = 0, input = key string)))`: any language with XXH3 can compute it, a
//! change costs one subtraction and one addition, and the key string is hashed once for checksum and index together.

use twox_hash::XxHash3_64;

use super::NumericIdentity;

/// What one (number, key string) adds, modulo 2^64, to a cluster's checksum.
#[must_use]
pub fn contribution(number: NumericIdentity, key_string: &str) -> u64 {
    contribution_of_hash(number, key_hash(key_string))
}

/// The hash of a key string in stored form.
#[must_use]
pub fn key_hash(key_string: &str) -> u64 {
    XxHash3_64::oneshot(key_string.as_bytes())
}

/// The same of a key string's hash.
#[must_use]
pub fn contribution_of_hash(number: NumericIdentity, key_hash: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(u64::from(number.get()), &key_hash.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Computed with the Python package `xxhash`, an independent implementation: xxh3_64_intdigest(
    //   xxh3_64_intdigest(b"k8s:app=web;").to_bytes(8, "little"), seed=65537)
    #[test]
    fn contribution_is_the_documented_function() {
        assert_eq!(key_hash("k8s:app=web;"), KEY_HASH);
        assert_eq!(contribution(NumericIdentity::new(65_537), "k8s:app=web;"), CONTRIBUTION);
    }

    const KEY_HASH: u64 = 2_940_120_004_106_642_963;
    const CONTRIBUTION: u64 = 15_979_473_089_127_278_277;
}
