//! The allocator on real etcds.

mod basics;
mod chaos;
mod cilium;
mod collect;
mod command;
mod contest;
mod faults;
mod flaky;
mod leases;
mod locks;
mod support;
