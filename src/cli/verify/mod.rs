//! `meshgate verify`: whether a gateway, its subscribers and the clusters' own gateways hold the same.

mod compare;
mod sides;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{Attribute, Cell, CellAlignment, Color, Table, presets};
use serde::Serialize;
use tokio::time::Instant;

use self::compare::Difference;
use self::sides::{Compared, Sides};
use super::connection::Connection;
use super::output::{BOLD, DIMMED, Format, Out, RED, Trouble, count};
use super::{DIFFERENT, FAILURE, block_on};
use crate::api::pb;
use crate::client::ClientOptions;
use crate::identity::ClusterName;
use crate::peer::directory;

/// Compares what a gateway holds of each cluster with what that cluster's own gateway holds, and with what a subscriber is
/// told.
///
/// Exit codes: 0 all are equal, 3 some are different, 1 some could not be compared, 2 wrong usage.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A cluster's own gateway; may be repeated
    #[arg(long, value_name = "CLUSTER=HOST:PORT", value_parser = named)]
    gateway: Vec<(String, String)>,
    /// Directory of the peers' files; those with `meshgate-gateway: HOST:PORT` say where the cluster's own gateway is
    #[arg(long, env = "MESHGATE_CLUSTERMESH_CONFIG", value_name = "DIRECTORY")]
    clustermesh_config: Option<PathBuf>,
    /// How long two pictures may differ, since changes are on their way
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    within: Duration,
    /// Different identities that are named, of each cluster
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    limit: usize,
    /// How it is printed
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    #[command(flatten)]
    connection: Connection,
}

fn named(text: &str) -> Result<(String, String), String> {
    let (name, address) = text.split_once('=').ok_or("write CLUSTER=HOST:PORT")?;
    ClusterName::new(name).map_err(|error| format!("`{name}`: {error}"))?;
    Ok((name.to_owned(), address.to_owned()))
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    block_on(async { verify(args).await.unwrap_or_else(Trouble::report) })
}

async fn verify(args: &Args) -> Result<ExitCode, Trouble> {
    let options = args.connection.options()?;
    let mut addresses = match &args.clustermesh_config {
        Some(directory) => of_directory(directory)?,
        None => BTreeMap::new(),
    };
    addresses.extend(args.gateway.iter().cloned());
    let own = addresses.iter().map(|(name, address)| {
        let options = ClientOptions { address: address.clone(), security: options.security.clone() };
        (name.clone(), options)
    });
    let mut sides = Sides::open(options.clone(), own.collect()).await?;
    let clusters = sides.compare(Instant::now() + args.within).await?;
    let mut outcomes = Vec::new();
    for info in &clusters {
        let subscriber = sides.subscriber(info).await?;
        outcomes.push(Outcome::new(info, addresses.get(&info.name), subscriber, sides.results.remove(&info.name)));
    }
    // Asked for by name, and our gateway knows nothing of it.
    for cluster in std::mem::take(&mut sides.results).into_keys() {
        let why = "our gateway has no such cluster".to_owned();
        outcomes.push(Outcome::missing(cluster, why));
    }
    show(args, &outcomes)?;
    Ok(match () {
        () if outcomes.iter().any(Outcome::is_different) => ExitCode::from(DIFFERENT),
        () if outcomes.iter().any(Outcome::is_unknown) => ExitCode::from(FAILURE),
        () => ExitCode::SUCCESS,
    })
}

/// The addresses in the peers' files.
fn of_directory(directory: &Path) -> Result<BTreeMap<String, String>, Trouble> {
    let unreadable = |error| Trouble::Usage(format!("--clustermesh-config {}: {error}", directory.display()));
    let picture = directory::look(directory, None).map_err(unreadable)?;
    let addresses = picture.peers.into_iter().filter_map(|(name, file)| {
        let gateway = file.config.as_ref().ok()?.gateway.clone()?;
        Some((name.to_string(), gateway))
    });
    Ok(addresses.collect())
}

/// What came of one cluster.
#[derive(Debug, Serialize)]
struct Outcome {
    cluster: String,
    state: String,
    identities: u64,
    checksum: String,
    subscriber: Verdict,
    /// Absent where nobody said where it is.
    own_gateway: Option<Verdict>,
    own_gateway_address: Option<String>,
}

/// One comparison, for programs.
#[derive(Debug, Serialize)]
struct Verdict {
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differences: Vec<Difference>,
}

