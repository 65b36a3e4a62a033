//! Tokens that a subscriber came with: judged when it is their cluster's turn, and the gateway's own catching up with what
//! the subscriber has seen already.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Session, Start, Told, Verdict, resume};
use crate::api::subscribe::feed::Pending;
use crate::identity::ClusterId;

/// How far the gateway must follow a cluster's source before anything more is told of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CatchingUp {
    /// To that revision of the same etcd; none if the token is to be judged again.
    pub(super) revision: Option<i64>,
    pub(super) until: Instant,
}

impl Session {
    /// Those that wait for the gateway to catch up are due for another look.
    pub(super) fn look_again(&mut self) {
        for (id, wait) in &self.catching_up {
            if wait.revision.is_some() {
                self.behind.entry(*id).or_insert(None);
            } else {
                self.loading.insert(*id);
            }
        }
        self.catching_up.retain(|_, wait| wait.revision.is_some());
    }

    /// Judges a token that is pending, from the newest versions. None when there is none, or none any more.
    pub(super) fn resume(&mut self, id: ClusterId) -> Option<Told> {
        if let Some(Err(error)) = self.plan.tokens.get(self.feeds.get(&id)?.name().as_str()).copied()
            && self.plan.start == Start::ResumeOnly
        {
            return Some(self.give_up(id, error.words()));
        }
        let Pending { token, until } = *self.feeds.get_mut(&id)?.pending()?;
        let applied = self.shared.view.applied(id);
        self.refresh();
        let now = Arc::clone(self.mesh.cluster(id)?);
        let feed = self.feeds.get_mut(&id)?;
        // The refresh may have shown that the ID is another cluster's.
        feed.pending()?;
        let until = until.unwrap_or_else(|| Instant::now() + self.shared.resume_wait);
        let why = match resume::judge(&self.shared.view, &now, applied, &token) {
            Verdict::Resume(version, revision) => {
                if revision.is_some() {
                    self.catching_up.insert(id, CatchingUp { revision, until });
                }
                return Some(feed.resume(version, token, now.is_stale(), &self.plan));
            }
            // A cluster that has no version yet, or an old one only, wakes us when it has: until then the client's is better.
            Verdict::Wait(_) if !now.is_synced() || now.is_stale() => return Some(Told::Nothing),
            Verdict::Wait(_) if Instant::now() < until => {
                if let Some(pending) = feed.pending() {
                    pending.until = Some(until);
                }
                self.catching_up.insert(id, CatchingUp { revision: None, until });
                return Some(Told::Nothing);
            }
            Verdict::Wait(why) | Verdict::Snapshot(why) => why,
        };
        if self.plan.start == Start::ResumeOnly {
            return Some(self.give_up(id, why));
        }
        tracing::debug!(cluster = %feed.name(), why, "a token is not resumed");
        feed.forget_token();
        None
    }

    pub(super) fn give_up(&mut self, id: ClusterId, why: &str) -> Told {
        self.not_resumable = self.feeds.get(&id).map(|feed| format!("cluster {}: {why}", feed.name()));
        Told::Nothing
    }

    /// Whether a live cluster has to wait until the gateway has seen what its client has seen; forgets it when not.
    pub(super) fn is_catching_up(&mut self, id: ClusterId, now: Instant) -> bool {
        let Some(CatchingUp { revision: Some(revision), until }) = self.catching_up.get(&id).copied() else {
            return false;
        };
        let applied = self.shared.view.applied(id);
        // What was published up to there is what is told next.
        self.refresh();
        let position = self.mesh.cluster(id).and_then(|cluster| cluster.told());
        let reached = [applied, position].into_iter().flatten().any(|position| position.revision >= revision);
        let waits = !reached && now < until;
        if !waits {
            self.catching_up.remove(&id);
        }
        waits
    }
}
