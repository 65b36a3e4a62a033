//! What is known, on disk: a subscriber that starts anew goes on from its tokens instead of from nothing.
//!
//! The file is a recorded stream: for each cluster the frames that a snapshot of it would have, its token in the last one.
//! Reading it is folding it, count and checksum included, so a damaged file is found out like a wrong gateway.

use std::io::{self, Write as _};
use std::path::Path;

use prost::Message as _;
use tempfile::NamedTempFile;

use super::fold::Fold;
use crate::pb;
use crate::pb::subscribe_response::Frame;

/// Identities in one frame.
const CHUNK: usize = 1_024;
/// First bytes of the file; the number is that of its form.
const MAGIC: &[u8; 8] = b"meshsub1";

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is not what was written.
    #[error("{0}")]
    Damaged(String),
}

/// What is known as bytes.
pub(super) fn record(fold: &Fold) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let mut write = |frame: Frame| {
        let frame = pb::SubscribeResponse { frame: Some(frame) };
        // Growing a vector does not fail.
        let _ = frame.encode_length_delimited(&mut bytes);
    };
    for (name, cluster) in fold.mesh() {
        let begin = pb::SnapshotBegin { cluster: name.clone(), cluster_id: cluster.id, expected: 0 };
        write(Frame::SnapshotBegin(begin));
        let identities = cluster.identities.values().map(|entry| pb::Identity {
            number: entry.number,
            labels: entry.labels.clone(),
            cluster: String::new(),
            revision: entry.revision,
        });
        let mut identities = identities.peekable();
        while identities.peek().is_some() {
            let identities = identities.by_ref().take(CHUNK).collect();
            write(Frame::SnapshotChunk(pb::SnapshotChunk { cluster: name.clone(), identities }));
        }
        write(Frame::Synced(pb::Synced {
            cluster: name.clone(),
            cluster_id: cluster.id,
            count: cluster.identities.len() as u64,
            checksum: cluster.checksum(),
            position: cluster.position,
            resumed: false,
            token: cluster.token().to_vec(),
            stale: cluster.stale,
        }));
    }
    bytes
}

/// Folds what was recorded.
pub(super) fn restore(mut bytes: &[u8], mut fold: Fold) -> Result<Fold, StateError> {
    let damaged = |what: &dyn std::fmt::Display| StateError::Damaged(what.to_string());
    bytes = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged(&"not a file of a subscription, or of another form"))?;
    while !bytes.is_empty() {
        let frame = pb::SubscribeResponse::decode_length_delimited(&mut bytes).map_err(|error| damaged(&error))?;
        let frame = frame.frame.ok_or_else(|| damaged(&"an empty frame"))?;
        fold.apply(frame).map_err(|error| damaged(&error))?;
    }
    fold.begin();
    Ok(fold)
}

/// Replaces the file at once: whoever reads it sees the old one or the new one.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold() -> Fold {
        let mut fold = Fold::new(false);
        let entry = |number| pb::Identity { number, labels: vec![format!("k8s:n={number}")], ..Default::default() };
        let key = |number: u32| format!("k8s:n={number};");
        let checksum = (1..=3_000).fold(0u64, |sum, number| {
            sum.wrapping_add(crate::identity::contribution(crate::identity::NumericIdentity::new(number), &key(number)))
        });
        let cluster = || "a".to_owned();
        for frame in [
            Frame::SnapshotBegin(pb::SnapshotBegin { cluster: cluster(), cluster_id: 7, expected: 0 }),
            Frame::SnapshotChunk(pb::SnapshotChunk {
                cluster: cluster(),
                identities: (1..=3_000).map(entry).collect(),
            }),
            Frame::Synced(pb::Synced {
                cluster: cluster(),
                cluster_id: 7,
                count: 3_000,
                checksum,
                token: b"token".to_vec(),
                ..Default::default()
            }),
        ] {
            fold.apply(frame).expect("in order");
        }
        fold
    }

    #[test]
    fn is_read_as_it_was_written() {
        let (folder, fold) = (tempfile::tempdir().expect("a folder"), fold());
        let path = folder.path().join("state");
        for _ in 0..2 {
            write(&path, &record(&fold)).expect("written");
        }
        let read = restore(&std::fs::read(&path).expect("there"), Fold::new(false)).expect("whole");
        assert_eq!(read.tokens(), fold.tokens());
        assert_eq!(read.mesh()["a"].identities, fold.mesh()["a"].identities);
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1, "nothing else is left behind");
    }

    #[test]
    fn damage_is_found_out() {
        let bytes = record(&fold());
        let mut flipped = bytes.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        for damaged in [&bytes[..bytes.len() - 1], &bytes[1..], &flipped, b""] {
            assert!(restore(damaged, Fold::new(false)).is_err());
        }
    }
}