impl From<Compared> for Verdict {
    fn from(compared: Compared) -> Self {
        match compared {
            Compared::Equal => Self { result: "equal", why: None, differences: Vec::new() },
            Compared::Differs(found) => {
                Self { result: "different", why: None, differences: found.into_iter().collect() }
            }
            Compared::Unknown(why) => Self { result: "unknown", why: Some(why), differences: Vec::new() },
        }
    }
}

impl Outcome {
    fn new(
        info: &pb::ClusterInfo,
        address: Option<&String>,
        subscriber: Compared,
        own_gateway: Option<Compared>,
    ) -> Self {
        Self {
            cluster: info.name.clone(),
            state: super::clusters::state_name(info.state()),
            identities: info.identities,
            checksum: format!("{:016x}", info.checksum),
            subscriber: subscriber.into(),
            own_gateway: own_gateway.map(Verdict::from),
            own_gateway_address: address.cloned(),
        }
    }

    fn missing(cluster: String, why: String) -> Self {
        let subscriber = Compared::Unknown(why).into();
        let (state, checksum) = ("absent".to_owned(), String::new());
        Self { cluster, state, identities: 0, checksum, subscriber, own_gateway: None, own_gateway_address: None }
    }

    fn verdicts(&self) -> impl Iterator<Item = (&'static str, &Verdict)> {
        [("a subscriber", Some(&self.subscriber)), ("the cluster's own gateway", self.own_gateway.as_ref())]
            .into_iter()
            .filter_map(|(who, verdict)| Some((who, verdict?)))
    }

    fn is_different(&self) -> bool {
        self.verdicts().any(|(_, verdict)| verdict.result == "different")
    }

    fn is_unknown(&self) -> bool {
        self.verdicts().any(|(_, verdict)| verdict.result == "unknown")
    }
}

fn show(args: &Args, outcomes: &[Outcome]) -> Result<(), Trouble> {
    let mut out = Out::new();
    if args.output == Format::Json {
        out.json(&outcomes)?;
        return Ok(out.flush()?);
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let columns = ["CLUSTER", "STATE", "IDENTITIES", "CHECKSUM", "SUBSCRIBER", "OWN GATEWAY", "ADDRESS"];
    table.set_header(columns.map(|name| Cell::new(name).add_attribute(Attribute::Bold)));
    let verdict = |verdict: Option<&Verdict>| {
        let result = verdict.map_or("-", |verdict| verdict.result);
        let colour = match result {
            "equal" => Color::DarkGreen,
            "different" => Color::DarkRed,
            _ => Color::DarkYellow,
        };
        Cell::new(result).fg(colour)
    };
    for outcome in outcomes {
        table.add_row([
            Cell::new(&outcome.cluster),
            Cell::new(&outcome.state),
            Cell::new(outcome.identities).set_alignment(CellAlignment::Right),
            Cell::new(&outcome.checksum),
            verdict(Some(&outcome.subscriber)),
            verdict(outcome.own_gateway.as_ref()),
            Cell::new(outcome.own_gateway_address.as_deref().unwrap_or("-")),
        ]);
    }
    for line in table.lines() {
        out.line(line.trim_end())?;
    }
    for outcome in outcomes {
        for (who, verdict) in outcome.verdicts() {
            details(&outcome.cluster, who, verdict, args.limit, &mut out)?;
        }
    }
    Ok(out.flush()?)
}

fn details(cluster: &str, who: &str, verdict: &Verdict, limit: usize, out: &mut Out) -> Result<(), Trouble> {
    if let Some(why) = &verdict.why {
        out.line(format_args!("\n{BOLD}{cluster}{BOLD:#}: not compared with {who}: {why}"))?;
    }
    if verdict.result == "different" {
        let how_many = match verdict.differences.len() as u64 {
            0 => "count or checksum".to_owned(),
            number => count(number, "identity", "identities"),
        };
        out.line(format_args!("\n{BOLD}{cluster}{BOLD:#}: {RED}{how_many} not as {who} has it{RED:#}"))?;
    }
    let labels =
        |labels: &Option<Vec<String>>| labels.as_ref().map_or_else(|| "nothing".to_owned(), |labels| labels.join(" "));
    for Difference { number, here, there } in verdict.differences.iter().take(limit) {
        out.line(format_args!("  {number}"))?;
        out.line(format_args!("    {DIMMED}here{DIMMED:#}   {}", labels(here)))?;
        out.line(format_args!("    {DIMMED}there{DIMMED:#}  {}", labels(there)))?;
    }
    if verdict.differences.len() > limit {
        out.line(format_args!("  and {} more; --limit shows them", verdict.differences.len() - limit))?;
    }
    Ok(())
}
