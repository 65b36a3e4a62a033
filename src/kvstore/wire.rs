//! The one stream of a session. Remembers in its own types why it ended: HTTP/2 and gRPC pass on a text at best.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::SessionError;
use super::goodbye::{CALM, FrameScan};
use crate::tls::{self, OtherSide, TlsFailure};

/// A dialed connection, plain or within TLS.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A [`Stream`] on its way through HTTP/2.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    fate: Arc<Fate>,
    frames: FrameScan,
    write_failed: Option<io::ErrorKind>,
    /// HTTP/2 drops the wire when the connection is over, whoever ended it.
    _gone: DropGuard,
}

/// What became of a [`Wire`].
#[derive(Debug, Default)]
pub(super) struct Fate {
    cause: Mutex<Option<Cause>>,
    gone: CancellationToken,
    /// Bytes that came so far.
    read: AtomicU64,
}

#[derive(Clone, Debug)]
enum Cause {
    ClosedByServer,
    Io(String),
    Tls(TlsFailure),
    TooManyPings,
}

impl Wire {
    pub(super) fn new(stream: Stream) -> (Self, Arc<Fate>) {
        let fate = Arc::new(Fate::default());
        let gone = fate.gone.clone().drop_guard();
        let frames = FrameScan::default();
        (Self { stream, fate: Arc::clone(&fate), frames, write_failed: None, _gone: gone }, fate)
    }
}

impl Wire {
    /// Passes on what became of a write, but a failure only when there is nothing more to read. A server that refuses our
    /// certificate sends an alert and closes; our own bytes may meet the closed door before the alert has reached us. A
    /// stream that cannot be written to is dead, so its end is near.
    fn written<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = result {
            self.fate.note_error(&error);
            self.write_failed.get_or_insert(error.kind());
        } else if self.write_failed.is_none() {
            return result;
        }
        let mut scratch = [0; 1024];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            match ready!(self.stream.poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => {}
                Ok(()) => break,
                Err(error) => {
                    self.fate.note_error(&error);
                    break;
                }
            }
        }
        Poll::Ready(Err(self.write_failed.unwrap_or(io::ErrorKind::BrokenPipe).into()))
    }
}

impl Stream {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl Fate {
    /// Cancelled when the wire is gone.
    pub(super) const fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    /// Bytes that came so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Why the wire failed, where it did. Under TLS 1.3 a refused client certificate shows here and nowhere else.
    pub(super) fn error(&self) -> Option<SessionError> {
        let cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(match cause {
            Cause::ClosedByServer => SessionError::ConnectionLost("the server closed it".to_owned()),
            Cause::Io(text) => SessionError::ConnectionLost(text),
            Cause::Tls(failure) => SessionError::Tls(failure),
            Cause::TooManyPings => SessionError::TooManyPings,
        })
    }

    /// The first cause stands, but an alert tells more than the broken pipe that may come before it.
    fn note(&self, cause: Cause) {
        let mut known = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() || (matches!(cause, Cause::Tls(_)) && !matches!(*known, Some(Cause::Tls(_)))) {
            *known = Some(cause);
        }
    }

    fn note_error(&self, error: &io::Error) {
        self.note(match tls::explain(error, OtherSide::Server) {
            Some(failure) => Cause::Tls(failure),
            // Without TLS's own goodbye, which says no more to us than the end itself.
            None if error.kind() == io::ErrorKind::UnexpectedEof => Cause::ClosedByServer,
            None => Cause::Io(error.to_string()),
        });
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let (before, room) = (buf.filled().len(), buf.remaining() > 0);
        let read = this.stream.poll_read(cx, buf);
        match &read {
            Poll::Ready(Err(error)) => this.fate.note_error(error),
            Poll::Ready(Ok(())) if room && buf.filled().len() == before => this.fate.note(Cause::ClosedByServer),
            Poll::Ready(Ok(())) => {
                this.fate.read.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
                if this.frames.read(&buf.filled()[before..]) == Some(CALM) {
                    this.fate.note(Cause::TooManyPings);
                }
            }
            Poll::Pending => {}
        }
        read
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match &mut this.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        };
        this.written(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match &mut this.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        };
        this.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = match &mut this.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        };
        this.written(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
