//! The command line: one file a subcommand. Prints; turns results into exit codes.

mod certs;
mod clusters;
mod connection;
mod demo;
mod gc;
mod identity;
mod output;
mod run;
mod status;
mod subscribers;
mod troubleshoot;
mod verify;
mod watch;

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// Meshgate: one merged, live picture of every cluster's security identities.
#[derive(Debug, Parser)]
#[command(name = "meshgate", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the gateway.
    Run(run::Args),
    /// Prints every change of the mesh as it comes.
    Watch(watch::Args),
    /// Shows identities.
    Identity(identity::Args),
    /// Shows whether everything is as it should be.
    Status(status::Args),
    /// Shows how each cluster of the mesh is doing.
    Clusters(clusters::Args),
    /// Shows subscribers that acknowledge, and who is behind.
    Subscribers(subscribers::Args),
    /// Compares what gateways and subscribers hold of each cluster.
    Verify(verify::Args),
    /// Finds out what is wrong with a peer; needs no gateway.
    Troubleshoot(troubleshoot::Args),
    /// Deletes identities of this cluster that nobody uses.
    Gc(gc::Args),
    /// Makes development certificates.
    Certs(certs::Args),
    /// Starts three clusters on this machine and shows the mesh live.
    Demo(demo::Args),
}

/// Something failed, in the world or in us.
const FAILURE: u8 = 1;
/// It worked, and found what should not be.
const DIFFERENT: u8 = 3;
/// The command line or the configuration is wrong; clap uses the same.
const USAGE: u8 = 2;

/// Runs the command line.
#[must_use]
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::Watch(args) => watch::run(&args),
        Command::Identity(args) => identity::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Clusters(args) => clusters::run(&args),
        Command::Subscribers(args) => subscribers::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Troubleshoot(args) => troubleshoot::run(args),
        Command::Gc(args) => gc::run(args),
        Command::Certs(args) => certs::run(&args),
        Command::Demo(args) => demo::run(&args),
    }
}

/// Prints `error: …`, once for each line, and returns the code.
fn fail(code: u8, error: &dyn std::fmt::Display) -> ExitCode {
    let style = anstyle::Style::new().bold().fg_color(Some(anstyle::AnsiColor::Red.into()));
    for line in error.to_string().lines() {
        anstream::eprintln!("{style}error{style:#}: {line}");
    }
    ExitCode::from(code)
}

/// Runs a subcommand to its end on a runtime of its own.
fn block_on(command: impl Future<Output = ExitCode>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(FAILURE, &format_args!("cannot start the runtime: {error}")),
    };
    let code = runtime.block_on(command);
    // A name that is being resolved holds a thread, which nothing can interrupt.
    runtime.shutdown_timeout(Duration::from_millis(100));
    code
}
