//! Meshgate: the identity gateway of a multi-cluster mesh. A map of the rooms:
//!
//! - [`identity`]: labels, key strings, numbers, scopes, ranges, reserved identities. Pure.
//! - [`view`]: versions and diffs; the one picture of the mesh that everything else reads.
//! - [`kvstore`]: etcd sessions, list and watch, in keys and bytes. [`tls`]: certificates from files.
//! - [`mirror`]: keeps one cluster of the view in step with one prefix of one store.
//! - [`allocator`]: one label set, one number, across every node of the cluster.
//! - [`peer`]: the directory of peers, the life of one, what it may say, who owns which cluster ID.
//! - [`pb`]: what `proto/` says, generated. [`api`]: the gRPC services. [`client`]: the other end of them.
//! - [`telemetry`]: metrics, status, health, logs.
//! - [`config`], [`gateway`], [`cli`]: one validated configuration, the composition root, the command line.
//! - [`devkit`]: real etcds with mTLS and realistic contents, for the demo, the tests and the benches.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod allocator;
pub mod api;
pub mod cli;
pub mod client;
pub mod config;
pub mod devkit;
pub mod gateway;
pub mod identity;
pub mod kvstore;
pub mod mirror;
pub mod pb;
pub mod peer;
pub mod telemetry;
pub mod tls;
pub mod view;
