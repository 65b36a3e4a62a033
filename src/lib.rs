//! Meshgate: the identity gateway of a multi-cluster mesh. A map of the rooms:
//!
//! - [`identity`]: labels, key strings, numbers, scopes, ranges, reserved identities. Pure.
//! - [`view`]: versions and diffs; the one picture of the mesh that everything else reads.
//! - [`kvstore`]: etcd sessions, list and watch, in keys and bytes. [`tls`]: certificates from files.
//! - [`mirror`]: keeps one cluster of the view in step with one prefix of one store.
//! - [`picture`]: what was last known of each peer, kept on disk.
//! - [`allocator`]: one label set, one number, across every node of the cluster.
//! - [`peer`]: the directory of peers, the life of one, what it may say, who owns which cluster ID.
//! - [`pb`]: what `proto/` says, generated. [`api`]: the gRPC services. [`client`]: the other end of them.
//! - [`access`]: who may do what, by the names in a client's certificate.
//! - [`telemetry`]: metrics, status, health, logs.
//! - [`config`], [`gateway`], [`cli`]: one validated configuration, the composition root, the command line.
//! - [`troubleshoot`]: what is wrong with a peer, step by step, without a gateway.
//! - [`backoff`]: the one wait between attempts.
//! - [`devkit`]: real etcds with mTLS and realistic contents, for the demo, the tests and the benches.
//!
//! With the feature `client` alone there is what a subscriber needs: [`client`], [`pb`], [`tls`], [`identity`], [`backoff`]. The
//! feature `server`, which is on by default, brings everything else.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(feature = "server")]
pub mod access;
#[cfg(feature = "server")]
pub mod allocator;
#[cfg(feature = "server")]
pub mod api;
pub mod backoff;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod devkit;
#[cfg(feature = "server")]
pub mod gateway;
pub mod identity;
#[cfg(feature = "server")]
pub mod kvstore;
#[cfg(feature = "server")]
pub mod mirror;
#[cfg(feature = "client")]
pub mod pb;
#[cfg(feature = "server")]
pub mod peer;
#[cfg(feature = "server")]
pub mod picture;
#[cfg(feature = "server")]
pub mod telemetry;
#[cfg(feature = "client")]
pub mod tls;
#[cfg(feature = "server")]
pub mod troubleshoot;
#[cfg(feature = "server")]
pub mod view;
