//! `meshgate status`: is everything as it should be, and where not, since when, why and what to do.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::clusters::{ClusterOut, state_name, table};
use super::connection::{self, Connection};
use super::output::{BOLD, DIMMED, GREEN, Out, RED, Trouble, YELLOW, age};
use super::{DIFFERENT, block_on};
use crate::api::pb;
use crate::client::{ClientError, ClientOptions};

/// How often it is looked again while something is awaited.
const POLL: Duration = Duration::from_millis(500);
/// The same for somebody who watches.
const REFRESH: Duration = Duration::from_secs(2);
/// Fewer free numbers than this share of all is a problem.
const FEW: f64 = 0.1;

/// Shows the gateway, every cluster, the allocator and the subscribers, and what is not as it should be.
///
/// Exit codes: 0 everything is, 3 something is not, 1 the gateway cannot be reached, 2 wrong usage.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How it is printed
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Wait until everything is as it should be
    #[arg(long, conflicts_with = "watch")]
    wait: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "5m", requires = "wait", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Show it again every two seconds, until interrupted
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people
    Table,
    /// For programs: one document
    Json,
    /// The same as YAML
    Yaml,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    block_on(async { show(args).await.unwrap_or_else(Trouble::report) })
}

async fn show(args: &Args) -> Result<ExitCode, Trouble> {
    let options = args.connection.options()?;
    if args.watch {
        loop {
            let asked = ask(&options).await;
            let mut out = Out::new();
            // Home, and nothing below; where the output is no terminal, these bytes are left out.
            out.line("\x1b[H\x1b[J")?;
            match asked {
                Ok(status) => print(&status, args.output, &mut out)?,
                Err(error) => out.line(format_args!("{RED}{error}{RED:#}"))?,
            }
            out.flush()?;
            drop(out);
            sleep(REFRESH).await;
        }
    }
    let until = Instant::now() + args.timeout;
    let status = loop {
        let asked = ask(&options).await;
        let over = !args.wait || Instant::now() >= until;
        match asked {
            Ok(status) if over || problems(&status).is_empty() => break status,
            Err(error) if over || error.is_usage() => return Err(error.into()),
            Ok(_) | Err(_) => sleep(POLL).await,
        }
    };
    let mut out = Out::new();
    print(&status, args.output, &mut out)?;
    out.flush()?;
    Ok(if problems(&status).is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

async fn ask(options: &ClientOptions) -> Result<pb::GetStatusResponse, ClientError> {
    connection::ask(options, async |client| client.get_status(pb::GetStatusRequest {}).await).await
}

/// Something that is not as it should be.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Problem {
    /// Of what: `cluster b`, `allocator`.
    what: String,
    /// For how long, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    lasted: Option<String>,
    why: String,
    /// What to do, where it can be said.
    #[serde(skip_serializing_if = "String::is_empty")]
    hint: String,
}

impl Problem {
    fn new(what: impl Into<String>, why: impl Into<String>, hint: &str) -> Self {
        Self { what: what.into(), lasted: None, why: why.into(), hint: hint.to_owned() }
    }
}

/// All of them: everything that is printed goes by this.
fn problems(status: &pb::GetStatusResponse) -> Vec<Problem> {
    let mut problems = Vec::new();
    if status.stopping {
        problems.push(Problem::new("gateway", "it stops", ""));
    }
    for condition in &status.conditions {
        let lasted = condition.lasted.and_then(|lasted| Duration::try_from(lasted).ok());
        let lasted = lasted.map(|lasted| humantime::format_duration(Duration::from_secs(lasted.as_secs())).to_string());
        let waits = if condition.pending { "readiness waits for it" } else { "" };
        let why = match condition.why.as_str() {
            "" => waits.to_owned(),
            why => why.to_owned(),
        };
        problems.push(Problem { what: condition.name.clone(), lasted, why, hint: String::new() });
    }
    problems.extend(status.clusters.iter().filter_map(of_cluster));
    if let Some(allocator) = &status.allocator {
        let all = f64::from(allocator.free) + f64::from(allocator.used);
        if !allocator.listed {
            let why = "the first list of the cluster's identities is not in: nothing is allocated";
            problems.push(Problem::new("allocator", why, "see the own cluster's state"));
        } else if f64::from(allocator.free) < all * FEW {
            let why = format!("{} of {all} numbers are free", allocator.free);
            problems.push(Problem::new("allocator", why, "`meshgate gc --dry-run` lists what nobody uses"));
        }
    }
    for file in &status.unusable_files {
        let why = "the new file cannot be used; the last good one holds";
        problems.push(Problem::new(file.clone(), why, "the gateway's log says what is wrong with it"));
    }
    problems
}

fn of_cluster(cluster: &pb::ClusterInfo) -> Option<Problem> {
    if cluster.state() == pb::ClusterState::Synced && !cluster.stale {
        return None;
    }
    let state = state_name(cluster.state());
    let error = cluster.last_error.as_ref();
    let kept = match (cluster.revoked, cluster.stale) {
        (true, _) => "; its entries were withdrawn",
        (_, true) => "; shown as last known",
        _ => "",
    };
    Some(Problem {
        what: format!("cluster {}", cluster.name),
        lasted: cluster.unavailable_since.or(cluster.since).and_then(|since| age(since, SystemTime::now())),
        why: error.map_or_else(|| state.clone(), |error| format!("{state}: {}", error.message)) + kept,
        hint: error.map(|error| error.hint.clone()).unwrap_or_default(),
    })
}

/// The answer for programs.
#[derive(Debug, Serialize)]
struct StatusOut<'a> {
    healthy: bool,
    problems: Vec<Problem>,
    cluster: &'a str,
    version: &'a str,
    ready: bool,
    stopping: bool,
    clusters: Vec<ClusterOut<'a>>,
    allocator: Option<AllocatorOut>,
    subscriptions: SubscriptionsOut,
}

