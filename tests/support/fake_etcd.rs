//! An etcd of which a test plays the part: for what a real one will not show.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use super::fake_leases::FakeLeases;
use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbEvent, PbKeyValue, PbKvServer,
    PbKvService, PbLeaseServer, PbPutRequest, PbPutResponse, PbRangeRequest, PbRangeResponse, PbRangeStreamResponse,
    PbResponseHeader, PbTxnRequest, PbTxnResponse, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse, PbWatchServer,
    PbWatchService,
};
use meshgate::kvstore::EtcdConfig;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// Whether a request is never to be answered.
type Ignore = Box<dyn FnMut(&PbRangeRequest) -> bool + Send>;
type RangeAnswer = Box<dyn FnMut(&PbRangeRequest) -> Result<PbRangeResponse, Status> + Send>;
type Messages = Pin<Box<dyn Stream<Item = Result<PbWatchResponse, Status>> + Send>>;

/// The fake. Dropping it ends it.
pub struct FakeEtcd {
    port: u16,
    part: Arc<Part>,
    watches: mpsc::Receiver<OpenWatch>,
    pub leases: Arc<FakeLeases>,
    _server: AbortOnDropHandle<()>,
}

struct Part {
    answer: Mutex<RangeAnswer>,
    ignore: Mutex<Ignore>,
    /// Every range request, as it came.
    asked: Mutex<Vec<PbRangeRequest>>,
    watches: mpsc::Sender<OpenWatch>,
}

/// A watch that was asked for: the test says what comes of it. Dropping it ends the stream politely.
pub struct OpenWatch {
    pub key: Vec<u8>,
    pub start_revision: i64,
    messages: mpsc::Sender<Result<PbWatchResponse, Status>>,
    questions: watch::Receiver<u32>,
}

impl FakeEtcd {
    /// Plain text, on a port of its own; `answer` answers every range request.
    pub async fn start(
        answer: impl FnMut(&PbRangeRequest) -> Result<PbRangeResponse, Status> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (opened, watches) = mpsc::channel(16);
        let part = Arc::new(Part {
            answer: Mutex::new(Box::new(answer)),
            ignore: Mutex::new(Box::new(|_| false)),
            asked: Mutex::default(),
            watches: opened,
        });
        let leases = Arc::new(FakeLeases::default());
        let serving = tonic::transport::Server::builder()
            .add_service(PbKvServer::from_arc(Arc::clone(&part)))
            .add_service(PbWatchServer::from_arc(Arc::clone(&part)))
            .add_service(PbLeaseServer::from_arc(Arc::clone(&leases)))
            .serve_with_incoming(TcpIncoming::from(listener));
        let server = tokio::spawn(async move { serving.await.unwrap() });
        Self { port, part, watches, leases, _server: AbortOnDropHandle::new(server) }
    }

    pub fn config(&self) -> EtcdConfig {
        EtcdConfig { endpoints: vec![format!("http://127.0.0.1:{}", self.port)], ..EtcdConfig::default() }
    }

    /// Answers otherwise from now on.
    pub fn answer(&self, answer: impl FnMut(&PbRangeRequest) -> Result<PbRangeResponse, Status> + Send + 'static) {
        *self.part.answer.lock().unwrap() = Box::new(answer);
    }

    /// From now on, range requests that `which` picks are never answered.
    pub fn ignore(&self, which: impl FnMut(&PbRangeRequest) -> bool + Send + 'static) {
        *self.part.ignore.lock().unwrap() = Box::new(which);
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The range requests so far.
    pub fn asked(&self) -> usize {
        self.part.asked.lock().unwrap().len()
    }

    /// The range requests so far that asked for more than one key.
    pub fn pages(&self) -> Vec<PbRangeRequest> {
        let asked = self.part.asked.lock().unwrap();
        asked.iter().filter(|request| !request.range_end.is_empty()).cloned().collect()
    }

    /// The next watch that is asked for.
    pub async fn watch(&mut self) -> OpenWatch {
        tokio::time::timeout(super::DEADLINE, self.watches.recv()).await.expect("a watch is asked for").unwrap()
    }
}

impl OpenWatch {
    pub async fn send(&self, message: PbWatchResponse) {
        self.messages.send(Ok(message)).await.unwrap();
    }

