//! Black-box tests against real etcds; `support` runs them.

mod identity;
