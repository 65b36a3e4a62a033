//! One label set, one number, across every node of the cluster: allocation over a store shared with Cilium's agents.
//!
//! The rules are pure and have no socket: [`IdPool`] (which numbers are free), [`LocalKeys`] (what this process uses),
//! [`Key`] and [`Paths`] (what can be stored, and where). A [`backend::Backend`] is the store; [`etcd`] is the one there
//! is. [`Allocator`] joins them: `flight` (callers of one label set share one way to the store), `attempt` (without a lock
//! where possible), `release`, `upkeep` (what is in use stays in the store), each label set in a lane of its own. `gc` collects what nobody uses any more.
//!
//! Talks to [`crate::kvstore`] below; whoever follows the store (the mirror) implements [`Masters`] and tells the
//! allocator as its [`RecordListener`].

mod attempt;
pub mod backend;
mod error;
pub mod etcd;
mod flight;
mod gc;
mod key;
mod keys;
mod lanes;
mod local_keys;
mod masters;
mod metrics;
mod pool;
mod release;
mod service;
mod upkeep;

pub use error::AllocError;
pub use flight::Allocation;
pub use gc::{GcRound, GcSettings, GcTimes, IdentityGc, LockGc, LockGcRound, collect};
pub use key::{Key, MAX_KEY_STRING};
pub use keys::{Paths, is_slave_of};
pub use local_keys::{LocalKeys, OtherUse, Released};
pub use masters::{Inserted, MasterTable, Masters, RecordListener, Vanished};
pub use metrics::AllocatorMetrics;
pub use pool::{IdPool, NumberRange};
pub use service::{Allocator, AllocatorSettings, AllocatorStatus};
