//! All clusters joined, published with one atomic swap.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::SourcePosition;
use super::cluster::ClusterView;
use super::entry::Identity;
use super::history::{Contents, History, HistoryLimits, HistorySize};
use crate::identity::{CLUSTER_LABEL_KEY, ClusterId, MaxConnectedClusters, NumericIdentity, Scope, labels_of};

/// Cluster IDs a row of the table.
const ROW: usize = 16;

type Row = [Option<Arc<ClusterView>>; ROW];

/// One immutable version of the whole mesh. One publication copies a row and the list of rows, however many clusters there are.
#[derive(Clone, Debug)]
pub struct MeshView {
    version: u64,
    width: MaxConnectedClusters,
    local: ClusterId,
    rows: Vec<Option<Arc<Row>>>,
    /// Changes only when a cluster comes or goes.
    names: Arc<BTreeMap<Arc<str>, ClusterId>>,
}

impl MeshView {
    /// Rises with every publication.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The ID of the gateway's own cluster.
    #[must_use]
    pub fn local(&self) -> ClusterId {
        self.local
    }

    /// The clusters, ascending by ID.
    pub fn clusters(&self) -> impl Iterator<Item = &Arc<ClusterView>> {
        self.rows.iter().flatten().flat_map(|row| row.iter().flatten())
    }

    /// The cluster of that ID.
    #[must_use]
    pub fn cluster(&self, id: ClusterId) -> Option<&Arc<ClusterView>> {
        let id = usize::from(id.get());
        self.rows.get(id / ROW)?.as_ref()?[id % ROW].as_ref()
    }

    /// The cluster of that name.
    #[must_use]
    pub fn cluster_named(&self, name: &str) -> Option<&Arc<ClusterView>> {
        self.cluster(*self.names.get(name)?)
    }

    /// The cluster in whose range that number lies.
    #[must_use]
    pub fn cluster_of(&self, number: NumericIdentity) -> Option<&Arc<ClusterView>> {
        if number.scope() != Some(Scope::Global) {
            return None;
        }
        self.cluster(number.cluster_id(self.width))
    }

    /// The identity of that number, in whichever cluster's range it lies.
    #[must_use]
    pub fn get(&self, number: NumericIdentity) -> Option<&Identity> {
        self.cluster_of(number)?.get(number)
    }

    /// The identity of that key string: our own cluster's first, then that of the cluster which its cluster label names
    /// (a peer's identity is accepted only if it carries that label, so no other can have it).
    #[must_use]
    pub fn lookup(&self, key_string: &str) -> Option<&Identity> {
        self.lookup_among(key_string, |_| true)
    }

    /// The same, for somebody who may see some clusters only.
    #[must_use]
    pub fn lookup_among(&self, key_string: &str, is_visible: impl Fn(&str) -> bool) -> Option<&Identity> {
        let in_cluster = |cluster: &Arc<ClusterView>| is_visible(cluster.name().as_str());
        let own = self.cluster(self.local).filter(|own| in_cluster(own)).and_then(|own| own.lookup(key_string));
        own.or_else(|| {
            let named = labels_of(key_string).find(|label| label.key == CLUSTER_LABEL_KEY)?;
            self.cluster_named(named.value).filter(|named| in_cluster(named))?.lookup(key_string)
        })
    }

    /// Identities of all clusters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.clusters().map(|cluster| cluster.len()).sum()
    }

    /// Whether there is no identity at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same version without its clusters: for whoever lets go of what it holds.
    #[must_use]
    pub fn emptied(&self) -> Self {
        Self { rows: Vec::new(), names: Arc::default(), ..*self }
    }

    fn slot(&mut self, id: ClusterId) -> &mut Option<Arc<ClusterView>> {
        let id = usize::from(id.get());
        if self.rows.len() <= id / ROW {
            self.rows.resize(id / ROW + 1, None);
        }
        &mut Arc::make_mut(self.rows[id / ROW].get_or_insert_default())[id % ROW]
    }

    /// Puts `cluster` (or nothing) in an ID's place and keeps the names right.
    fn replace(&mut self, id: ClusterId, cluster: Option<Arc<ClusterView>>) {
        let name = cluster.as_ref().map(|cluster| cluster.name().clone());
        let before = std::mem::replace(self.slot(id), cluster).map(|cluster| cluster.name().clone());
        if name != before {
            let names = Arc::make_mut(&mut self.names);
            // A cluster that moved to another ID may be known under that one already.
            if let Some(before) = before.filter(|before| names.get(before.as_str()) == Some(&id)) {
                names.remove(before.as_str());
            }
            names.extend(name.map(|name| (Arc::from(name.as_str()), id)));
        }
    }
}

