//! What a soak has to show: time to agreement by kind of fault, and what the process uses.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::support::DEADLINE;

/// Times from the end of a fault to agreement.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<&'static str, Vec<Duration>>);

impl Tally {
    pub fn add(&mut self, fault: &'static str, took: Duration) {
        self.0.entry(fault).or_default().push(took);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| fault | count | median ms | max ms |\n| --- | ---: | ---: | ---: |")?;
        for (fault, times) in &self.0 {
            let mut times = times.clone();
            times.sort();
            let (median, max) = (times[times.len() / 2], times[times.len() - 1]);
            writeln!(f, "| {fault} | {} | {} | {} |", times.len(), median.as_millis(), max.as_millis())?;
        }
        Ok(())
    }
}

/// What the gateway and its connections use.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    /// Of the gateway's runtime.
    pub tasks: usize,
    /// Of this process: the gateway's, the subscribers', the proxies'.
    pub sockets: usize,
    /// From the gateway to stores, through the proxies.
    pub connections: usize,
    /// Bytes that this process has allocated and not freed. Not what is resident: what is freed stays with the process, the
    /// more of it the longer it runs and the more threads it has.
    pub memory: usize,
    /// Resident bytes, to be shown beside.
    resident: usize,
}

impl Resources {
    pub fn of(tasks: usize, connections: usize) -> Self {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.ok()?.path().read_link().ok());
        let sockets = links.filter(|link| link.to_string_lossy().starts_with("socket:")).count();
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
        Self { tasks, sockets, connections, memory: crate::HEAP.current_usage(), resident: pages * 4096 }
    }

    /// What `now` says as soon as no count is above what it was before; or what it says in the end. An audit or a page under
    /// way is a task or two for a moment.
    pub async fn back_at(before: &Self, now: impl AsyncFn() -> Self) -> Self {
        let end = Instant::now() + DEADLINE;
        loop {
            let found = now().await;
            if found.counts_not_above(before) || Instant::now() >= end {
                return found;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// All but memory.
    fn counts_not_above(&self, before: &Self) -> bool {
        self.tasks <= before.tasks
            && self.connections <= before.connections
            && self.sockets <= before.sockets + SOCKETS_MORE
    }

    /// A tenth more memory is allowed, as R8 has it, and so many bytes that may be under way, in frames and pages of the moment.
    pub fn assert_not_above(&self, before: &Self, under_way: usize) {
        assert!(self.counts_not_above(before), "before {before}, after {self}");
        let allowed = before.memory + before.memory / 10 + under_way;
        assert!(self.memory <= allowed, "memory: before {before}, after {self}");
    }
}

/// Clients of this test's own dial when they first have something to say to a member.
const SOCKETS_MORE: usize = 4;

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, sockets, connections, memory, resident } = self;
        let [memory, resident] = [*memory, *resident].map(|bytes| bytes as f64 / f64::from(1 << 20));
        write!(f, "{tasks} tasks, {sockets} sockets, {connections} connections to stores, ")?;
        write!(f, "{memory:.1} MiB allocated, {resident:.1} MiB resident")
    }
}
