//! A stream of requests, a line each, and their answers in the same order. The server reads the next line when it has
//! answered one and the client has room, so a stream needs little memory however long it is.

use crate::app::App;
use crate::auth::Client;
use crate::body::{Streamed, drain, next_part};
use crate::limits::{LINE_BYTES_MAX, LINES_MAX};
use crate::problem::Problem;
use crate::read;
use crate::routes::with_type;
use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use engine::{Answer, PlaceRequest, Request};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Answers that wait for the client to read them.
const AHEAD: usize = 16;

/// Starts to answer the lines of a body.
pub fn answer(app: Arc<App>, client: Client, mut body: Body) -> Response<Body> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        if let Err(p) = lines(&app, &client, &mut body, &sender).await {
            _ = sender.send(line(serde_json::json!(p), None)).await;
            // A client that still writes would find the connection closed before it reads the problem.
            drain(&mut body, app.body_time).await;
        }
    });
    with_type(Body::new(Streamed(receiver)), "application/x-ndjson")
}

/// Answers line by line. An error ends the stream; a line that is wrong has its problem as its answer.
async fn lines(app: &Arc<App>, client: &Client, body: &mut Body, sender: &mpsc::Sender<Bytes>) -> Result<(), Problem> {
    let (mut rest, mut count, mut ended) = (Vec::new(), 0usize, false);
    while !ended {
        match tokio::time::timeout(app.body_time, next_part(body)).await {
            Ok(Some(part)) => rest.extend_from_slice(&part?),
            Ok(None) => {
                ended = true;
                rest.push(b'\n');
            }
            Err(_) => {
                let detail = format!("no line came for {:.1} s", app.body_time.as_secs_f64());
                let status = StatusCode::REQUEST_TIMEOUT;
                return Err(Problem::new(status, "body_too_slow", detail, "send the remaining lines anew"));
            }
        }
        let mut start = 0;
        while let Some(n) = rest[start..].iter().position(|b| *b == b'\n') {
            if n > LINE_BYTES_MAX {
                return Err(too_long());
            }
            let text = rest[start..start + n].trim_ascii();
            start += n + 1;
            if text.is_empty() {
                continue;
            }
            count += 1;
            if count > LINES_MAX {
                let detail = format!("the stream has more than {LINES_MAX} lines");
                return Err(Problem::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "too_many_lines",
                    detail,
                    "send several streams",
                ));
            }
            let (value, id) = one(app, client, text).await;
            if sender.send(line(value, id)).await.is_err() || *app.stopping.borrow() {
                return Ok(()); // the client is gone, or the server stops
            }
        }
        rest.drain(..start);
        if rest.len() > LINE_BYTES_MAX {
            return Err(too_long());
        }
    }
    Ok(())
}

fn too_long() -> Problem {
    let detail = format!("a line has more than {LINE_BYTES_MAX} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "line_too_long", detail, "send a smaller request")
}

/// The answer to one line, and the id of its request.
async fn one(app: &Arc<App>, client: &Client, text: &[u8]) -> (Value, Option<Value>) {
    let mut id = None;
    let answer = async {
        let mut value: Value = read::json(text)?;
        id = value.as_object_mut().and_then(|m| m.remove("id"));
        let request: PlaceRequest = serde_json::from_value(value).map_err(|e| {
            Problem::bad("bad_request", format!("the line cannot be read: {}", read::excerpt(&e.to_string())))
        })?;
        if request.commit.is_some() {
            return Err(Problem::bad("commit_not_here", "`commit` allocates: send it to /v1/allocations"));
        }
        app.still(client).await?;
        app.pace(&client.name)?;
        app.ask(Request::Place(Box::new(request)), client).await
    };
    let value = match answer.await {
        Ok(Answer::Place(a)) => serde_json::to_value(a).unwrap_or_default(),
        Ok(_) => Value::Null,
        Err(p) => serde_json::json!(p),
    };
    (value, id)
}

fn line(mut value: Value, id: Option<Value>) -> Bytes {
    if let (Some(map), Some(id)) = (value.as_object_mut(), id) {
        map.insert("id".into(), id);
    }
    Bytes::from(format!("{value}\n"))
}
