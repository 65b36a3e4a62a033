//! The allocator: its parts, its tasks, and what the follower of the store tells it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::backend::{Backend, BackendStatus};
use super::flight::Flight;
use super::lanes::Lanes;
use super::masters::{Inserted, Masters, RecordListener, Vanished};
use super::metrics::AllocatorMetrics;
use super::{AllocError, IdPool, Key, LocalKeys, NumberRange};
use crate::identity::NumericIdentity;

/// Numbers and times of one allocator; the defaults are Cilium's (WIRE.md, "Constants that others expect").
#[derive(Clone, Copy, Debug)]
pub struct AllocatorSettings {
    /// The numbers to hand out.
    pub numbers: NumberRange,
    /// Attempts at one allocation.
    pub attempts: u32,
    /// Ceiling of the first pause between attempts; it doubles with each.
    pub backoff: Duration,
    /// Longest wait for the first list of the cluster's records.
    pub first_list: Duration,
    /// How often the store is checked for everything in local use.
    pub sync: Duration,
    /// Label sets checked, or rewritten after the loss of a lease, at once.
    pub sync_width: usize,
    /// Whether a clean shutdown deletes this process's references, instead of leaving them to a successor.
    pub release_on_shutdown: bool,
}

impl AllocatorSettings {
    /// The defaults for those numbers.
    #[must_use]
    pub const fn new(numbers: NumberRange) -> Self {
        Self {
            numbers,
            attempts: 16,
            backoff: Duration::from_millis(20),
            first_list: Duration::from_mins(3),
            sync: Duration::from_mins(5),
            sync_width: 16,
            release_on_shutdown: false,
        }
    }
}

/// The allocator of one cluster in this process; cheap to clone. [`Self::run`] must run.
#[derive(Debug)]
pub struct Allocator<B: Backend>(pub(super) Arc<Inner<B>>);

impl<B: Backend> Clone for Allocator<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

pub(super) struct Inner<B> {
    pub(super) backend: B,
    pub(super) masters: Arc<dyn Masters>,
    pub(super) settings: AllocatorSettings,
    pub(super) metrics: AllocatorMetrics,
    pub(super) lanes: Lanes,
    /// Flights, releases, repairs: everything that outlives the call that began it.
    pub(super) tasks: TaskTracker,
    pub(super) cancel: CancellationToken,
    state: Mutex<State>,
    listed: watch::Sender<bool>,
    /// References that are being written again after the loss of a lease.
    pub(super) missing: watch::Sender<usize>,
}

impl<B: std::fmt::Debug> std::fmt::Debug for Inner<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Allocator")
            .field("backend", &self.backend)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// What is known and wanted in this process. Never locked across an await.
pub(super) struct State {
    pub(super) pool: IdPool,
    pub(super) local: LocalKeys,
    pub(super) flights: HashMap<Key, Flight>,
    /// Writes of unknown outcome whose label set nobody uses: deleted again at each sync, until one is confirmed.
    pub(super) doubtful: HashMap<Key, Vec<NumericIdentity>>,
}

/// The allocator in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatorStatus {
    /// Numbers of the range.
    pub numbers: u32,
    /// Numbers that can be handed out.
    pub free: u32,
    /// Numbers in use by anybody.
    pub used: u32,
    /// Label sets in local use.
    pub local: usize,
    /// The first list is in.
    pub listed: bool,
    /// The store.
    pub backend: BackendStatus,
}

impl<B: Backend> Allocator<B> {
    /// An allocator over that backend. It allocates once [`Self::listed`] was called.
    #[must_use]
    pub fn new(backend: B, masters: Arc<dyn Masters>, settings: AllocatorSettings, metrics: AllocatorMetrics) -> Self {
        let state = State {
            pool: IdPool::new(settings.numbers),
            local: LocalKeys::default(),
            flights: HashMap::new(),
            doubtful: HashMap::new(),
        };
        metrics.pool(&state.pool);
        Self(Arc::new(Inner {
            backend,
            masters,
            settings,
            metrics,
            lanes: Lanes::default(),
            tasks: TaskTracker::new(),
            cancel: CancellationToken::new(),
            state: Mutex::new(state),
            listed: watch::Sender::new(false),
            missing: watch::Sender::new(0),
        }))
    }

    /// Sync, repair of lost leases, until cancelled; then waits for what is under way, and keeps or releases the references
    /// as the settings say.
    pub async fn run(&self, cancel: CancellationToken) {
        tokio::select! {
            () = cancel.cancelled() => {}
            // Boxed: both are large, and live as long as the gateway.
            () = Box::pin(self.keep_in_step()) => {}
            () = Box::pin(self.rewrite_after_losses()) => {}
        }
        self.0.cancel.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        if self.0.settings.release_on_shutdown
            && let Err(error) = self.0.backend.release_all().await
        {
            tracing::warn!(%error, "references are left to their leases");
        }
    }

