//! The bytes of a picture. Pure.
//!
//! ```text
//! magic          8 bytes      "MESHGATE"
//! version        u32          1; a file of another one is foreign, whatever follows
//! saved at       u64          milliseconds since 1970
//! unavailable    u64          since when the peer is out of reach, milliseconds since 1970; 0 if it is in step
//! etcd cluster   u64          of the position
//! revision       u64          of the position
//! checksum       u64          of the identities, as the API tells it
//! width          u16          255 or 511
//! cluster ID     u16
//! name, prefix   text each    the cluster's; where its identities were read
//! labels         varint       how many; then each: length of its source, of its key, and `source:key=value` as text
//! identities     varint       how many; then each, ascending: gap to the one before, revision below the position's,
//!                             number of labels, index of each label
//! file checksum  u64          XXH3-64 of everything before
//! ```
//!
//! Numbers are little-endian; a varint is LEB128; a text is its length as a varint and its bytes. A label is written once, in
//! the order of first use. Nothing is read before the file checksum agrees, and even then no length is believed: what is
//! allocated is bounded by what is there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use twox_hash::XxHash3_64;

use super::bytes::{Reader, Truncated, put_text, put_varint};
use crate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters, NumericIdentity};
use crate::view::{ClusterBuilder, ClusterView, Effect, Interner, Label, SourcePosition};

const MAGIC: &[u8; 8] = b"MESHGATE";
const VERSION: u32 = 1;
/// Magic and version.
const PREAMBLE: usize = 12;
const CHECKSUM: usize = 8;

/// One cluster as it was when it was last in step, and since when it is not.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Its identities; complete.
    pub version: Arc<ClusterView>,
    /// The position up to which they are: the version's, or a later one at which nothing had changed.
    pub position: SourcePosition,
    /// Where in its store the identities are.
    pub prefix: String,
    /// When the picture was kept.
    pub saved_at: SystemTime,
    /// Since when the cluster was out of reach then; none if it was in step.
    pub unavailable_since: Option<SystemTime>,
}

/// What a picture must fit.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The cluster that the file is named after.
    pub name: ClusterName,
    /// How our mesh splits its numbers.
    pub width: MaxConnectedClusters,
    /// Bytes that a key string may have.
    pub max_key_string: usize,
}

/// Why bytes are no picture of use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Something else.
    #[error("it is no picture of a cluster")]
    NotAPicture,
    /// Written by a program with another format.
    #[error("its format is version {0}, ours is {VERSION}")]
    ForeignVersion(u32),
    /// Cut short or changed.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// Of another cluster than the one that it is named after.
    #[error("it is of the cluster {0}")]
    OtherCluster(String),
    /// Whole, but its numbers mean something else to us.
    #[error("its numbers are made for {theirs} clusters, ours for {ours}")]
    Width {
        /// What it was made with.
        theirs: u16,
        /// What we are set to.
        ours: u16,
    },
}

impl From<Truncated> for FormatError {
    fn from(Truncated: Truncated) -> Self {
        Self::Damaged("it ends too early")
    }
}

