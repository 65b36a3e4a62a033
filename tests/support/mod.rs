//! What black-box tests share: the devkit, and waiting for a condition instead of sleeping.

pub mod fake_etcd;
pub mod fake_leases;
pub mod proxy;

use std::future::Future;
use std::time::Duration;

pub use meshgate::devkit::*;
use tokio::time::{Instant, sleep};

/// Long enough for a busy machine; nothing waits for it unless something is wrong.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds; panics with `what` when it does not within `deadline`.
#[allow(dead_code, reason = "not every build of the tests has a user for every helper")]
pub async fn eventually<F: Future<Output = bool>>(what: &str, deadline: Duration, mut condition: impl FnMut() -> F) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}
