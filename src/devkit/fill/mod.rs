//! Realistic contents of a cluster's store, byte for byte as Cilium writes them.
//!
//! [`Cluster`] knows keys and values, [`LabelMix`] invents label sets, [`fill`] writes both, [`Presence`] keeps alive what has
//! a lease, [`Churn`] changes things, and [`valid_contents`] reads back what a gateway ought to show.

mod bad;
mod churn;
mod contents;
mod labels;
mod layout;
mod load;
mod presence;

pub use bad::BadEntry;
pub use churn::{Churn, ChurnError, RunningChurn};
pub use contents::{Contents, valid_contents};
pub use labels::LabelMix;
pub use layout::{Cluster, HEARTBEAT_KEY};
pub use load::{FillOptions, fill, load};
pub use presence::Presence;
