//! `meshgate clusters`: how each cluster of the mesh is doing, and what is wrong where something is.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::SystemTime;

use comfy_table::{Attribute, Cell, CellAlignment, Color, Table, presets};
use serde::Serialize;

use super::block_on;
use super::connection::{Connection, ask};
use super::output::{BOLD, DIMMED, Out, RED, Trouble, YELLOW, age, count, rfc3339, until};
use crate::api::pb;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people
    Table,
    /// The same, with revision, checksum, etcd, last event, last heartbeat and the certificate's end
    Wide,
    /// For programs: one document
    Json,
}

/// Shows the state of every cluster.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How it is printed
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    block_on(async { show(args).await.map_or_else(Trouble::report, |()| ExitCode::SUCCESS) })
}

async fn show(args: &Args) -> Result<(), Trouble> {
    let options = args.connection.options()?;
    let clusters = ask(&options, async |client| client.list_clusters(pb::ListClustersRequest {}).await).await?.clusters;
    let mut out = Out::new();
    match args.output {
        Format::Json => out.json(&clusters.iter().map(ClusterOut::from).collect::<Vec<_>>())?,
        Format::Table | Format::Wide => {
            let now = SystemTime::now();
            for line in table(&clusters, args.output == Format::Wide, now).lines() {
                out.line(line.trim_end())?;
            }
            for cluster in &clusters {
                details(cluster, now, &mut out)?;
            }
        }
    }
    Ok(out.flush()?)
}

const COLUMNS: [&str; 7] = ["CLUSTER", "ID", "STATE", "SINCE", "IDENTITIES", "REJECTED", "ENDPOINT"];
const WIDE_COLUMNS: [&str; 8] =
    ["STAGE", "FAILURES", "REVISION", "CHECKSUM", "ETCD", "LAST EVENT", "HEARTBEAT", "CERTIFICATE ENDS"];

pub(super) fn table(clusters: &[pb::ClusterInfo], wide: bool, now: SystemTime) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let columns = COLUMNS.into_iter().chain(WIDE_COLUMNS.into_iter().filter(|_| wide));
    table.set_header(columns.map(|name| Cell::new(name).add_attribute(Attribute::Bold)));
    for cluster in clusters {
        let name = if cluster.local { format!("{} (own)", cluster.name) } else { cluster.name.clone() };
        let id = if cluster.cluster_id == 0 { "-".to_owned() } else { cluster.cluster_id.to_string() };
        let since = cluster.since.and_then(|since| age(since, now)).unwrap_or_default();
        let number = |number: u64| Cell::new(number).set_alignment(CellAlignment::Right);
        let mut row = vec![
            Cell::new(name),
            Cell::new(id).set_alignment(CellAlignment::Right),
            Cell::new(shown_state(cluster)).fg(state_colour(cluster.state())),
            Cell::new(since),
            number(cluster.identities),
            number(cluster.rejects.values().sum()),
            Cell::new(&cluster.endpoint),
        ];
        if wide {
            row.extend(wide_cells(cluster, now));
        }
        table.add_row(row);
    }
    table
}

fn wide_cells(cluster: &pb::ClusterInfo, now: SystemTime) -> [Cell; WIDE_COLUMNS.len()] {
    let ago = |time: Option<prost_types::Timestamp>| {
        time.and_then(|time| age(time, now)).map_or_else(|| "-".to_owned(), |age| format!("{age} ago"))
    };
    let number = |number: String| Cell::new(number).set_alignment(CellAlignment::Right);
    let certificate = match cluster.certificate_expires {
        None => Cell::new("-"),
        Some(end) => match until(end, now) {
            Some(left) => Cell::new(format!("in {left}")),
            None => Cell::new("expired").fg(Color::DarkRed),
        },
    };
    let etcd = match cluster.etcd_cluster_id {
        0 => "-".to_owned(),
        id => format!("{id:x} {}", cluster.etcd_version),
    };
    [
        Cell::new(if cluster.stage.is_empty() { "-" } else { &cluster.stage }),
        number(cluster.failures.to_string()),
        number(cluster.revision.to_string()),
        Cell::new(format!("{:016x}", cluster.checksum)),
        Cell::new(etcd),
        Cell::new(ago(cluster.last_event)),
        Cell::new(ago(cluster.last_heartbeat)),
        certificate,
    ]
}

