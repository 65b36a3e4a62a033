//! `meshgate watch`: every change of the mesh, as it comes.

mod progress;
mod render;

use std::process::ExitCode;

use super::block_on;
use super::connection::Connection;
use super::output::{Out, Trouble};
use crate::api::pb;
use crate::client::{Event, Subscription, Update};
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
    block_on(async {
        tokio::select! {
            watched = watch(args) => watched.map_or_else(Trouble::report, |()| ExitCode::SUCCESS),
            // The progress bar goes, and whoever started us sees that nothing went wrong.
            _ = tokio::signal::ctrl_c() => ExitCode::SUCCESS,
        }
    })
}

async fn watch(args: &Args) -> Result<(), Trouble> {
    let request = pb::SubscribeRequest { clusters: args.cluster.clone(), ..Default::default() };
    let mut subscription = Subscription::open(args.connection.options()?, request).await?;
    let mut render: Box<dyn Render> = match args.output {
        Format::Text => Box::new(Text),
        Format::Json => Box::new(Json),
    };
    let mut progress = Progress::default();
    let mut out = Out::new();
    loop {
        let event = subscription.next().await;
        progress.see(&event);
        let quiet = matches!(&event, Event::Update(Update::Synced { first: true, .. })) && !args.snapshot;
        progress.suspend(|| {
            render.event(&event, quiet, &mut out)?;
            // Whoever reads gets each event when it comes.
            out.flush()
        })?;
    }
}
