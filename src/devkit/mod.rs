//! Real etcds with mTLS, a development PKI and realistic contents: serves `meshgate demo`, the tests and the benches.
//!
//! Nothing here runs in a gateway. It talks to etcd by a client of its own, so that what it says about a store's contents
//! does not depend on the code under test.

mod admin;
pub mod etcd;
pub mod fill;
pub mod pki;
mod process;
mod raw_subscriber;

pub use etcd::{EtcdCluster, EtcdError, EtcdOptions, EtcdServer};
pub use pki::{CertFiles, CertSpec, Pki, PkiError};
pub use raw_subscriber::raw_subscriber;
