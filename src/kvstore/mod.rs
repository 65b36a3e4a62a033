//! Etcd sessions in keys and bytes: connect over mTLS, list and watch, notice at once when something is wrong.
//!
//! Knows neither `identity` nor `view`. A [`Session`] is one connection to one etcd incarnation; a [`ListWatch`] is the
//! explicit state machine that survives sessions.

mod backoff;
mod config;
mod connect;
mod error;
mod list_watch;
mod session;
mod watch;

pub use backoff::Backoff;
pub use config::{Credentials, EtcdConfig, EtcdConfigError, Timing};
pub use connect::{Connector, Stage};
pub use error::{ConnectError, SessionError};
pub use list_watch::{ListKind, ListWatch, ListWatchOptions, RestartReason, Step};
pub use session::{Event, KeyValue, Position, RangePage, Session};
