//! The way from a peer's file to its identities.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;

use super::{Outcome, PeerReport, Stage, certificates};
use crate::identity::{ClusterName, IdentityRange};
use crate::kvstore::{self, Connector, EtcdConfig, Reads, Session, SessionError, Timing};
use crate::mirror::{Admission, Failure, RejectTally, layout};
use crate::peer::Us;
use crate::peer::state::{Plan, Reading, Verdict, decide};

/// Identities that are looked at.
const PAGE: i64 = 1_000;
/// Cilium writes a heartbeat each minute; readers think it lost after two.
const HEARTBEAT_AGE: Duration = Duration::from_mins(2);

/// What peers are judged by.
#[derive(Clone, Debug)]
pub struct Context {
    /// Our own cluster.
    pub us: Us,
    /// Deadlines of each stage.
    pub timing: Timing,
    /// Look at files only.
    pub offline: bool,
}

/// Walks over one peer. Takes no longer than the deadlines of its stages together.
pub async fn walk(name: &ClusterName, config: &Result<EtcdConfig, Failure>, context: &Context) -> PeerReport {
    let mut report = PeerReport::new(name.as_str());
    let config = match config {
        Ok(config) => config,
        Err(failure) => {
            report.add(Stage::File, None, Outcome::Failed(failure.clone()), Duration::ZERO);
            report.skip_from(Stage::Certificates);
            return report;
        }
    };
    let endpoints = config.endpoints.len();
    let found = format!("{endpoints} {}", if endpoints == 1 { "endpoint" } else { "endpoints" });
    report.add(Stage::File, None, Outcome::Passed(found), Duration::ZERO);
    let (since, files) = (Instant::now(), config.clone());
    let looked = tokio::task::spawn_blocking(move || certificates::look(&files)).await;
    let looked = looked.unwrap_or_else(|error| Outcome::Failed(internal(&error.to_string())));
    let unusable = matches!(looked, Outcome::Failed(_));
    report.add(Stage::Certificates, None, looked, since.elapsed());
    if unusable || context.offline {
        report.skip_from(Stage::Resolve);
        return report;
    }
    let mut session = None;
    for endpoint in &config.endpoints {
        let opened = connect(config, endpoint, context, &mut report).await;
        // The others are looked at as well: which of them are dead is what one wants to know.
        session = session.or(opened);
    }
    match session {
        Some(session) => look_inside(name, &session, context, &mut report).await,
        None => report.skip_from(Stage::ClusterConfig),
    }
    report
}

fn internal(error: &str) -> Failure {
    Failure { reason: "internal", message: error.to_owned(), hint: "tell us".to_owned() }
}

const fn stage_of(stage: kvstore::Stage) -> Stage {
    match stage {
        kvstore::Stage::Certificates => Stage::Certificates,
        kvstore::Stage::Resolve => Stage::Resolve,
        kvstore::Stage::Dial => Stage::Dial,
        kvstore::Stage::Tls => Stage::Tls,
        kvstore::Stage::FirstCall => Stage::Etcd,
    }
}

/// One endpoint, by itself.
async fn connect(config: &EtcdConfig, endpoint: &str, context: &Context, report: &mut PeerReport) -> Option<Session> {
    let connector = Connector::new(alone(config, endpoint), context.timing.clone());
    let begun = Mutex::new(vec![]);
    let told = |stage: kvstore::Stage, _: &str| {
        if let Ok(mut begun) = begun.lock() {
            begun.push((stage_of(stage), Instant::now()));
        }
    };
    let connected = connector.connect(&told).await;
    let end = Instant::now();
    let begun = begun.into_inner().unwrap_or_default();
    let failure = connected.as_ref().err();
    let failed_at = failure.map(|error| stage_of(error.stage()));
    for stage in [Stage::Resolve, Stage::Dial, Stage::Tls, Stage::Etcd] {
        // A name with several addresses comes to a stage several times.
        let first = begun.iter().position(|(begun, _)| *begun == stage);
        let next = first.and_then(|first| begun[first..].iter().find(|(begun, _)| *begun != stage));
        let took = first.map_or(Duration::ZERO, |first| next.map_or(end, |(_, at)| *at) - begun[first].1);
        let outcome = match (&connected, failed_at) {
            (Err(error), Some(at)) if at == stage => Outcome::Failed(Failure::from(error)),
            (_, Some(at)) if stage > at || first.is_none() => Outcome::Skipped,
            (Ok(session), _) => Outcome::Passed(found_at(stage, session)),
            (Err(_), _) => Outcome::Passed(String::new()),
        };
        let is_plain = stage == Stage::Tls && first.is_none() && failed_at.is_none();
        let outcome = if is_plain { Outcome::Passed("plain text, on this machine".to_owned()) } else { outcome };
        report.add(stage, Some(endpoint), outcome, took);
    }
    connected.ok()
}

