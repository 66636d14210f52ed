//! Bodies that arrive and leave in parts.

use crate::limits::BODY_BYTES_MAX;
use crate::problem::Problem;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use http_body::{Frame, SizeHint};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;

/// The next part of a body; none at its end.
pub async fn next_part(body: &mut Body) -> Option<Result<Bytes, Problem>> {
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => return Some(Ok(data)),
            Ok(Err(_trailers)) => {}
            Err(e) => return Some(Err(Problem::bad("body_broken", format!("the body ended early: {e}")))),
        }
    }
}

/// The whole body, at most [`BODY_BYTES_MAX`] bytes within this time. Of a body that is too large so much more is read while the client gets
/// its answer: a client that still writes would find the connection closed before it reads why.
pub async fn whole(mut body: Body, time: Duration) -> Result<Vec<u8>, Problem> {
    let within = async {
        if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
            return Ok(None);
        }
        let mut all = Vec::new();
        while let Some(part) = next_part(&mut body).await {
            all.extend_from_slice(&part?);
            if all.len() > BODY_BYTES_MAX {
                return Ok(None);
            }
        }
        Ok(Some(all))
    };
    match tokio::time::timeout(time, within).await {
        Ok(Ok(Some(all))) => Ok(all),
        Ok(Ok(None)) => {
            tokio::spawn(async move { drain(&mut body, time).await });
            let detail = format!("the body has more than {BODY_BYTES_MAX} bytes");
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail, "send a smaller request"))
        }
        Ok(Err(broken)) => Err(broken),
        Err(_) => {
            let detail = format!("the body did not arrive within {:.1} s", time.as_secs_f64());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", detail, "send the request again, faster"))
        }
    }
}

/// Reads on for a while, at most [`BODY_BYTES_MAX`] bytes.
pub async fn drain(body: &mut Body, time: Duration) {
    let mut left = BODY_BYTES_MAX;
    let read = async {
        while let Some(Ok(part)) = next_part(body).await {
            left = left.saturating_sub(part.len());
            if left == 0 {
                return;
            }
        }
    };
    _ = tokio::time::timeout(time, read).await;
}

/// The body of a streamed answer: what is sent to the channel, until its sender is dropped.
pub struct Streamed(pub mpsc::Receiver<Bytes>);

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = Infallible;
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|part| part.map(|b| Ok(Frame::data(b))))
    }
    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
