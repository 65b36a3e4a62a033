//! Black-box tests against real etcds; `support` runs them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails there")]
#![allow(clippy::disallowed_methods, reason = "tests of whole processes have no runtime whose clock they could read")]

mod allocator;
mod api;
mod demo;
mod devkit;
mod field;
mod gateway;
mod identity;
mod interop;
mod kvstore;
mod monitoring;
mod peer;
mod support;

/// Counts what is allocated, for tests that must find no more of it in the end than there was.
#[global_allocator]
static HEAP: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;
