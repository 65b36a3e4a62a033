//! What has gone wrong in the field, each as a test that is named after its entry; and a soak of all of it together.
//!
//! Entries whose subject is one room alone have their tests in that room; `docs/testing.md` says which.

mod access;
mod addresses;
mod catalogue;
mod certificates;
mod liveness;
mod play;
mod replicas;
mod rounds;
mod soak;
mod stages;
mod troubleshoot;
