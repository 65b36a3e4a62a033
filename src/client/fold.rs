//! The contract of `Subscribe`, built in: frames in, the mesh and what changed in it out. Pure.
//!
//! A snapshot is staged and swapped at its Synced; the parts of a batch take effect together. Where the gateway tells count
//! and checksum, they are compared with what is held, so a fault on either side shows at once instead of in a policy.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::identity::{NumericIdentity, contribution};
use crate::pb;
use crate::pb::subscribe_response::Frame;

/// One identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub number: u32,
    /// Its labels in stored order; empty if numbers only were asked for.
    pub labels: Vec<String>,
    /// Revision of the store key it was read from.
    pub revision: i64,
    contribution: u64,
}

impl Entry {
    fn new(identity: pb::Identity) -> Arc<Self> {
        let pb::Identity { number, labels, revision, .. } = identity;
        let mut entry = Self { number, labels, revision, contribution: 0 };
        entry.contribution = contribution(NumericIdentity::new(number), &entry.key_string());
        Arc::new(entry)
    }

    /// Its key string, as the store has it.
    #[must_use]
    pub fn key_string(&self) -> String {
        self.labels.iter().flat_map(|label| [label.as_str(), ";"]).collect()
    }
}

/// One entry of a difference; `before` is absent of what is new, `after` of what is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What was.
    pub before: Option<Arc<Entry>>,
    /// What is.
    pub after: Option<Arc<Entry>>,
}

/// One cluster as it was told.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// Its ID.
    pub id: u32,
    /// Its identities by number.
    pub identities: BTreeMap<u32, Arc<Entry>>,
    /// Where it stands in its store.
    pub position: Option<pb::SourcePosition>,
    /// As the gateway last knew it before its own start: the store was not reached since.
    pub stale: bool,
    checksum: u64,
    token: Vec<u8>,
}

impl Cluster {
    /// Order-independent checksum of all (number, key string), as in Synced; without meaning if numbers only were asked for.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// What stands for this state in a request that resumes; empty where the gateway gave none.
    #[must_use]
    pub fn token(&self) -> &[u8] {
        &self.token
    }

    fn put(&mut self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        self.checksum = self.checksum.wrapping_add(entry.contribution);
        let before = self.identities.insert(entry.number, entry);
        self.forget(before)
    }

    fn take(&mut self, number: u32) -> Option<Arc<Entry>> {
        let before = self.identities.remove(&number);
        self.forget(before)
    }

    fn forget(&mut self, entry: Option<Arc<Entry>>) -> Option<Arc<Entry>> {
        self.checksum = self.checksum.wrapping_sub(entry.as_ref().map_or(0, |entry| entry.contribution));
        entry
    }

    /// What leads from `before` to here.
    fn changes_since(&self, before: &Self) -> Vec<Change> {
        let gone = before.identities.values().filter(|entry| !self.identities.contains_key(&entry.number));
        let gone = gone.map(|entry| Change { before: Some(Arc::clone(entry)), after: None });
        let news = self.identities.values().filter_map(|entry| {
            let before = before.identities.get(&entry.number).cloned();
            let same = before.as_ref().is_some_and(|before| before.labels == entry.labels);
            (!same).then(|| Change { before, after: Some(Arc::clone(entry)) })
        });
        gone.chain(news).collect()
    }
}

/// The mesh as it was told.
pub type Mesh = BTreeMap<String, Cluster>;

