//! What is kept of a peer beyond its session and our process: its picture on disk, and for how long its absence is borne.
//!
//! The disk follows the view: a complete version that is shown is kept, one that is withdrawn (another ID, revoked, removed)
//! is removed. Nothing here can stop a peer: a picture that cannot be kept or used is reported, and that is all.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::register::ClaimError;
use super::tenure::Makings;
use crate::identity::{ClusterName, MaxConnectedClusters};
use crate::kvstore::jittered;
use crate::mirror::{Absence, Availability, Reporter};
use crate::picture::{Fit, LoadError, Picture, PictureStore};
use crate::telemetry::StatusBoard;
use crate::view::{ClusterView, Interner, SourcePosition, View};

/// Peers that read or write their pictures at a time: disks are slow at many things at once.
const TURNS: usize = 4;
/// What reading a picture may take before the peer goes on without; a disk that hangs must not keep us from its store.
const FIRST: Duration = Duration::from_secs(10);
/// What writing or removing the last one may take when the gateway or the peer ends. Below what peers may take to stop.
const LAST: Duration = Duration::from_secs(3);
/// Syncs and losses are kept at once, but not more often than this part of the interval.
const SOON: u32 = 10;
/// A position alone, at which nothing changed, is kept after so many intervals: a restart then goes on behind a revision that
/// the store still has.
const POSITION: u32 = 10;

/// Pictures and absences.
#[derive(Clone, Debug)]
pub struct KeepSettings {
    /// Where pictures are kept; nowhere if none.
    pub store: Option<PictureStore>,
    /// How often a picture that changed is kept anew; jittered. A sync or a loss is kept sooner.
    pub interval: Duration,
    /// How long a peer may be absent before its entries are withdrawn; for ever if none.
    pub ttl: Option<Duration>,
    /// How long after the start a picture is removed that no file of a peer names.
    pub orphans_after: Duration,
}

impl Default for KeepSettings {
    fn default() -> Self {
        Self {
            store: None,
            interval: Duration::from_mins(1),
            ttl: None,
            // A mount may come late, and what it names is wanted then.
            orphans_after: Duration::from_hours(1),
        }
    }
}

/// What all peers share of it.
#[derive(Debug)]
pub(super) struct Keeping {
    settings: KeepSettings,
    turns: Arc<Semaphore>,
}

impl Keeping {
    pub(super) fn new(settings: KeepSettings) -> Self {
        Self { settings, turns: Arc::new(Semaphore::new(TURNS)) }
    }

    /// Waits for its time, then removes the pictures of clusters that are no peers any more; never returns. `looked` becomes
    /// true when every peer is on the board.
    pub(super) async fn forget_orphans(&self, mut looked: watch::Receiver<bool>, board: &StatusBoard) -> Infallible {
        if let Some(store) = self.settings.store.clone()
            && looked.wait_for(|looked| *looked).await.is_ok()
        {
            sleep(self.settings.orphans_after).await;
            let peers: Vec<String> = board.read(|clusters| clusters.keys().cloned().collect());
            let removed = spawn_blocking(move || {
                let is_orphan = |name: &ClusterName| !peers.iter().any(|peer| peer == name.as_str());
                let orphans: Vec<_> = store.names()?.into_iter().filter(is_orphan).collect();
                orphans.iter().try_for_each(|name| store.remove(name))?;
                io::Result::Ok(orphans)
            });
            match flat(removed.await) {
                Ok(orphans) if orphans.is_empty() => {}
                Ok(orphans) => tracing::info!(clusters = ?orphans, "pictures of clusters that are no peers: removed"),
                Err(error) => tracing::warn!(%error, "pictures of clusters that are no peers cannot be removed"),
            }
        }
        std::future::pending().await
    }
}

/// One peer's; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Keeper {
    name: ClusterName,
    keeping: Arc<Keeping>,
    fit: Fit,
    view: View,
    interner: Interner,
    reporter: Arc<Reporter>,
    /// Held by whoever is at the file, so that a write that nobody waits for any more is still the only one.
    disk: Arc<Mutex<Disk>>,
}

/// What is known of the file.
#[derive(Debug, Default)]
struct Disk {
    kept: Option<Kept>,
    tried: Option<Instant>,
}

#[derive(Debug)]
struct Kept {
    version: Arc<ClusterView>,
    position: SourcePosition,
    prefix: String,
    unavailable_since: Option<SystemTime>,
    at: Instant,
}

