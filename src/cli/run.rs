//! `meshgate run`: configuration, logs, the gateway, signals.

use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{FAILURE, USAGE, block_on, fail};
use crate::config::{Config, Environment, Flags};
use crate::gateway::{Gateway, Running, TaskEnded, raise_descriptor_limit};
use crate::telemetry::logging;

/// Flags beat `MESHGATE_*` variables, which beat the file given with --config, which beats the defaults.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    flags: Flags,
}

/// Exit codes: 0 stopped by a signal, 1 failed, 2 wrong configuration.
pub fn run(args: Args) -> ExitCode {
    let config = match Config::load(args.flags, &Environment::of_process()) {
        Ok(config) => config,
        Err(error) => return fail(USAGE, &error),
    };
    if let Err(error) = logging::init(config.log_format, &config.log_filter) {
        return fail(FAILURE, &format_args!("cannot start logging: {error}"));
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), settings = config.summary(), "starting");
    match raise_descriptor_limit() {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "the limit on open files stays as it is"),
    }
    block_on(gateway(config))
}

async fn gateway(config: Config) -> ExitCode {
    // Before anything else, so that a signal during the start is not one that kills.
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => return fail(FAILURE, &format_args!("cannot receive signals: {error}")),
    };
    let mut running = match Gateway::start(config).await {
        Ok(running) => running,
        Err(error) => return fail(if error.is_configuration() { USAGE } else { FAILURE }, &error),
    };
    let ended = tokio::select! {
        ended = running.done() => Some(ended),
        name = signals.next() => {
            tracing::info!(signal = name, "stopping; another signal stops at once");
            running.shutdown();
            drain(&mut running, &mut signals).await
        }
    };
    match ended {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => fail(FAILURE, &error),
        None => fail(FAILURE, &"stopped at once by a second signal"),
    }
}

/// `None` when a second signal cuts it short.
async fn drain(running: &mut Running, signals: &mut Signals) -> Option<Result<(), TaskEnded>> {
    tokio::select! {
        ended = running.done() => Some(ended),
        _ = signals.next() => None,
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