/// What a frame did.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// A stream began.
    Hello(pb::Hello),
    /// A snapshot began, of about so many identities.
    Begun {
        /// Of which cluster.
        cluster: String,
        /// How many the gateway has of it.
        expected: u64,
    },
    /// A part of a snapshot came.
    Loading {
        /// Of which cluster.
        cluster: String,
        /// Identities so far.
        received: u64,
    },
    /// A cluster is complete.
    Synced {
        /// Which.
        cluster: String,
        /// Nothing was known of it before.
        first: bool,
        /// What was known of it before was confirmed; what changed since follows.
        resumed: bool,
        /// It is as the gateway last knew it before its own start.
        stale: bool,
        /// Against what was known of it before.
        changes: Vec<Change>,
    },
    /// A cluster that was stale is in step with its store from here on.
    Confirmed {
        /// Which.
        cluster: String,
    },
    /// Every cluster that was known at the start is complete.
    AllSynced {
        /// But these.
        left_out: Vec<String>,
        /// These are stale.
        stale: Vec<String>,
    },
    /// A cluster's state changed: whether it is kept in step.
    Status(pb::ClusterStatus),
    /// Something changed in a complete cluster.
    Changed {
        /// In which.
        cluster: String,
        /// What; never empty.
        changes: Vec<Change>,
    },
    /// A cluster is no part of the mesh any more.
    Removed {
        /// Which.
        cluster: String,
        /// What was known of it.
        identities: Vec<Arc<Entry>>,
    },
    /// Nothing happened.
    Heartbeat(pb::Heartbeat),
    /// The stream ends.
    GoAway(pb::GoAway),
}

/// The gateway contradicts itself, or what is held here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// Count or checksum.
    #[error(
        "cluster {cluster}: held are {held} identities with checksum {held_checksum:016x}, told were {told} with \
         {told_checksum:016x}"
    )]
    Diverged {
        /// Which cluster.
        cluster: String,
        /// Our count.
        held: u64,
        /// Our checksum.
        held_checksum: u64,
        /// The gateway's count.
        told: u64,
        /// The gateway's checksum.
        told_checksum: u64,
    },
    /// A frame that cannot come here.
    #[error("cluster {cluster}: {frame} came {when}")]
    OutOfTurn {
        /// Which cluster.
        cluster: String,
        /// Which frame.
        frame: &'static str,
        /// At which wrong time.
        when: &'static str,
    },
}

/// Folds frames: the contract of a subscription without the connection.
#[derive(Debug, Default)]
pub struct Fold {
    mesh: Mesh,
    /// Snapshots on their way.
    staged: BTreeMap<String, Cluster>,
    /// Batches on their way: the parts so far.
    parts: BTreeMap<String, Vec<pb::Batch>>,
    /// Synced in this stream.
    confirmed: BTreeSet<String>,
    numbers_only: bool,
    live_only: bool,
}

impl Fold {
    /// Knows nothing yet. With `numbers_only`, as the request had it, checksums mean nothing and are not compared.
    #[must_use]
    pub fn new(numbers_only: bool) -> Self {
        Self { numbers_only, ..Self::default() }
    }

    /// Folds what that request asks for.
    #[must_use]
    pub fn of(request: &pb::SubscribeRequest) -> Self {
        let live_only = request.start() == pb::StartMode::LiveOnly;
        Self { numbers_only: request.numbers_only, live_only, ..Self::default() }
    }

    /// What a request has to bring along to resume from here.
    #[must_use]
    pub fn tokens(&self) -> HashMap<String, Vec<u8>> {
        let held = self.mesh.iter().filter(|(_, cluster)| !cluster.token.is_empty());
        held.map(|(name, cluster)| (name.clone(), cluster.token.clone())).collect()
    }

    /// What was held is in doubt: the next stream begins with snapshots. It stays until those are complete.
    pub fn forget_tokens(&mut self) {
        self.mesh.values_mut().for_each(|cluster| cluster.token.clear());
    }

    /// What is known: complete clusters only.
    #[must_use]
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// A new stream: what was half-told is void, what was known stays.
    pub fn begin(&mut self) {
        self.staged.clear();
        self.parts.clear();
        self.confirmed.clear();
    }

