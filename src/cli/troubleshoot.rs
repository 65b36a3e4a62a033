//! `meshgate troubleshoot`: what is wrong with a peer, step by step. Needs no gateway that runs.

use std::process::ExitCode;

use futures_util::StreamExt as _;
use futures_util::stream;
use serde::Serialize;

use super::output::{BOLD, DIMMED, Format, GREEN, Out, RED, Trouble, YELLOW};
use super::{DIFFERENT, USAGE, block_on, fail};
use crate::config::{ClusterConfig, Config, Environment, Flags, StoresConfig};
use crate::identity::ClusterName;
use crate::mirror::Failure;
use crate::peer::{Us, directory};
use crate::troubleshoot::{Check, Context, Outcome, PeerReport, conflicts, is_wanted, walk};

/// Peers that are looked at at a time.
const AT_ONCE: usize = 16;

/// Walks from each peer's file to its identities, and says what is wrong where, and what to do. Takes the same settings as
/// `meshgate run`, of which it needs the cluster's and the stores'.
///
/// Exit codes: 0 nothing is wrong, 3 something is, 2 wrong usage or configuration.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only these peers
    #[arg(value_name = "PEER")]
    peers: Vec<String>,
    /// Look at the files only, not at the network
    #[arg(long)]
    offline: bool,
    /// How it is printed
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    #[command(flatten)]
    flags: Flags,
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    let Args { peers, offline, output, flags } = args;
    let (cluster, stores) = match Config::load_stores(flags, &Environment::of_process()) {
        Ok(config) => config,
        Err(error) => return fail(USAGE, &error),
    };
    block_on(async { examine(&peers, offline, output, cluster, stores).await.unwrap_or_else(Trouble::report) })
}

async fn examine(
    peers: &[String],
    offline: bool,
    output: Format,
    cluster: ClusterConfig,
    stores: StoresConfig,
) -> Result<ExitCode, Trouble> {
    let asked = peers.iter().map(|name| {
        ClusterName::new(name).map_err(|error| Trouble::Usage(format!("`{name}` is no cluster's name: {error}")))
    });
    let asked: Vec<_> = asked.collect::<Result<_, _>>()?;
    let Some(folder) = &stores.peers else {
        return Err(Trouble::Usage(
            "there are no peers: give --clustermesh-config, the directory of their files".into(),
        ));
    };
    let ClusterConfig { name, id, width } = cluster;
    let picture = directory::look(folder, Some(&name));
    let picture = picture.map_err(|error| Trouble::Usage(format!("{}: {error}", folder.display())))?;
    let known = |asked: &&ClusterName| !picture.peers.contains_key(*asked);
    if let Some(unknown) = asked.iter().find(known) {
        return Err(Trouble::Usage(format!("there is no peer {unknown}: {} has no such file", folder.display())));
    }
    let context = Context { us: Us { name, id, width }, timing: stores.timing, offline };
    // All of them, whoever was asked for: only so is it seen that two have one ID.
    let walks = picture.peers.iter().filter(|(name, _)| !offline || is_wanted(&asked, name.as_str()));
    let mut reports: Vec<PeerReport> =
        stream::iter(walks).map(|(name, file)| walk(name, &file.config, &context)).buffered(AT_ONCE).collect().await;
    conflicts(&mut reports);
    reports.extend(picture.misnamed.iter().map(|(name, failure)| PeerReport::misnamed(name, failure.clone())));
    reports.retain(|report| is_wanted(&asked, &report.name));
    let mut out = Out::new();
    match output {
        Format::Json => out.json(&reports.iter().map(PeerOut::from).collect::<Vec<_>>())?,
        Format::Table => reports.iter().try_for_each(|report| print(report, &mut out))?,
    }
    out.flush()?;
    Ok(if reports.iter().all(PeerReport::is_clean) { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

fn print(report: &PeerReport, out: &mut Out) -> Result<(), Trouble> {
    out.line(format_args!("{BOLD}{}{BOLD:#}", report.name))?;
    let mut at = None;
    for Check { stage, endpoint, outcome, took } in &report.checks {
        if endpoint != &at {
            if let Some(endpoint) = endpoint {
                out.line(format_args!("  {DIMMED}{endpoint}{DIMMED:#}"))?;
            }
            at.clone_from(endpoint);
        }
        let indent = if endpoint.is_some() { "    " } else { "  " };
        let stage = stage.name();
        match outcome {
            Outcome::Passed(found) => {
                let took = match took.as_millis() {
                    0 => String::new(),
                    millis => format!(" {DIMMED}{millis} ms{DIMMED:#}"),
                };
                out.line(format_args!("{indent}{GREEN}✓{GREEN:#} {stage:<14} {found}{took}"))?;
            }
            Outcome::Skipped => out.line(format_args!("{indent}{DIMMED}– {stage:<14} not looked at{DIMMED:#}"))?,
            Outcome::Warned(failure) => {
                out.line(format_args!("{indent}{YELLOW}!{YELLOW:#} {stage:<14} {}", failure.message))?;
                out.line(format_args!("{indent}  {:<14} {}", "", failure.hint))?;
            }
            Outcome::Failed(failure) => {
                out.line(format_args!("{indent}{RED}✗{RED:#} {stage:<14} {}", failure.message))?;
                out.line(format_args!("{indent}  {:<14} {}", "", failure.hint))?;
            }
        }
    }
    Ok(out.line("")?)
}

/// A peer for programs.
#[derive(Debug, Serialize)]
struct PeerOut<'a> {
    peer: &'a str,
    clean: bool,
    checks: Vec<CheckOut<'a>>,
}

#[derive(Debug, Serialize)]
struct CheckOut<'a> {
    stage: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<&'a str>,
    outcome: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    found: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    hint: &'a str,
    milliseconds: u64,
}

impl<'a> From<&'a PeerReport> for PeerOut<'a> {
    fn from(report: &'a PeerReport) -> Self {
        let checks = report.checks.iter().map(|Check { stage, endpoint, outcome, took }| {
            let told = |failure: &'a Failure| (failure.message.as_str(), Some(failure.reason), failure.hint.as_str());
            let (outcome, (found, reason, hint)) = match outcome {
                Outcome::Passed(found) => ("passed", (found.as_str(), None, "")),
                Outcome::Warned(failure) => ("warned", told(failure)),
                Outcome::Failed(failure) => ("failed", told(failure)),
                Outcome::Skipped => ("skipped", ("", None, "")),
            };
            let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            let endpoint = endpoint.as_deref();
            CheckOut { stage: stage.name(), endpoint, outcome, found, reason, hint, milliseconds }
        });
        Self { peer: &report.name, clean: report.is_clean(), checks: checks.collect() }
    }
}