/// The bytes of a picture.
#[must_use]
pub fn encode(picture: &Picture, width: MaxConnectedClusters) -> Vec<u8> {
    let Picture { version, position, prefix, saved_at, unavailable_since } = picture;
    // A label of its own for each identity is the most that is usual.
    let mut labels: HashMap<&[u8], u64, foldhash::fast::RandomState> =
        HashMap::with_capacity_and_hasher(version.len(), foldhash::fast::RandomState::default());
    let (mut dictionary, mut identities) = (Vec::new(), Vec::new());
    let mut next = version.range().min();
    for identity in version.iter() {
        put_varint(&mut identities, u64::from(identity.number().get() - next));
        next = identity.number().get() + 1;
        // Nearly always below, hence small; wrapping, so that any revision comes back.
        put_varint(&mut identities, position.revision.wrapping_sub(identity.revision()).cast_unsigned());
        put_varint(&mut identities, identity.labels().len() as u64);
        for label in identity.labels() {
            let new = labels.len() as u64;
            let index = *labels.entry(label.as_bytes()).or_insert_with(|| {
                let parts = label.parts();
                put_varint(&mut dictionary, parts.source.len() as u64);
                put_varint(&mut dictionary, parts.key.len() as u64);
                put_text(&mut dictionary, label.as_str());
                new
            });
            put_varint(&mut identities, index);
        }
    }
    let mut out = Vec::with_capacity(128 + prefix.len() + dictionary.len() + identities.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    for number in [
        millis(*saved_at),
        unavailable_since.map_or(0, millis),
        position.etcd_cluster_id,
        position.revision.cast_unsigned(),
        version.checksum(),
    ] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&width.max_id().to_le_bytes());
    out.extend_from_slice(&version.id().get().to_le_bytes());
    put_text(&mut out, version.name().as_str());
    put_text(&mut out, prefix);
    put_varint(&mut out, labels.len() as u64);
    out.extend_from_slice(&dictionary);
    put_varint(&mut out, version.len() as u64);
    out.extend_from_slice(&identities);
    let checksum = XxHash3_64::oneshot(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// Reads a picture; its version is stale.
///
/// # Errors
/// [`FormatError`].
pub fn decode(bytes: &[u8], fit: &Fit, interner: &Interner) -> Result<Picture, FormatError> {
    let mut reader = Reader::new(checked(bytes)?);
    let saved_at = time(reader.u64()?);
    let unavailable_since = Some(reader.u64()?).filter(|since| *since != 0).map(time);
    let position = SourcePosition { etcd_cluster_id: reader.u64()?, revision: reader.u64()?.cast_signed() };
    let (checksum, width, id) = (reader.u64()?, reader.u16()?, reader.u16()?);
    let (name, prefix) = (reader.text()?, reader.text()?.to_owned());
    if name != fit.name.as_str() {
        return Err(FormatError::OtherCluster(name.to_owned()));
    }
    if width != fit.width.max_id() {
        return Err(FormatError::Width { theirs: width, ours: fit.width.max_id() });
    }
    let id = ClusterId::new(id.into(), fit.width).map_err(|_| FormatError::Damaged("its cluster ID cannot be"))?;
    let labels = labels(&mut reader, interner)?;
    let range = IdentityRange::of(id, fit.width);
    let mut builder = ClusterBuilder::new(interner.clone(), fit.name.clone(), id, range);
    identities(&mut reader, &mut builder, &labels, position.revision, fit.max_key_string)?;
    if !reader.is_empty() {
        return Err(FormatError::Damaged("something follows behind its end"));
    }
    builder.set_stale(position);
    let version = builder.build();
    if version.checksum() != checksum {
        return Err(FormatError::Damaged("its identities are not those that were kept"));
    }
    Ok(Picture { version, position, prefix, saved_at, unavailable_since })
}

/// What stands between preamble and file checksum, if they are right.
fn checked(bytes: &[u8]) -> Result<&[u8], FormatError> {
    let (preamble, _) = bytes.split_at_checked(PREAMBLE).ok_or(Truncated)?;
    let (magic, version) = preamble.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(FormatError::NotAPicture);
    }
    let version = Reader::new(version).u32()?;
    if version != VERSION {
        return Err(FormatError::ForeignVersion(version));
    }
    let body = bytes.len().checked_sub(CHECKSUM).filter(|end| *end >= PREAMBLE).ok_or(Truncated)?;
    let (whole, checksum) = bytes.split_at(body);
    if Reader::new(checksum).u64()? != XxHash3_64::oneshot(whole) {
        return Err(FormatError::Damaged("its checksum does not agree"));
    }
    Ok(&whole[PREAMBLE..])
}

/// Bytes that a label takes at least: three lengths, a key, `:` and `=`.
const MIN_LABEL: usize = 6;
/// Bytes that an identity takes at least.
const MIN_IDENTITY: usize = 3;

fn labels(reader: &mut Reader<'_>, interner: &Interner) -> Result<Vec<Label>, FormatError> {
    let count = reader.count(MIN_LABEL)?;
    let mut labels = Vec::with_capacity(count);
    for _ in 0..count {
        let (source, key, text) = (reader.varint()?, reader.varint()?, reader.text()?);
        let lengths = u16::try_from(source).ok().zip(u16::try_from(key).ok());
        let label = lengths.and_then(|(source, key)| interner.restore(text, source, key));
        labels.push(label.ok_or(FormatError::Damaged("one of its labels is none"))?);
    }
    Ok(labels)
}

fn identities(
    reader: &mut Reader<'_>,
    builder: &mut ClusterBuilder,
    dictionary: &[Label],
    revision: i64,
    max_key_string: usize,
) -> Result<(), FormatError> {
    const RANGE: FormatError = FormatError::Damaged("one of its numbers is out of range");
    let mut next = builder.current().range().min();
    let mut labels = Vec::new();
    for _ in 0..reader.count(MIN_IDENTITY)? {
        let gap = u32::try_from(reader.varint()?).map_err(|_| RANGE)?;
        let number = next.checked_add(gap).ok_or(RANGE)?;
        next = number.checked_add(1).ok_or(RANGE)?;
        let written_at = revision.wrapping_sub(reader.varint()?.cast_signed());
        labels.clear();
        let mut length = 0;
        for _ in 0..reader.count(1)? {
            let index = usize::try_from(reader.varint()?).unwrap_or(usize::MAX);
            let label = dictionary.get(index).ok_or(FormatError::Damaged("it has not all of its labels"))?;
            length += label.as_bytes().len() + 1;
            if length > max_key_string {
                return Err(FormatError::Damaged("one of its identities is longer than allowed"));
            }
            labels.push(label.clone());
        }
        match builder.restore(NumericIdentity::new(number), &labels, written_at) {
            Ok(Effect::Added) => {}
            Ok(_) | Err(_) => return Err(RANGE),
        }
    }
    Ok(())
}

/// What lies before 1970 is a clock's mistake, and shows as its first millisecond: 0 is "never".
fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn time(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis)).unwrap_or(SystemTime::UNIX_EPOCH)
}