/// The one holder of the current [`MeshView`]; cheap to clone.
#[derive(Clone, Debug)]
pub struct View(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    current: ArcSwap<MeshView>,
    /// Publishers take turns; readers never see it.
    turn: Mutex<()>,
    changes: watch::Sender<u64>,
    /// Locked within `turn`, or alone.
    history: Mutex<History>,
    /// Wakes when a source was followed further, whether or not anything changed.
    applied: watch::Sender<()>,
}

impl View {
    /// An empty mesh seen from cluster `local`, with the default history.
    #[must_use]
    pub fn new(width: MaxConnectedClusters, local: ClusterId) -> Self {
        Self::with_history(width, local, HistoryLimits::default())
    }

    /// The same with that much history.
    #[must_use]
    pub fn with_history(width: MaxConnectedClusters, local: ClusterId, limits: HistoryLimits) -> Self {
        let empty = MeshView { version: 0, width, local, rows: Vec::new(), names: Arc::default() };
        Self(Arc::new(Shared {
            current: ArcSwap::from_pointee(empty),
            turn: Mutex::new(()),
            changes: watch::Sender::new(0),
            history: Mutex::new(History::new(limits)),
            applied: watch::Sender::new(()),
        }))
    }

    /// The current version. Lock-free.
    #[must_use]
    pub fn load(&self) -> Arc<MeshView> {
        self.0.current.load_full()
    }

    /// Reads the current version in place: what a look-up wants, without touching a reference count that others share.
    pub fn read<T>(&self, read: impl FnOnce(&MeshView) -> T) -> T {
        read(&self.0.current.load())
    }

    /// Wakes on every publication; carries the version number.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Publishes the next version of one cluster, in its ID's place.
    pub fn publish(&self, cluster: Arc<ClusterView>) {
        self.replace(cluster.id(), Some(cluster));
    }

    /// Publishes the mesh without that cluster.
    pub fn withdraw(&self, id: ClusterId) {
        if self.read(|mesh| mesh.cluster(id).is_some()) {
            self.replace(id, None);
        }
    }

    /// A version of that cluster with these contents: the current one, or one that was replaced not too long ago.
    #[must_use]
    pub fn find(&self, current: &Arc<ClusterView>, contents: &Contents) -> Option<Arc<ClusterView>> {
        if current.is_synced() && Contents::of(current).as_ref() == Some(contents) {
            return Some(Arc::clone(current));
        }
        let found = self.history().find(current.id(), contents)?;
        // Between the caller's look and ours the ID may have passed on.
        (found.name() == current.name() && found.range() == current.range()).then_some(found)
    }

    /// Notes that a cluster's source was followed up to `position`. What led there is published before.
    pub fn apply(&self, id: ClusterId, position: SourcePosition) {
        if self.history().apply(id, position) {
            self.0.applied.send_replace(());
        }
    }

    /// How far the source of that ID's cluster was followed. What led there was published before: a version that is loaded
    /// after this call has it.
    #[must_use]
    pub fn applied(&self, id: ClusterId) -> Option<SourcePosition> {
        self.history().applied(id)
    }

    /// Wakes whenever [`Self::applied`] may have changed.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<()> {
        self.0.applied.subscribe()
    }

    /// How much history is kept.
    #[must_use]
    pub fn history_size(&self) -> HistorySize {
        self.history().size()
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.0.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, id: ClusterId, cluster: Option<Arc<ClusterView>>) {
        // Nothing in here can panic half-way: the next version is complete before it is stored.
        let turn = self.0.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = MeshView::clone(&self.0.current.load());
        if let Some(before) = next.cluster(id) {
            self.history().replaced(before, cluster.as_ref());
        }
        next.version += 1;
        next.replace(id, cluster);
        let version = next.version;
        self.0.current.store(Arc::new(next));
        drop(turn);
        // Versions are told in order even if publishers race here: a higher one is never taken back.
        self.0.changes.send_if_modified(|told| {
            let newer = *told < version;
            *told = (*told).max(version);
            newer
        });
    }
}
