//! `grpc.health.v1.Health`, as `grpc_health_probe` and load balancers ask it: serving exactly while the gateway is ready.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// The whole server, and the service that it is there for.
const SERVICES: [&str; 2] = ["", "meshgate.v1.MeshService"];

/// Follows readiness until `stop`; then nothing is served any more, and those who watch are let go.
pub(super) async fn follow(mut reporter: HealthReporter, mut ready: watch::Receiver<bool>, stop: CancellationToken) {
    loop {
        let serving = *ready.borrow_and_update();
        set(&reporter, if serving { ServingStatus::Serving } else { ServingStatus::NotServing }).await;
        let changed = stop.run_until_cancelled(ready.changed()).await;
        match changed {
            Some(Ok(())) => {}
            // Whoever knew has ended: the last word holds.
            Some(Err(_)) => stop.cancelled().await,
            None => break,
        }
    }
    set(&reporter, ServingStatus::NotServing).await;
    for service in SERVICES {
        reporter.clear_service_status(service).await;
    }
}

/// Before the first connection, so that no probe sees the library's default.
pub(super) async fn not_yet(reporter: &HealthReporter) {
    set(reporter, ServingStatus::NotServing).await;
}

async fn set(reporter: &HealthReporter, status: ServingStatus) {
    for service in SERVICES {
        reporter.set_service_status(service, status).await;
    }
}
