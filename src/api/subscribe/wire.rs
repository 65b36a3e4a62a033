//! `Subscribe` on the wire: a gRPC method written by hand, so that one encoded frame serves any number of streams.
//!
//! A generated method copies every message into a buffer of its stream, and compresses it there. Here a message is bytes
//! that are shared down to the socket, compressed form included; a stream that is not read holds a reference to one.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body as HttpBody, Frame};
use prost::bytes::{Bytes, BytesMut};
use tonic::body::Body;
use tonic::codec::{CompressionEncoding, Streaming};
use tonic::server::NamedService;
use tonic::{Code, Status};
use tonic_prost::ProstDecoder;
use tower::Service;

use super::message::Encoding;
use super::{FrameStream, Subscriptions};
use crate::access::Grant;
use crate::api::PeerInfo;
use crate::api::connection::Requests;
use crate::pb::SubscribeRequest;

const PATH: &str = "/meshgate.v1.MeshService/Subscribe";
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const ENCODING: &str = "grpc-encoding";
const ACCEPT_ENCODING: &str = "grpc-accept-encoding";
/// Messages that are ready together and are smaller than an HTTP/2 frame go out as one.
const JOINED: usize = 16 << 10;

/// `Subscribe`, and whatever else the inner service has.
#[derive(Clone, Debug)]
pub(in crate::api) struct WithSubscribe<S> {
    inner: S,
    subscriptions: Arc<Subscriptions>,
    /// Bytes of a request.
    max_request: usize,
}

impl<S> WithSubscribe<S> {
    pub(in crate::api) fn new(inner: S, subscriptions: Arc<Subscriptions>, max_request: usize) -> Self {
        Self { inner, subscriptions, max_request }
    }
}

impl<S: NamedService> NamedService for WithSubscribe<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for WithSubscribe<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.uri().path() != PATH {
            return Box::pin(self.inner.call(request));
        }
        let (subscriptions, max_request) = (Arc::clone(&self.subscriptions), self.max_request);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
            let encoding = Encoding::of_offer(header(ACCEPT_ENCODING));
            let opened = async {
                let request = read(header(ENCODING), body, max_request).await?;
                let peer = parts.extensions.get::<PeerInfo>().cloned();
                // The authorizer gives one to each request; without it nothing is shown.
                let grant = parts.extensions.get::<Grant>().cloned().unwrap_or_else(Grant::none);
                subscriptions.open(request, peer, grant, Requests::cut_of_this_one())
            };
            Ok(match opened.await {
                Ok(frames) => respond(frames, encoding),
                Err(status) => status.into_http(),
            })
        })
    }
}

/// The one message of the request.
async fn read(encoding: &str, body: Body, max: usize) -> Result<SubscribeRequest, Status> {
    let encoding = match encoding {
        "" | "identity" => None,
        "gzip" => Some(CompressionEncoding::Gzip),
        "zstd" => Some(CompressionEncoding::Zstd),
        other => {
            let what = format!("the request is compressed with `{}`; gzip and zstd are known", other.escape_debug());
            let mut status = Status::unimplemented(what);
            status
                .metadata_mut()
                .insert(ACCEPT_ENCODING, tonic::metadata::MetadataValue::from_static("gzip,zstd,identity"));
            return Err(status);
        }
    };
    let mut requests = Streaming::new_request(ProstDecoder::default(), body, encoding, Some(max));
    requests.message().await?.ok_or_else(|| Status::invalid_argument("the request has no message"))
}

fn respond(frames: FrameStream, encoding: Option<Encoding>) -> Response<Body> {
    let mut response =
        Response::new(Body::new(Frames { frames: Some(frames), encoding, joined: BytesMut::new(), next: None }));
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, GRPC);
    if let Some(encoding) = encoding {
        headers.insert(ENCODING, HeaderValue::from_static(encoding.name()));
    }
    response
}

/// The body of a response: messages, and the status behind them.
struct Frames {
    frames: Option<FrameStream>,
    encoding: Option<Encoding>,
    /// Small messages on their way, joined.
    joined: BytesMut,
    /// What has to wait until those are out.
    next: Option<Frame<Bytes>>,
}

impl Frames {
    /// What the stream has to say, as far as it can be told alone.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Frame<Bytes>> {
        let ended = || Status::new(Code::Unknown, "the stream ended without a reason");
        let next = match &mut self.frames {
            Some(frames) => std::task::ready!(frames.as_mut().poll_next(cx)).unwrap_or_else(|| Err(ended())),
            None => Err(ended()),
        };
        let status = match next {
            Ok(message) => return Poll::Ready(Frame::data(message.wire(self.encoding))),
            Err(status) => status,
        };
        self.frames = None;
        let mut trailers = HeaderMap::new();
        // Fails for a message that no header can hold; the code alone is better than nothing.
        if status.add_header(&mut trailers).is_err() {
            trailers.insert(Status::GRPC_STATUS, HeaderValue::from(status.code() as i32));
        }
        Poll::Ready(Frame::trailers(trailers))
    }
}

impl HttpBody for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(next) = self.next.take() {
                return Poll::Ready(Some(Ok(next)));
            }
            if self.frames.is_none() && self.joined.is_empty() {
                return Poll::Ready(None);
            }
            let next = match self.poll_message(cx) {
                Poll::Pending if self.joined.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(next) => next,
            };
            match next.data_ref().filter(|message| message.len() < JOINED) {
                // Many small frames in a row look like an attack to HTTP/2 libraries, and cost more than they carry.
                Some(small) => self.joined.extend_from_slice(small),
                None => self.next = Some(next),
            }
            if !self.joined.is_empty() && (self.next.is_some() || self.joined.len() >= JOINED) {
                break;
            }
        }
        // Whole: a rest of it kept for the next ones would be held by every stream that is idle.
        let joined = std::mem::take(&mut self.joined).freeze();
        Poll::Ready(Some(Ok(Frame::data(joined))))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_none() && self.joined.is_empty() && self.next.is_none()
    }
}
