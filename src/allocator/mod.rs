//! One label set, one number, across every node of the cluster: allocation over a store shared with Cilium's agents.
//!
//! The rules are pure and have no socket: [`IdPool`] (which numbers are free), [`LocalKeys`] (what this process uses),
//! [`Key`] and [`Paths`] (what can be stored, and where).

pub mod backend;
mod error;
pub mod etcd;
mod key;
mod keys;
mod local_keys;
mod pool;

pub use error::AllocError;
pub use key::{Key, MAX_KEY_STRING};
pub use keys::{Paths, is_slave_of};
pub use local_keys::{LocalKeys, OtherUse, Released};
pub use pool::{IdPool, NumberRange};
