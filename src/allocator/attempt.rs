//! One attempt at an allocation: without a lock where possible, else under the label set's lock.

use std::time::Duration;

use tokio::time::Instant;

use super::backend::{Attempt, Backend, Created, Lock, Update};
use super::flight::Obtained;
use super::service::Allocator;
use super::{AllocError, Key};
use crate::identity::NumericIdentity;

/// Looks at the store without a lock, before the lock decides: each is another chance to find that somebody else was faster.
const LOOKS: usize = 4;

/// A bound on the wait for a lock besides the callers' patience; the backend has one of its own.
const LOCK_WAIT: Duration = Duration::from_mins(1);

impl<B: Backend> Allocator<B> {
    /// Gets the label set's number and our reference to it. `tried` collects the numbers by which a reference may have been
    /// written.
    pub(super) async fn attempt(&self, key: &Key, tried: &mut Vec<NumericIdentity>) -> Result<Obtained, AllocError> {
        // The lane is ours, so a use can have been counted only before we entered it.
        let (known, users) = {
            let state = self.0.state();
            (state.local.number_of(key), state.local.users_of(key))
        };
        if let Some(number) = known
            && users > 0
            && self.0.backend.keeps_reference(key)
        {
            return Ok(Obtained { number, is_new: false, revision: None });
        }
        // The likeliest last: that is where the next one is taken from.
        let mut candidates = self.known_elsewhere(key);
        candidates.reverse();
        candidates.retain(|number| Some(*number) != known);
        let mut wanted = known.or_else(|| candidates.pop());
        // While it has users, a label set keeps its number.
        let kept = known.filter(|_| users > 0);
        for _ in 0..LOOKS + candidates.len() {
            let Some(number) = wanted else {
                match self.allocate_new(key, tried).await? {
                    Ok(obtained) => return Ok(obtained),
                    Err(next) => match next {
                        Next::Reference(number) => wanted = Some(number),
                        Next::Again => {}
                        Next::Lock => break,
                    },
                }
                continue;
            };
            tried.push(number);
            match self.0.backend.try_reference(number, key).await? {
                Attempt::Done(revision) => {
                    self.0.metrics.fast_path(true);
                    return Ok(Obtained { number, is_new: false, revision: Some(revision) });
                }
                Attempt::InUseAs(other) if kept.is_none() => wanted = Some(other),
                Attempt::InUseAs(_) => return Err(self.conflict(number, key)),
                Attempt::NumberTaken if kept.is_some() => return Err(self.conflict(number, key)),
                Attempt::NumberGone | Attempt::NumberTaken if kept.is_none() => {
                    // What we knew is old.
                    wanted = candidates.pop();
                }
                Attempt::NumberGone | Attempt::NumberTaken | Attempt::Locked => break,
            }
        }
        self.0.metrics.fast_path(false);
        // Boxed: it is large and rare, and flights are many.
        Box::pin(self.attempt_with_lock(key, kept, tried)).await
    }

    /// A new number, without a lock.
    async fn allocate_new(
        &self,
        key: &Key,
        tried: &mut Vec<NumericIdentity>,
    ) -> Result<Result<Obtained, Next>, AllocError> {
        let number = self.lease_number()?;
        tried.push(number);
        let result = self.0.backend.try_allocate(number, key).await;
        self.settle_number(number, matches!(result, Ok(Attempt::Done(_) | Attempt::NumberTaken)));
        Ok(match result? {
            Attempt::Done(revision) => {
                self.0.metrics.fast_path(true);
                Ok(Obtained { number, is_new: true, revision: Some(revision) })
            }
            Attempt::InUseAs(other) => Err(Next::Reference(other)),
            Attempt::NumberTaken | Attempt::NumberGone => Err(Next::Again),
            Attempt::Locked => Err(Next::Lock),
        })
    }

    /// Under the lock, which every other writer respects. `kept` is the number that has users here.
    async fn attempt_with_lock(
        &self,
        key: &Key,
        kept: Option<NumericIdentity>,
        tried: &mut Vec<NumericIdentity>,
    ) -> Result<Obtained, AllocError> {
        let waiting = self.0.metrics.lock_wait();
        let lock = tokio::select! {
            lock = self.0.backend.lock(key, Instant::now() + LOCK_WAIT) => lock?,
            () = self.0.abandoned(key) => return Err(AllocError::Deadline("waiting for the lock on the label set")),
        };
        drop(waiting);
        let result = self.allocate_locked(key, kept, tried, &lock).await;
        lock.unlock().await;
        result
    }

