//! A peer whose etcd a test plays: a store of a few keys that answers as etcd would, but for what it is told to do.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use etcd_client::proto::{PbEvent, PbKeyValue, PbRangeRequest, PbRangeResponse, PbWatchResponse};
use tonic::Status;

use crate::support::fake_etcd::{FakeEtcd, OpenWatch, header};
use crate::support::fill::Cluster;

pub const ETCD_ID: u64 = 7;
const WATCH: i64 = 3;

/// Every change so far, the first one at revision 1: a key, and its value unless it was deleted.
#[derive(Debug, Default)]
struct Contents(Vec<(Vec<u8>, Option<Vec<u8>>)>);

/// The peer's store.
#[derive(Clone, Debug)]
pub struct Play {
    pub cluster: Cluster,
    contents: Arc<Mutex<Contents>>,
}

impl Play {
    /// A store that says that it is complete, with an identity for each of `apps`, numbered from 1.
    pub fn new(name: &str, id: u32, apps: &[&str]) -> Self {
        let play = Self { cluster: Cluster::new(name, id), contents: Arc::default() };
        for (n, app) in (1..).zip(apps) {
            play.put_app(n, app);
        }
        play.put(&play.cluster.canary_key(), "2026-11-30T21:37:03Z");
        play.put(&play.cluster.config_key(), &play.cluster.config_json());
        play
    }

    pub async fn start(&self) -> FakeEtcd {
        FakeEtcd::start(self.answers()).await
    }

    /// The file of a peer whose etcd that is.
    pub fn yaml(etcd: &FakeEtcd) -> String {
        format!("endpoints: ['http://127.0.0.1:{}']\n", etcd.port())
    }

    pub fn number(&self, n: u32) -> u32 {
        self.cluster.numbers().start() + n
    }

    pub fn key_string(&self, app: &str) -> String {
        format!("k8s:app={app};k8s:io.cilium.k8s.policy.cluster={};", self.cluster.name)
    }

    pub fn shown(&self, apps: &[(u32, &str)]) -> BTreeMap<u32, String> {
        apps.iter().map(|(n, app)| (self.number(*n), self.key_string(app))).collect()
    }

    /// Writes an identity, and returns the event that a watch would tell of it.
    pub fn put_app(&self, n: u32, app: &str) -> PbEvent {
        self.put(&self.cluster.identity_key(self.number(n)), &self.key_string(app))
    }

    pub fn put(&self, key: &str, value: &str) -> PbEvent {
        let mod_revision = self.change(key, Some(value));
        let kv = PbKeyValue { key: key.into(), value: value.into(), mod_revision, ..PbKeyValue::default() };
        PbEvent { r#type: 0, kv: Some(kv), prev_kv: None }
    }

    fn change(&self, key: &str, value: Option<&str>) -> i64 {
        let mut contents = self.contents.lock().unwrap();
        contents.0.push((key.into(), value.map(Into::into)));
        contents.revision()
    }

    pub fn revision(&self) -> i64 {
        self.contents.lock().unwrap().revision()
    }

    pub fn answers(&self) -> impl FnMut(&PbRangeRequest) -> Result<PbRangeResponse, Status> + Send + use<> {
        let contents = Arc::clone(&self.contents);
        move |request| Ok(contents.lock().unwrap().answer(request))
    }

    /// The next watch of the identities, confirmed; watches of single keys before it are confirmed and kept in `others`.
    pub async fn watched(&self, etcd: &mut FakeEtcd, others: &mut Vec<OpenWatch>) -> OpenWatch {
        loop {
            let watch = etcd.watch().await;
            watch.send(PbWatchResponse { created: true, ..self.message(vec![]) }).await;
            if watch.key == self.cluster.identity_prefix().as_bytes() {
                return watch;
            }
            others.push(watch);
        }
    }

    /// Confirms every watch, and says nothing more.
    pub async fn confirm(&self, etcd: &mut FakeEtcd) -> Infallible {
        let mut watches = Vec::new();
        loop {
            let watch = etcd.watch().await;
            // One of an attempt that was given up meanwhile hears nothing any more.
            watch.try_send(PbWatchResponse { created: true, ..self.message(vec![]) }).await;
            watches.push(watch);
        }
    }

    pub fn message(&self, events: Vec<PbEvent>) -> PbWatchResponse {
        let header = header(ETCD_ID, self.revision());
        PbWatchResponse { header, watch_id: WATCH, events, ..PbWatchResponse::default() }
    }
}

impl Contents {
    fn revision(&self) -> i64 {
        i64::try_from(self.0.len()).unwrap()
    }

    /// Keys with their values and revisions, as of some revision; 0 is now.
    fn at(&self, revision: i64) -> BTreeMap<&[u8], (&[u8], i64)> {
        let until = if revision == 0 { self.revision() } else { revision };
        let mut keys = BTreeMap::new();
        for ((key, value), at) in self.0.iter().zip(1..=until) {
            match value {
                Some(value) => keys.insert(key.as_slice(), (value.as_slice(), at)),
                None => keys.remove(key.as_slice()),
            };
        }
        keys
    }

    fn answer(&self, request: &PbRangeRequest) -> PbRangeResponse {
        let inside = |key: &[u8]| {
            if request.range_end.is_empty() {
                key == request.key
            } else {
                key >= request.key.as_slice() && key < request.range_end.as_slice()
            }
        };
        let found: Vec<_> = self.at(request.revision).into_iter().filter(|(key, _)| inside(key)).collect();
        let count = found.len();
        let mut kvs: Vec<_> = found
            .into_iter()
            .filter(|(_, (_, revision))| *revision >= request.min_mod_revision)
            .map(|(key, (value, mod_revision))| PbKeyValue {
                key: key.to_vec(),
                value: if request.keys_only { Vec::new() } else { value.to_vec() },
                mod_revision,
                ..PbKeyValue::default()
            })
            .collect();
        let limit = usize::try_from(request.limit).unwrap();
        let more = limit > 0 && kvs.len() > limit;
        if more {
            kvs.truncate(limit);
        }
        PbRangeResponse {
            header: header(ETCD_ID, self.revision()),
            kvs: if request.count_only { Vec::new() } else { kvs },
            more,
            count: i64::try_from(count).unwrap(),
        }
    }
}
