//! The progress bar that stands on standard error while snapshots load.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::client::{Event, Update};

/// One bar for all clusters that load; invisible where standard error is no terminal.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Received and expected, of each cluster that loads.
    loading: BTreeMap<String, (u64, u64)>,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(super) fn see(&mut self, event: &Event) {
        match event {
            Event::Update(Update::Begun { cluster, expected }) => {
                self.loading.insert(cluster.clone(), (0, *expected));
            }
            Event::Update(Update::Loading { cluster, received: now }) => {
                if let Some((received, expected)) = self.loading.get_mut(cluster) {
                    *received = *now;
                    // A list that is still running grows while it is told.
                    *expected = (*expected).max(*now);
                }
            }
            Event::Update(Update::Synced { cluster, .. } | Update::Removed { cluster, .. }) => {
                self.loading.remove(cluster);
            }
            Event::Disconnected { .. } => self.loading.clear(),
            Event::Update(_) => return,
        }
        self.draw();
    }

    fn draw(&mut self) {
        if self.loading.is_empty() {
            if let Some(bar) = self.bar.take() {
                bar.finish_and_clear();
            }
            return;
        }
        let (received, expected) = self.loading.values().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let template = "{bar:30} {human_pos} of {human_len} identities, {msg}";
            // The template is a constant; if it were wrong, the default would do.
            bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_length(expected);
        bar.set_position(received);
        bar.set_message(self.loading.keys().map(String::as_str).collect::<Vec<_>>().join(", "));
    }

    /// Prints without the bar in between.
    pub(super) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