    async fn allocate_locked(
        &self,
        key: &Key,
        kept: Option<NumericIdentity>,
        tried: &mut Vec<NumericIdentity>,
        lock: &B::Lock,
    ) -> Result<Obtained, AllocError> {
        let backend = &self.0.backend;
        let found = backend.get(key, Some(lock)).await?;
        let wanted = match (found, kept) {
            (Some(found), Some(kept)) if found != kept => return Err(self.conflict(kept, key)),
            (Some(number), _) | (None, Some(number)) => Some(number),
            (None, None) => None,
        };
        if let Some(number) = wanted {
            // Somebody uses it, or we do: whatever is missing of it is written again, under its number.
            tried.push(number);
            return match backend.update(number, key, Update::IfDifferent, Some(lock)).await {
                Ok(updated) => {
                    if updated.master {
                        tracing::warn!(%number, %key, "missing identity re-created");
                        self.0.metrics.recreated();
                    }
                    Ok(Obtained { number, is_new: false, revision: Some(updated.revision) })
                }
                Err(AllocError::Conflict { number }) => Err(self.conflict(number, key)),
                Err(error) => Err(error),
            };
        }
        // Nobody uses it, but a record may be left.
        for number in self.known_elsewhere(key) {
            tried.push(number);
            match backend.acquire_reference(number, key, Some(lock)).await? {
                Attempt::Done(revision) => return Ok(Obtained { number, is_new: false, revision: Some(revision) }),
                // What we knew is old.
                Attempt::NumberGone | Attempt::NumberTaken => {}
                Attempt::InUseAs(_) | Attempt::Locked => {
                    return Err(AllocError::AnotherWriter("it is being collected"));
                }
            }
        }
        let number = self.lease_number()?;
        let created = backend.allocate(number, key, Some(lock)).await;
        self.settle_number(number, created.is_ok());
        match created? {
            Created::NumberTaken => Err(AllocError::AnotherWriter("the number was taken")),
            Created::Yes(_) => {
                tried.push(number);
                // If this fails the record stays: others may have seen it. The garbage collector takes it away.
                match backend.acquire_reference(number, key, Some(lock)).await? {
                    Attempt::Done(revision) => Ok(Obtained { number, is_new: true, revision: Some(revision) }),
                    _ => Err(AllocError::AnotherWriter("the new identity is gone or being collected")),
                }
            }
        }
    }

    fn lease_number(&self) -> Result<NumericIdentity, AllocError> {
        let mut state = self.0.state();
        let size = state.pool.size();
        let number = state.pool.lease().ok_or(AllocError::Exhausted { size })?;
        self.0.metrics.pool(&state.pool);
        Ok(number)
    }

    /// A leased number is in the store now, by our own doing or by somebody else's whom we were not told of yet; or it is
    /// not, as far as we know, and can be leased again.
    fn settle_number(&self, number: NumericIdentity, in_store: bool) {
        let pool = &mut self.0.state().pool;
        if in_store {
            pool.remove(number);
        } else {
            pool.release(number);
        }
    }

    /// The numbers that the local picture has for the labels, the likeliest first.
    pub(super) fn known_elsewhere(&self, key: &Key) -> Vec<NumericIdentity> {
        let mut numbers = self.0.masters.numbers_of(key);
        numbers.retain(|&number| self.0.settings.numbers.contains(number));
        numbers
    }

    /// A number in local use stands for something else in the store. It is never overwritten: somebody has to look.
    pub(super) fn conflict(&self, number: NumericIdentity, key: &Key) -> AllocError {
        tracing::error!(%number, %key, "an identity in use here stands for other labels, or these labels have another identity");
        self.0.metrics.conflict();
        AllocError::Conflict { number }
    }
}

/// What an attempt at a new number shows to be next.
enum Next {
    /// Somebody has a number for the labels.
    Reference(NumericIdentity),
    /// The number was taken: another one.
    Again,
    /// Only the lock can tell.
    Lock,
}
