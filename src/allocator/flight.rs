//! Allocating: callers of one label set share one flight to the store.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::backend::Backend;
use super::service::{Allocator, Inner, within};
use super::{AllocError, Key, Released};
use crate::identity::NumericIdentity;
use crate::kvstore::Backoff;

/// What an allocation brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The number of the label set.
    pub number: NumericIdentity,
    /// It was not in the store before.
    pub is_new: bool,
    /// Nobody in this process used it before.
    pub first_use: bool,
}

/// What the store gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Obtained {
    pub(super) number: NumericIdentity,
    pub(super) is_new: bool,
    /// The revision of the write; `None` where nothing had to be written.
    pub(super) revision: Option<i64>,
}

/// Callers who wait for the same label set.
pub(super) struct Flight {
    waiters: Vec<oneshot::Sender<Result<Counted, AllocError>>>,
    /// Somebody joined or left.
    changed: Arc<Notify>,
}

impl Flight {
    fn new() -> Self {
        Self { waiters: Vec::new(), changed: Arc::new(Notify::new()) }
    }
}

/// A use that has been counted and not been taken delivery of. If its caller is gone, dropping it gives the use back.
struct Counted {
    allocation: Allocation,
    give_back: Option<Box<dyn FnOnce() + Send>>,
}

impl Counted {
    fn take(mut self) -> Allocation {
        self.give_back = None;
        self.allocation
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(give_back) = self.give_back.take() {
            give_back();
        }
    }
}

/// The caller who finds no flight leads one: it runs within the caller's own future, which spares two changes of thread. If
/// that future is dropped, the flight goes on as a task of its own.
struct Leading {
    flight: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    tasks: TaskTracker,
    /// The tracker waits for this flight too.
    _token: TaskTrackerToken,
}

impl Leading {
    fn new(tasks: &TaskTracker, flight: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { flight: Some(Box::pin(flight)), tasks: tasks.clone(), _token: tasks.token() }
    }

    async fn fly(&mut self) {
        if let Some(flight) = &mut self.flight {
            flight.await;
            self.flight = None;
        }
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            // Without a runtime nothing can go on: what was written then ends with its lease.
            if tokio::runtime::Handle::try_current().is_ok() {
                self.tasks.spawn(flight);
            }
        }
    }
}

