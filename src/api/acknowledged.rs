//! What subscribers say that they have applied: so that an operator sees whether a change has arrived.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tonic::Status;

use super::subscribe::Token;
use super::{convert, pb};
use crate::telemetry::{AcknowledgedGauges, Metrics};
use crate::view::{Contents, MeshView, SourcePosition, View};

/// A subscriber that has said nothing for so long is not looked for any more.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(1);
const MAX_NAME: usize = 253;
const MAX_CLUSTERS: usize = 511;
const MAX_REJECTED: usize = 100;
const MAX_REASON: usize = 1_024;

/// The last word of each subscriber; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Acknowledged {
    view: View,
    metrics: Metrics,
    /// More subscribers than there may be streams are not remembered.
    most: usize,
    subscribers: Arc<Mutex<BTreeMap<String, Subscriber>>>,
}

#[derive(Debug)]
struct Subscriber {
    peer: String,
    at: SystemTime,
    said: Instant,
    applied: BTreeMap<String, Token>,
    rejected: Vec<pb::Rejected>,
}

impl Acknowledged {
    pub(super) fn new(view: View, metrics: Metrics, most: usize) -> Self {
        let acknowledged = Self { view, metrics, most, subscribers: Arc::default() };
        let read = acknowledged.clone();
        acknowledged.metrics.read_acknowledged(move || read.gauges());
        acknowledged
    }

    /// Takes a subscriber's word.
    pub(super) fn note(&self, request: pb::AcknowledgeRequest, peer: &str) -> Result<(), Status> {
        let pb::AcknowledgeRequest { subscriber, tokens, rejected } = request;
        let invalid = |what: String| Err(Status::invalid_argument(what));
        if subscriber.len() > MAX_NAME {
            return invalid(format!(
                "subscriber: {} bytes are given, at most {MAX_NAME} are allowed",
                subscriber.len()
            ));
        }
        if tokens.len() > MAX_CLUSTERS {
            return invalid(format!("tokens: {} are given, a mesh has at most {MAX_CLUSTERS} clusters", tokens.len()));
        }
        if rejected.len() > MAX_REJECTED {
            return invalid(format!("rejected: {} are given, at most {MAX_REJECTED} are allowed", rejected.len()));
        }
        if let Some(at) = rejected.iter().position(|rejected| rejected.reason.len() > MAX_REASON) {
            return invalid(format!("rejected[{at}].reason: at most {MAX_REASON} bytes are allowed"));
        }
        let mut applied = BTreeMap::new();
        for (cluster, token) in tokens {
            match Token::decode_any(&token, &cluster) {
                Ok((token, _)) => drop(applied.insert(cluster, token)),
                Err(error) => return invalid(format!("tokens[{cluster:?}]: {}", error.words())),
            }
        }
        self.metrics.acknowledged(rejected.len() as u64);
        let name = if subscriber.is_empty() { peer.to_owned() } else { subscriber };
        let now = Instant::now();
        let said = Subscriber { peer: peer.to_owned(), at: SystemTime::now(), said: now, applied, rejected };
        let mut subscribers = self.subscribers();
        subscribers.insert(name, said);
        if subscribers.len() > self.most {
            let oldest = subscribers.iter().min_by_key(|(_, subscriber)| subscriber.said).map(|(name, _)| name.clone());
            oldest.and_then(|oldest| subscribers.remove(&oldest));
        }
        Ok(())
    }

    pub(super) fn list(&self) -> Vec<pb::SubscriberInfo> {
        let mesh = self.view.load();
        let info = |(name, subscriber): (&String, &Subscriber)| pb::SubscriberInfo {
            subscriber: name.clone(),
            peer: subscriber.peer.clone(),
            acknowledged_at: Some(convert::timestamp(subscriber.at)),
            clusters: subscriber.applied.iter().map(|(cluster, token)| applied(&mesh, cluster, token)).collect(),
            rejected: subscriber.rejected.clone(),
        };
        self.subscribers().iter().map(info).collect()
    }

    fn gauges(&self) -> AcknowledgedGauges {
        let mesh = self.view.load();
        let mut clusters: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let subscribers = self.subscribers();
        for (cluster, token) in subscribers.values().flat_map(|subscriber| &subscriber.applied) {
            // One that is no part of the mesh any more has no series.
            let Some(current) = is_current(&mesh, cluster, token) else { continue };
            let (up_to_date, behind) = clusters.entry(cluster.clone()).or_default();
            *(if current { up_to_date } else { behind }) += 1;
        }
        AcknowledgedGauges { clusters }
    }

    /// Those that are not forgotten.
    fn subscribers(&self) -> MutexGuard<'_, BTreeMap<String, Subscriber>> {
        let mut subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        subscribers.retain(|_, subscriber| now.duration_since(subscriber.said) < FORGOTTEN_AFTER);
        subscribers
    }
}

fn is_current(mesh: &MeshView, cluster: &str, token: &Token) -> Option<bool> {
    Some(Contents::of(mesh.cluster_named(cluster)?) == Some(token.contents))
}

fn applied(mesh: &MeshView, cluster: &str, token: &Token) -> pb::AppliedCluster {
    let Token { contents: Contents { etcd_cluster_id, .. }, revision } = *token;
    pb::AppliedCluster {
        cluster: cluster.to_owned(),
        position: Some(convert::position(SourcePosition { etcd_cluster_id, revision })),
        current: is_current(mesh, cluster, token).unwrap_or_default(),
    }
}
