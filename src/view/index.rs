//! The persistent reverse index of a cluster: hash of a key string → offsets of the numbers that may have it.
//!
//! 256 buckets by the hash's top byte, in two levels of 16, each a sorted list of (more of the hash, offset) in 8 bytes. A
//! full cluster has about 256 entries a bucket: a look-up is eight comparisons in 2 KiB, a change copies one bucket and two
//! rows of 16 pointers. The index only proposes; the table decides, since two key strings may share a hash.

use std::sync::Arc;

const FAN_OUT: usize = 16;

/// Key hash → offsets, shared between versions, copied on write.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    rows: [Option<Arc<Row>>; FAN_OUT],
}

type Row = [Option<Arc<Bucket>>; FAN_OUT];

/// `tag << 32 | offset`, ascending.
type Bucket = Vec<u64>;

fn place(key_hash: u64) -> (usize, usize) {
    ((key_hash >> 60) as usize, (key_hash >> 56) as usize % FAN_OUT)
}

fn entry(key_hash: u64, offset: u32) -> u64 {
    (key_hash << 32) | u64::from(offset)
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is the offset")]
fn offset_of(entry: u64) -> u32 {
    entry as u32
}

impl Index {
    /// Offsets whose entry may have that hash, descending.
    pub(super) fn candidates(&self, key_hash: u64) -> impl Iterator<Item = u32> {
        let (row, column) = place(key_hash);
        let bucket = self.rows[row].as_ref().and_then(|row| row[column].as_ref()).map_or(&[][..], |bucket| bucket);
        let first = bucket.partition_point(|&at| at < entry(key_hash, 0));
        let behind = first + bucket[first..].partition_point(|&at| at <= entry(key_hash, u32::MAX));
        bucket[first..behind].iter().rev().map(|&at| offset_of(at))
    }

    pub(super) fn insert(&mut self, key_hash: u64, offset: u32) {
        let (row, column) = place(key_hash);
        let row = Arc::make_mut(self.rows[row].get_or_insert_default());
        let bucket = Arc::make_mut(row[column].get_or_insert_default());
        if let Err(at) = bucket.binary_search(&entry(key_hash, offset)) {
            bucket.insert(at, entry(key_hash, offset));
        }
    }

    pub(super) fn remove(&mut self, key_hash: u64, offset: u32) {
        let (row, column) = place(key_hash);
        let Some(row_slot) = self.rows[row].as_mut() else { return };
        let row = Arc::make_mut(row_slot);
        let Some(bucket_slot) = row[column].as_mut() else { return };
        let bucket = Arc::make_mut(bucket_slot);
        if let Ok(at) = bucket.binary_search(&entry(key_hash, offset)) {
            bucket.remove(at);
        }
        if bucket.is_empty() {
            row[column] = None;
        }
    }

    /// Gives back what growing left over in buckets that no other version shares.
    pub(super) fn shrink(&mut self) {
        for row in self.rows.iter_mut().flatten().filter_map(Arc::get_mut) {
            for bucket in row.iter_mut().flatten().filter_map(Arc::get_mut) {
                bucket.shrink_to_fit();
            }
        }
    }
}