#[derive(Debug, Serialize)]
struct AllocatorOut {
    listed: bool,
    free: u32,
    leased: u32,
    used: u32,
    local_keys: u64,
    leases: u64,
    leased_keys: u64,
    collecting: bool,
}

#[derive(Debug, Serialize)]
struct SubscriptionsOut {
    open: u64,
    history_versions: u64,
    history_bytes: u64,
}

impl<'a> From<&'a pb::GetStatusResponse> for StatusOut<'a> {
    fn from(status: &'a pb::GetStatusResponse) -> Self {
        let problems = problems(status);
        let allocator =
            |&pb::AllocatorInfo { listed, free, leased, used, local_keys, leases, leased_keys, collecting }| {
                AllocatorOut { listed, free, leased, used, local_keys, leases, leased_keys, collecting }
            };
        let pb::SubscriptionsInfo { open, history_versions, history_bytes } = status.subscriptions.unwrap_or_default();
        Self {
            healthy: problems.is_empty(),
            problems,
            cluster: &status.cluster,
            version: &status.version,
            ready: status.ready,
            stopping: status.stopping,
            clusters: status.clusters.iter().map(ClusterOut::from).collect(),
            allocator: status.allocator.as_ref().map(allocator),
            subscriptions: SubscriptionsOut { open, history_versions, history_bytes },
        }
    }
}

fn print(status: &pb::GetStatusResponse, format: Format, out: &mut Out) -> Result<(), Trouble> {
    match format {
        Format::Json => Ok(out.json(&StatusOut::from(status))?),
        Format::Yaml => {
            let text = serde_saphyr::to_string(&StatusOut::from(status));
            let text = text.map_err(|error| Trouble::Failure(format!("cannot be written as YAML: {error}")))?;
            Ok(out.line(text.trim_end())?)
        }
        Format::Table => print_for_people(status, out),
    }
}

