//! Messages and the client generated from `proto/meshgate/v1`; their documentation is the proto's.
#![allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated; its documentation is the proto's"
)]

tonic::include_proto!("meshgate.v1");

/// The descriptors of this package, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/meshgate_descriptor.bin"));
