//! A subscriber over gRPC that folds what it is told, and remembers what it was told to remove.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meshgate::api::pb;
use meshgate::client::{Change, ClientOptions, ClientSecurity, Event, Mesh, Subscription, Update};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::support::DEADLINE;
use crate::support::fill::Contents;

/// What a slow one does between two frames.
const NAP: Duration = Duration::from_millis(500);
/// How long it stays awake once somebody wants to know.
const AWAKE: Duration = Duration::from_secs(5);

/// What was heard since it was asked last.
#[derive(Debug, Default)]
pub struct Heard {
    /// Numbers removed, by cluster.
    pub removed: BTreeMap<String, BTreeSet<u32>>,
    /// Clusters removed as a whole.
    pub drained: BTreeSet<String>,
    /// Streams that ended; none has a reason to.
    pub ends: Vec<String>,
    pub updates: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Slow,
    NumbersOnly,
}

type Look = Box<dyn FnOnce(&Mesh, &mut Heard) + Send>;

/// The subscriber. Dropping it ends its stream.
pub struct Subscriber {
    pub name: &'static str,
    pub kind: Kind,
    looks: mpsc::Sender<Look>,
    _task: AbortOnDropHandle<()>,
}

impl Subscriber {
    pub async fn open(name: &'static str, kind: Kind, address: String, clusters: &[&str]) -> Self {
        let options = ClientOptions { address, security: ClientSecurity::Plaintext };
        let request = pb::SubscribeRequest {
            clusters: clusters.iter().map(|name| (*name).to_owned()).collect(),
            numbers_only: kind == Kind::NumbersOnly,
            ..pb::SubscribeRequest::default()
        };
        let subscription = Subscription::open(options, request).await.unwrap();
        let (looks, asked) = mpsc::channel(1);
        let task = AbortOnDropHandle::new(tokio::spawn(follow(subscription, kind, asked)));
        Self { name, kind, looks, _task: task }
    }

    async fn look<T: Send + 'static>(&self, look: impl FnOnce(&Mesh, &mut Heard) -> T + Send + 'static) -> T {
        let (answer, answered) = oneshot::channel();
        let look: Look = Box::new(move |mesh, heard| drop(answer.send(look(mesh, heard))));
        self.looks.send(look).await.expect("the subscriber lives");
        timeout(DEADLINE, answered).await.expect("the subscriber answers").unwrap()
    }

    /// What it holds of a cluster; nothing if it holds no such cluster. Without labels where those were not asked for.
    pub async fn held(&self, cluster: &str) -> Option<Contents> {
        let cluster = cluster.to_owned();
        self.look(move |mesh, _| {
            let held = mesh.get(&cluster)?;
            Some(held.identities.iter().map(|(number, entry)| (*number, entry.key_string())).collect())
        })
        .await
    }

    /// What it heard since this was asked last.
    pub async fn heard(&self) -> Heard {
        self.look(|_, heard| std::mem::take(heard)).await
    }
}

async fn follow(mut subscription: Subscription, kind: Kind, mut looks: mpsc::Receiver<Look>) {
    let mut heard = Heard::default();
    let (mut asleep_until, mut awake_until) = (Instant::now(), Instant::now());
    loop {
        let next = async {
            sleep_until(asleep_until).await;
            subscription.next().await
        };
        let event = tokio::select! {
            biased;
            look = looks.recv() => {
                let Some(look) = look else { return };
                look(subscription.mesh(), &mut heard);
                (asleep_until, awake_until) = (Instant::now(), Instant::now() + AWAKE);
                continue;
            }
            event = next => event,
        };
        if kind == Kind::Slow && Instant::now() > awake_until {
            asleep_until = Instant::now() + NAP;
        }
        match event {
            Event::Update(update) => note(update, &mut heard),
            Event::Disconnected { why, .. } => heard.ends.push(why.to_string()),
        }
    }
}

fn note(update: Update, heard: &mut Heard) {
    heard.updates += 1;
    match update {
        Update::Synced { cluster, changes, .. } | Update::Changed { cluster, changes } => {
            let gone = changes.iter().filter(|change| change.after.is_none());
            let numbers = gone.filter_map(|Change { before, .. }| before.as_ref().map(|before| before.number));
            heard.removed.entry(cluster).or_default().extend(numbers);
        }
        Update::Removed { cluster, .. } => drop(heard.drained.insert(cluster)),
        _ => {}
    }
}
