//! Etcd sessions in keys and bytes: connect over mTLS, list and watch, notice at once when something is wrong.
//!
//! Knows neither `identity` nor `view`; takes certificates from [`crate::tls`]. From the bottom up:
//!
//! - `endpoint`, [`EtcdConfig`]: where, and by which rules. [`Timing`]: every deadline.
//! - `dial`, `wire`: one stream, which remembers why it ended. [`Connector`] turns it into a session.
//! - [`Session`]: one connection to one etcd incarnation. Each answer's header is checked; a wrong one ends it for good.
//! - [`Watch`]: one watch on a session: whole revisions, signs of life.
//! - [`KeyWatch`]: one key, and its changes.
//! - [`ListWatch`]: the state machine that keeps a prefix in step, over any number of sessions.

mod config;
mod connect;
mod dial;
mod endpoint;
mod error;
mod failure;
mod gate;
mod goodbye;
mod key_reader;
mod key_watch;
mod lessons;
mod list_watch;
mod pulse;
mod resolve;
mod session;
mod types;
mod watch;
mod wire;

pub use crate::backoff::{Backoff, jittered};
pub use config::{Credentials, EtcdConfig, EtcdConfigError, Plaintext, Timing};
pub use connect::{Connector, Report};
pub use error::SessionError;
pub use failure::{ConnectError, Failure, Stage};
pub use gate::ListGate;
pub use key_reader::KeyReader;
pub use key_watch::KeyWatch;
pub use list_watch::{ListKind, ListWatch, ListWatchOptions, RestartReason, Step};
pub use resolve::Resolver;
pub use session::Session;
pub use types::{Event, KeyValue, Position, RangePage, Reads};
pub use watch::{Heard, Watch};