    /// The store listed all records of the cluster: these numbers are in use. Called for the first list and each further one.
    pub fn listed(&self, numbers: impl IntoIterator<Item = NumericIdentity>) {
        let mut state = self.0.state();
        state.pool.reset_to(numbers);
        // Our records that the list does not have: their numbers are nobody else's.
        let State { pool, local, .. } = &mut *state;
        let missing: Vec<_> = local
            .in_use()
            .filter(|(_, number)| pool.remove(*number))
            .map(|(key, number)| (number, key.clone()))
            .collect();
        self.0.metrics.pool(pool);
        drop(state);
        for (number, key) in missing {
            self.protect(number, key);
        }
        self.0.metrics.listed();
        self.0.backend.bootstrapped();
        self.0.listed.send_replace(true);
    }

    /// A record appeared in the store, or changed.
    pub fn appeared(&self, number: NumericIdentity) {
        let mut state = self.0.state();
        state.pool.remove(number);
        self.0.metrics.pool(&state.pool);
    }

    /// A record left the store. What is in local use is written again, and subscribers must not hear of it.
    #[must_use]
    pub fn vanished(&self, number: NumericIdentity) -> Vanished {
        let mut state = self.0.state();
        if let Some(key) = state.local.key_in_use(number).cloned() {
            drop(state);
            self.protect(number, key);
            return Vanished::Protected;
        }
        state.pool.insert(number);
        self.0.metrics.pool(&state.pool);
        Vanished::Gone
    }

    /// An allocation is in the picture from now on. If its record left the store meanwhile, it is written again.
    pub(super) fn show(&self, number: NumericIdentity, key: &Key, revision: i64) {
        if self.0.masters.insert(number, key, revision) == Inserted::Left {
            self.protect(number, key.clone());
        }
    }

    /// The number of a label set: from the local picture, else from the store.
    ///
    /// # Errors
    /// The store, or the deadline.
    pub async fn get(&self, key: &Key, deadline: Instant) -> Result<Option<NumericIdentity>, AllocError> {
        match self.known_elsewhere(key).first().copied() {
            Some(number) => Ok(Some(number)),
            None => within(deadline, "reading from the store", self.0.backend.get(key, None)).await?,
        }
    }

    /// The labels of a number: from the local picture, else from the store.
    ///
    /// # Errors
    /// The store, or the deadline.
    pub async fn get_by_id(&self, number: NumericIdentity, deadline: Instant) -> Result<Option<Box<str>>, AllocError> {
        match self.0.masters.labels_of(number) {
            Some(labels) => Ok(Some(labels)),
            None => within(deadline, "reading from the store", self.0.backend.get_by_id(number)).await?,
        }
    }

    /// How it is.
    pub async fn status(&self) -> AllocatorStatus {
        let backend = self.0.backend.status().await;
        let state = self.0.state();
        AllocatorStatus {
            numbers: state.pool.size(),
            free: state.pool.available(),
            used: state.pool.in_use(),
            local: state.local.len(),
            listed: *self.0.listed.borrow(),
            backend,
        }
    }

    /// How many references are being written again because the lease that they hung on was lost.
    #[must_use]
    pub fn missing_references(&self) -> watch::Receiver<usize> {
        self.0.missing.subscribe()
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.0.backend
    }

    /// Waits for the first list: under the caller's deadline, and never longer than the settings say (A13).
    pub(super) async fn first_list(&self, deadline: Instant) -> Result<(), AllocError> {
        let mut listed = self.0.listed.subscribe();
        if *listed.borrow_and_update() {
            return Ok(());
        }
        let deadline = deadline.min(Instant::now() + self.0.settings.first_list);
        // The sender lives as long as `self`.
        within(deadline, "waiting for the first list of identities", listed.wait_for(|&listed| listed)).await.map(drop)
    }
}

impl<B: Backend> RecordListener for Allocator<B> {
    fn listed(&self, numbers: Vec<NumericIdentity>) {
        Self::listed(self, numbers);
    }

    fn appeared(&self, number: NumericIdentity) {
        Self::appeared(self, number);
    }

    fn vanished(&self, number: NumericIdentity) -> Vanished {
        Self::vanished(self, number)
    }
}

impl<B> Inner<B> {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) async fn within<T>(
    deadline: Instant,
    doing: &'static str,
    future: impl Future<Output = T>,
) -> Result<T, AllocError> {
    timeout_at(deadline, future).await.map_err(|_| AllocError::Deadline(doing))
}
