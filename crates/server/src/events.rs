//! Changes as server-sent events. The log of the state is the source, so a client that reads on after the last number that
//! it saw misses nothing, also after a restart of the server.

use crate::app::App;
use crate::auth::Client;
use crate::body::Streamed;
use crate::limits::STREAMS_MAX;
use crate::problem::Problem;
use crate::read::Asked;
use crate::routes::with_type;
use crate::tenant::View;
use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use engine::EventsRequest;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Events that wait for the client to read them, in parts.
const AHEAD: usize = 4;
/// Events per part.
const PART: usize = 500;
/// A silent stream says this often that it lives.
const ALIVE: Duration = Duration::from_secs(15);

/// Streams the events after number `after`; without a number the new ones.
pub fn stream(app: &Arc<App>, asked: &Asked, last_seen: Option<&str>) -> Result<Response<Body>, Problem> {
    let query: EventsRequest = asked.query()?;
    let seen = last_seen.map(|s| {
        s.trim()
            .parse::<i64>()
            .map_err(|_| Problem::bad("bad_request", "`Last-Event-ID` is not the number of an event"))
    });
    let after = match seen.transpose()? {
        Some(n) => Some(n),
        None => query.after,
    };
    let permit = app.streams.clone().try_acquire_owned().map_err(|_| {
        let detail = format!("{STREAMS_MAX} streams are open");
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Problem::new(status, "too_many_streams", detail, "poll /v1/events").retry_after(30)
    })?;
    let (sender, receiver) = mpsc::channel(AHEAD);
    let (app, client) = (app.clone(), asked.client.clone());
    tokio::spawn(async move {
        let _permit = permit;
        _ = send(&app, &client, after, &sender).await;
    });
    Ok(with_type(Body::new(Streamed(receiver)), "text/event-stream"))
}

async fn send(app: &App, client: &Client, after: Option<i64>, sender: &mpsc::Sender<Bytes>) -> Result<(), Problem> {
    let (mut newest, mut stopping) = (app.newest.subscribe(), app.stopping.subscribe());
    let mut after = match after {
        Some(n) => n,
        None => app.work(|engine| engine.last_event()).await?,
    };
    let gone = |_| Problem::bad("gone", "the client closed the stream");
    sender.send(Bytes::from_static(b": events follow\n\n")).await.map_err(gone)?;
    loop {
        let request = EventsRequest { after: Some(after), limit: Some(PART) };
        let part = app.work(move |engine| engine.events(&request)).await?.events;
        app.still(client).await?;
        let (mut text, any) = (String::new(), !part.is_empty());
        let view = View::of(app, client).await?;
        for e in &part {
            after = e.id;
            if view.as_ref().is_some_and(|v| !v.sees_event(e)) {
                continue;
            }
            let data = serde_json::to_string(e).unwrap_or_default();
            let _ = write!(text, "id: {}\nevent: {}\ndata: {data}\n\n", e.id, e.what);
        }
        if !text.is_empty() {
            sender.send(text.into()).await.map_err(gone)?;
        }
        if any {
            continue;
        }
        let silent = tokio::select! {
            more = async { newest.wait_for(|n| *n > after).await.is_ok() } => if more { false } else { return Ok(()) },
            () = async { _ = stopping.wait_for(|s| *s).await } => return Ok(()),
            () = sender.closed() => return Ok(()),
            () = tokio::time::sleep(ALIVE) => true,
        };
        if silent {
            sender.send(Bytes::from_static(b": alive\n\n")).await.map_err(gone)?;
        }
    }
}