/// What an operator has to know beyond the table.
fn details(cluster: &pb::ClusterInfo, now: SystemTime, out: &mut Out) -> Result<(), Trouble> {
    let name = &cluster.name;
    // The error of a session that was replaced since is history.
    if let Some(error) = cluster.last_error.as_ref().filter(|_| cluster.state() != pb::ClusterState::Synced) {
        let ago = error.at.and_then(|at| age(at, now)).unwrap_or_default();
        let failures = count(cluster.failures, "failure", "failures");
        out.line(format_args!(
            "\n{BOLD}{name}{BOLD:#}: {RED}{}{RED:#} {DIMMED}({}, {ago} ago, {failures} in all){DIMMED:#}",
            error.message, error.reason
        ))?;
        if !error.hint.is_empty() {
            out.line(format_args!("  {}", error.hint))?;
        }
    }
    let out_of_step = cluster.unavailable_since.and_then(|since| age(since, now)).unwrap_or_default();
    if cluster.stale {
        let kept = cluster.picture_kept.and_then(|kept| age(kept, now)).unwrap_or_default();
        out.line(format_args!(
            "\n{BOLD}{name}{BOLD:#}: {YELLOW}shown as last known{YELLOW:#}, kept {kept} ago; out of step for {out_of_step}"
        ))?;
    }
    if cluster.revoked {
        out.line(format_args!(
            "\n{BOLD}{name}{BOLD:#}: {RED}its entries were withdrawn{RED:#}, after peer-ttl; out of step for {out_of_step}"
        ))?;
    }
    if !cluster.picture_trouble.is_empty() {
        out.line(format_args!("\n{BOLD}{name}{BOLD:#}: {YELLOW}picture{YELLOW:#}: {}", cluster.picture_trouble))?;
    }
    if !cluster.rejects.is_empty() {
        let mut reasons: Vec<_> = cluster.rejects.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        reasons.sort_unstable();
        let entries = count(cluster.rejects.values().sum(), "entry", "entries");
        out.line(format_args!("\n{BOLD}{name}{BOLD:#}: {YELLOW}{entries} refused{YELLOW:#} ({})", reasons.join(", ")))?;
        for example in &cluster.reject_examples {
            out.line(format_args!("  {}  {DIMMED}{}{DIMMED:#}", example.key, example.detail))?;
        }
    }
    Ok(())
}

const fn state_colour(state: pb::ClusterState) -> Color {
    match state {
        pb::ClusterState::Synced => Color::DarkGreen,
        pb::ClusterState::Refused | pb::ClusterState::Denied => Color::DarkRed,
        _ => Color::DarkYellow,
    }
}

/// The state, and what it does not say of what is held.
fn shown_state(cluster: &pb::ClusterInfo) -> String {
    let state = state_name(cluster.state());
    match (cluster.stale, cluster.revoked) {
        (true, _) => format!("{state}, stale"),
        (_, true) => format!("{state}, revoked"),
        _ => state,
    }
}

/// `CLUSTER_STATE_AWAITING_CANARY` as the metrics name it: `awaiting-canary`.
pub(super) fn state_name(state: pb::ClusterState) -> String {
    state.as_str_name().trim_start_matches("CLUSTER_STATE_").to_ascii_lowercase().replace('_', "-")
}

/// A cluster for programs. What JSON's numbers cannot hold is written in hexadecimal.
#[derive(Debug, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "the fields are the API's")]
pub(super) struct ClusterOut<'a> {
    name: &'a str,
    cluster_id: u32,
    local: bool,
    state: String,
    since: Option<String>,
    stage: &'a str,
    endpoint: &'a str,
    etcd_cluster_id: String,
    etcd_version: &'a str,
    revision: i64,
    identities: u64,
    checksum: String,
    synced_once: bool,
    failures: u64,
    last_error: Option<ErrorOut<'a>>,
    rejects: BTreeMap<&'a str, u64>,
    reject_examples: Vec<RejectOut<'a>>,
    last_event: Option<String>,
    last_heartbeat: Option<String>,
    heartbeat_moved: Option<String>,
    certificate_expires: Option<String>,
    session: u64,
    last_audit: Option<String>,
    audit_repairs: u64,
    stale: bool,
    unavailable_since: Option<String>,
    revoked: bool,
    picture_kept: Option<String>,
    picture_trouble: &'a str,
}

#[derive(Debug, Serialize)]
struct ErrorOut<'a> {
    reason: &'a str,
    message: &'a str,
    hint: &'a str,
    at: Option<String>,
}

#[derive(Debug, Serialize)]
struct RejectOut<'a> {
    reason: &'a str,
    key: &'a str,
    detail: &'a str,
    at: Option<String>,
}

impl<'a> From<&'a pb::ClusterInfo> for ClusterOut<'a> {
    fn from(info: &'a pb::ClusterInfo) -> Self {
        Self {
            name: &info.name,
            cluster_id: info.cluster_id,
            local: info.local,
            state: state_name(info.state()),
            since: info.since.and_then(rfc3339),
            stage: &info.stage,
            endpoint: &info.endpoint,
            etcd_cluster_id: format!("{:016x}", info.etcd_cluster_id),
            etcd_version: &info.etcd_version,
            revision: info.revision,
            identities: info.identities,
            checksum: format!("{:016x}", info.checksum),
            synced_once: info.synced_once,
            failures: info.failures,
            last_error: info.last_error.as_ref().map(|error| ErrorOut {
                reason: &error.reason,
                message: &error.message,
                hint: &error.hint,
                at: error.at.and_then(rfc3339),
            }),
            rejects: info.rejects.iter().map(|(reason, count)| (reason.as_str(), *count)).collect(),
            reject_examples: info
                .reject_examples
                .iter()
                .map(|example| RejectOut {
                    reason: &example.reason,
                    key: &example.key,
                    detail: &example.detail,
                    at: example.at.and_then(rfc3339),
                })
                .collect(),
            last_event: info.last_event.and_then(rfc3339),
            last_heartbeat: info.last_heartbeat.and_then(rfc3339),
            heartbeat_moved: info.heartbeat_moved.and_then(rfc3339),
            certificate_expires: info.certificate_expires.and_then(rfc3339),
            session: info.session,
            last_audit: info.last_audit.and_then(rfc3339),
            audit_repairs: info.audit_repairs,
            stale: info.stale,
            unavailable_since: info.unavailable_since.and_then(rfc3339),
            revoked: info.revoked,
            picture_kept: info.picture_kept.and_then(rfc3339),
            picture_trouble: &info.picture_trouble,
        }
    }
}