impl Disk {
    fn worth(&self, interval: Duration) -> Worth {
        let old = self.kept.as_ref().is_some_and(|kept| kept.at.elapsed() >= interval * POSITION);
        if old { Worth::Position } else { Worth::Contents }
    }
}

/// How much of a change is worth a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worth {
    Contents,
    Position,
}

impl Keeper {
    pub(super) fn new(name: ClusterName, keeping: Arc<Keeping>, makings: &Makings, reporter: Arc<Reporter>) -> Self {
        let fit = Fit { name: name.clone(), width: makings.width, max_key_string: makings.max_key_string };
        let (view, interner) = (makings.view.clone(), makings.interner.clone());
        Self { name, keeping, fit, view, interner, reporter, disk: Arc::default() }
    }

    /// The picture that an earlier process kept, and the absence that goes on from there; none if there is nothing to show.
    pub(super) async fn restore(&self) -> Option<(Picture, Absence)> {
        let store = self.keeping.settings.store.clone()?;
        let (fit, interner) = (self.fit.clone(), self.interner.clone());
        let loaded = timeout(FIRST, async {
            let turn = self.turn().await;
            let loading = spawn_blocking(move || {
                let loaded = store.load(&fit, &interner);
                drop(turn);
                loaded
            });
            loading.await
        });
        let Ok(loaded) = loaded.await else {
            self.reporter.picture_trouble("failed", "it could not be read in time");
            return None;
        };
        let picture = match loaded {
            Ok(Ok(picture)) => picture?,
            Ok(Err(error)) => {
                let result = match &error {
                    LoadError::Unreadable { .. } => "failed",
                    LoadError::SetAside { .. } => "damaged",
                    LoadError::Unfit { .. } => "refused",
                };
                self.reporter.picture_trouble(result, &error.to_string());
                return None;
            }
            Err(error) => {
                self.reporter.picture_trouble("failed", &error.to_string());
                return None;
            }
        };
        // One that was in step is out of step from now on: that we were away is not its absence.
        let absence = picture.unavailable_since.map_or_else(Absence::from_now, Absence::from);
        if self.keeping.settings.ttl.is_some_and(|ttl| absence.lasted() >= ttl) {
            self.reporter.revoked(Some(absence));
            self.remove().await;
            return None;
        }
        Some((picture, absence))
    }

    /// What was restored is shown now.
    pub(super) async fn restored(&self, picture: Picture, absence: Absence) {
        self.reporter.picture_restored(picture.saved_at);
        self.reporter.restored(&picture.version, absence);
        let Picture { version, position, prefix, unavailable_since, saved_at } = picture;
        tracing::info!(
            cluster = self.name.as_str(),
            identities = version.len(),
            kept = %humantime::format_rfc3339_seconds(saved_at),
            "shown as last known, until it is reached"
        );
        let now = Instant::now();
        let kept = Some(Kept { version, position, prefix, unavailable_since, at: now });
        *self.disk.lock().await = Disk { kept, tried: Some(now) };
    }

    /// What was restored cannot be shown.
    pub(super) fn refused(&self, error: &ClaimError) {
        self.reporter.picture_trouble("refused", &format!("what was last known is not shown: {error}"));
    }

    /// Keeps the picture current; never returns. May be dropped at any time.
    pub(super) async fn keep(&self) -> Infallible {
        let interval = self.keeping.settings.interval;
        let mut availability = self.reporter.availability();
        let mut next = Instant::now();
        loop {
            tokio::select! {
                () = sleep_until(next) => {}
                // The reporter is ours, so this cannot fail.
                _ = availability.changed() => {
                    let tried = self.disk.lock().await.tried;
                    if let Some(tried) = tried {
                        sleep_until(tried + interval / SOON).await;
                    }
                }
            }
            let worth = self.disk.lock().await.worth(interval);
            self.follow(worth).await;
            next = Instant::now() + jittered(interval);
        }
    }

    /// Keeps what there is for the next process.
    pub(super) async fn keep_last(&self) {
        let last = async {
            let worth = self.disk.lock().await.worth(self.keeping.settings.interval);
            self.follow(worth).await;
        };
        if timeout(LAST, last).await.is_err() {
            self.reporter.picture_trouble("failed", "the last one could not be written in time");
        }
    }

