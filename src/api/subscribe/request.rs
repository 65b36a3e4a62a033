//! What a subscriber asked for, checked against what the server allows.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use tonic::Status;

use crate::api::pb;
use crate::identity::ClusterName;

const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(30);
const HEARTBEAT: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_hours(1);
const MIN_INTERVAL: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_hours(1);
/// As many clusters as a mesh can have.
const MAX_CLUSTERS: usize = 511;

/// How much one frame may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Identities.
    pub items: usize,
    /// Encoded bytes. One identity that alone is larger is sent alone.
    pub bytes: usize,
}

impl Default for FrameLimits {
    /// A quarter of the 4 MiB at which a gRPC client stops to decode by default, and about a megabyte of a stream that is
    /// not read. At 330 bytes an identity both limits are near each other.
    fn default() -> Self {
        Self { items: 4_096, bytes: 1 << 20 }
    }
}

/// A checked request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Empty means all.
    pub(super) clusters: BTreeSet<String>,
    pub(super) numbers_only: bool,
    pub(super) limits: FrameLimits,
    pub(super) min_interval: Duration,
    pub(super) heartbeat: Duration,
}

impl Plan {
    /// Checks a request; `most` are the server's own limits.
    pub(super) fn new(request: pb::SubscribeRequest, most: FrameLimits) -> Result<Self, Status> {
        if request.clusters.len() > MAX_CLUSTERS {
            let given = request.clusters.len();
            return Err(invalid("clusters", &format!("{given} names are given, a mesh has at most {MAX_CLUSTERS}")));
        }
        for (at, name) in request.clusters.iter().enumerate() {
            ClusterName::new(name).map_err(|error| invalid(&format!("clusters[{at}]"), &error.to_string()))?;
        }
        Ok(Self {
            clusters: request.clusters.into_iter().collect(),
            numbers_only: request.numbers_only,
            limits: FrameLimits {
                items: limit(request.max_items, most.items),
                bytes: limit(request.max_bytes, most.bytes),
            },
            min_interval: time("min_interval", request.min_interval, &MIN_INTERVAL)?.unwrap_or_default(),
            heartbeat: time("heartbeat_interval", request.heartbeat_interval, &HEARTBEAT)?.unwrap_or(DEFAULT_HEARTBEAT),
        })
    }

    /// Whether the subscriber wants that cluster.
    pub(super) fn wants(&self, cluster: &str) -> bool {
        self.clusters.is_empty() || self.clusters.contains(cluster)
    }
}

/// 0 is the server's choice.
fn limit(asked: u32, most: usize) -> usize {
    match usize::try_from(asked) {
        Ok(0) | Err(_) => most,
        Ok(asked) => asked.min(most),
    }
}

fn time(
    field: &str,
    given: Option<prost_types::Duration>,
    allowed: &RangeInclusive<Duration>,
) -> Result<Option<Duration>, Status> {
    let Some(given) = given else { return Ok(None) };
    match Duration::try_from(given) {
        Ok(time) if allowed.contains(&time) => Ok(Some(time)),
        _ => {
            let text = |time: &Duration| humantime::format_duration(*time).to_string();
            let range = format!("at least {}, at most {}", text(allowed.start()), text(allowed.end()));
            Err(invalid(field, &range))
        }
    }
}

fn invalid(field: &str, rule: &str) -> Status {
    Status::invalid_argument(format!("{field}: {rule}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(request: pb::SubscribeRequest) -> Result<Plan, String> {
        Plan::new(request, FrameLimits::default()).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn an_empty_request_is_the_servers_choice() {
        let plan = plan(pb::SubscribeRequest::default()).expect("valid");
        assert_eq!(plan.limits, FrameLimits::default());
        assert_eq!((plan.min_interval, plan.heartbeat), (Duration::ZERO, DEFAULT_HEARTBEAT));
        assert!(plan.wants("any"));
    }

    #[test]
    fn limits_can_only_be_lowered() {
        let asked = pb::SubscribeRequest { max_items: 7, max_bytes: u32::MAX, ..Default::default() };
        assert_eq!(plan(asked).expect("valid").limits, FrameLimits { items: 7, ..FrameLimits::default() });
    }

    #[test]
    fn what_is_wrong_is_told_with_field_and_rule() {
        let interval = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
        for (request, message) in [
            (
                pb::SubscribeRequest { clusters: vec!["a".into(), "B".into()], ..Default::default() },
                "clusters[1]: a cluster name consists of lower-case letters, digits and '-', and begins and ends with a \
                 letter or digit",
            ),
            (
                pb::SubscribeRequest { heartbeat_interval: interval(0, 1_000_000), ..Default::default() },
                "heartbeat_interval: at least 100ms, at most 1h",
            ),
            (
                pb::SubscribeRequest { min_interval: interval(-1, 0), ..Default::default() },
                "min_interval: at least 0s, at most 1h",
            ),
        ] {
            assert_eq!(plan(request), Err(message.to_owned()));
        }
    }
}
