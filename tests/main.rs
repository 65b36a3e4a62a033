//! Black-box tests against real etcds; `support` runs them.

mod devkit;
mod support;
mod identity;
