//! The allocator on real etcds.

mod basics;
mod cilium;
mod contest;
mod support;
