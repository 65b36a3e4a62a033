//! The one stream of a session. Remembers in its own types why it ended: HTTP/2 and gRPC pass on a text at best.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::SessionError;
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
    /// HTTP/2 drops the wire when the connection is over, whoever ended it.
    _gone: DropGuard,
}

/// What became of a [`Wire`].
#[derive(Debug, Default)]
pub(super) struct Fate {
    cause: Mutex<Option<Cause>>,
    gone: CancellationToken,
}

#[derive(Clone, Debug)]
enum Cause {
    ClosedByServer,
    Io(String),
    Tls(TlsFailure),
}

impl Wire {
    pub(super) fn new(stream: Stream) -> (Self, Arc<Fate>) {
        let fate = Arc::new(Fate::default());
        (Self { stream, fate: Arc::clone(&fate), _gone: fate.gone.clone().drop_guard() }, fate)
    }
}

impl Fate {
    /// Cancelled when the wire is gone.
    pub(super) const fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    /// Why the wire failed, where it did. Under TLS 1.3 a refused client certificate shows here and nowhere else.
    pub(super) fn error(&self) -> Option<SessionError> {
        let cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(match cause {
            Cause::ClosedByServer => SessionError::ConnectionLost("the server closed it".to_owned()),
            Cause::Io(text) => SessionError::ConnectionLost(text),
            Cause::Tls(failure) => SessionError::Tls(failure),
        })
    }

    /// The first cause stands, but an alert tells more than the broken pipe that may come before it.
    fn note(&self, cause: Cause) {
        let mut known = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() || (matches!(cause, Cause::Tls(_)) && !matches!(*known, Some(Cause::Tls(_)))) {
            *known = Some(cause);
        }
    }

    fn note_error<T>(&self, result: &Poll<io::Result<T>>) {
        if let Poll::Ready(Err(error)) = result {
            self.note(tls::explain(error, OtherSide::Server).map_or_else(|| Cause::Io(error.to_string()), Cause::Tls));
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let (before, room) = (buf.filled().len(), buf.remaining() > 0);
        let read = match &mut this.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        this.fate.note_error(&read);
        if room && buf.filled().len() == before && matches!(read, Poll::Ready(Ok(()))) {
            this.fate.note(Cause::ClosedByServer);
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
        this.fate.note_error(&written);
        written
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
        this.fate.note_error(&written);
        written
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
        this.fate.note_error(&flushed);
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