/// The configuration of one endpoint. Aliases of the other endpoints' hosts would be of no endpoint's, which is refused.
fn alone(config: &EtcdConfig, endpoint: &str) -> EtcdConfig {
    let mut alone = EtcdConfig { endpoints: vec![endpoint.to_owned()], ..config.clone() };
    for (host, addresses) in std::mem::take(&mut alone.host_aliases) {
        let with_it = EtcdConfig { host_aliases: [(host.clone(), addresses.clone())].into(), ..alone.clone() };
        if with_it.check().is_ok() {
            alone.host_aliases.insert(host, addresses);
        }
    }
    alone
}

fn found_at(stage: Stage, session: &Session) -> String {
    match stage {
        Stage::Resolve | Stage::Dial => session.address().to_string(),
        Stage::Tls => match session.certificate() {
            Some(leaf) => format!("we are {}", leaf.names().first().unwrap_or(&leaf.subject)),
            None => String::new(),
        },
        _ => {
            let (id, revision) = (session.etcd_cluster_id(), session.revision());
            let version = session.version().unwrap_or("of no version");
            format!("etcd {version}, cluster {id:x}, with a quorum, at revision {revision}")
        }
    }
}

/// What the store says.
async fn look_inside(name: &ClusterName, session: &Session, context: &Context, report: &mut PeerReport) {
    let since = Instant::now();
    let plan = match read_config(name, session, context).await {
        Ok(plan) => plan,
        Err(failure) => {
            report.add(Stage::ClusterConfig, None, Outcome::Failed(failure), since.elapsed());
            report.skip_from(Stage::ClusterId);
            return;
        }
    };
    let cached = if plan.prefix == layout::state_ids() { "" } else { ", read from a cache" };
    let canaries = if plan.canary.is_some() { ", says when it is complete" } else { "" };
    let found = format!("ID {}{cached}{canaries}", plan.id);
    report.add(Stage::ClusterConfig, None, Outcome::Passed(found), since.elapsed());
    report.id = Some(plan.id);
    // Judged when all peers are known.
    report.add(Stage::ClusterId, None, Outcome::Skipped, Duration::ZERO);

    let since = Instant::now();
    let canary = canary(&plan, session).await;
    report.add(Stage::Canary, None, canary, since.elapsed());
    let since = Instant::now();
    let heartbeat = heartbeat(session).await;
    report.add(Stage::Heartbeat, None, heartbeat, since.elapsed());
    let since = Instant::now();
    let identities = identities(name, &plan, session, context).await;
    report.add(Stage::Identities, None, identities, since.elapsed());
}

async fn read_config(name: &ClusterName, session: &Session, context: &Context) -> Result<Plan, Failure> {
    let key = layout::cluster_config_key(name);
    let (value, _) = session.get(key.as_bytes()).await.map_err(|error| Failure::from(&error))?;
    let reading = Reading::of(value.as_ref().map(|entry| entry.value.as_ref()));
    match decide(&reading, &context.us, name, None).verdict {
        Verdict::Follow(plan) => Ok(plan),
        Verdict::Wait(failure) => Err(failure),
        Verdict::Refuse(error) => {
            Err(Failure { reason: error.reason(), message: error.to_string(), hint: error.hint() })
        }
    }
}

