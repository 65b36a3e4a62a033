//! Resume tokens: what a subscriber holds of one cluster, in forty bytes, understood by every gateway that reads its store.
//!
//! A token names a state twice over: by its position in the cluster's etcd, and by count and checksum of its contents. The
//! first says whether a gateway is behind it; the second proves that two states are the same, whoever saw them at whatever
//! revision. Contents are those of the whole cluster; the filter through which they were seen is in it as a fingerprint.

use prost::bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::encoding::{decode_varint, encode_varint};
use twox_hash::XxHash3_64;

use crate::view::{ClusterView, Contents, SourcePosition};

/// The first byte. A later form begins with another one, and is no token to us.
const VERSION: u8 = 1;
/// Version, fingerprint, etcd, checksum, check; revision and count take at most 9 and 5 more.
const FIXED: usize = 1 + 4 + 8 + 8 + 4;
const MAX: usize = FIXED + 9 + 5;

/// A state of one cluster, as a subscriber holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) struct Token {
    pub(in crate::api) contents: Contents,
    pub(in crate::api) revision: i64,
}

/// Why bytes are not a token that counts here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum TokenError {
    Garbage,
    Version,
    OtherFilter,
}

impl TokenError {
    /// In plain words.
    pub(in crate::api) const fn words(self) -> &'static str {
        match self {
            Self::Garbage => "the token is not one of this cluster",
            Self::Version => "the token is of a form that this gateway does not know",
            Self::OtherFilter => "the token was got with another filter",
        }
    }
}

impl Token {
    /// The token of a version that has a position.
    pub(super) fn of(version: &ClusterView) -> Option<Self> {
        let SourcePosition { revision, .. } = version.told()?;
        Some(Self { contents: Contents::of(version)?, revision })
    }

    pub(super) fn encode(&self, cluster: &str, filter: u32) -> Bytes {
        let Self { contents: Contents { etcd_cluster_id, count, checksum }, revision } = *self;
        let mut bytes = BytesMut::with_capacity(MAX);
        bytes.put_u8(VERSION);
        bytes.put_u32_le(filter);
        bytes.put_u64_le(etcd_cluster_id);
        bytes.put_u64_le(checksum);
        // Revisions count from 1; a negative one cannot be.
        encode_varint(u64::try_from(revision).unwrap_or_default(), &mut bytes);
        encode_varint(count, &mut bytes);
        let check = check(cluster, &bytes);
        bytes.put_u32_le(check);
        bytes.freeze()
    }

    /// A token got through that filter.
    pub(super) fn decode(bytes: &[u8], cluster: &str, filter: u32) -> Result<Self, TokenError> {
        let (token, through) = Self::decode_any(bytes, cluster)?;
        if through == filter { Ok(token) } else { Err(TokenError::OtherFilter) }
    }

    /// A token, and the filter that it was got through.
    pub(in crate::api) fn decode_any(bytes: &[u8], cluster: &str) -> Result<(Self, u32), TokenError> {
        match bytes.first() {
            Some(&VERSION) => {}
            Some(1..32) => return Err(TokenError::Version),
            _ => return Err(TokenError::Garbage),
        }
        let at = bytes.len().checked_sub(4).filter(|_| (FIXED + 2..=MAX).contains(&bytes.len()));
        let (mut body, mut sum) = bytes.split_at(at.ok_or(TokenError::Garbage)?);
        if sum.get_u32_le() != check(cluster, body) {
            return Err(TokenError::Garbage);
        }
        body.advance(1);
        let (filter, etcd_cluster_id, checksum) = (body.get_u32_le(), body.get_u64_le(), body.get_u64_le());
        let mut varint = || decode_varint(&mut body).map_err(|_| TokenError::Garbage);
        let (revision, count) = (varint()?, varint()?);
        let revision = i64::try_from(revision).map_err(|_| TokenError::Garbage)?;
        Ok((Self { contents: Contents { etcd_cluster_id, count, checksum }, revision }, filter))
    }
}

/// Of the token and of whose it is. Against mistakes, not against forgery: a forged token misleads its forger.
#[expect(clippy::cast_possible_truncation, reason = "the low half of a hash is a hash")]
fn check(cluster: &str, body: &[u8]) -> u32 {
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(cluster.as_bytes()), body) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        let contents = Contents { etcd_cluster_id: u64::MAX - 5, count: 65_000, checksum: 0x0123_4567_89ab_cdef };
        Token { contents, revision: i64::MAX }
    }

    #[test]
    fn is_read_as_it_was_written_and_is_short() {
        let bytes = token().encode("a", 7);
        assert_eq!(Token::decode(&bytes, "a", 7), Ok(token()));
        assert!(bytes.len() <= 40, "{}", bytes.len());
        let empty = Token { contents: Contents { etcd_cluster_id: 1, count: 0, checksum: 0 }, revision: 0 };
        assert_eq!(Token::decode(&empty.encode("a", 0), "a", 0), Ok(empty));
    }

    #[test]
    fn whatever_is_not_ours_is_told_apart() {
        let bytes = token().encode("a", 7);
        assert_eq!(Token::decode(&bytes, "b", 7), Err(TokenError::Garbage));
        assert_eq!(Token::decode(&bytes, "a", 8), Err(TokenError::OtherFilter));
        assert_eq!(Token::decode(&[2], "a", 7), Err(TokenError::Version));
        assert_eq!(Token::decode(&[], "a", 7), Err(TokenError::Garbage));
        for at in 0..bytes.len() {
            assert!(Token::decode(&bytes[..at], "a", 7).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut flipped = bytes.to_vec();
                flipped[at] ^= 1 << bit;
                assert!(Token::decode(&flipped, "a", 7).is_err(), "bit {bit} of byte {at}");
            }
        }
        assert!(Token::decode(&vec![VERSION; 100_000], "a", 7).is_err());
    }
}
