//! The reserved identities, told once at the start of a stream.

use std::collections::VecDeque;

use super::filter::Tally;
use super::request::Plan;
use crate::api::pb::subscribe_response::Frame;
use crate::api::{convert, pb};
use crate::identity::ReservedIdentities;

/// What every cluster has without an allocation, as the snapshot of a cluster without a name.
pub(super) fn reserved(plan: &Plan, reserved: &ReservedIdentities) -> VecDeque<Frame> {
    let passing = reserved.iter().filter(|identity| plan.shape.filter.passes_key_string(&identity.key_string));
    let mut tally = Tally::default();
    let mut identities = Vec::new();
    for identity in passing {
        tally.count += 1;
        let contribution = crate::view::contribution(identity.number, &identity.key_string);
        tally.checksum = tally.checksum.wrapping_add(contribution);
        let mut identity = convert::reserved(identity);
        if plan.shape.numbers_only {
            identity.labels.clear();
        }
        identities.push(identity);
    }
    let begin = pb::SnapshotBegin { expected: tally.count, ..pb::SnapshotBegin::default() };
    let synced = pb::Synced { count: tally.count, checksum: tally.checksum, ..pb::Synced::default() };
    let mut frames = VecDeque::from([Frame::SnapshotBegin(begin)]);
    // Two dozen small ones, which fit any limit on bytes but the smallest.
    for identities in identities.chunks(plan.shape.limits.items.clamp(1, 16)) {
        frames.push_back(Frame::SnapshotChunk(pb::SnapshotChunk {
            cluster: String::new(),
            identities: identities.into(),
        }));
    }
    frames.push_back(Frame::Synced(synced));
    frames
}
