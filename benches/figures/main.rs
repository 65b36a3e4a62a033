//! What BENCHMARKS.md quotes. Prints a line a figure, `name value unit floor ratio target`, and writes the same as JSON to
//! `target/bench/summary.json`. `cargo bench --bench figures -- GROUP…` runs only the groups named.

#![expect(clippy::disallowed_methods, reason = "what is measured is real time")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts and ranks are small")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a program for a terminal")]

mod alloc;
mod fanout;
mod faults;
mod latency;
mod picture;
#[allow(dead_code, clippy::unwrap_used, reason = "the tests' proxy, of which tests use more")]
#[path = "../../tests/support/proxy.rs"]
mod proxy;
mod report;
mod spread;
mod sync;
mod view;

use std::error::Error;
use std::process::ExitCode;

use report::Report;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [child, config, prefix] = arguments.as_slice()
        && child == sync::CHILD
    {
        return sync::child(config.into(), prefix.clone()).await;
    }
    if arguments.first().is_some_and(|first| first == fanout::CHILD) {
        return fanout::child().await;
    }
    // `cargo bench` passes `--bench`; everything else names groups.
    let wanted: Vec<&str> = arguments.iter().map(String::as_str).filter(|name| !name.starts_with('-')).collect();
    let runs = |group| wanted.is_empty() || wanted.contains(&group);
    let mut report = Report::new();
    if runs("view") {
        view::run(&mut report)?;
    }
    if runs("sync") {
        sync::run(&mut report).await?;
    }
    if runs("picture") {
        picture::run(&mut report).await?;
    }
    if runs("latency") {
        latency::run(&mut report).await?;
    }
    if runs("alloc") {
        alloc::run(&mut report).await?;
    }
    if runs("fanout") {
        fanout::run(&mut report).await?;
        spread::run(&mut report).await?;
    }
    if runs("faults") {
        faults::run(&mut report).await?;
    }
    report.finish()?;
    Ok(())
}
