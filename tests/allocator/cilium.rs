//! A writer that does what a Cilium agent does, request by request (`tests/golden/allocator_trace.json`): etcd's lock
//! recipe, the list of references, the record only if absent, the reference; each write conditional on the lock.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse, WatchOptions};

use super::support::BASE;

/// So that everybody is first at times.
pub async fn jitter() {
    for _ in 0..fastrand::u8(..8) {
        tokio::task::yield_now().await;
    }
    if fastrand::u8(..4) == 0 {
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..3_000))).await;
    }
}

pub struct Agent {
    client: Client,
    node: String,
    lease: i64,
    numbers: (u32, u32),
    /// What its watch of the records would have told it.
    cache: Mutex<HashMap<String, u32>>,
}

struct Held {
    key: String,
    revision: i64,
}

impl Held {
    fn owner(&self) -> Compare {
        Compare::create_revision(self.key.as_str(), CompareOp::Equal, self.revision)
    }
}

impl Agent {
    pub async fn new(client: Client, node: &str, numbers: (u32, u32)) -> Self {
        let lease = client.lease_client().grant(900, None).await.unwrap().id();
        let mut renewals = client.lease_client();
        tokio::spawn(async move {
            while renewals.keep_alive(lease).await.is_ok() {
                tokio::time::sleep(Duration::from_mins(1)).await;
            }
        });
        Self { client, node: node.to_owned(), lease, numbers, cache: Mutex::default() }
    }

    async fn lock(&self, path: &str) -> Held {
        let key = format!("{path}/{:x}", self.lease);
        let absent = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
        let put = TxnOp::put(key.as_str(), "", Some(PutOptions::new().with_lease(self.lease)));
        let txn = Txn::new().when([absent]).and_then([put]).or_else([TxnOp::get(key.as_str(), None)]);
        let answer = self.client.kv_client().txn(txn).await.unwrap();
        assert!(answer.succeeded(), "an agent takes each lock once at a time");
        let held = Held { key, revision: answer.header().unwrap().revision() };
        loop {
            let all = GetOptions::new().with_prefix();
            let queue = self.client.kv_client().get(format!("{path}/"), Some(all)).await.unwrap();
            let ahead = (queue.kvs().iter())
                .filter(|entry| entry.create_revision() < held.revision)
                .max_by_key(|entry| entry.create_revision());
            let Some(ahead) = ahead else { return held };
            let from = queue.header().unwrap().revision() + 1;
            let options = WatchOptions::new().with_start_revision(from);
            let mut watch = self.client.watch_client().watch(ahead.key(), Some(options)).await.unwrap();
            while let Ok(Some(answer)) = watch.message().await {
                if answer.events().iter().any(|event| event.event_type() == etcd_client::EventType::Delete) {
                    break;
                }
            }
        }
    }

    async fn unlock(&self, held: Held) {
        self.client.kv_client().delete(held.key, None).await.unwrap();
    }

    async fn if_locked(&self, held: &Held, more: Option<Compare>, op: TxnOp) -> Option<Vec<TxnOpResponse>> {
        let when: Vec<_> = std::iter::once(held.owner()).chain(more).collect();
        let answer = self.client.kv_client().txn(Txn::new().when(when).and_then([op])).await.unwrap();
        answer.succeeded().then(|| answer.op_responses())
    }

    /// The number by which somebody refers to the labels.
    async fn get(&self, labels: &str, held: &Held) -> Option<u32> {
        let prefix = format!("{BASE}/value/{labels}");
        let list = TxnOp::get(prefix.as_str(), Some(GetOptions::new().with_prefix()));
        let answer = self.if_locked(held, None, list).await.expect("the lock is held");
        let TxnOpResponse::Get(found) = &answer[0] else { panic!("a list answers with a list") };
        (found.kvs().iter())
            .find(|entry| entry.key_str().unwrap().rfind('/') == Some(prefix.len()))
            .map(|entry| entry.value_str().unwrap().parse().unwrap())
    }

    /// One attempt; `None` when another writer had the number.
    async fn attempt(&self, labels: &str) -> Option<(u32, bool)> {
        let held = self.lock(&format!("{BASE}/locks/{labels}")).await;
        let cached = self.cache.lock().unwrap().get(labels).copied();
        let known = match cached {
            Some(number) => Some(number),
            None => self.get(labels, &held).await,
        };
        let (number, new) = if let Some(number) = known {
            (number, false)
        } else {
            let number = fastrand::u32(self.numbers.0..=self.numbers.1);
            assert!(self.get(labels, &held).await.is_none(), "nobody writes while the lock is held");
            let master = format!("{BASE}/id/{number}");
            let absent = Compare::create_revision(master.as_str(), CompareOp::Equal, 0);
            if self.if_locked(&held, Some(absent), TxnOp::put(master, labels, None)).await.is_none() {
                self.unlock(held).await;
                return None;
            }
            (number, true)
        };
        let slave = format!("{BASE}/value/{labels}/{}", self.node);
        let leased = PutOptions::new().with_lease(self.lease);
        let put = TxnOp::put(slave, number.to_string(), Some(leased));
        self.if_locked(&held, None, put).await.expect("the lock is held");
        self.unlock(held).await;
        self.cache.lock().unwrap().insert(labels.to_owned(), number);
        Some((number, new))
    }

    pub async fn allocate(&self, labels: &str) -> (u32, bool) {
        loop {
            if let Some(done) = self.attempt(labels).await {
                return done;
            }
        }
    }

    pub async fn release(&self, labels: &str) {
        self.client.kv_client().delete(format!("{BASE}/value/{labels}/{}", self.node), None).await.unwrap();
    }

    /// Takes the lock on the labels, as the first step of an allocation, and stops there. What it returns unlocks.
    pub async fn hold(&self, labels: &str) -> impl Future<Output = ()> + '_ {
        let held = self.lock(&format!("{BASE}/locks/{labels}")).await;
        async move { self.unlock(held).await }
    }

    /// What Cilium's garbage collector does in its second round, for one record: locks the number (not the labels), looks
    /// for references, deletes.
    pub async fn collect(&self, number: u32, labels: &str) -> bool {
        let held = self.lock(&format!("{BASE}/locks/id/{number}")).await;
        let used = self.get(labels, &held).await.is_some();
        let deleted = !used && {
            jitter().await;
            self.if_locked(&held, None, TxnOp::delete(format!("{BASE}/id/{number}"), None)).await.is_some()
        };
        self.unlock(held).await;
        deleted
    }

    /// The record was collected, and its watch told it so.
    pub fn forget(&self, labels: &str) {
        self.cache.lock().unwrap().remove(labels);
    }
}
