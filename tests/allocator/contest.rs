//! Writers that take locks as Cilium does, and our transactions that take none, fight over the same label sets.

use std::collections::HashMap;
use std::time::Duration;

use etcd_client::{Client, EventType, WatchOptions};
use futures_util::future::join_all;
use meshgate::allocator::Key;
use tokio::time::Instant;

use super::cilium::{Agent, jitter};
use super::support::{BASE, Node, etcd, masters, numbered, show_log, size, slaves};

/// Label sets that are fought over at once.
const ARENAS: usize = 24;

/// Every change that the store saw, in order, held against what must never be.
#[derive(Default)]
pub struct Referee {
    /// Labels of each record.
    records: HashMap<String, String>,
    /// Number of each reference, by labels and node.
    references: HashMap<String, HashMap<String, String>>,
    pub changes: u64,
}

impl Referee {
    fn put(&mut self, path: &str, value: &str) {
        self.changes += 1;
        if let Some(number) = path.strip_prefix("id/") {
            let before = self.records.insert(number.to_owned(), value.to_owned());
            assert_eq!(before, None, "number {number} was given to {value:?} while it had labels");
        } else if let Some((labels, node)) = path.strip_prefix("value/").and_then(|rest| rest.rsplit_once('/')) {
            assert_eq!(self.records.get(value).map(String::as_str), Some(labels), "a reference to what is not there");
            let nodes = self.references.entry(labels.to_owned()).or_default();
            nodes.insert(node.to_owned(), value.to_owned());
            assert!(nodes.values().all(|number| number == value), "two numbers for {labels:?}: {nodes:?}");
        }
    }

    fn delete(&mut self, path: &str) {
        if let Some(number) = path.strip_prefix("id/") {
            let labels = self.records.remove(number).unwrap();
            let used = self.references.get(&labels).is_some_and(|nodes| nodes.values().any(|used| used == number));
            assert!(!used, "{labels:?} lost its record while it was in use");
        } else if let Some((labels, node)) = path.strip_prefix("value/").and_then(|rest| rest.rsplit_once('/'))
            && let Some(nodes) = self.references.get_mut(labels)
        {
            nodes.remove(node);
        }
    }

    /// Watches until the key `last` is written.
    pub async fn watch(mut self, client: Client, last: String) -> Self {
        let options = WatchOptions::new().with_prefix().with_start_revision(1);
        let mut watch = client.watch_client().watch(BASE, Some(options)).await.unwrap();
        loop {
            let answer = watch.message().await.unwrap().unwrap();
            for event in answer.events() {
                let entry = event.kv().unwrap();
                let path = &entry.key_str().unwrap()[BASE.len() + 1..];
                match event.event_type() {
                    EventType::Put if path == last => return self,
                    EventType::Put => self.put(path, entry.value_str().unwrap()),
                    EventType::Delete => self.delete(path),
                }
            }
        }
    }
}

/// One label set's fights: everybody allocates it at once, all must get the same number, everybody releases; then its record
/// is left or collected.
async fn fight(client: Client, ours: &[Node], agents: &[Agent], arena: usize, rounds: usize) -> (u64, u64) {
    let labels: Key = numbered(arena);
    let (mut won, mut lost) = (0, 0);
    for round in 0..rounds {
        if arena == 0 && round % 500 == 499 {
            tracing::info!(rounds = (round + 1) * ARENAS, "the contest goes on");
        }
        let fast = join_all(ours.iter().map(|node| async {
            jitter().await;
            let patience = Instant::now() + Duration::from_mins(10);
            let allocation = node.allocator.allocate(&labels, patience).await.unwrap();
            (allocation.number.get(), allocation.is_new)
        }));
        let slow = join_all(agents.iter().map(|agent| async {
            jitter().await;
            agent.allocate(labels.as_str()).await
        }));
        let (fast, slow) = tokio::join!(fast, slow);
        let number = fast[0].0;
        assert!(fast.iter().chain(&slow).all(|(got, _)| *got == number), "round {round}: {fast:?} {slow:?}");
        assert!(fast.iter().chain(&slow).filter(|(_, new)| *new).count() <= 1);
        won += u64::from(fast.iter().any(|(_, new)| *new));
        lost += u64::from(slow.iter().any(|(_, new)| *new));
        let released = join_all(ours.iter().map(|node| async { node.release(&labels).await.unwrap() }));
        tokio::join!(released, join_all(agents.iter().map(|agent| agent.release(labels.as_str()))));
        // Two times in three the record is collected, else the next round finds it without references.
        if fastrand::u8(..3) > 0 {
            client.kv_client().delete(format!("{BASE}/id/{number}"), None).await.unwrap();
            for agent in agents {
                agent.forget(labels.as_str());
            }
        }
    }
    (won, lost)
}

/// Rounds from `MESHGATE_CONTEST_ROUNDS`; the proof is 100,000.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a02_lock_takers_and_fast_writers_never_disagree() {
    show_log();
    let rounds = size("MESHGATE_CONTEST_ROUNDS", 300);
    let etcd = etcd().await;
    let client = etcd.client();
    let numbers = (5 << 16, (6 << 16) - 1);
    let referee = tokio::spawn(Referee::default().watch(etcd.client(), "the-end".to_owned()));
    let ours = [Node::start(&etcd, "m1").await, Node::start(&etcd, "m2").await];
    let agents = [Agent::new(client.clone(), "c1", numbers).await, Agent::new(client.clone(), "c2", numbers).await];
    let since = Instant::now();
    let fights = (0..ARENAS).map(|arena| {
        let rounds = rounds / ARENAS + usize::from(arena < rounds % ARENAS);
        fight(client.clone(), &ours, &agents, arena, rounds)
    });
    let results = join_all(fights).await;
    client.kv_client().put(format!("{BASE}/the-end"), "", None).await.unwrap();
    let referee = referee.await.unwrap();
    let (won, lost) = results.iter().fold((0, 0), |(won, lost), result| (won + result.0, lost + result.1));
    let (fast, lock) = ours.iter().map(|node| node.metrics.paths()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    println!(
        "{rounds} rounds in {:?}: new by us {won}, by lock takers {lost}; ours by one transaction {fast}, with the lock \
         {lock}; {} writes judged",
        since.elapsed(),
        referee.changes
    );
    assert!(won > 0 && lost > 0, "somebody never won");
    assert!(slaves(&client).await.is_empty());
    for (path, labels) in masters(&client).await {
        assert!(path.starts_with(BASE) && !labels.is_empty());
    }
}
