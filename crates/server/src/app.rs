//! [`App`]: what all connections share.

use crate::auth::{Client, Scope, TOKEN_BYTES_MAX, hash};
use crate::limits;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::rate::Rates;
use crate::serve::Config;
use crate::tasks::Tasks;
use axum::http::StatusCode;
use engine::{Answer, Engine, EngineError, Request};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use store::By;
use tokio::sync::{Semaphore, watch};

/// What all connections share.
pub struct App {
    pub engine: Arc<Engine>,
    pub metrics: Metrics,
    pub tasks: Tasks,
    /// What the pages remember.
    pub pages: crate::page::Memory,
    pub rates: Rates,
    wrong_tokens: Rates,
    /// Permits for calls of the engine.
    workers: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// Permits for streams of events.
    pub streams: Arc<Semaphore>,
    /// True from the first token on.
    pub asks_for_tokens: AtomicBool,
    /// Tokens found valid lately, by hash.
    known: Mutex<HashMap<String, (Client, Instant)>>,
    /// Number of the newest event.
    pub newest: watch::Sender<i64>,
    /// True when the server stops.
    pub stopping: watch::Sender<bool>,
    /// True if the operator forced the server to listen beyond this machine without encryption.
    pub forced: bool,
    /// Longest time in which a body arrives.
    pub body_time: Duration,
}

/// The present time, seconds since 1970.
pub fn now_unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

impl App {
    pub fn new(engine: Engine, config: &Config) -> App {
        App {
            engine: Arc::new(engine),
            metrics: Metrics::new(),
            tasks: Tasks::default(),
            pages: crate::page::Memory::default(),
            rates: Rates::new(config.rate_per_s, 2.0 * config.rate_per_s),
            wrong_tokens: Rates::new(limits::WRONG_TOKENS_PER_S, limits::WRONG_TOKENS_BURST),
            workers: Arc::new(Semaphore::new(limits::workers())),
            waiting: AtomicUsize::new(0),
            streams: Arc::new(Semaphore::new(limits::STREAMS_MAX)),
            asks_for_tokens: AtomicBool::new(false),
            known: Mutex::new(HashMap::new()),
            newest: watch::Sender::new(0),
            stopping: watch::Sender::new(false),
            forced: !config.listen.ip().is_loopback(),
            body_time: config.body_time,
        }
    }

    /// Runs blocking work on the engine: waits for a worker, then for the result.
    pub async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, Problem> {
        let start = Instant::now();
        let _waits = Waits::new(&self.waiting)?;
        let permit = tokio::time::timeout(limits::WORK_TIME, self.workers.clone().acquire_owned());
        let permit = permit.await.map_err(|_| overloaded())?.map_err(|_| overloaded())?;
        drop(_waits);
        self.metrics.waited(start.elapsed());
        let engine = self.engine.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit; // also after the client is gone
            work(&engine)
        });
        match tokio::time::timeout(limits::WORK_TIME, done).await {
            Ok(Ok(result)) => result.map_err(Problem::from),
            Ok(Err(_panicked)) => Err(Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "the server failed at this request",
                "report the request and the server's log",
            )),
            Err(_) => {
                let detail = format!("the answer took longer than {} s", limits::WORK_TIME.as_secs());
                let remedy = "send the request again under the same key: the work goes on";
                Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, "too_slow", detail, remedy).retry_after(10))
            }
        }
    }

    /// Asks the engine for a client.
    pub async fn ask(&self, request: Request, client: &Client) -> Result<Answer, Problem> {
        let who = client.clone();
        let decides = matches!(request, Request::Place(_));
        let asked = crate::page::Memory::asked(&request);
        let start = Instant::now();
        let answer = self.work(move |engine| engine.handle(&request, by(&who))).await;
        if decides {
            self.metrics.decided(start.elapsed(), answer.as_ref().err());
        }
        if let Ok(a) = &answer {
            self.metrics.answered(a);
            self.pages.answered(asked, a);
        }
        answer
    }

    /// The client of a token, or of a request without one.
    pub async fn client(&self, token: Option<&str>, peer: SocketAddr) -> Result<Client, Problem> {
        if !self.asks_for_tokens.load(Ordering::Acquire) {
            return Ok(Client { name: "local".into(), scope: Scope::Administer });
        }
        let address = peer.ip().to_string();
        if !self.wrong_tokens.has(&address, Instant::now()) {
            let detail = format!("too many wrong tokens came from {address}");
            let remedy = "send a valid token, later";
            let status = StatusCode::TOO_MANY_REQUESTS;
            return Err(Problem::new(status, "too_many_wrong_tokens", detail, remedy).retry_after(1));
        }
        let refused = |code: &str, detail: &str| {
            let remedy = "send `Authorization: Bearer TOKEN`; `linkwise token create` makes a token";
            Problem::new(StatusCode::UNAUTHORIZED, code, detail, remedy)
        };
        let Some(token) = token else { return Err(refused("no_token", "this server asks for a token")) };
        let wrong = || {
            _ = self.wrong_tokens.take(&address, Instant::now());
            refused("wrong_token", "the token is unknown, revoked or too old")
        };
        if token.len() > TOKEN_BYTES_MAX {
            return Err(wrong());
        }
        let hash = hash(token);
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&hash).cloned();
        if let Some((client, at)) = known
            && at.elapsed() < limits::TOKEN_TIME
        {
            return Ok(client);
        }
        let key = hash.clone();
        let found = self.work(move |engine| engine.token(&key)).await?;
        let valid = found.filter(|t| t.is_valid(now_unix_s())).and_then(|t| Some((t.scope.parse().ok()?, t.name)));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match valid {
            Some((scope, name)) => {
                if known.len() >= limits::CLIENTS_MAX {
                    known.clear();
                }
                let client = Client { name, scope };
                known.insert(hash, (client.clone(), Instant::now()));
                Ok(client)
            }
            None => {
                known.remove(&hash);
                Err(wrong())
            }
        }
    }

    /// Takes one request from the rate of a client.
    pub fn pace(&self, client: &str) -> Result<(), Problem> {
        self.rates.take(client, Instant::now()).map_err(|s| {
            let detail = format!("`{client}` sends more requests than this server allows a client");
            let remedy = "send fewer requests, or ask the operator for a higher --rate";
            let status = StatusCode::TOO_MANY_REQUESTS;
            Problem::new(status, "too_many_requests", detail, remedy).retry_after(s.ceil().clamp(1.0, 3600.0) as u32)
        })
    }
}

/// The author of a client's changes.
pub fn by(client: &Client) -> By<'_> {
    By { who: &client.name, why: "", at_unix_s: now_unix_s(), own_only: client.scope < Scope::Operate }
}

/// A place among the requests that wait for a worker.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(waiting: &'a AtomicUsize) -> Result<Self, Problem> {
        if waiting.fetch_add(1, Ordering::AcqRel) >= limits::WAITING_MAX {
            waiting.fetch_sub(1, Ordering::AcqRel);
            return Err(overloaded());
        }
        Ok(Waits(waiting))
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn overloaded() -> Problem {
    let detail = "more requests wait for an answer than the server takes";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail, "send the request again later").retry_after(1)
}
