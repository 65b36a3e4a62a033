//! The kvstore room against real etcds over mTLS, proxies that fail as networks do, and a fake for what a real etcd will not
//! show.

#![allow(clippy::large_futures, reason = "a test has one of them, not thousands")]

mod connecting;
mod fakes;
mod listing;
mod moving;
mod sessions;
mod tls;
mod watching;

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{Client, CompactionOptions, Txn, TxnOp};
use meshgate::kvstore::{
    Connector, EtcdConfig, Event, KeyValue, ListKind, ListWatch, ListWatchOptions, RestartReason, Session,
    SessionError, Step, Timing,
};
use tokio::time::timeout;

use crate::support::{DEADLINE, EtcdOptions, EtcdServer, Pki};

const PREFIX: &str = "ids/";

/// Deadlines of which tests do not have to wait.
fn timing() -> Timing {
    Timing {
        dial: Duration::from_millis(500),
        call: Duration::from_secs(2),
        watch_created: Duration::from_secs(2),
        progress_interval: Duration::from_millis(200),
        liveness: Duration::from_secs(1),
        backoff_base: Duration::from_millis(10),
        backoff_max: Duration::from_millis(100),
        ..Timing::default()
    }
}

async fn etcd(pki: &Pki, name: &str) -> EtcdServer {
    EtcdServer::start(EtcdOptions::mtls(name, pki).unwrap().in_memory()).await.unwrap()
}

async fn connect(config: EtcdConfig) -> Session {
    session_of(&Connector::new(config, timing())).await
}

async fn session_of(connector: &Connector) -> Session {
    timeout(DEADLINE, connector.connect(&|_, _| {})).await.expect("connecting ends").unwrap()
}

/// The same etcd, by way of another port.
fn through(config: EtcdConfig, port: u16) -> EtcdConfig {
    let by_way = |endpoint: String| {
        let (host, _) = endpoint.rsplit_once(':').unwrap();
        format!("{host}:{port}")
    };
    EtcdConfig { endpoints: config.endpoints.into_iter().map(by_way).collect(), ..config }
}

/// Writes `count` keys from `first` on, all of one value, in transactions of a hundred.
async fn fill(client: &Client, first: usize, count: usize, value: &str) {
    let keys: Vec<_> = (first..first + count).map(|n| format!("{PREFIX}{n:06}")).collect();
    for chunk in keys.chunks(100) {
        let puts: Vec<_> = chunk.iter().map(|key| TxnOp::put(key.as_str(), value, None)).collect();
        client.kv_client().txn(Txn::new().and_then(puts)).await.unwrap();
    }
}

async fn put(client: &Client, key: &str, value: &str) -> i64 {
    client.kv_client().put(key, value, None).await.unwrap().header().unwrap().revision()
}

async fn delete(client: &Client, key: &str) {
    client.kv_client().delete(key, None).await.unwrap();
}

/// Everything before now is forgotten.
async fn compact(client: &Client) {
    let now = put(client, "elsewhere", "now").await;
    client.kv_client().compact(now, Some(CompactionOptions::new().with_physical())).await.unwrap();
}

/// What is in the store.
async fn contents(client: &Client) -> BTreeMap<String, String> {
    let mut kv = client.kv_client().max_decoding_message_size(256 << 20);
    let options = etcd_client::GetOptions::new().with_prefix();
    let mut answer = kv.get(PREFIX, Some(options)).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    answer
        .take_kvs()
        .into_iter()
        .map(etcd_client::KeyValue::into_key_value)
        .map(|(key, value)| (text(key), text(value)))
        .collect()
}

/// What a consumer saw, without the contents.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Started(ListKind),
    Page,
    Listed,
    Resumed,
    Events,
    Progress,
    Restarting(RestartReason),
}

/// A consumer of a list-and-watch, as the mirror is one: stages a list, publishes it whole, applies events.
struct Copy {
    list_watch: ListWatch,
    published: BTreeMap<String, String>,
    staged: Option<BTreeMap<String, String>>,
    seen: Vec<Seen>,
    /// Revision of the last event or list; positions never go back within one etcd.
    revision: i64,
}

impl Copy {
    fn new(options: ListWatchOptions) -> Self {
        Self {
            list_watch: ListWatch::new(PREFIX.into(), options),
            published: BTreeMap::new(),
            staged: None,
            seen: Vec::new(),
            revision: 0,
        }
    }

    fn paged(page_size: i64) -> Self {
        Self::new(ListWatchOptions { page_size, ..ListWatchOptions::default() })
    }

    async fn step(&mut self, session: &Session) -> Result<Seen, SessionError> {
        let step = timeout(DEADLINE, self.list_watch.step(session)).await.expect("a step comes")?;
        Ok(self.apply(step))
    }

    fn apply(&mut self, step: Step) -> Seen {
        let seen = match step {
            Step::ListStarted(kind) => {
                self.staged = Some(BTreeMap::new());
                Seen::Started(kind)
            }
            Step::Page(entries) => {
                self.staged.as_mut().expect("pages come in a list").extend(entries.into_iter().map(text));
                Seen::Page
            }
            Step::Listed(position) => {
                self.published = self.staged.take().expect("a list was begun");
                self.revision = position.revision;
                Seen::Listed
            }
            Step::Resumed(position) => {
                assert!(self.staged.is_none(), "a list is not resumed");
                assert_eq!(position.revision, self.revision);
                Seen::Resumed
            }
            Step::Events(events, position) => {
                assert!(!events.is_empty());
                for event in events {
                    assert!(event.mod_revision() >= self.revision, "events come in order");
                    self.revision = event.mod_revision();
                    match event {
                        Event::Put(entry) => self.published.extend([text(entry)]),
                        Event::Delete { key, .. } => drop(self.published.remove(std::str::from_utf8(&key).unwrap())),
                    }
                }
                assert_eq!(position.revision, self.revision);
                Seen::Events
            }
            Step::Progress(position) => {
                assert!(position.revision >= self.revision);
                self.revision = position.revision;
                Seen::Progress
            }
            Step::Restarting(reason, _) => Seen::Restarting(reason),
        };
        self.seen.push(seen.clone());
        seen
    }

    /// Steps until that was seen.
    async fn until(&mut self, session: &Session, what: Seen) {
        while self.step(session).await.unwrap() != what {}
    }

    /// Steps until the session is over.
    async fn until_over(&mut self, session: &Session) -> SessionError {
        loop {
            if let Err(error) = self.step(session).await {
                // What a list has brought so far is void.
                self.staged = None;
                return error;
            }
        }
    }

    /// Steps until what is published is that, on one session after the other.
    async fn until_holds(&mut self, connector: &Connector, expected: &BTreeMap<String, String>) {
        let caught_up = async {
            while self.published != *expected || self.staged.is_some() {
                let Ok(session) = connector.connect(&|_, _| {}).await else { continue };
                while self.published != *expected || self.staged.is_some() {
                    if self.step(&session).await.is_err() {
                        self.staged = None;
                        break;
                    }
                }
            }
        };
        let in_time = timeout(DEADLINE, caught_up).await.is_ok();
        assert!(in_time, "{} entries instead of {}; saw {:?}", self.published.len(), expected.len(), self.seen);
    }

    fn count(&self, what: &Seen) -> usize {
        self.seen.iter().filter(|seen| *seen == what).count()
    }

    fn lists(&self) -> usize {
        self.count(&Seen::Started(ListKind::First)) + self.count(&Seen::Started(ListKind::Again))
    }
}

fn text(entry: KeyValue) -> (String, String) {
    (String::from_utf8(entry.key).unwrap(), String::from_utf8(entry.value).unwrap())
}
