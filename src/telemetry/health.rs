//! Readiness as a set of named guards: what is still awaited is visible, by name, with the time it has waited.
//!
//! Liveness is not here: the process is alive when its HTTP server answers at all, whatever any store or peer does.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Says in plain words what a guard is waiting for, at the moment it is asked.
type Why = Box<dyn Fn() -> String + Send + Sync>;

/// Whether traffic may come; cheap to clone.
///
/// Ready once every guard ever taken is done, and until [`Readiness::stop`]. A guard once done stays done: a store that
/// goes away later is a matter of status, not a reason to take the gateway away from its subscribers.
#[derive(Clone)]
pub struct Readiness(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    ready: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    /// By number, which rises: the order in which they were taken.
    guards: BTreeMap<u64, Entry>,
    taken: u64,
    stopping: bool,
}

struct Entry {
    name: &'static str,
    since: Instant,
    /// How long it took, once done.
    took: Option<Duration>,
    why: Option<Why>,
    /// It is shown, and hinders nothing.
    concern: bool,
}

impl State {
    fn ready(&self) -> bool {
        !self.stopping && self.guards.values().all(|guard| guard.concern || guard.took.is_some())
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), ready: watch::Sender::new(true) }))
    }
}

impl Readiness {
    /// Not ready before the guard is done. Take all guards before the server that shows them runs.
    pub fn guard(&self, name: &'static str) -> Guard {
        self.take(name, None, false)
    }

    /// The same, with a text that is made anew whenever somebody asks why it takes so long.
    pub fn guard_with(&self, name: &'static str, why: impl Fn() -> String + Send + Sync + 'static) -> Guard {
        self.take(name, Some(Box::new(why)), false)
    }

    /// Shows something that is not as it should be, until the guard is dropped, and is no reason to keep traffic away.
    pub fn concern(&self, name: &'static str, why: impl Fn() -> String + Send + Sync + 'static) -> Guard {
        self.take(name, Some(Box::new(why)), true)
    }

    fn take(&self, name: &'static str, why: Option<Why>, concern: bool) -> Guard {
        let number = self.change(|state| {
            state.taken += 1;
            state.guards.insert(state.taken, Entry { name, since: Instant::now(), took: None, why, concern });
            state.taken
        });
        Guard { readiness: self.clone(), number }
    }

    /// Not ready any more, for good: the gateway stops.
    pub fn stop(&self) {
        self.change(|state| state.stopping = true);
    }

    /// Follows readiness; the gRPC health service does.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<bool> {
        self.0.ready.subscribe()
    }

    /// How it stands now.
    #[must_use]
    pub fn report(&self) -> Report {
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let guards = state.guards.values().map(|guard| GuardReport {
            name: guard.name,
            done: guard.took.is_some(),
            concern: guard.concern,
            waited: guard.took.unwrap_or_else(|| guard.since.elapsed()),
            why: guard.why.as_ref().filter(|_| guard.took.is_none()).map_or_else(String::new, |why| why()),
        });
        Report { ready: state.ready(), stopping: state.stopping, guards: guards.collect() }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        let ready = state.ready();
        self.0.ready.send_if_modified(|shown| std::mem::replace(shown, ready) != ready);
        result
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Readiness").field(&self.report()).finish()
    }
}

/// Something that readiness waits for, until this is dropped.
#[derive(Debug)]
#[must_use = "readiness waits only for as long as the guard lives"]
pub struct Guard {
    readiness: Readiness,
    number: u64,
}

impl Guard {
    /// Done. The same as a drop, for those who would rather read it.
    pub fn ready(self) {}
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.readiness.change(|state| {
            if state.guards.get(&self.number).is_some_and(|guard| guard.concern) {
                state.guards.remove(&self.number);
            } else if let Some(guard) = state.guards.get_mut(&self.number) {
                guard.took = Some(guard.since.elapsed());
            }
        });
    }
}

/// What [`Readiness`] says at one moment. Displays as `/readyz` prints it: what is pending, and with `{:#}` all guards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether traffic may come.
    pub ready: bool,
    /// Whether the gateway stops.
    pub stopping: bool,
    /// All guards, in the order in which they were taken.
    pub guards: Vec<GuardReport>,
}

/// One guard at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardReport {
    /// Its name.
    pub name: &'static str,
    /// Whether it is done.
    pub done: bool,
    /// Whether it is only shown: readiness does not wait for it.
    pub concern: bool,
    /// How long it has waited, or did.
    pub waited: Duration,
    /// What it waits for, in plain words, where it can say.
    pub why: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = f.alternate();
        writeln!(f, "{}", if self.ready { "ready" } else { "not ready" })?;
        if self.stopping {
            writeln!(f, "[-] shutting down")?;
        }
        for guard in self.guards.iter().filter(|guard| all || !guard.done) {
            let (mark, verb) = match guard {
                GuardReport { concern: true, .. } => ('!', "for"),
                GuardReport { done: true, .. } => ('+', "ready after"),
                _ => ('-', "waiting for"),
            };
            write!(f, "[{mark}] {}: {verb} {:.1} s", guard.name, guard.waited.as_secs_f64())?;
            if guard.why.is_empty() { writeln!(f)? } else { writeln!(f, ": {}", guard.why)? }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_for_every_guard_and_says_how_long() {
        let readiness = Readiness::default();
        assert!(readiness.report().ready, "nothing to wait for");
        let store = readiness.guard_with("local-store", || "dialling 127.0.0.1:2379".to_owned());
        let listener = readiness.guard("listener");
        tokio::time::advance(Duration::from_millis(1_500)).await;
        listener.ready();
        assert_eq!(
            readiness.report().to_string(),
            "not ready\n[-] local-store: waiting for 1.5 s: dialling 127.0.0.1:2379\n"
        );
        assert_eq!(
            format!("{:#}", readiness.report()),
            "not ready\n[-] local-store: waiting for 1.5 s: dialling 127.0.0.1:2379\n[+] listener: ready after 1.5 s\n"
        );
        drop(store);
        assert_eq!(readiness.report().to_string(), "ready\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_concern_is_shown_and_hinders_nothing() {
        let readiness = Readiness::default();
        let concern = readiness.concern("references", || "3 are being written again".to_owned());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(readiness.report().to_string(), "ready\n[!] references: for 2.0 s: 3 are being written again\n");
        drop(concern);
        assert_eq!(format!("{:#}", readiness.report()), "ready\n");
    }

    #[tokio::test]
    async fn stops_for_good_and_tells_followers_of_changes_only() {
        let readiness = Readiness::default();
        let mut changes = readiness.changes();
        let guards = [readiness.guard("a"), readiness.guard("b")];
        assert!(!*changes.borrow_and_update());
        let [a, b] = guards;
        drop(a);
        assert!(!changes.has_changed().expect("the readiness lives"), "still not ready: no change");
        drop(b);
        assert!(*changes.borrow_and_update());
        readiness.stop();
        assert!(!*changes.borrow_and_update());
        assert_eq!(readiness.report().to_string(), "not ready\n[-] shutting down\n");
    }
}
