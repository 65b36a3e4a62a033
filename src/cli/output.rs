//! How answers look: formats, colours, and a standard output that may be closed at any time.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use serde::Serialize;

use super::{FAILURE, USAGE, fail};
use crate::client::ClientError;

pub(super) const BOLD: Style = Style::new().bold();
pub(super) const DIMMED: Style = Style::new().dimmed();
pub(super) const GREEN: Style = AnsiColor::Green.on_default();
pub(super) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(super) const RED: Style = AnsiColor::Red.on_default();

/// For commands that answer and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// For people
    Table,
    /// For programs: one document
    Json,
}

/// Why a command ends early.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Whoever read our output has enough: `meshgate … | head`.
    Closed,
    /// The command line asks for what cannot be.
    Usage(String),
    /// Everything else.
    Failure(String),
}

impl Trouble {
    /// Says it, and turns it into the exit code.
    pub(super) fn report(self) -> ExitCode {
        match self {
            Self::Closed => ExitCode::SUCCESS,
            Self::Usage(what) => fail(USAGE, &what),
            Self::Failure(what) => fail(FAILURE, &what),
        }
    }
}

impl From<ClientError> for Trouble {
    fn from(error: ClientError) -> Self {
        if error.is_usage() { Self::Usage(error.to_string()) } else { Self::Failure(error.to_string()) }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Failure(format!("cannot write to standard output: {error}")),
        }
    }
}

/// Standard output: colours where it is a terminal that wants them, buffered until it is flushed or dropped.
pub(super) struct Out(io::BufWriter<AutoStream<io::Stdout>>);

impl Out {
    pub(super) fn new() -> Self {
        Self(io::BufWriter::new(anstream::stdout()))
    }

    pub(super) fn line(&mut self, line: impl fmt::Display) -> io::Result<()> {
        writeln!(self.0, "{line}")
    }

    /// One compact document on a line.
    pub(super) fn json_line(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.0, value)?;
        writeln!(self.0)
    }

    /// One document for programs that people look at too.
    pub(super) fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut self.0, value)?;
        writeln!(self.0)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// An identity for programs.
#[derive(Debug, Serialize)]
pub(super) struct IdentityOut<'a> {
    pub(super) number: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) cluster: &'a str,
    pub(super) labels: &'a [String],
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) revision: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// `2026-11-30T09:30:00Z`; `None` for a moment that no calendar has.
pub(super) fn rfc3339(time: prost_types::Timestamp) -> Option<String> {
    Some(humantime::format_rfc3339_millis(moment(time)?).to_string())
}

/// How long ago, in the largest unit and the next one.
pub(super) fn age(time: prost_types::Timestamp, now: SystemTime) -> Option<String> {
    Some(rounded(now.duration_since(moment(time)?).unwrap_or_default()))
}

/// How long it is until a moment; none once it has come.
pub(super) fn until(time: prost_types::Timestamp, now: SystemTime) -> Option<String> {
    Some(rounded(moment(time)?.duration_since(now).ok()?))
}

/// To what matters: nobody needs the seconds of a day.
fn rounded(time: Duration) -> String {
    let unit = match time.as_secs() {
        0..3_600 => 1,
        3_600..86_400 => 60,
        _ => 3_600,
    };
    humantime::format_duration(Duration::from_secs(time.as_secs() / unit * unit)).to_string()
}

fn moment(time: prost_types::Timestamp) -> Option<SystemTime> {
    SystemTime::try_from(time).ok()
}

/// One or several, as English has it.
pub(super) fn count(number: u64, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}
