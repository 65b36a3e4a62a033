//! Where a cluster's versions go: into the view as they are, or, for our own cluster, through what our allocator knows better.

use std::sync::Arc;

use super::own::OwnRecords;
use super::report::Reporter;
use crate::allocator::RecordListener;
use crate::identity::ClusterId;
use crate::view::{ClusterView, SourcePosition, View};

/// Takes the versions that a mirror publishes.
#[derive(Debug)]
pub struct Outlet(Kind);

enum Kind {
    View(View),
    Own(OwnRecords, Arc<dyn RecordListener>),
}

impl From<View> for Outlet {
    fn from(view: View) -> Self {
        Self(Kind::View(view))
    }
}

impl Outlet {
    /// For our own cluster: what the store tells goes to the allocator too.
    #[must_use]
    pub fn own(records: OwnRecords, allocator: Arc<dyn RecordListener>) -> Self {
        Self(Kind::Own(records, allocator))
    }

    pub(super) fn publish(&self, version: Arc<ClusterView>, reporter: &Reporter) {
        match &self.0 {
            Kind::View(view) => {
                view.publish(Arc::clone(&version));
                reporter.shown(Some(&version));
            }
            Kind::Own(records, allocator) => records.told(version, &**allocator),
        }
    }

    /// Everything up to there is published.
    pub(super) fn applied(&self, id: ClusterId, position: SourcePosition) {
        match &self.0 {
            Kind::View(view) => view.apply(id, position),
            Kind::Own(records, _) => records.applied(position),
        }
    }

    pub(super) fn withdraw(&self, id: ClusterId, reporter: &Reporter) {
        match &self.0 {
            Kind::View(view) => view.withdraw(id),
            Kind::Own(records, _) => records.withdraw(),
        }
        reporter.shown(None);
    }
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::View(_) => "View",
            Self::Own(..) => "Own",
        })
    }
}
