//! What a subscriber asked for, checked against what the server allows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::time::Duration;

use tonic::Status;

use super::filter::{Filter, Shape};
use super::selector::Selector;
use super::token::{Token, TokenError};
use crate::access::Visible;
use crate::api::pb;
use crate::identity::ClusterName;

const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(30);
const HEARTBEAT: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_hours(1);
const MIN_INTERVAL: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_hours(1);
/// As many clusters as a mesh can have.
const MAX_CLUSTERS: usize = 511;

/// How much one frame may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// How a stream begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Start {
    #[default]
    ResumeOrSnapshot,
    ResumeOnly,
    LiveOnly,
}

/// A checked request.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Empty means all.
    clusters: BTreeSet<String>,
    /// Identities of clusters are wanted.
    global: bool,
    /// Those that need no cluster are wanted.
    pub(super) reserved: bool,
    pub(super) shape: Shape,
    pub(super) min_interval: Duration,
    pub(super) heartbeat: Duration,
    pub(super) start: Start,
    pub(super) wait_for: pb::WaitFor,
    /// What the subscriber holds, by cluster; or why that is not to be understood.
    pub(super) tokens: BTreeMap<String, Result<Token, TokenError>>,
    /// What the subscriber may see.
    pub(super) visible: Visible,
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
        let scopes = request.scopes.iter().enumerate().map(|(at, scope)| match pb::Scope::try_from(*scope) {
            Ok(pb::Scope::Unspecified) | Err(_) => {
                Err(invalid(&format!("scopes[{at}]"), &format!("no scope is {scope}")))
            }
            Ok(scope) => Ok(scope),
        });
        let scopes: Vec<_> = scopes.collect::<Result<_, _>>()?;
        let selector =
            Selector::parse(&request.label_selector).map_err(|error| invalid("label_selector", &error.to_string()))?;
        let shape = Shape {
            limits: FrameLimits {
                items: limit(request.max_items, most.items),
                bytes: limit(request.max_bytes, most.bytes),
            },
            numbers_only: request.numbers_only,
            filter: Filter::new(selector),
        };
        let (start, with_tokens) = match pb::StartMode::try_from(request.start) {
            Ok(pb::StartMode::Unspecified) => (Start::ResumeOrSnapshot, true),
            Ok(pb::StartMode::Snapshot) => (Start::ResumeOrSnapshot, false),
            Ok(pb::StartMode::ResumeOnly) => (Start::ResumeOnly, true),
            Ok(pb::StartMode::LiveOnly) => (Start::LiveOnly, false),
            Err(_) => return Err(invalid("start", &format!("no mode is {}", request.start))),
        };
        let wait_for = pb::WaitFor::try_from(request.wait_for)
            .map_err(|_| invalid("wait_for", &format!("nothing to wait for is {}", request.wait_for)))?;
        let tokens = if with_tokens { tokens(&request.resume_tokens, &shape)? } else { BTreeMap::new() };
        Ok(Self {
            clusters: request.clusters.into_iter().collect(),
            global: scopes.is_empty() || scopes.contains(&pb::Scope::Global),
            reserved: scopes.contains(&pb::Scope::Reserved),
            shape,
            min_interval: time("min_interval", request.min_interval, &MIN_INTERVAL)?.unwrap_or_default(),
            heartbeat: time("heartbeat_interval", request.heartbeat_interval, &HEARTBEAT)?.unwrap_or(DEFAULT_HEARTBEAT),
            start,
            wait_for,
            tokens,
            visible: Visible::All,
        })
    }

    /// For a subscriber that may see those clusters only; the first that it asked for and may not see is the error.
    pub(super) fn within(self, visible: Visible) -> Result<Self, Status> {
        match self.clusters.iter().find(|name| !visible.contains(name)) {
            Some(name) => Err(Status::permission_denied(format!(
                "clusters: the access policy does not show `{name}` to this client"
            ))),
            None => Ok(Self { visible, ..self }),
        }
    }

    /// The clusters that the request names.
    pub(super) fn named(&self) -> impl Iterator<Item = &str> {
        self.clusters.iter().map(String::as_str).filter(|_| self.global)
    }

    /// Whether the subscriber wants that cluster, and may see it.
    pub(super) fn wants(&self, cluster: &str) -> bool {
        self.global && (self.clusters.is_empty() || self.clusters.contains(cluster)) && self.visible.contains(cluster)
    }
}

/// What the subscriber holds. A token that is not understood is not an error: its cluster comes whole.
fn tokens(
    given: &HashMap<String, Vec<u8>>,
    shape: &Shape,
) -> Result<BTreeMap<String, Result<Token, TokenError>>, Status> {
    if given.len() > MAX_CLUSTERS {
        let rule = format!("{} are given, a mesh has at most {MAX_CLUSTERS} clusters", given.len());
        return Err(invalid("resume_tokens", &rule));
    }
    let filter = shape.fingerprint();
    let decoded = given.iter().map(|(cluster, token)| (cluster.clone(), Token::decode(token, cluster, filter)));
    Ok(decoded.collect())
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

    fn limits(plan: &Plan) -> FrameLimits {
        plan.shape.limits
    }

    fn plan(request: pb::SubscribeRequest) -> Result<Plan, String> {
        Plan::new(request, FrameLimits::default()).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn an_empty_request_is_the_servers_choice() {
        let plan = plan(pb::SubscribeRequest::default()).expect("valid");
        assert_eq!(limits(&plan), FrameLimits::default());
        assert_eq!((plan.min_interval, plan.heartbeat), (Duration::ZERO, DEFAULT_HEARTBEAT));
        assert!(plan.wants("any"));
    }

    #[test]
    fn limits_can_only_be_lowered() {
        let asked = pb::SubscribeRequest { max_items: 7, max_bytes: u32::MAX, ..Default::default() };
        assert_eq!(limits(&plan(asked).expect("valid")), FrameLimits { items: 7, ..FrameLimits::default() });
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
            (
                pb::SubscribeRequest { label_selector: "app in web".into(), ..Default::default() },
                "label_selector: expected `(` and values, found `w` at byte 7",
            ),
            (pb::SubscribeRequest { scopes: vec![1, 9], ..Default::default() }, "scopes[1]: no scope is 9"),
            (pb::SubscribeRequest { start: 9, ..Default::default() }, "start: no mode is 9"),
            (
                pb::SubscribeRequest {
                    resume_tokens: (0..600).map(|n| (format!("c{n}"), Vec::new())).collect(),
                    ..Default::default()
                },
                "resume_tokens: 600 are given, a mesh has at most 511 clusters",
            ),
        ] {
            assert_eq!(plan(request).map(drop), Err(message.to_owned()));
        }
    }
}
