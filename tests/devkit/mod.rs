//! The devkit does what the tests that stand on it believe.

mod certs;
mod etcd;
mod fill;
mod pki;
