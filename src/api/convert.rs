//! From the view's and the status board's values to those of the protocol.

use std::time::{Duration, SystemTime};

use super::pb;
use crate::identity::{ReservedIdentity, labels_of};
use crate::telemetry::{ClusterState, ClusterStatus, LastError, RejectExample};
use crate::view::{ClusterView, Identity, SourcePosition};

/// An identity inside a frame that names its cluster already.
pub(super) fn identity_in_frame(identity: &Identity, numbers_only: bool) -> pb::Identity {
    let labels = if numbers_only { &[] } else { identity.labels() };
    pb::Identity {
        number: identity.number().get(),
        labels: labels.iter().map(|label| label.as_str().to_owned()).collect(),
        cluster: String::new(),
        revision: identity.revision(),
    }
}

/// An identity that stands alone.
pub(super) fn identity(identity: &Identity, cluster: &ClusterView) -> pb::Identity {
    pb::Identity { cluster: cluster.name().to_string(), ..identity_in_frame(identity, false) }
}

/// A number that every cluster has without an allocation: it belongs to none.
pub(super) fn reserved(reserved: &ReservedIdentity) -> pb::Identity {
    let labels = labels_of(&reserved.key_string);
    pb::Identity {
        number: reserved.number.get(),
        labels: labels.map(|label| format!("{}:{}={}", label.source, label.key, label.value)).collect(),
        cluster: String::new(),
        revision: 0,
    }
}

pub(super) fn position(position: SourcePosition) -> pb::SourcePosition {
    pb::SourcePosition { etcd_cluster_id: position.etcd_cluster_id, revision: position.revision }
}

/// A moment. What lies before 1970 or beyond the calendar is a clock's mistake, and shows as 1970.
pub(super) fn timestamp(time: SystemTime) -> prost_types::Timestamp {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let nanos = i32::try_from(since.subsec_nanos()).unwrap_or_default();
    prost_types::Timestamp { seconds: i64::try_from(since.as_secs()).unwrap_or_default(), nanos }
}

/// A wait; what does not fit (292 billion years) is cut.
pub(super) fn duration(duration: Duration) -> prost_types::Duration {
    let nanos = i32::try_from(duration.subsec_nanos()).unwrap_or_default();
    prost_types::Duration { seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX), nanos }
}

pub(super) fn cluster_info(name: String, status: ClusterStatus) -> pb::ClusterInfo {
    pb::ClusterInfo {
        name,
        cluster_id: status.cluster_id.into(),
        local: status.local,
        state: state(status.state).into(),
        since: status.since.map(timestamp),
        stage: status.stage.to_owned(),
        endpoint: status.endpoint,
        etcd_cluster_id: status.etcd_cluster_id,
        etcd_version: status.etcd_version,
        revision: status.revision,
        identities: status.identities,
        checksum: status.checksum,
        synced_once: status.synced_once,
        failures: status.failures,
        last_error: status.last_error.map(cluster_error),
        rejects: status.rejects.into_iter().map(|(reason, count)| (reason.to_owned(), count)).collect(),
        reject_examples: status.reject_examples.into_iter().map(reject_example).collect(),
        last_event: status.last_event.map(timestamp),
        last_heartbeat: status.last_heartbeat.map(timestamp),
        heartbeat_moved: status.heartbeat_moved.map(timestamp),
        certificate_expires: status.certificate_expires.map(timestamp),
        session: status.session,
        last_audit: status.last_audit.map(timestamp),
        audit_repairs: status.audit_repairs,
        stale: status.stale,
        unavailable_since: status.unavailable_since.map(timestamp),
        revoked: status.revoked,
        picture_kept: status.picture_kept.map(timestamp),
        picture_trouble: status.picture_trouble.unwrap_or_default(),
    }
}

pub(super) const fn state(state: ClusterState) -> pb::ClusterState {
    match state {
        ClusterState::Configured => pb::ClusterState::Configured,
        ClusterState::Connecting => pb::ClusterState::Connecting,
        ClusterState::ReadingConfig => pb::ClusterState::ReadingConfig,
        ClusterState::AwaitingCanary => pb::ClusterState::AwaitingCanary,
        ClusterState::Listing => pb::ClusterState::Listing,
        ClusterState::Synced => pb::ClusterState::Synced,
        ClusterState::Degraded => pb::ClusterState::Degraded,
        ClusterState::Reconnecting => pb::ClusterState::Reconnecting,
        ClusterState::Refused => pb::ClusterState::Refused,
        ClusterState::Denied => pb::ClusterState::Denied,
    }
}

fn cluster_error(error: LastError) -> pb::ClusterError {
    let LastError { reason, message, hint, at } = error;
    pb::ClusterError { reason: reason.to_owned(), message, hint, at: Some(timestamp(at)) }
}

fn reject_example(example: RejectExample) -> pb::RejectExample {
    let RejectExample { reason, key, detail, at } = example;
    pb::RejectExample { reason: reason.to_owned(), key, detail, at: Some(timestamp(at)) }
}