    /// Applies the next frame of a stream.
    ///
    /// # Errors
    /// The frame contradicts the ones before. What is known is in doubt then, until a new stream has said it anew.
    pub fn apply(&mut self, frame: Frame) -> Result<Vec<Update>, FoldError> {
        let one = |update| Ok(vec![update]);
        match frame {
            Frame::Hello(hello) => one(Update::Hello(hello)),
            Frame::SnapshotBegin(begin) => {
                let pb::SnapshotBegin { cluster, cluster_id, expected } = begin;
                self.staged.insert(cluster.clone(), Cluster { id: cluster_id, ..Cluster::default() });
                one(Update::Begun { cluster, expected })
            }
            Frame::SnapshotChunk(chunk) => self.chunk(chunk),
            Frame::Synced(synced) => self.synced(synced),
            Frame::AllSynced(pb::AllSynced { left_out, stale, unsettled, .. }) => {
                let unconfirmed =
                    |name: &&String| !unsettled && !self.confirmed.contains(*name) && !left_out.contains(name);
                let gone: Vec<_> = self.mesh.keys().filter(unconfirmed).cloned().collect();
                let mut updates: Vec<_> = gone.into_iter().filter_map(|cluster| self.removed(cluster)).collect();
                updates.push(Update::AllSynced { left_out, stale });
                Ok(updates)
            }
            Frame::Batch(batch) => Ok(self.batch(batch)?.into_iter().collect()),
            Frame::ClusterRemoved(pb::ClusterRemoved { cluster, .. }) => {
                Ok(self.removed(cluster).into_iter().collect())
            }
            Frame::Confirmed(confirmed) => self.confirmed(confirmed).map(|update| vec![update]),
            Frame::ClusterStatus(status) => one(Update::Status(status)),
            Frame::Heartbeat(heartbeat) => {
                // A filter may have hidden what led to a newer token.
                for progress in &heartbeat.clusters {
                    self.newer_token(&progress.cluster, &progress.token);
                }
                one(Update::Heartbeat(heartbeat))
            }
            Frame::GoAway(go_away) => {
                go_away.resume_tokens.iter().for_each(|(cluster, token)| self.newer_token(cluster, token));
                one(Update::GoAway(go_away))
            }
        }
    }

    fn chunk(&mut self, chunk: pb::SnapshotChunk) -> Result<Vec<Update>, FoldError> {
        let pb::SnapshotChunk { cluster, identities } = chunk;
        let Some(staged) = self.staged.get_mut(&cluster) else {
            return Err(FoldError::OutOfTurn { cluster, frame: "a SnapshotChunk", when: "without a SnapshotBegin" });
        };
        for identity in identities {
            staged.put(Entry::new(identity));
        }
        Ok(vec![Update::Loading { received: staged.identities.len() as u64, cluster }])
    }

    fn synced(&mut self, synced: pb::Synced) -> Result<Vec<Update>, FoldError> {
        let pb::Synced { cluster, cluster_id, count, checksum, position, resumed, token, stale } = synced;
        if resumed {
            return self.resumed(cluster, count, checksum, position, token, stale);
        }
        let Some(mut now) = self.staged.remove(&cluster) else {
            return Err(FoldError::OutOfTurn { cluster, frame: "a Synced", when: "without a SnapshotBegin" });
        };
        (now.position, now.token, now.stale) = (position, token, stale);
        self.verify(&cluster, &now, count, checksum)?;
        // An ID belongs to one cluster. One that had it in an earlier stream has lost it since.
        // The reserved identities' has no name, and its 0 is nobody's.
        let usurps =
            |name: &str, held: &Cluster| ![name, &cluster].contains(&"") && name != cluster && held.id == cluster_id;
        let usurped = self.mesh.iter().find(|(name, held)| usurps(name, held));
        let usurped = usurped.map(|(name, _)| name.clone());
        let mut updates: Vec<_> = usurped.and_then(|usurped| self.removed(usurped)).into_iter().collect();
        let before = self.mesh.remove(&cluster);
        let changes = now.changes_since(before.as_ref().unwrap_or(&Cluster::default()));
        self.mesh.insert(cluster.clone(), now);
        self.confirmed.insert(cluster.clone());
        updates.push(Update::Synced { cluster, first: before.is_none(), resumed: false, stale, changes });
        Ok(updates)
    }

