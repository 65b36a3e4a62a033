//! What BENCHMARKS.md quotes. Prints a line a figure, `name value unit floor ratio target`, and writes the same as JSON to
//! `target/bench/summary.json`. `cargo bench -- NAME…` runs only the groups named.

mod alloc;
mod report;
mod view;

use std::process::ExitCode;

use report::Report;

fn main() -> ExitCode {
    // `cargo bench` passes `--bench`; everything else names groups.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runs = |group: &str| wanted.is_empty() || wanted.iter().any(|name| name == group);
    let mut report = Report::new();
    if runs("view") {
        view::run(&mut report);
    }
    if runs("alloc") {
        alloc::run(&mut report);
    }
    match report.finish() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the summary could not be written: {error}");
            ExitCode::FAILURE
        }
    }
}