    /// As [`Self::send`], to somebody who may be gone.
    pub async fn try_send(&self, message: PbWatchResponse) {
        let _ = self.messages.send(Ok(message)).await;
    }

    /// Waits until so many questions for its progress have come.
    pub async fn asked(&mut self, times: u32) {
        let asked = self.questions.wait_for(|questions| *questions >= times);
        tokio::time::timeout(super::DEADLINE, asked).await.expect("it is asked for its progress").unwrap();
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it goes into an optional field")]
pub fn header(cluster_id: u64, revision: i64) -> Option<PbResponseHeader> {
    Some(PbResponseHeader { cluster_id, revision, ..PbResponseHeader::default() })
}

pub fn kv(key: &str, mod_revision: i64) -> PbKeyValue {
    PbKeyValue { key: key.into(), value: b"v".to_vec(), mod_revision, ..PbKeyValue::default() }
}

pub fn put(key: &str, mod_revision: i64) -> PbEvent {
    PbEvent { r#type: 0, kv: Some(kv(key, mod_revision)), prev_kv: None }
}

/// Answers as a store of that revision that holds these keys, last changed at revision 1.
pub fn holding(
    cluster_id: u64,
    revision: i64,
    keys: &[&str],
) -> impl FnMut(&PbRangeRequest) -> Result<PbRangeResponse, Status> + Send + 'static {
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    move |request| {
        let inside = |key: &&String| {
            let key = key.as_bytes();
            if request.range_end.is_empty() {
                key == request.key
            } else {
                key >= &*request.key && key < &*request.range_end
            }
        };
        let found: Vec<_> = keys.iter().filter(inside).collect();
        let limit = usize::try_from(request.limit).unwrap();
        let page = if limit == 0 { found.len() } else { limit.min(found.len()) };
        Ok(PbRangeResponse {
            header: header(cluster_id, revision),
            kvs: found[..page].iter().map(|key| kv(key, 1)).collect(),
            more: page < found.len(),
            count: i64::try_from(found.len()).unwrap(),
        })
    }
}

#[tonic::async_trait]
impl PbKvService for Part {
    type RangeStreamStream = ReceiverStream<Result<PbRangeStreamResponse, Status>>;

    async fn range(&self, request: Request<PbRangeRequest>) -> Result<Response<PbRangeResponse>, Status> {
        let request = request.into_inner();
        self.asked.lock().unwrap().push(request.clone());
        let ignored = (self.ignore.lock().unwrap())(&request);
        if ignored {
            return std::future::pending().await;
        }
        let answer = (self.answer.lock().unwrap())(&request);
        answer.map(Response::new)
    }

    async fn range_stream(&self, _: Request<PbRangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn put(&self, _: Request<PbPutRequest>) -> Result<Response<PbPutResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn delete_range(&self, _: Request<PbDeleteRequest>) -> Result<Response<PbDeleteResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn txn(&self, _: Request<PbTxnRequest>) -> Result<Response<PbTxnResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn compact(&self, _: Request<PbCompactionRequest>) -> Result<Response<PbCompactionResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }
}

#[tonic::async_trait]
impl PbWatchService for Part {
    type WatchStream = Messages;

    async fn watch(&self, request: Request<Streaming<PbWatchRequest>>) -> Result<Response<Messages>, Status> {
        let mut requests = request.into_inner();
        let Some(PbWatchRequestUnion::CreateRequest(create)) =
            requests.message().await?.and_then(|request| request.request_union)
        else {
            return Err(Status::invalid_argument("a watch begins with its creation"));
        };
        let (messages, stream) = mpsc::channel(64);
        let (count, questions) = watch::channel(0);
        let open = OpenWatch { key: create.key, start_revision: create.start_revision, messages, questions };
        self.watches.send(open).await.map_err(|_| Status::unavailable("the play is over"))?;
        // Lives as long as the client's half does.
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                if matches!(request.request_union, Some(PbWatchRequestUnion::ProgressRequest(_))) {
                    count.send_modify(|count| *count += 1);
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}