    /// Removes all there is of the peer.
    pub(super) async fn remove(&self) {
        let Some(store) = self.keeping.settings.store.clone() else { return };
        let removed = timeout(LAST, async {
            let disk = Arc::clone(&self.disk).lock_owned().await;
            self.remove_with(store, disk).await;
        });
        if removed.await.is_err() {
            self.reporter.picture_trouble("failed", "it could not be removed in time");
        }
    }

    /// Returns when the peer was absent for so long that what is held of it has to go. Before there is anything to hold, and
    /// without a time to live, never.
    pub(super) async fn expired(&self) -> Option<Absence> {
        let Some(ttl) = self.keeping.settings.ttl else { return std::future::pending().await };
        let mut availability = self.reporter.availability();
        loop {
            let Availability { absence, holds, .. } = availability.borrow_and_update().clone();
            let Some(absence) = absence.filter(|_| holds) else {
                // The reporter is ours, so this cannot fail.
                let _ = availability.changed().await;
                continue;
            };
            let left = ttl.saturating_sub(absence.lasted());
            if left.is_zero() {
                return Some(absence);
            }
            let _ = timeout(left, availability.changed()).await;
        }
    }

    /// Makes the file what the view shows.
    async fn follow(&self, worth: Worth) {
        let Some(store) = self.keeping.settings.store.clone() else { return };
        let mut disk = Arc::clone(&self.disk).lock_owned().await;
        // Before the version, which is at least as new then.
        let Availability { absence, source, .. } = self.reporter.availability().borrow().clone();
        let unavailable_since = absence.map(|absence| absence.since);
        let shown =
            self.view.read(|mesh| mesh.cluster_named(self.name.as_str()).filter(|shown| shown.is_synced()).cloned());
        let Some((version, position)) = shown.and_then(|version| version.position().map(|at| (version, at))) else {
            if disk.kept.is_some() {
                self.remove_with(store, disk).await;
            }
            return;
        };
        let known = source.as_ref().filter(|source| source.position.etcd_cluster_id == position.etcd_cluster_id);
        let revision = known.map_or(position.revision, |source| source.position.revision.max(position.revision));
        let position = SourcePosition { revision, ..position };
        let prefix = match (&source, &disk.kept) {
            (Some(source), _) => source.prefix.to_string(),
            // Shown as it was restored.
            (None, Some(kept)) => kept.prefix.clone(),
            (None, None) => return,
        };
        if let Some(kept) = &disk.kept
            && Arc::ptr_eq(&kept.version, &version)
            && kept.unavailable_since == unavailable_since
            && (worth == Worth::Contents || kept.position == position)
        {
            return;
        }
        let width: MaxConnectedClusters = self.fit.width;
        let turn = self.turn().await;
        let picture = Picture { version, position, prefix, saved_at: SystemTime::now(), unavailable_since };
        disk.tried = Some(Instant::now());
        let saved = spawn_blocking(move || {
            let saved = store.save(&picture, width);
            let Picture { version, position, prefix, saved_at, unavailable_since } = picture;
            if saved.is_ok() {
                disk.kept = Some(Kept { version, position, prefix, unavailable_since, at: Instant::now() });
            }
            drop((disk, turn));
            saved.map(|bytes| (bytes, saved_at))
        });
        match flat(saved.await) {
            Ok((bytes, at)) => {
                tracing::debug!(cluster = self.name.as_str(), bytes, "picture kept");
                self.reporter.picture_kept(at);
            }
            Err(error) => self.reporter.picture_trouble("failed", &format!("it cannot be kept: {error}")),
        }
    }

    async fn remove_with(&self, store: PictureStore, mut disk: OwnedMutexGuard<Disk>) {
        let turn = self.turn().await;
        let name = self.name.clone();
        let removed = spawn_blocking(move || {
            let removed = store.remove(&name);
            if removed.is_ok() {
                disk.kept = None;
            }
            drop((disk, turn));
            removed
        });
        if let Err(error) = flat(removed.await) {
            self.reporter.picture_trouble("failed", &format!("it cannot be removed: {error}"));
        }
    }

    /// One's turn at the disk; asked for with the file in hand, so that nobody waits for a file with a turn.
    async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // Never closed, hence never none.
        Arc::clone(&self.keeping.turns).acquire_owned().await.ok()
    }
}

fn flat<T>(done: Result<io::Result<T>, JoinError>) -> io::Result<T> {
    done.map_err(io::Error::other)?
}
