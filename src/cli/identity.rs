//! `meshgate identity list|get`: who has which number.

use std::collections::BTreeMap;
use std::process::ExitCode;

use tonic::Code;

use super::block_on;
use super::connection::Connection;
use super::output::{BOLD, DIMMED, Format, IdentityOut, Out, Trouble};
use super::watch;
use crate::api::pb;
use crate::client::{ClientError, Event, Subscription, SubscriptionOptions, Update, connect};
use crate::identity::NumericIdentity;

/// Shows identities of the mesh.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Lists identities, ascending by number.
    List(ListArgs),
    /// Shows one identity, by its number or by its labels.
    Get(GetArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only this cluster's; may be repeated
    #[arg(long, value_name = "NAME")]
    cluster: Vec<String>,
    /// Only those with these labels, in Kubernetes' syntax: `app=web,tier in (a,b),!k8s:legacy`
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    selector: String,
    /// Go on with every change as it comes, as `meshgate watch` does
    #[arg(short, long, conflicts_with = "output")]
    watch: bool,
    /// How it is printed
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, clap::Args)]
struct GetArgs {
    /// A number, or all labels of one identity, each source:key=value, in any order
    #[arg(required = true, value_name = "NUMBER|LABEL")]
    what: Vec<String>,
    /// How it is printed
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    block_on(async {
        let done = match &args.command {
            Command::List(args) => list(args).await,
            Command::Get(args) => get(args).await,
        };
        done.map_or_else(Trouble::report, |()| ExitCode::SUCCESS)
    })
}

async fn list(args: &ListArgs) -> Result<(), Trouble> {
    let request = pb::SubscribeRequest {
        clusters: args.cluster.clone(),
        label_selector: args.selector.clone(),
        ..Default::default()
    };
    let options = SubscriptionOptions { gateways: args.connection.gateways()?, request, state: None };
    let mut subscription = Subscription::open_with(options).await?;
    let incomplete = complete(&mut subscription, &args.cluster).await?;

    let mesh = subscription.mesh();
    let mut all: BTreeMap<u32, _> = BTreeMap::new();
    for (name, cluster) in mesh {
        all.extend(cluster.identities.iter().map(|(number, entry)| (*number, (name, entry))));
    }
    let mut out = Out::new();
    match args.output {
        Format::Json => {
            let identities = all.values().map(|(cluster, entry)| IdentityOut {
                number: entry.number,
                cluster,
                labels: &entry.labels,
                revision: entry.revision,
            });
            out.json(&identities.collect::<Vec<_>>())?;
        }
        Format::Table => {
            let width = mesh.keys().map(String::len).max().unwrap_or_default().max("CLUSTER".len());
            out.line(format_args!("{BOLD}{:<10}  {:<width$}  LABELS{BOLD:#}", "NUMBER", "CLUSTER"))?;
            for (number, (cluster, entry)) in all {
                out.line(format_args!("{number:<10}  {cluster:<width$}  {}", entry.labels.join(" ")))?;
            }
        }
    }
    out.flush()?;
    for (name, _) in mesh.iter().filter(|(_, cluster)| cluster.stale) {
        anstream::eprintln!("{DIMMED}as last known: {name}{DIMMED:#}");
    }
    for mode in incomplete {
        anstream::eprintln!("{DIMMED}left out: {} ({}){DIMMED:#}", mode.cluster, mode.why);
    }
    if args.watch { watch::follow_as_text(&mut subscription).await } else { Ok(()) }
}

/// Waits until every cluster that the gateway itself has is here; returns those that it has not.
async fn complete(subscription: &mut Subscription, asked: &[String]) -> Result<Vec<pb::ClusterMode>, Trouble> {
    let mut hello: Option<Vec<pb::ClusterMode>> = None;
    loop {
        match subscription.next().await {
            Event::Update(Update::Hello(told)) => hello = Some(told.clusters),
            Event::Update(_) => {}
            Event::Disconnected { why, .. } => return Err(why.into()),
        }
        let Some(modes) = &hello else { continue };
        let has = |mode: &&pb::ClusterMode| mode.mode() == pb::ServeMode::Snapshot;
        if modes.iter().filter(has).all(|mode| subscription.mesh().contains_key(&mode.cluster)) {
            let missing: Vec<_> = modes.iter().filter(|mode| !has(mode)).cloned().collect();
            // What was asked for by name is either shown or an error.
            return match missing.iter().find(|mode| asked.contains(&mode.cluster)) {
                Some(mode) => Err(Trouble::Failure(format!(
                    "cluster {}: {}; `meshgate clusters` shows all",
                    mode.cluster, mode.why
                ))),
                None => Ok(missing),
            };
        }
    }
}

async fn get(args: &GetArgs) -> Result<(), Trouble> {
    let options = args.connection.options()?;
    let mut client = connect(&options).await?;
    let answer = match args.what.as_slice() {
        [one] if !one.contains([':', '=']) => {
            let number = NumericIdentity::parse_user_input(one).map_err(|error| {
                Trouble::Usage(format!("`{one}`: {error}; give a number, or labels, each source:key=value"))
            })?;
            let request = pb::GetIdentityRequest { number: number.get() };
            client.get_identity(request).await.map(|answer| answer.into_inner().identity)
        }
        labels => {
            let request = pb::LookupByLabelsRequest { labels: labels.to_vec() };
            client.lookup_by_labels(request).await.map(|answer| answer.into_inner().identity)
        }
    };
    let identity = match answer {
        Ok(identity) => identity.unwrap_or_default(),
        Err(status) if status.code() == Code::NotFound => return Err(Trouble::Failure(status.message().to_owned())),
        Err(status) => return Err(ClientError::of_status(&options.address, &status).into()),
    };
    show(&identity, args.output)
}

fn show(identity: &pb::Identity, format: Format) -> Result<(), Trouble> {
    let pb::Identity { number, labels, cluster, revision } = identity;
    let mut out = Out::new();
    match format {
        Format::Json => out.json(&IdentityOut { number: *number, cluster, labels, revision: *revision })?,
        Format::Table => {
            let name = NumericIdentity::new(*number).reserved_name().map(|name| format!(" (reserved: {name})"));
            out.line(format_args!("{BOLD}{number}{BOLD:#}{}", name.unwrap_or_default()))?;
            if !cluster.is_empty() {
                out.line(format_args!("{DIMMED}cluster{DIMMED:#}   {cluster}"))?;
                out.line(format_args!("{DIMMED}revision{DIMMED:#}  {revision}"))?;
            }
            for (at, label) in labels.iter().enumerate() {
                out.line(format_args!("{DIMMED}{:<8}{DIMMED:#}  {label}", if at == 0 { "labels" } else { "" }))?;
            }
        }
    }
    Ok(out.flush()?)
}
