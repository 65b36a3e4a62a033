//! Keeps one cluster of the view in step with one prefix of one store; our own cluster and every peer go through here, so
//! both behave alike.
//!
//! [`Mirror`] is the pure core: steps of a [`crate::kvstore::ListWatch`] in, publications out. [`Admission`] says what may
//! enter. [`Follower`] drives the two and tells the status board and the metrics through a [`Reporter`]. [`LocalCluster`]
//! is our own cluster's life; a peer's is in [`crate::peer`]. What the store tells of our own cluster goes through
//! [`OwnRecords`], which is the [`crate::allocator`]'s picture of it.

mod admission;
mod apply;
mod audit;
#[cfg(test)]
mod audit_tests;
mod auditor;
mod availability;
mod dialer;
mod follower;
pub mod layout;
mod local;
mod outlet;
mod outsiders;
mod own;
#[cfg(test)]
mod own_tests;
mod rejects;
mod report;
#[cfg(test)]
mod tests;

pub use admission::{Admission, DEFAULT_MAX_KEY_STRING, Reject, RejectReason};
pub use apply::{Counts, Mirror, Outcome, Publication};
pub use audit::{Audit, Extent, Findings};
pub use auditor::DEFAULT_AUDIT_INTERVAL;
pub use availability::{Absence, Availability, Source};
pub use dialer::Dialer;
pub use follower::Follower;
pub use local::{LocalCluster, LocalSettings};
pub use outlet::Outlet;
pub use own::OwnRecords;
pub use rejects::{Example, RejectTally};
pub use report::{Failure, Reporter};
