//! One clock for every absence: whether a cluster is in step with its store, since when it is not, and how far it came.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::view::SourcePosition;

/// A cluster out of step: cut off, misconfigured, refused, or not reached yet. Only a sync ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// Since when, by the clock that people read.
    pub since: SystemTime,
    begun: Instant,
    before: Duration,
}

impl Absence {
    /// Begins.
    #[must_use]
    pub fn from_now() -> Self {
        Self { since: SystemTime::now(), begun: Instant::now(), before: Duration::ZERO }
    }

    /// Goes on from an earlier process. What that has in the future is a clock's mistake, and begins now.
    #[must_use]
    pub fn from(since: SystemTime) -> Self {
        match SystemTime::now().duration_since(since) {
            Ok(before) => Self { since, begun: Instant::now(), before },
            Err(_) => Self::from_now(),
        }
    }

    /// How long it has lasted; a clock that is set meanwhile does not matter.
    #[must_use]
    pub fn lasted(&self) -> Duration {
        self.before + self.begun.elapsed()
    }
}

/// How a cluster is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Availability {
    /// None while the cluster is in step.
    pub absence: Option<Absence>,
    /// Something complete is shown of it.
    pub holds: bool,
    /// Where that comes from.
    pub source: Option<Source>,
}

/// The keys behind a prefix, up to a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// What is shown is complete up to there, or newer.
    pub position: SourcePosition,
    /// Where in the store.
    pub prefix: Arc<str>,
}

impl Source {
    pub(super) fn advance(source: &mut Option<Self>, position: SourcePosition, prefix: &[u8]) {
        match source {
            Some(source) if source.prefix.as_bytes() == prefix => source.position = position,
            _ => *source = Some(Self { position, prefix: String::from_utf8_lossy(prefix).into() }),
        }
    }
}