fn print_for_people(status: &pb::GetStatusResponse, out: &mut Out) -> Result<(), Trouble> {
    let pb::GetStatusResponse { cluster, version, ready, .. } = status;
    let problems = problems(status);
    let verdict = match (problems.len(), ready) {
        (0, _) => format!("{GREEN}healthy{GREEN:#}"),
        (_, true) => format!("{YELLOW}degraded{YELLOW:#}"),
        (_, false) => format!("{RED}not ready{RED:#}"),
    };
    out.line(format_args!("{BOLD}{cluster}{BOLD:#}  {verdict}  {DIMMED}meshgate {version}{DIMMED:#}"))?;
    for Problem { what, lasted, why, hint } in &problems {
        let lasted = lasted.as_ref().map(|lasted| format!(" {DIMMED}({lasted}){DIMMED:#}")).unwrap_or_default();
        out.line(format_args!("  {RED}✗{RED:#} {BOLD}{what}{BOLD:#}{lasted}: {why}"))?;
        if !hint.is_empty() {
            out.line(format_args!("    {hint}"))?;
        }
    }
    out.line("")?;
    for line in table(&status.clusters, false, SystemTime::now()).lines() {
        out.line(line.trim_end())?;
    }
    out.line("")?;
    if let Some(pb::AllocatorInfo { free, used, local_keys, leases, collecting, .. }) = status.allocator {
        let collects = if collecting { ", collects what nobody uses" } else { "" };
        out.line(format_args!(
            "{DIMMED}allocator{DIMMED:#}    {used} numbers used, {free} free; {local_keys} label sets in use here, on {leases} \
             leases{collects}"
        ))?;
    }
    let pb::SubscriptionsInfo { open, history_versions, history_bytes } = status.subscriptions.unwrap_or_default();
    Ok(out.line(format_args!(
        "{DIMMED}subscribers{DIMMED:#}  {open} streams; {history_versions} versions kept for those that come back, about {} KiB",
        history_bytes / 1024
    ))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> pb::GetStatusResponse {
        let synced =
            pb::ClusterInfo { name: "a".to_owned(), state: pb::ClusterState::Synced.into(), ..Default::default() };
        let allocator = pb::AllocatorInfo { listed: true, free: 65_000, used: 500, ..Default::default() };
        pb::GetStatusResponse { ready: true, clusters: vec![synced], allocator: Some(allocator), ..Default::default() }
    }

    type Harm = fn(&mut pb::GetStatusResponse);

    #[test]
    fn each_thing_that_is_wrong_is_a_problem() {
        assert_eq!(problems(&healthy()), []);
        let cases: [(Harm, &str); 8] = [
            (|status| status.stopping = true, "gateway: it stops"),
            (
                |status| {
                    let (name, why) = ("peers".to_owned(), "b (connecting)".to_owned());
                    status.conditions.push(pb::Condition { name, why, pending: true, lasted: None });
                },
                "peers: b (connecting)",
            ),
            (|status| status.clusters[0].set_state(pb::ClusterState::Refused), "cluster a: refused"),
            (|status| status.clusters[0].stale = true, "cluster a: synced; shown as last known"),
            (
                |status| {
                    let message = "no route".to_owned();
                    let error = pb::ClusterError { message, hint: "look there".to_owned(), ..Default::default() };
                    status.clusters[0].last_error = Some(error);
                    status.clusters[0].set_state(pb::ClusterState::Connecting);
                },
                "cluster a: connecting: no route",
            ),
            (
                |status| status.allocator.as_mut().unwrap().listed = false,
                "allocator: the first list of the cluster's identities is not in: nothing is allocated",
            ),
            (|status| status.allocator.as_mut().unwrap().free = 10, "allocator: 10 of 510 numbers are free"),
            (
                |status| status.unusable_files.push("access-policy".to_owned()),
                "access-policy: the new file cannot be used; the last good one holds",
            ),
        ];
        for (harm, told) in cases {
            let mut status = healthy();
            harm(&mut status);
            let problems = problems(&status);
            let words: Vec<_> = problems.iter().map(|problem| format!("{}: {}", problem.what, problem.why)).collect();
            assert_eq!(words, [told]);
            assert!(!StatusOut::from(&status).healthy);
        }
    }
}