/// Tells the flight that a caller is gone.
struct Leaving(Arc<Notify>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl<B: Backend> Allocator<B> {
    /// The number of a label set, with one use counted, which [`Self::release`] gives back. A use whose future is dropped
    /// before it returned is not counted.
    ///
    /// # Errors
    /// Every [`AllocError`].
    pub async fn allocate(&self, key: &Key, deadline: Instant) -> Result<Allocation, AllocError> {
        let timer = self.0.metrics.allocation();
        let result = self.allocate_untimed(key, deadline).await;
        timer.ended(&result);
        result
    }

    async fn allocate_untimed(&self, key: &Key, deadline: Instant) -> Result<Allocation, AllocError> {
        self.first_list(deadline).await?;
        let (mut landed, leaving, leading) = {
            let mut state = self.0.state();
            if let Some(number) = state.local.use_verified(key) {
                return Ok(Allocation { number, is_new: false, first_use: false });
            }
            if self.0.cancel.is_cancelled() {
                return Err(AllocError::ShuttingDown);
            }
            let (waiter, landed) = oneshot::channel();
            let leads = !state.flights.contains_key(key);
            let flight = state.flights.entry(key.clone()).or_insert_with(Flight::new);
            flight.waiters.push(waiter);
            flight.changed.notify_one();
            let leading = leads.then(|| Leading::new(&self.0.tasks, Self::fly(self.clone(), key.clone())));
            (landed, Leaving(Arc::clone(&flight.changed)), leading)
        };
        // Dropped after the channel's end in the future below: when the flight looks, it is closed.
        let _leaving = leaving;
        let flown = async move {
            if let Some(mut leading) = leading {
                tokio::select! {
                    biased;
                    landed = &mut landed => return landed,
                    () = leading.fly() => {}
                }
            }
            landed.await
        };
        match within(deadline, "allocating", flown).await? {
            Ok(result) => result.map(Counted::take),
            // The flight was dropped with the runtime.
            Err(_) => Err(AllocError::ShuttingDown),
        }
    }

    /// A flight: gets the number and hands it out, all within the label set's lane.
    async fn fly(self, key: Key) {
        let _lane = self.0.lanes.enter(&key).await;
        let mut tried = Vec::new();
        let result = self.obtain(&key, &mut tried).await;
        let landed = self.land(&key, result);
        // Nobody is left to use it, or an attempt failed in a way that leaves open whether it wrote: nothing of it may stay.
        if !landed {
            tried.extend(self.0.state().local.number_of(&key));
            tried.sort_unstable();
            tried.dedup();
            self.clear(&key, tried).await;
            self.0.state().local.forget(&key);
        }
    }

    /// Attempts until one succeeds, there is no point in another, or nobody waits any more.
    async fn obtain(&self, key: &Key, tried: &mut Vec<NumericIdentity>) -> Result<Obtained, AllocError> {
        let settings = &self.0.settings;
        let ceiling = settings.backoff.saturating_mul(1 << settings.attempts.min(15));
        let mut backoff = Backoff::new(settings.backoff, ceiling);
        let mut last = AllocError::AnotherWriter("in every attempt");
        for attempt in 1..=settings.attempts {
            if self.0.is_abandoned(key) {
                return Err(AllocError::Deadline("allocating"));
            }
            if self.0.cancel.is_cancelled() {
                return Err(AllocError::ShuttingDown);
            }
            let outcome = self.attempt(key, tried).await;
            self.0.metrics.attempt();
            match outcome {
                Ok(obtained) => return Ok(obtained),
                Err(error @ AllocError::Exhausted { .. }) => return Err(error),
                Err(error) if !error.is_retryable() => return Err(error),
                Err(error) => {
                    tracing::debug!(%key, attempt, %error, "allocation attempt failed");
                    last = error;
                }
            }
            tokio::select! {
                () = sleep(backoff.next_delay()) => {}
                () = self.0.abandoned(key) => {}
                () = self.0.cancel.cancelled() => {}
            }
        }
        Err(last)
    }

    /// Hands the result out; whether somebody uses the label set now.
    fn land(&self, key: &Key, result: Result<Obtained, AllocError>) -> bool {
        let mut state = self.0.state();
        let mut waiters = state.flights.remove(key).map(|flight| flight.waiters).unwrap_or_default();
        waiters.retain(|waiter| !waiter.is_closed());
        let counted = result.and_then(|obtained| {
            if waiters.is_empty() {
                return Ok((obtained, false));
            }
            let users = u32::try_from(waiters.len()).unwrap_or(u32::MAX);
            match state.local.confirm(key, obtained.number, users) {
                Ok(first) => Ok((obtained, first)),
                Err(super::OtherUse) => Err(AllocError::Conflict { number: obtained.number }),
            }
        });
        let in_use = state.local.users_of(key) > 0;
        if in_use && let Ok((obtained, _)) = &counted {
            // Its record may have been told to be gone while we took the reference.
            state.pool.remove(obtained.number);
        }
        self.0.metrics.pool(&state.pool);
        let local = state.local.len();
        drop(state);
        self.0.metrics.references(local, self.0.backend.leases());
        match counted {
            Ok((obtained, first)) => {
                if let (true, Some(revision)) = (in_use, obtained.revision) {
                    self.show(obtained.number, key, revision);
                }
                for (index, waiter) in waiters.into_iter().enumerate() {
                    let is_first = index == 0;
                    let allocation = Allocation {
                        number: obtained.number,
                        is_new: obtained.is_new && is_first,
                        first_use: first && is_first,
                    };
                    // A caller that left meanwhile drops what is sent, and that gives its use back.
                    let (allocator, key) = (self.clone(), key.clone());
                    let give_back = Some(Box::new(move || allocator.give_back(&key)) as Box<_>);
                    drop(waiter.send(Ok(Counted { allocation, give_back })));
                }
            }
            Err(error) => {
                for waiter in waiters {
                    drop(waiter.send(Err(error.clone())));
                }
            }
        }
        in_use
    }

    /// One use less, without waiting for what follows from it.
    fn give_back(&self, key: &Key) {
        let released = self.0.state().local.release(key);
        if let Released::LastUse(number) = released {
            self.0.tasks.spawn(Self::delete_reference(self.clone(), key.clone(), number));
        }
    }
}

impl<B: Backend> Inner<B> {
    /// Whether nobody waits for the flight any more.
    fn is_abandoned(&self, key: &Key) -> bool {
        self.state().flights.get(key).is_none_or(|flight| flight.waiters.iter().all(oneshot::Sender::is_closed))
    }

    /// Until nobody waits for the flight any more.
    pub(super) async fn abandoned(&self, key: &Key) {
        loop {
            let Some(changed) = self.state().flights.get(key).map(|flight| Arc::clone(&flight.changed)) else { return };
            if self.is_abandoned(key) {
                return;
            }
            changed.notified().await;
        }
    }
}
