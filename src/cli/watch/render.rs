//! Events as text for people and as objects for programs.

use std::collections::BTreeSet;
use std::io;
use std::time::SystemTime;

use serde::Serialize;

use crate::cli::output::{BOLD, DIMMED, GREEN, Out, RED, YELLOW, count};
use crate::client::{Change, Entry, Event, Update};

/// Prints events.
pub(super) trait Render {
    /// `quiet`: the changes in it are not wanted, only that it happened.
    fn event(&mut self, event: &Event, quiet: bool, out: &mut Out) -> io::Result<()>;
}

/// One line a change on standard output; what is said about the stream goes to standard error.
#[derive(Debug)]
pub(super) struct Text;

impl Render for Text {
    fn event(&mut self, event: &Event, quiet: bool, out: &mut Out) -> io::Result<()> {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let note = |text: String| anstream::eprintln!("{DIMMED}{time}  {text}{DIMMED:#}");
        match event {
            Event::Update(update) => match update {
                Update::Hello(hello) => {
                    note(format!("gateway of cluster {}, version {}", hello.cluster, hello.version));
                }
                Update::Synced { cluster, first, resumed, stale, changes } => {
                    if !quiet {
                        changes.iter().try_for_each(|change| line(&time, cluster, change, out))?;
                        out.flush()?;
                    }
                    let changed = changes.len() as u64;
                    let what = if *resumed {
                        "what was known holds".to_owned()
                    } else if *first {
                        count(changed, "identity", "identities")
                    } else {
                        format!("{} against what was known", count(changed, "change", "changes"))
                    };
                    let how = if *stale { "shown as last known" } else { "synced" };
                    note(format!("{cluster} is {how}: {what}"));
                }
                Update::Confirmed { cluster } => note(format!("{cluster} is synced: what is shown is in step")),
                Update::AllSynced { left_out, stale } => {
                    let without = [("without", left_out), ("as last known", stale)];
                    let but: Vec<_> = without.into_iter().filter(|(_, clusters)| !clusters.is_empty()).collect();
                    let but: Vec<_> =
                        but.iter().map(|(how, clusters)| format!("{how} {}", clusters.join(", "))).collect();
                    note(if but.is_empty() {
                        "all clusters are synced".into()
                    } else {
                        format!("synced, {}", but.join("; "))
                    });
                }
                Update::Changed { cluster, changes } => {
                    changes.iter().try_for_each(|change| line(&time, cluster, change, out))?;
                }
                Update::Removed { cluster, identities } => {
                    let identities = count(identities.len() as u64, "identity", "identities");
                    out.line(format_args!(
                        "{DIMMED}{time}{DIMMED:#}  {RED}-{RED:#} {BOLD}{cluster}{BOLD:#}  {RED}all of it, {identities}{RED:#}"
                    ))?;
                }
                Update::GoAway(go_away) => note(format!("the gateway sends us away: {}", go_away.message)),
                Update::Status(status) => {
                    let why = if status.why.is_empty() { "in step again" } else { &status.why };
                    note(format!("{}: {why}", status.cluster));
                }
                Update::Begun { .. } | Update::Loading { .. } | Update::Heartbeat(_) => {}
            },
            Event::Disconnected { why, retry_in } => {
                let retry_in = std::time::Duration::from_millis(retry_in.as_millis().try_into().unwrap_or(u64::MAX));
                note(format!("{why}; again in {}", humantime::format_duration(retry_in)));
            }
        }
        Ok(())
    }
}

fn line(time: &str, cluster: &str, change: &Change, out: &mut Out) -> io::Result<()> {
    let (sign, style) = match (&change.before, &change.after) {
        (None, _) => ('+', GREEN),
        (Some(_), Some(_)) => ('~', YELLOW),
        (Some(_), None) => ('-', RED),
    };
    let Some(entry) = change.after.as_ref().or(change.before.as_ref()) else { return Ok(()) };
    let labels = match (&change.before, &change.after) {
        (Some(before), Some(after)) => label_changes(before, after),
        _ => entry.labels.join(" "),
    };
    let number = entry.number;
    out.line(format_args!(
        "{DIMMED}{time}{DIMMED:#}  {style}{sign}{style:#} {BOLD}{cluster}{BOLD:#} {style}{number}{style:#}  {labels}"
    ))
}

