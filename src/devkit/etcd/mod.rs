//! Real etcd processes on this machine: one ([`EtcdServer`]) or a cluster of members ([`EtcdCluster`]).

mod cluster;
mod options;
mod server;

use std::io;

pub use cluster::EtcdCluster;
pub use options::{EtcdOptions, EtcdTls};
pub use server::EtcdServer;

use super::PkiError;

/// Why an etcd does not run.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// No such program.
    #[error("no `etcd` on the PATH; on Debian and Ubuntu, `apt-get install etcd-server` installs it")]
    NotInstalled,
    /// Its certificates could not be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// Files or processes.
    #[error("etcd {name}: {source}")]
    System {
        /// Which etcd.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// It ended by itself.
    #[error("etcd {name} ended before it was ready ({status}); it said:\n{last_words}")]
    Ended {
        /// Which etcd.
        name: String,
        /// How it ended.
        status: String,
        /// The end of its log.
        last_words: String,
    },
    /// It did not answer in time.
    #[error("etcd {name} was not ready within {seconds} s ({last_error}); it said:\n{last_words}")]
    NotReady {
        /// Which etcd.
        name: String,
        /// How long it had.
        seconds: u64,
        /// Answer to the last attempt.
        last_error: String,
        /// The end of its log.
        last_words: String,
    },
}
