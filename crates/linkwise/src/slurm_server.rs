//! A server that decides for `linkwise slurm agent`.

use engine::{Answer, ErrorKind, Request, StatusAnswer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use server::Client;
use slurm::{Decider, Unable};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use topology::Cluster;

/// Time for one request: a job waits while it runs.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(2);
/// A read state is used this long: every question looks at it. A change of our own ends it.
const STATE_AGE_MAX: Duration = Duration::from_secs(1);
/// After a request without an answer the next ones fail at once for this time, so that jobs do not wait for every one of them.
const DOWN: Duration = Duration::from_secs(1);

/// `linkwise serve`, asked over HTTP.
pub struct Server {
    client: Client,
    cluster: Cluster,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    state: Option<(Instant, StatusAnswer)>,
    failed: Option<(Instant, String)>,
}

/// The part of a problem that is told (RFC 9457).
#[derive(Deserialize)]
struct Problem {
    detail: String,
}

impl Server {
    /// The server at `url` for the cluster of a file. Nothing is asked yet.
    pub fn new(
        url: &str,
        authorities: Option<&Path>,
        token: Option<String>,
        cluster: Cluster,
    ) -> Result<Server, String> {
        let client = Client::new(url, authorities, token, REQUEST_TIME_MAX)?;
        Ok(Server { client, cluster, known: Mutex::default() })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn send<A: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<serde_json::Value>,
    ) -> Result<A, Unable> {
        let unable = |kind, message: String| Unable { kind, message };
        if let Some((_, why)) = self.known().failed.as_ref().filter(|(at, _)| at.elapsed() < DOWN) {
            return Err(unable(ErrorKind::Busy, why.clone()));
        }
        let body = body.map(|b| b.to_string().into_bytes()).unwrap_or_default();
        let (status, text) = self.client.send(method, path, body).map_err(|why| {
            let why = format!("no answer of the server: {why}");
            self.known().failed = Some((Instant::now(), why.clone()));
            unable(ErrorKind::Busy, why)
        })?;
        if (200..300).contains(&status) {
            let bad = |e| unable(ErrorKind::Broken, format!("an answer of another release of the server: {e}"));
            return serde_json::from_slice(&text).map_err(bad);
        }
        let detail = serde_json::from_slice::<Problem>(&text).map_or(format!("status {status}"), |p| p.detail);
        let kind = match status {
            404 | 409 | 422 => ErrorKind::Impossible,
            400 | 401 | 403 => ErrorKind::Malformed,
            429 | 503 => ErrorKind::Busy,
            _ => ErrorKind::Broken,
        };
        Err(unable(kind, format!("the server refused: {detail}")))
    }
}

fn json(request: &impl serde::Serialize) -> Result<Option<serde_json::Value>, Unable> {
    let bad = |e: serde_json::Error| Unable { kind: ErrorKind::Malformed, message: e.to_string() };
    serde_json::to_value(request).map(Some).map_err(bad)
}

impl Decider for Server {
    fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn has_state(&self) -> bool {
        true
    }

    fn decide(&self, request: &Request, _now_unix_s: f64) -> Result<Answer, Unable> {
        let changed = |answer| {
            self.known().state = None;
            Ok(answer)
        };
        match request {
            Request::Place(r) => Ok(Answer::Place(self.send("POST", "/v1/place", json(r)?)?)),
            Request::Status(_) => {
                let kept = self.known().state.clone().filter(|(at, _)| at.elapsed() < STATE_AGE_MAX);
                if let Some((_, state)) = kept {
                    return Ok(Answer::Status(state));
                }
                let state: StatusAnswer = self.send("GET", "/v1/cluster", None)?;
                self.known().state = Some((Instant::now(), state.clone()));
                Ok(Answer::Status(state))
            }
            Request::Allocate(r) => {
                changed(Answer::Allocate(self.send("PUT", &format!("/v1/allocations/{}", r.job), json(r)?)?))
            }
            Request::Release(r) => match r.jobs.as_slice() {
                [job] => changed(Answer::Release(self.send("DELETE", &format!("/v1/allocations/{job}"), None)?)),
                _ => Err(Unable { kind: ErrorKind::Malformed, message: "one job at a time".into() }),
            },
            Request::Drain(r) => changed(Answer::Drain(self.send("POST", "/v1/hosts/drain", json(r)?)?)),
            Request::Undrain(r) => changed(Answer::Undrain(self.send("POST", "/v1/hosts/undrain", json(r)?)?)),
            _ => Err(Unable { kind: ErrorKind::Broken, message: "no request of an agent".into() }),
        }
    }
}
