//! `meshgate watch`: every change of the mesh, as it comes.

mod progress;
mod render;

use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;

use super::block_on;
use super::connection::Connection;
use super::output::{Out, Trouble};
use crate::api::pb;
use crate::client::{Event, Subscription, SubscriptionOptions, Update};
use progress::Progress;
use render::{Json, Render, Text};

/// Prints changes as they come.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only these clusters; may be repeated
    #[arg(long, value_name = "NAME")]
    cluster: Vec<String>,
    /// Print what is there already, too
    #[arg(long)]
    snapshot: bool,
    /// Only identities with these labels, in Kubernetes' syntax: `app=web,tier in (a,b),!k8s:legacy`
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    selector: String,
    /// Keep what is known in this file, and print what changed since when it is read again
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// How it is printed
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people: `+` new, `~` other labels, `-` gone
    Text,
    /// For programs: one object a line
    Json,
}

/// Runs the command until it is interrupted.
pub(super) fn run(args: &Args) -> ExitCode {
    block_on(async { watch(args).await.map_or_else(Trouble::report, |()| ExitCode::SUCCESS) })
}

async fn watch(args: &Args) -> Result<(), Trouble> {
    let request = pb::SubscribeRequest {
        clusters: args.cluster.clone(),
        label_selector: args.selector.clone(),
        ..Default::default()
    };
    let options = SubscriptionOptions { gateways: args.connection.gateways()?, request, state: args.state.clone() };
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    let mut subscription = tokio::select! {
        // First of all, so that it is caught from the beginning.
        biased;
        _ = &mut interrupted => return Ok(()),
        opened = Subscription::open_with(options) => opened?,
    };
    let mut render: Box<dyn Render> = match args.output {
        Format::Text => Box::new(Text),
        Format::Json => Box::new(Json),
    };
    tokio::select! {
        biased;
        // The progress bar goes, and whoever started us sees that nothing went wrong.
        _ = &mut interrupted => {}
        followed = follow(&mut subscription, &mut *render, !args.snapshot) => followed?,
    }
    subscription.save().await.map_err(|error| Trouble::Failure(format!("--state: {error}")))
}

/// Prints each change as text when it comes, but not what was there before.
pub(super) async fn follow_as_text(subscription: &mut Subscription) -> Result<(), Trouble> {
    follow(subscription, &mut Text, true).await
}

/// Prints each event when it comes; `quiet` leaves first snapshots out.
async fn follow(subscription: &mut Subscription, render: &mut dyn Render, quiet: bool) -> Result<(), Trouble> {
    let mut progress = Progress::default();
    let mut out = Out::new();
    loop {
        let event = subscription.next().await;
        progress.see(&event);
        let quiet = quiet && matches!(&event, Event::Update(Update::Synced { first: true, .. }));
        progress.suspend(|| {
            render.event(&event, quiet, &mut out)?;
            // Whoever reads gets each event when it comes.
            out.flush()
        })?;
    }
}