/// What left, what came, and what stayed, in this order.
fn label_changes(before: &Entry, after: &Entry) -> String {
    let (old, new): (BTreeSet<_>, BTreeSet<_>) = (before.labels.iter().collect(), after.labels.iter().collect());
    let left = old.difference(&new).map(|label| format!("{RED}-{label}{RED:#}"));
    let came = new.difference(&old).map(|label| format!("{GREEN}+{label}{GREEN:#}"));
    let stayed = new.intersection(&old).map(|label| format!("{DIMMED}{label}{DIMMED:#}"));
    left.chain(came).chain(stayed).collect::<Vec<_>>().join(" ")
}

/// One object a line, all events.
#[derive(Debug)]
pub(super) struct Json;

/// An event for programs.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Object<'a> {
    Connected { instance: &'a str, cluster: &'a str, version: &'a str },
    Upserted { cluster: &'a str, number: u32, labels: &'a [String], before: Option<&'a [String]>, revision: i64 },
    Removed { cluster: &'a str, number: u32, before: &'a [String] },
    Synced { cluster: &'a str, changes: usize, stale: bool },
    Confirmed { cluster: &'a str },
    AllSynced { left_out: &'a [String], stale: &'a [String] },
    ClusterRemoved { cluster: &'a str, identities: usize },
    GoAway { message: &'a str },
    Status { cluster: &'a str, why: &'a str },
    Disconnected { why: String, retry_in_seconds: f64 },
}

impl Render for Json {
    fn event(&mut self, event: &Event, quiet: bool, out: &mut Out) -> io::Result<()> {
        match event {
            Event::Update(update) => match update {
                Update::Hello(hello) => out.json_line(&Object::Connected {
                    instance: &hello.instance,
                    cluster: &hello.cluster,
                    version: &hello.version,
                }),
                Update::Synced { cluster, changes, stale, .. } => {
                    if !quiet {
                        changes.iter().try_for_each(|change| object(cluster, change, out))?;
                    }
                    out.json_line(&Object::Synced { cluster, changes: changes.len(), stale: *stale })
                }
                Update::Confirmed { cluster } => out.json_line(&Object::Confirmed { cluster }),
                Update::AllSynced { left_out, stale } => out.json_line(&Object::AllSynced { left_out, stale }),
                Update::Changed { cluster, changes } => {
                    changes.iter().try_for_each(|change| object(cluster, change, out))
                }
                Update::Removed { cluster, identities } => {
                    out.json_line(&Object::ClusterRemoved { cluster, identities: identities.len() })
                }
                Update::GoAway(go_away) => out.json_line(&Object::GoAway { message: &go_away.message }),
                Update::Status(status) => out.json_line(&Object::Status { cluster: &status.cluster, why: &status.why }),
                Update::Begun { .. } | Update::Loading { .. } | Update::Heartbeat(_) => Ok(()),
            },
            Event::Disconnected { why, retry_in } => {
                out.json_line(&Object::Disconnected { why: why.to_string(), retry_in_seconds: retry_in.as_secs_f64() })
            }
        }
    }
}

fn object(cluster: &str, change: &Change, out: &mut Out) -> io::Result<()> {
    let before = change.before.as_ref().map(|entry| entry.labels.as_slice());
    match (&change.after, &change.before) {
        (Some(entry), _) => out.json_line(&Object::Upserted {
            cluster,
            number: entry.number,
            labels: &entry.labels,
            before,
            revision: entry.revision,
        }),
        (None, Some(entry)) => out.json_line(&Object::Removed { cluster, number: entry.number, before: &entry.labels }),
        (None, None) => Ok(()),
    }
}
