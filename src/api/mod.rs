//! The gRPC services. Sees `view` and `telemetry`, never `peer` or `kvstore`.

/// Types and services generated from `proto/meshgate/v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod pb {
    tonic::include_proto!("meshgate.v1");
    /// The descriptors of this package, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/meshgate_descriptor.bin"));
}
