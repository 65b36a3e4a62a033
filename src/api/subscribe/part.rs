//! Parts of differences, cut to the limits of a frame and encoded; the [`Shelf`] keeps them for whoever needs the same.
//!
//! What a part holds depends on the two versions, on where it begins and on the subscriber's shape, and on nothing else; so
//! the subscribers that follow the same cluster at the same pace get the same bytes. Parts of snapshots are kept while
//! anybody loads one, parts of batches until others push them out; both within bounds.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::Message as _;
use tokio::time::Instant;

use super::filter::{Shape, Tally};
use super::message::Message;
use super::request::FrameLimits;
use super::token::Token;
use crate::api::pb::subscribe_response::Frame;
use crate::api::{convert, pb};
use crate::identity::{ClusterId, NumericIdentity};
use crate::view::{Change, ClusterView, diff_after};

/// Most that a frame takes beside its identities and numbers: names, counts, position, token, and the tags around them.
const ENVELOPE: usize = 256;
/// Most that one item takes beside its own bytes: a tag, and a length below 4 GiB.
const ITEM: usize = 6;
/// Bytes of encoded snapshots: a handful of full clusters, on which many subscribers may be at once.
const SNAPSHOT_BYTES: usize = 128 << 20;
/// Bytes of encoded batches. A batch is asked for by all within milliseconds.
const BATCH_BYTES: usize = 8 << 20;
/// Subscribers that begin within this time load the same version, and get what changed meanwhile as a batch.
const SAME_SNAPSHOT: Duration = Duration::from_secs(1);

/// What a part is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Use {
    /// Chunks of a snapshot.
    Snapshot,
    /// Batches, for that reason.
    Batch(pb::BatchReason),
}

/// Which part.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    pub(super) held: Option<&'a ClusterView>,
    pub(super) target: &'a ClusterView,
    /// Everything up to this number is told already.
    pub(super) told: Option<NumericIdentity>,
    /// Of what is told already.
    pub(super) tally: Tally,
    pub(super) purpose: Use,
}

/// A part.
#[derive(Debug)]
pub(super) struct Part {
    /// None where nothing passes the filter and nothing has to be closed.
    pub(super) message: Option<Arc<Message>>,
    /// Everything up to this number is told then; none when it is the last part.
    pub(super) told: Option<NumericIdentity>,
    /// Of what is told then.
    pub(super) tally: Tally,
    /// Something was removed.
    pub(super) takes_back: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    held: u64,
    target: u64,
    told: Option<NumericIdentity>,
    purpose: Use,
    shape: Shape,
}

/// Encoded parts, shared by all subscriptions; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Shelf(Arc<Mutex<Shelves>>);

#[derive(Debug, Default)]
struct Shelves {
    snapshots: Kept,
    batches: Kept,
    /// Subscribers that load a snapshot.
    loading: usize,
    /// The version of each cluster whose snapshot was begun last, and when.
    begun: HashMap<ClusterId, (Arc<ClusterView>, Instant)>,
}

/// First in, first out.
#[derive(Debug, Default)]
struct Kept {
    parts: HashMap<Arc<Key>, Arc<Part>>,
    order: VecDeque<Arc<Key>>,
    bytes: usize,
}

impl Kept {
    fn put(&mut self, key: Key, part: &Arc<Part>, most: usize) {
        let key = Arc::new(key);
        if self.parts.insert(Arc::clone(&key), Arc::clone(part)).is_some() {
            return;
        }
        self.order.push_back(key);
        self.bytes += part.bytes();
        while self.bytes > most {
            let Some(oldest) = self.order.pop_front() else { return };
            self.bytes -= self.parts.remove(&oldest).map_or(0, |part| part.bytes());
        }
    }
}

impl Part {
    /// What keeping it costs, an estimate.
    fn bytes(&self) -> usize {
        size_of::<(Key, Self)>() * 2 + self.message.as_ref().map_or(0, |message| message.len())
    }

