//! The devkit does what the tests that stand on it believe.

mod etcd;
mod fill;
mod pki;
