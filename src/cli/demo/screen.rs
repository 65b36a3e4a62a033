//! The live table: redrawn in place on a terminal, a plain line now and then elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, SystemTime};

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, presets};
use tokio::time::Instant;

use crate::telemetry::ClusterState;

/// Between two drawings on a terminal.
const FRAME: Duration = Duration::from_millis(250);
/// Between two plain lines.
const LINE: Duration = Duration::from_secs(2);

/// What is known of one cluster.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) id: u16,
    pub(super) local: bool,
    pub(super) state: ClusterState,
    /// Valid identities in the store.
    pub(super) stored: u64,
    /// Changes made in the store.
    pub(super) changes: u64,
    /// Identities that the gateway shows.
    pub(super) shown: u64,
    /// Identities that the subscriber has.
    pub(super) folded: u64,
    /// Entries that the gateway refused.
    pub(super) refused: u64,
    pub(super) last_event: Option<SystemTime>,
}

/// Where the table goes.
#[derive(Debug)]
pub(super) struct Screen {
    in_place: bool,
    /// Lines of the last drawing, to go back over.
    drawn: usize,
    start: Instant,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { in_place: std::io::stdout().is_terminal(), drawn: 0, start: Instant::now() }
    }

    /// How often to draw.
    pub(super) fn interval(&self) -> Duration {
        if self.in_place { FRAME } else { LINE }
    }

    /// Shows the rows. A terminal that has gone away is not worth an error: its signal ends us.
    pub(super) fn draw(&mut self, rows: &[Row]) {
        let text = if self.in_place { self.frame(rows) } else { line(rows, self.start.elapsed()) };
        let mut out = std::io::stdout().lock();
        // One write, so that no half-drawn table is seen.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    fn frame(&mut self, rows: &[Row]) -> String {
        let table = format!("{}\n{}\n", table(rows), footer(self.start.elapsed()));
        let up = if self.drawn > 0 { format!("\x1b[{}F", self.drawn) } else { String::new() };
        self.drawn = table.lines().count();
        // Up to the old drawing's first line, and wipe from there.
        format!("{up}\x1b[J{table}")
    }
}

fn footer(elapsed: Duration) -> String {
    format!("running for {}; Ctrl-C ends it and removes everything", humantime::format_duration(whole(elapsed)))
}

fn whole(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(
        [
            "cluster",
            "id",
            "state",
            "in its store",
            "changes",
            "in the gateway",
            "at the subscriber",
            "refused",
            "last change",
        ]
        .map(|title| Cell::new(title).add_attribute(Attribute::Bold)),
    );
    for row in rows {
        let name = if row.local { format!("{} (own)", row.name) } else { row.name.clone() };
        table.add_row(vec![
            Cell::new(name),
            number(u64::from(row.id)),
            Cell::new(row.state.name()).fg(colour(row.state)),
            number(row.stored),
            number(row.changes),
            number(row.shown),
            number(row.folded),
            number(row.refused),
            Cell::new(row.last_event.map_or_else(String::new, ago)).set_alignment(CellAlignment::Right),
        ]);
    }
    let sum = |of: fn(&Row) -> u64| number(rows.iter().map(of).sum());
    table.add_row(vec![
        Cell::new("mesh").add_attribute(Attribute::Bold),
        Cell::new(""),
        Cell::new(""),
        sum(|row| row.stored),
        sum(|row| row.changes),
        sum(|row| row.shown),
        sum(|row| row.folded),
        sum(|row| row.refused),
        Cell::new(""),
    ]);
    table
}

fn number(number: u64) -> Cell {
    Cell::new(number).set_alignment(CellAlignment::Right)
}

fn colour(state: ClusterState) -> Color {
    match state {
        ClusterState::Synced => Color::Green,
        ClusterState::Refused | ClusterState::Denied => Color::Red,
        _ => Color::Yellow,
    }
}

fn ago(time: SystemTime) -> String {
    // A clock that was set back shows as now.
    let age = time.elapsed().unwrap_or_default();
    if age < Duration::from_secs(10) {
        format!("{:.1} s ago", age.as_secs_f32())
    } else {
        format!("{} s ago", age.as_secs())
    }
}

/// `12s  frankfurt synced 400/400/400 | …`: store, gateway, subscriber.
fn line(rows: &[Row], elapsed: Duration) -> String {
    let clusters: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {}/{}/{}", row.name, row.state.name(), row.stored, row.shown, row.folded))
        .collect();
    format!("{:>4}s  {}\n", elapsed.as_secs(), clusters.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = Row {
            name: "frankfurt".to_owned(),
            id: 1,
            local: true,
            state: ClusterState::Synced,
            stored: 400,
            changes: 12,
            shown: 399,
            folded: 398,
            refused: 4,
            last_event: None,
        };
        vec![row.clone(), Row { name: "virginia".to_owned(), local: false, state: ClusterState::Listing, ..row }]
    }

    #[test]
    fn a_plain_line_tells_store_gateway_and_subscriber() {
        let said = line(&rows(), Duration::from_millis(12_300));
        assert_eq!(said, "  12s  frankfurt synced 400/399/398 | virginia listing 400/399/398\n");
    }

    #[test]
    fn a_frame_goes_back_over_the_one_before() {
        let mut screen = Screen { in_place: true, drawn: 0, start: Instant::now() };
        let first = screen.frame(&rows());
        assert!(first.starts_with("\x1b[J") && first.contains("798"), "{first}");
        let lines = first.lines().count();
        assert!(screen.frame(&rows()).starts_with(&format!("\x1b[{lines}F\x1b[J")));
    }
}