    /// The gateway says what it took our token for; that has to be what we hold.
    fn resumed(
        &mut self,
        cluster: String,
        count: u64,
        checksum: u64,
        position: Option<pb::SourcePosition>,
        token: Vec<u8>,
        stale: bool,
    ) -> Result<Vec<Update>, FoldError> {
        let Some(held) = self.mesh.get(&cluster) else {
            return Err(FoldError::OutOfTurn { cluster, frame: "a Synced that resumes", when: "of what is not held" });
        };
        self.verify(&cluster, held, count, checksum)?;
        if let Some(held) = self.mesh.get_mut(&cluster) {
            (held.position, held.token, held.stale) = (position, token, stale);
        }
        self.staged.remove(&cluster);
        self.confirmed.insert(cluster.clone());
        Ok(vec![Update::Synced { cluster, first: false, resumed: true, stale, changes: Vec::new() }])
    }

    fn newer_token(&mut self, cluster: &str, token: &[u8]) {
        if let Some(held) = self.mesh.get_mut(cluster).filter(|_| self.confirmed.contains(cluster)) {
            token.clone_into(&mut held.token);
        }
    }

    fn confirmed(&mut self, confirmed: pb::Confirmed) -> Result<Update, FoldError> {
        let pb::Confirmed { cluster, position, .. } = confirmed;
        match self.mesh.get_mut(&cluster).filter(|_| self.confirmed.contains(&cluster)) {
            Some(held) => {
                (held.stale, held.position) = (false, position);
                Ok(Update::Confirmed { cluster })
            }
            None => Err(FoldError::OutOfTurn { cluster, frame: "a Confirmed", when: "before its Synced" }),
        }
    }

    fn batch(&mut self, batch: pb::Batch) -> Result<Option<Update>, FoldError> {
        let cluster = batch.cluster.clone();
        if !self.live_only && !self.confirmed.contains(&cluster) {
            return Err(FoldError::OutOfTurn { cluster, frame: "a Batch", when: "before its Synced" });
        }
        let pb::Batch { more, count, checksum, position, .. } = batch;
        let token = batch.token.clone();
        let parts = self.parts.entry(cluster.clone()).or_default();
        parts.push(batch);
        if more {
            return Ok(None);
        }
        let parts = self.parts.remove(&cluster).unwrap_or_default();
        let held = self.mesh.entry(cluster.clone()).or_default();
        let mut changes = Vec::new();
        for part in parts {
            for entry in part.upserted.into_iter().map(Entry::new) {
                let after = Some(Arc::clone(&entry));
                changes.push(Change { before: held.put(entry), after });
            }
            for number in part.removed {
                changes.extend(held.take(number).map(|before| Change { before: Some(before), after: None }));
            }
        }
        (held.position, held.token) = (position, token);
        if !self.live_only {
            let held = &self.mesh[&cluster];
            self.verify(&cluster, held, count, checksum)?;
        }
        Ok(Some(Update::Changed { cluster, changes }))
    }

    fn removed(&mut self, cluster: String) -> Option<Update> {
        self.staged.remove(&cluster);
        self.parts.remove(&cluster);
        self.confirmed.remove(&cluster);
        let held = self.mesh.remove(&cluster)?;
        Some(Update::Removed { cluster, identities: held.identities.into_values().collect() })
    }

    fn verify(&self, cluster: &str, held: &Cluster, told: u64, told_checksum: u64) -> Result<(), FoldError> {
        let count = held.identities.len() as u64;
        if count == told && (self.numbers_only || held.checksum == told_checksum) {
            return Ok(());
        }
        Err(FoldError::Diverged {
            cluster: cluster.to_owned(),
            held: count,
            held_checksum: held.checksum,
            told,
            told_checksum,
        })
    }
}
