//! The leases of an etcd of which a test plays the part.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use etcd_client::proto::{
    PbLeaseGrantRequest, PbLeaseGrantResponse, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse, PbLeaseLeasesRequest,
    PbLeaseLeasesResponse, PbLeaseRevokeRequest, PbLeaseRevokeResponse, PbLeaseService, PbLeaseTimeToLiveRequest,
    PbLeaseTimeToLiveResponse,
};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::fake_etcd::header;

/// What becomes of a renewal.
#[derive(Clone, Copy, Debug)]
pub enum Renewal {
    /// The seconds that the lease has; 0 where it is gone.
    Lives(i64),
    /// There is no answer.
    Ignored,
    /// The stream ends.
    Ends,
}

type Judge = Box<dyn FnMut(i64) -> Renewal + Send>;

/// The part. No lease is known unless the test says otherwise.
pub struct FakeLeases {
    judge: Arc<Mutex<(u64, Judge)>>,
    streams: AtomicUsize,
}

impl Default for FakeLeases {
    fn default() -> Self {
        let judge: Judge = Box::new(|_| Renewal::Lives(0));
        Self { judge: Arc::new(Mutex::new((0, judge))), streams: AtomicUsize::new(0) }
    }
}

impl FakeLeases {
    /// In the etcd of that cluster ID, renewals end so from now on.
    pub fn judge(&self, cluster_id: u64, judge: impl FnMut(i64) -> Renewal + Send + 'static) {
        *self.judge.lock().unwrap() = (cluster_id, Box::new(judge));
    }

    /// Streams of renewals that were opened so far.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }
}

#[tonic::async_trait]
impl PbLeaseService for FakeLeases {
    type LeaseKeepAliveStream = Pin<Box<dyn Stream<Item = Result<PbLeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<PbLeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        self.streams.fetch_add(1, Ordering::Relaxed);
        let mut questions = request.into_inner();
        let (answers, stream) = mpsc::channel(64);
        let judge = Arc::clone(&self.judge);
        // Lives as long as the client's half does.
        tokio::spawn(async move {
            while let Ok(Some(asked)) = questions.message().await {
                let (cluster_id, renewal) = {
                    let (cluster_id, judge) = &mut *judge.lock().unwrap();
                    (*cluster_id, judge(asked.id))
                };
                match renewal {
                    Renewal::Lives(ttl) => {
                        let answer = PbLeaseKeepAliveResponse { header: header(cluster_id, 1), id: asked.id, ttl };
                        let _ = answers.send(Ok(answer)).await;
                    }
                    Renewal::Ignored => {}
                    Renewal::Ends => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn lease_grant(&self, _: Request<PbLeaseGrantRequest>) -> Result<Response<PbLeaseGrantResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn lease_revoke(&self, _: Request<PbLeaseRevokeRequest>) -> Result<Response<PbLeaseRevokeResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn lease_time_to_live(
        &self,
        _: Request<PbLeaseTimeToLiveRequest>,
    ) -> Result<Response<PbLeaseTimeToLiveResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }

    async fn lease_leases(&self, _: Request<PbLeaseLeasesRequest>) -> Result<Response<PbLeaseLeasesResponse>, Status> {
        Err(Status::unimplemented("not played"))
    }
}
