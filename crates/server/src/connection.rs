//! One connection: the handshake of TLS, and writes that a client reads in time.

use crate::problem::Problem;
use crate::tls::common_name;
use axum::http::StatusCode;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

/// The name in the client's certificate.
#[derive(Clone, Debug)]
pub struct Principal(pub Option<Arc<str>>);

/// First byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;
/// Most bytes that are read from a client that speaks plain HTTP.
const REST_BYTES_MAX: u64 = 64 << 10;

/// A stream whose writes fail when the other end reads nothing for some time.
pub struct Patient<S> {
    stream: S,
    patience: Duration,
    waits: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    /// A stream that waits this long for its reader.
    pub fn new(stream: S, patience: Duration) -> Patient<S> {
        Patient { stream, patience, waits: None }
    }

    /// The result of a write, or the end of the patience.
    fn waited<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.waits = None;
            return result;
        }
        let patience = self.patience;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(patience)));
        match waits.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.waited(cx, result)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.waited(cx, result)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.waited(cx, result)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.waited(cx, result)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Makes the handshake of TLS, in time; none if the client makes none. A client that speaks
/// plain HTTP is told so.
pub async fn handshake(
    config: Arc<ServerConfig>,
    stream: Patient<TcpStream>,
    within: Duration,
) -> Option<(TlsStream<Patient<TcpStream>>, Option<String>)> {
    let shakes = async {
        let mut stream = stream;
        let mut first = [0];
        stream.stream.peek(&mut first).await.ok().filter(|n| *n > 0)?;
        if first[0] != HANDSHAKE {
            let _ = stream.write_all(plain_refused().as_bytes()).await;
            let _ = stream.shutdown().await;
            // What the client has sent is read: an unread rest would reset the connection before the answer arrives.
            let _ = tokio::io::copy(&mut stream.take(REST_BYTES_MAX), &mut tokio::io::sink()).await;
            return None;
        }
        let tls = TlsAcceptor::from(config).accept(stream).await.ok()?;
        let name = tls.get_ref().1.peer_certificates().and_then(|c| common_name(c.first()?));
        Some((tls, name))
    };
    timeout(within, shakes).await.ok().flatten()
}

/// The answer to plain HTTP.
fn plain_refused() -> String {
    Problem::new(StatusCode::BAD_REQUEST, "tls_needed", "this server answers over TLS only", "use https").raw()
}
