//! `meshgate.v1.MeshService`: the unary calls, answered from the current view and the status board.

use std::collections::HashSet;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::acknowledged::Acknowledged;
use super::status::GatewayStatus;
use super::unary::mesh_service_server::MeshService;
use super::{PeerInfo, convert, pb};
use crate::access::{Grant, Visible};
use crate::identity::{LabelRef, NumericIdentity, ReservedIdentities, sorted_key_string};
use crate::telemetry::StatusBoard;
use crate::view::View;

/// More labels than any workload has; a set of them still makes a key string far below etcd's limit for a value.
const MAX_LABELS: usize = 1_024;

/// The service.
#[derive(Debug)]
pub(super) struct Mesh {
    pub(super) view: View,
    pub(super) status: StatusBoard,
    pub(super) reserved: Arc<ReservedIdentities>,
    pub(super) acknowledged: Acknowledged,
    pub(super) gateway: GatewayStatus,
}

impl Mesh {
    /// The clusters that the caller may see, our own first.
    fn clusters(&self, visible: &Visible) -> Vec<pb::ClusterInfo> {
        let shown = self.status.snapshot().into_iter().filter(|(name, _)| visible.contains(name));
        let mut clusters: Vec<_> = shown.map(|(name, status)| convert::cluster_info(name, status)).collect();
        // The board is in order of names, and the sort is stable.
        clusters.sort_by_key(|cluster| !cluster.local);
        clusters
    }
}

#[tonic::async_trait]
impl MeshService for Mesh {
    async fn acknowledge(
        &self,
        request: Request<pb::AcknowledgeRequest>,
    ) -> Result<Response<pb::AcknowledgeResponse>, Status> {
        let peer = request.extensions().get::<PeerInfo>().map(ToString::to_string).unwrap_or_default();
        self.acknowledged.note(request.into_inner(), &peer)?;
        Ok(Response::new(pb::AcknowledgeResponse {}))
    }

    async fn list_subscribers(
        &self,
        _request: Request<pb::ListSubscribersRequest>,
    ) -> Result<Response<pb::ListSubscribersResponse>, Status> {
        Ok(Response::new(pb::ListSubscribersResponse { subscribers: self.acknowledged.list() }))
    }

    async fn get_identity(
        &self,
        request: Request<pb::GetIdentityRequest>,
    ) -> Result<Response<pb::GetIdentityResponse>, Status> {
        let visible = visible(&request);
        let number = NumericIdentity::new(request.into_inner().number);
        let identity = match self.reserved.by_number(number) {
            Some(reserved) => Some(convert::reserved(reserved)),
            None => self.view.read(|mesh| {
                let cluster = mesh.cluster_of(number).filter(|cluster| visible.contains(cluster.name().as_str()))?;
                Some(convert::identity(cluster.get(number)?, cluster))
            }),
        };
        let identity = identity.ok_or_else(|| Status::not_found(format!("no identity has the number {number}")))?;
        Ok(Response::new(pb::GetIdentityResponse { identity: Some(identity) }))
    }

    async fn lookup_by_labels(
        &self,
        request: Request<pb::LookupByLabelsRequest>,
    ) -> Result<Response<pb::LookupByLabelsResponse>, Status> {
        let visible = visible(&request);
        let request = request.into_inner();
        let labels = parse_labels(&request.labels)?;
        let reserved =
            self.reserved.by_labels(labels.iter().copied()).and_then(|number| self.reserved.by_number(number));
        let identity = match reserved {
            Some(reserved) => Some(convert::reserved(reserved)),
            None => self.view.read(|mesh| {
                let key_string = sorted_key_string(labels.iter().copied());
                let identity = mesh.lookup_among(&key_string, |cluster| visible.contains(cluster))?;
                Some(convert::identity(identity, mesh.cluster_of(identity.number())?))
            }),
        };
        let identity = identity.ok_or_else(|| Status::not_found("no identity has exactly these labels"))?;
        Ok(Response::new(pb::LookupByLabelsResponse { identity: Some(identity) }))
    }

    async fn list_clusters(
        &self,
        request: Request<pb::ListClustersRequest>,
    ) -> Result<Response<pb::ListClustersResponse>, Status> {
        Ok(Response::new(pb::ListClustersResponse { clusters: self.clusters(&visible(&request)) }))
    }

    async fn get_status(
        &self,
        request: Request<pb::GetStatusRequest>,
    ) -> Result<Response<pb::GetStatusResponse>, Status> {
        Ok(Response::new(self.gateway.with(self.clusters(&visible(&request)))))
    }
}

/// The clusters that the caller may see.
fn visible<T>(request: &Request<T>) -> Visible {
    // The authorizer gives a grant to each request; without one nothing is shown.
    request.extensions().get::<Grant>().map_or_else(|| Grant::none().visible, |grant| grant.visible.clone())
}

/// The label set that a request names; each problem is told with the field and the rule.
fn parse_labels(labels: &[String]) -> Result<Vec<LabelRef<'_>>, Status> {
    let invalid = |what: String| Err(Status::invalid_argument(what));
    if labels.is_empty() {
        return invalid("labels: at least one label is needed".to_owned());
    }
    if labels.len() > MAX_LABELS {
        return invalid(format!("labels: {} are given, at most {MAX_LABELS} are allowed", labels.len()));
    }
    let mut parsed = Vec::with_capacity(labels.len());
    let mut keys = HashSet::with_capacity(labels.len());
    for (at, text) in labels.iter().enumerate() {
        if text.contains(';') {
            return invalid(format!("labels[{at}]: a label has no ';', which ends a label in the store"));
        }
        let label = LabelRef::parse(text);
        if label.key.is_empty() {
            return invalid(format!("labels[{at}]: the key is empty; a label is source:key=value"));
        }
        if !keys.insert(label.key) {
            return invalid(format!("labels[{at}]: a label set has one label a key, and `{}` comes twice", label.key));
        }
        parsed.push(label);
    }
    Ok(parsed)
}