async fn canary(plan: &Plan, session: &Session) -> Outcome {
    let Some(key) = &plan.canary else {
        return Outcome::Passed("this peer has none: what is there counts as complete".to_owned());
    };
    match session.get(key.as_bytes()).await {
        Ok((Some(_), _)) => Outcome::Passed("its identities are complete".to_owned()),
        Ok((None, _)) => Outcome::Failed(Failure {
            reason: "canary-missing",
            message: format!("the peer has not said yet that its identities are complete: no key {key}"),
            hint: "normal while its clustermesh-apiserver fills a new etcd; otherwise look at that server's log".into(),
        }),
        Err(error) => Outcome::Failed(Failure::from(&error)),
    }
}

async fn heartbeat(session: &Session) -> Outcome {
    let hint = "look at whoever writes that store: the clustermesh-apiserver, or the cluster's operator".to_owned();
    let warned = |message: String| Outcome::Warned(Failure { reason: "heartbeat-stale", message, hint: hint.clone() });
    let value = match session.get(layout::HEARTBEAT_KEY.as_bytes()).await {
        Ok((value, _)) => value,
        Err(SessionError::Denied(_)) => {
            return warned("we may not read it, so a store that stands still looks alive".into());
        }
        Err(error) => return Outcome::Failed(Failure::from(&error)),
    };
    let Some(value) = value else { return warned(format!("there is no key {}", layout::HEARTBEAT_KEY)) };
    let written = std::str::from_utf8(&value.value).ok().and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok());
    let Some(written) = written.map(SystemTime::from) else {
        return warned("its value is no time".to_owned());
    };
    let age = SystemTime::now().duration_since(written).unwrap_or_default();
    let shown = humantime::format_duration(Duration::from_secs(age.as_secs()));
    if age > HEARTBEAT_AGE {
        warned(format!("it was written {shown} ago, by its writer's clock"))
    } else {
        Outcome::Passed(format!("written {shown} ago"))
    }
}

async fn identities(name: &ClusterName, plan: &Plan, session: &Session, context: &Context) -> Outcome {
    let prefix = plan.prefix.as_bytes();
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        // A prefix ends in `/`.
        *last += 1;
    }
    let page = match session.list_page(prefix, &end, PAGE, 0, Reads::Linearizable).await {
        Ok(page) => page,
        Err(error) => return Outcome::Failed(Failure::from(&error)),
    };
    let admission = Admission::peer(IdentityRange::of(plan.id, context.us.width), name.clone());
    let (mut accepted, mut refused) = (0_usize, RejectTally::default());
    for entry in &page.entries {
        let suffix = entry.key.strip_prefix(prefix).unwrap_or_default();
        match admission.number(suffix).and_then(|_| admission.key_string(&entry.value)) {
            Ok(_) => accepted += 1,
            Err(reject) => refused.add(&entry.key, &reject),
        }
    }
    let among = if page.more { format!(" among the first {PAGE}") } else { String::new() };
    let Some(example) = refused.examples().first() else {
        return Outcome::Passed(format!("{accepted} identities{among}, all of them its own"));
    };
    let reasons: Vec<_> = refused.counts().map(|(reason, count)| format!("{count} {}", reason.name())).collect();
    Outcome::Warned(Failure {
        reason: "entries-refused",
        message: format!(
            "{accepted} identities{among} are its own, {} are not to be shown ({}); such as {}: {}",
            refused.total(),
            reasons.join(", "),
            example.key,
            example.detail
        ),
        hint: "tell that cluster's operators; often two clusters have one ID or one name".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_alone_keeps_its_own_aliases() {
        let yaml = "endpoints: ['https://a.mesh:1', 'https://aa.mesh:1']\ntrusted-ca-file: ca\n\
                    host-aliases: {a.mesh: [10.0.0.1], aa.mesh: [10.0.0.2]}";
        let config = EtcdConfig::from_yaml_str(yaml, std::path::Path::new("/")).unwrap();
        for (endpoint, host) in [("https://a.mesh:1", "a.mesh"), ("https://aa.mesh:1", "aa.mesh")] {
            let alone = alone(&config, endpoint);
            assert_eq!(alone.check(), Ok(()));
            assert_eq!(alone.host_aliases.keys().collect::<Vec<_>>(), [host]);
        }
    }
}
