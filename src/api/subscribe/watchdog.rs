//! Looks after subscriptions whose clients do not read: lets go of what they hold, and cuts them in the end.
//!
//! A stream that its client does not read is not asked for frames, so it cannot notice anything by itself.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::session::Session;
use super::stream::lock;

/// How many looks there are in the time that a version is held.
const LOOKS: u32 = 8;
const SHORTEST_LOOK: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct Watched {
    session: Weak<Mutex<Session>>,
    /// Cuts the request off; the client sees a reset stream.
    cut: CancellationToken,
}

/// All open subscriptions.
#[derive(Debug, Default)]
pub(super) struct Watchdog(Mutex<Vec<Watched>>);

impl Watchdog {
    pub(super) fn add(&self, session: &Arc<Mutex<Session>>, cut: CancellationToken) {
        self.watched().push(Watched { session: Arc::downgrade(session), cut });
    }

    /// Never returns. `hold` is how long a version is held; a client that was given up has `goodbye` to read on, and hear
    /// why, before it is cut.
    pub(super) async fn run(&self, hold: Duration, goodbye: Duration) {
        loop {
            sleep((hold / LOOKS).max(SHORTEST_LOOK)).await;
            self.look(goodbye);
        }
    }

    fn look(&self, goodbye: Duration) {
        let now = Instant::now();
        self.watched().retain(|watched| {
            let Some(session) = watched.session.upgrade() else { return false };
            let given_up = lock(&session).give_up_if_too_slow(now);
            let cut = given_up.is_some_and(|since| since >= goodbye);
            if cut {
                watched.cut.cancel();
            }
            !cut
        });
    }

    fn watched(&self) -> std::sync::MutexGuard<'_, Vec<Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
