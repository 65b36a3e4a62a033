//! `meshgate subscribers`: who has acknowledged what, and who is behind. Needs the role admin.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::SystemTime;

use serde::Serialize;

use super::block_on;
use super::connection::{Connection, ask};
use super::output::{BOLD, DIMMED, Format, Out, Trouble, YELLOW, age, rfc3339};
use crate::api::pb;
use crate::client::MeshClient;

/// Shows subscribers that acknowledge, and of each cluster whether they have applied what the gateway has.
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
    let question = async |client: &mut MeshClient| client.list_subscribers(pb::ListSubscribersRequest {}).await;
    let subscribers = ask(&options, question).await?.subscribers;
    let mut out = Out::new();
    if args.output == Format::Json {
        out.json(&subscribers.iter().map(SubscriberOut::from).collect::<Vec<_>>())?;
        return Ok(out.flush()?);
    }
    let now = SystemTime::now();
    let width = |of: &dyn Fn(&pb::SubscriberInfo) -> usize, title: &str| {
        subscribers.iter().map(of).max().unwrap_or_default().max(title.len())
    };
    let (name, peer) = (
        width(&|info| info.subscriber.chars().count(), "SUBSCRIBER"),
        width(&|info| info.peer.chars().count(), "CLIENT"),
    );
    out.line(format_args!(
        "{BOLD}{:<name$}  {:<peer$}  {:>12}  BEHIND{BOLD:#}",
        "SUBSCRIBER", "CLIENT", "ACKNOWLEDGED"
    ))?;
    for info in &subscribers {
        let ago = info.acknowledged_at.and_then(|at| age(at, now)).map(|age| format!("{age} ago")).unwrap_or_default();
        let behind: Vec<_> =
            info.clusters.iter().filter(|cluster| !cluster.current).map(|c| c.cluster.as_str()).collect();
        let behind = if behind.is_empty() { "-".to_owned() } else { behind.join(", ") };
        out.line(format_args!("{:<name$}  {:<peer$}  {ago:>12}  {behind}", info.subscriber, info.peer))?;
        for pb::Rejected { number, reason } in &info.rejected {
            out.line(format_args!("  {YELLOW}not applied{YELLOW:#}  {number}  {DIMMED}{reason}{DIMMED:#}"))?;
        }
    }
    Ok(out.flush()?)
}

/// A subscriber for programs.
#[derive(Debug, Serialize)]
struct SubscriberOut<'a> {
    subscriber: &'a str,
    client: &'a str,
    acknowledged_at: Option<String>,
    clusters: BTreeMap<&'a str, AppliedOut>,
    rejected: BTreeMap<u32, &'a str>,
}

#[derive(Debug, Serialize)]
struct AppliedOut {
    current: bool,
    revision: i64,
}

impl<'a> From<&'a pb::SubscriberInfo> for SubscriberOut<'a> {
    fn from(info: &'a pb::SubscriberInfo) -> Self {
        let applied = |cluster: &'a pb::AppliedCluster| {
            let revision = cluster.position.as_ref().map_or(0, |position| position.revision);
            (cluster.cluster.as_str(), AppliedOut { current: cluster.current, revision })
        };
        Self {
            subscriber: &info.subscriber,
            client: &info.peer,
            acknowledged_at: info.acknowledged_at.and_then(rfc3339),
            clusters: info.clusters.iter().map(applied).collect(),
            rejected: info.rejected.iter().map(|rejected| (rejected.number, rejected.reason.as_str())).collect(),
        }
    }
}