    /// Cuts and encodes.
    fn new(cut: &Cut<'_>, shape: &Shape) -> Self {
        let FrameLimits { items, bytes } = shape.limits;
        let (mut upserted, mut removed, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let (mut size, mut told, mut tally) = (ENVELOPE, cut.told, cut.tally);
        let mut last = true;
        for change in diff_after(cut.held, cut.target, cut.told) {
            let before =
                cut.held.and_then(|held| held.get(change.number())).filter(|before| shape.filter.passes(before));
            let after = match change {
                Change::Upserted(identity) => Some(identity).filter(|identity| shape.filter.passes(identity)),
                Change::Removed(_) => None,
            };
            let item = after.map(|after| convert::identity_in_frame(after, shape.numbers_only));
            let weight = match (&item, before) {
                (Some(item), _) => item.encoded_len() + ITEM,
                // Two packed numbers of up to 5 bytes each.
                (None, Some(_)) => 2 * ITEM,
                (None, None) => 0,
            };
            let count = upserted.len() + removed.len();
            if weight > 0 && (count >= items || (count > 0 && size + weight > bytes)) {
                last = false;
                break;
            }
            size += weight;
            if let Some(before) = before {
                tally.take(before);
            }
            if let Some(after) = after {
                tally.add(after);
            }
            match (item, before) {
                (Some(item), _) => upserted.push(item),
                (None, Some(_)) => {
                    removed.push(change.number().get());
                    if matches!(change, Change::Upserted(_)) {
                        left.push(change.number().get());
                    }
                }
                (None, None) => {}
            }
            told = Some(change.number());
        }
        let takes_back = !removed.is_empty();
        let is_empty = upserted.is_empty() && removed.is_empty();
        let cluster = cut.target.name().to_string();
        let frame = match cut.purpose {
            Use::Snapshot if is_empty || takes_back => None,
            Use::Snapshot => Some(Frame::SnapshotChunk(pb::SnapshotChunk { cluster, identities: upserted })),
            // The last part closes the others, even if there is nothing more in it.
            Use::Batch(_) if is_empty && cut.told.is_none() => None,
            Use::Batch(reason) => {
                let end = |value: u64| if last { value } else { 0 };
                Some(Frame::Batch(pb::Batch {
                    cluster,
                    upserted,
                    removed,
                    more: !last,
                    position: cut.target.position().filter(|_| last).map(convert::position),
                    count: end(tally.count),
                    checksum: end(tally.checksum),
                    token: if last { token(cut.target, shape).to_vec() } else { Vec::new() },
                    reason: reason.into(),
                    left_filter: left,
                }))
            }
        };
        let message = frame.map(|frame| Arc::new(Message::new(frame)));
        Self { message, told: told.filter(|_| !last), tally, takes_back }
    }
}

/// The token of a version; empty for one without a position.
pub(super) fn token(version: &ClusterView, shape: &Shape) -> prost::bytes::Bytes {
    Token::of(version).map(|token| token.encode(version.name().as_str(), shape.fingerprint())).unwrap_or_default()
}

impl Shelf {
    /// The part, from the shelf or made now.
    pub(super) fn part(&self, cut: &Cut<'_>, shape: &Shape) -> Arc<Part> {
        let key = Key {
            held: cut.held.map_or(0, ClusterView::serial),
            target: cut.target.serial(),
            told: cut.told,
            purpose: cut.purpose,
            shape: shape.clone(),
        };
        if let Some(part) = self.shelves().of(cut.purpose).0.parts.get(&key) {
            return Arc::clone(part);
        }
        // Outside of the lock: nobody waits for another's encoding, and two that want the same may both make it.
        let part = Arc::new(Part::new(cut, shape));
        let mut shelves = self.shelves();
        let (kept, most) = shelves.of(cut.purpose);
        kept.put(key, &part, most);
        part
    }

    /// The version with which a snapshot begins: the current one, or, unless it has to be that, one that others began to load
    /// a moment ago.
    pub(super) fn begin(&self, now: &Arc<ClusterView>, current: bool) -> (Arc<ClusterView>, Loading) {
        let mut shelves = self.shelves();
        shelves.loading += 1;
        let loading = Loading(self.clone());
        if current || !now.is_synced() {
            return (Arc::clone(now), loading);
        }
        let at = Instant::now();
        let goes_on = |begun: &&(Arc<ClusterView>, Instant)| {
            let (version, begun) = begun;
            at.duration_since(*begun) < SAME_SNAPSHOT
                && version.name() == now.name()
                && version.generation() == now.generation()
        };
        if let Some((version, _)) = shelves.begun.get(&now.id()).filter(goes_on) {
            return (Arc::clone(version), loading);
        }
        shelves.begun.insert(now.id(), (Arc::clone(now), at));
        (Arc::clone(now), loading)
    }

    /// Bytes that are kept, an estimate.
    pub(super) fn bytes(&self) -> usize {
        let shelves = self.shelves();
        shelves.snapshots.bytes + shelves.batches.bytes
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelves {
    fn of(&mut self, purpose: Use) -> (&mut Kept, usize) {
        match purpose {
            Use::Snapshot => (&mut self.snapshots, SNAPSHOT_BYTES),
            Use::Batch(_) => (&mut self.batches, BATCH_BYTES),
        }
    }
}

/// Somebody loads a snapshot; with the last one go the encoded snapshots.
#[derive(Debug)]
pub(super) struct Loading(Shelf);

impl Drop for Loading {
    fn drop(&mut self) {
        let mut shelves = self.0.shelves();
        shelves.loading -= 1;
        if shelves.loading == 0 {
            let gone = (std::mem::take(&mut shelves.snapshots), std::mem::take(&mut shelves.begun));
            drop(shelves);
            drop(gone);
        }
    }
}
