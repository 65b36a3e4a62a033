//! What each method asks of whoever calls it.

use std::time::Duration;

use tonic::Status;

use super::PeerInfo;
use crate::access::{Access, Grant, Role};
use crate::telemetry::{ClientRefusal, LogLimiter, Metrics};

/// Log lines about refused calls come at most once in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Every method of ours, and the role that it needs.
const METHODS: [(&str, Role); 7] = [
    ("/meshgate.v1.MeshService/Subscribe", Role::Subscriber),
    ("/meshgate.v1.MeshService/Acknowledge", Role::Subscriber),
    ("/meshgate.v1.MeshService/GetIdentity", Role::Subscriber),
    ("/meshgate.v1.MeshService/LookupByLabels", Role::Subscriber),
    ("/meshgate.v1.MeshService/ListClusters", Role::Subscriber),
    ("/meshgate.v1.MeshService/GetStatus", Role::Subscriber),
    ("/meshgate.v1.MeshService/ListSubscribers", Role::Admin),
];

/// The role that a method needs. Health and reflection are everybody's: probes have no role, and the schema is no secret.
fn needed(path: &str) -> Option<Role> {
    let listed = METHODS.into_iter().find(|(method, _)| *method == path).map(|(_, role)| role);
    // One of ours that is not listed is nobody's by accident.
    listed.or_else(|| path.starts_with("/meshgate.").then_some(Role::Admin))
}

/// Judges every request.
#[derive(Debug)]
pub(super) struct Authorizer {
    access: Access,
    metrics: Metrics,
    log: LogLimiter,
}

impl Authorizer {
    pub(super) fn new(access: Access, metrics: Metrics) -> Self {
        Self { access, metrics, log: LogLimiter::new(1, LOG_INTERVAL) }
    }

    /// What the client may do, if it may call that method.
    pub(super) fn judge(&self, path: &str, peer: &PeerInfo) -> Result<Grant, Status> {
        let grant = self.access.grant(peer.certificate());
        match needed(path) {
            Some(role) if !grant.is(role) => {
                self.metrics.client_refused(ClientRefusal::NoRole);
                if let Some(suppressed) = self.log.allow("role") {
                    tracing::warn!(%peer, path, role = role.name(), suppressed, "a call is refused");
                }
                Err(refusal(role, peer))
            }
            _ => Ok(grant),
        }
    }
}

fn refusal(role: Role, peer: &PeerInfo) -> Status {
    let names = peer.certificate().map(|facts| facts.names().join(", ")).unwrap_or_default();
    let names = if names.is_empty() { "it has none".to_owned() } else { names };
    Status::permission_denied(format!(
        "this needs the role {}, which the gateway's access policy gives to none of the certificate's names ({names})",
        role.name()
    ))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    #[test]
    fn every_method_is_listed_and_no_other() {
        let set = FileDescriptorSet::decode(crate::pb::DESCRIPTORS).unwrap();
        let mut methods = Vec::new();
        for file in set.file.iter().filter(|file| file.package().starts_with("meshgate.")) {
            for service in &file.service {
                let path = |method: &str| format!("/{}.{}/{method}", file.package(), service.name());
                methods.extend(service.method.iter().map(|method| path(method.name())));
            }
        }
        let mut listed: Vec<_> = METHODS.iter().map(|(path, _)| (*path).to_owned()).collect();
        methods.sort();
        listed.sort();
        assert_eq!(methods, listed);
        assert_eq!(needed("/meshgate.v1.MeshService/New"), Some(Role::Admin));
        assert_eq!(needed("/grpc.health.v1.Health/Check"), None);
    }
}
