//! [`App`]: what all connections share.

use crate::auth::{Client, Scope, TOKEN_BYTES_MAX, TOKEN_START, certificate_hash, hash};
use crate::limits::{self, Kind};
use crate::log::Log;
use crate::metrics::Metrics;
use crate::oidc::{Provider, Use};
use crate::plugin_status::PluginStatus;
use crate::problem::Problem;
use crate::rate::Rates;
use crate::serve::Config;
use crate::spans;
use crate::tasks::Tasks;
use crate::tenant::{self, View};
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
    /// Tokens of addresses that sent too many wrong ones.
    examined: Rates,
    /// Permits for calls of the engine, by kind.
    workers: [Arc<Semaphore>; 4],
    waiting: AtomicUsize,
    /// Those of them whose work is long.
    waiting_long: AtomicUsize,
    /// Permits for streams of events.
    pub streams: Arc<Semaphore>,
    /// True from the first token on.
    pub asks_for_tokens: AtomicBool,
    /// Tokens found valid lately, by hash.
    known: Mutex<HashMap<String, (Client, Instant)>>,
    /// Number of the newest event.
    pub newest: watch::Sender<i64>,
    /// True while the model of another process is read.
    pub syncs_models: AtomicBool,
    /// True when the server stops.
    pub stopping: watch::Sender<bool>,
    /// True if the operator forced the server to listen beyond this machine without encryption.
    pub forced: bool,
    /// Longest time in which a body arrives.
    pub body_time: Duration,
    /// Longest time in which a client reads nothing of an answer.
    pub write_time: Duration,
    /// Longest handshake of TLS.
    pub handshake_time: Duration,
    /// True if connections are encrypted.
    pub encrypts: bool,
    /// The log of requests.
    pub log: Log,
    /// Number of new readings after which a fit starts by itself.
    pub refit_after: Option<usize>,
    /// The status files of the NCCL plugin.
    pub plugin: Option<Arc<PluginStatus>>,
    /// The identity provider whose tokens are accepted.
    pub oidc: Option<Arc<Provider>>,
    /// Scope of client certificates without an entry among the tokens.
    client_scope: Option<Scope>,
}

/// The present time, seconds since 1970.
pub fn now_unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

impl App {
    pub fn new(engine: Engine, config: &Config, oidc: Option<Arc<Provider>>) -> App {
        App {
            engine: Arc::new(engine),
            metrics: Metrics::new(),
            tasks: Tasks::default(),
            pages: crate::page::Memory::default(),
            rates: Rates::new(config.rate_per_s, 2.0 * config.rate_per_s),
            wrong_tokens: Rates::new(limits::WRONG_TOKENS_PER_S, limits::WRONG_TOKENS_BURST),
            examined: Rates::new(limits::EXAMINED_PER_S, limits::EXAMINED_PER_S),
            workers: Kind::ALL.map(|k| Arc::new(Semaphore::new(limits::workers(k)))),
            waiting: AtomicUsize::new(0),
            waiting_long: AtomicUsize::new(0),
            streams: Arc::new(Semaphore::new(limits::STREAMS_MAX)),
            asks_for_tokens: AtomicBool::new(false),
            known: Mutex::new(HashMap::new()),
            newest: watch::Sender::new(0),
            syncs_models: AtomicBool::new(false),
            stopping: watch::Sender::new(false),
            forced: !config.listen.ip().is_loopback(),
            body_time: config.body_time,
            write_time: config.write_time,
            handshake_time: config.handshake_time,
            log: config.log,
            refit_after: config.refit_after,
            encrypts: config.tls.is_some(),
            oidc,
            plugin: config.plugin_status.clone().map(|f| Arc::new(PluginStatus::new(f))),
            client_scope: config.tls.as_ref().and_then(|t| t.client_scope),
        }
    }

    /// Number of requests that wait for a worker.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Runs blocking work on the engine that changes the state or reads it: waits for a worker, then for the result.
    pub async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, Problem> {
        self.work_as(Kind::Change, work).await
    }

    /// [`App::work`] of another kind.
    pub async fn work_as<T: Send + 'static>(
        &self,
        kind: Kind,
        work: impl FnOnce(&Engine) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, Problem> {
        let long =
            (kind == Kind::Long).then(|| Waits::new(&self.waiting_long, limits::LONG_WAITING_MAX)).transpose()?;
        let waits = Waits::new(&self.waiting, limits::WAITING_MAX)?;
        self.work_after(kind, Some((waits, long)), work).await
    }

    /// [`App::work`] that no flood of requests keeps out: leases end, tasks go on and metrics are read meanwhile.
    pub async fn own_work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, Problem> {
        self.work_after(Kind::Change, None, work).await
    }

    /// Reads a row that says who asks. No flood of requests keeps it out, because whose request it is decides what it may do; a connection
    /// has one at a time, so connections limit them.
    async fn identify<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, Problem> {
        self.work_after(Kind::Look, None, work).await
    }

    async fn work_after<T: Send + 'static>(
        &self,
        kind: Kind,
        waits: Option<(Waits<'_>, Option<Waits<'_>>)>,
        work: impl FnOnce(&Engine) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, Problem> {
        let start = Instant::now();
        let workers = self.workers[kind as usize].clone();
        let permit = tokio::time::timeout(limits::WORK_TIME, workers.acquire_owned());
        let permit = permit.await.map_err(|_| no_worker())?.map_err(|_| no_worker())?;
        drop(waits);
        self.metrics.waited(start.elapsed());
        let engine = self.engine.clone();
        let here = spans::here();
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit; // also after the client is gone
            let _here = here.enter();
            work(&engine)
        });
        match tokio::time::timeout(limits::WORK_TIME, done).await {
            Ok(Ok(result)) => result.map_err(Problem::from),
            Ok(Err(_panicked)) => Err(Problem::failed("request")),
            Err(_) => {
                let detail = format!("the answer took longer than {} s", limits::WORK_TIME.as_secs());
                let remedy = "send the request again under the same key: the work goes on";
                Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, "too_slow", detail, remedy).retry_after(10))
            }
        }
    }

    /// Asks the engine for a client; a client of a tenant sees only what is its own.
    pub async fn ask(&self, request: Request, client: &Client) -> Result<Answer, Problem> {
        self.ask_at(request, client, None).await
    }

    /// The same, if the state has this version still.
    pub async fn ask_at(&self, request: Request, client: &Client, version: Option<u64>) -> Result<Answer, Problem> {
        let view = View::of(self, client).await?;
        if let Some(v) = &view {
            v.check(&request)?;
        }
        let who = client.clone();
        let decides = matches!(request, Request::Place(_));
        let kind = kind_of(&request);
        let asked = crate::page::Memory::asked(&request);
        let name = name_of(&request);
        let (start, sees_all) = (Instant::now(), view.is_none());
        let work = move |engine: &Engine| {
            if let Some(expected) = version
                && engine.snapshot()?.version != expected
            {
                return Ok(Err(changed()));
            }
            let decided = spans::decision(name, || engine.handle(&request, by(&who)));
            Ok(decided.map_err(|e| if sees_all { e.into() } else { tenant::refused(e) }))
        };
        let mut answer = self.work_as(kind, work).await.and_then(|a| a);
        if decides {
            self.metrics.decided(start.elapsed(), answer.as_ref().err());
        }
        if let Ok(a) = &mut answer {
            let model = || self.engine.model_answer().map_or_else(|_| String::new(), |m| m.kind);
            self.metrics.answered(a, model);
            self.pages.answered(asked, a);
            if let Some(v) = &view {
                v.hide(a);
            }
        }
        answer
    }

    /// Refuses an address that sent too many wrong tokens.
    pub fn patient_with(&self, address: &str) -> Result<(), Problem> {
        if self.wrong_tokens.has(address, Instant::now()) { Ok(()) } else { Err(too_many(address)) }
    }

    /// Counts a wrong token of an address. False: it sent too many.
    pub fn wrong_token(&self, address: &str) -> bool {
        self.wrong_tokens.take(address, Instant::now()).is_ok()
    }

    /// The client of a token, or of a request without one. A right token is accepted from an address that sent many wrong ones, too.
    pub async fn client(&self, token: Option<&str>, used: Use, peer: SocketAddr) -> Result<Client, Problem> {
        if !self.asks_for_tokens.load(Ordering::Acquire) {
            return Ok(Client::new("local", Scope::Administer));
        }
        let refused = |code: &str, detail: &str| {
            let remedy = "send `Authorization: Bearer TOKEN`; `linkwise token create` makes a token";
            Problem::new(StatusCode::UNAUTHORIZED, code, detail, remedy)
        };
        let Some(token) = token else { return Err(refused("no_token", "this server asks for a token")) };
        let address = peer.ip().to_string();
        // What is examined here is not known: a right token in use waits for no wrong ones of its address.
        let is_known = || self.known.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&hash(token));
        let now = Instant::now();
        if !self.wrong_tokens.has(&address, now) && !is_known() && self.examined.take(&address, now).is_err() {
            return Err(too_many(&address));
        }
        let found = self.holder(token, used).await?;
        found.map_err(|why| match self.wrong_token(&address) {
            true => why.unwrap_or_else(|| refused("wrong_token", "the token is unknown, revoked or too old")),
            false => too_many(&address),
        })
    }

    /// The client of a token; the inner error, with its reason if there is one: the token is wrong.
    async fn holder(&self, token: &str, used: Use) -> Result<Result<Client, Option<Problem>>, Problem> {
        if let Some(provider) = self.oidc.as_ref().filter(|_| Provider::is_like(token)) {
            return match provider.client(token, used).await {
                Ok(client) => Ok(Ok(client)),
                Err(p) if p.status == 401 => Ok(Err(Some(p))),
                Err(p) => Err(p),
            };
        }
        // Only what starts like a token is looked up: entries of certificates have hashes of other texts.
        if token.len() > TOKEN_BYTES_MAX || !token.starts_with(TOKEN_START) {
            return Ok(Err(None));
        }
        Ok(self.entry(hash(token)).await?.valid().ok_or(None))
    }

    /// The client of a verified certificate: the entry of its name among the tokens, else the scope for all certificates.
    pub async fn certified(&self, name: &str) -> Result<Client, Problem> {
        let refused = |detail: String| {
            let remedy = "ask the operator for an entry of this certificate: `linkwise token create` makes one";
            Problem::new(StatusCode::FORBIDDEN, "no_scope", detail, remedy)
        };
        match (self.entry(certificate_hash(name)).await?, self.client_scope) {
            (Entry::Valid(client), _) => Ok(client),
            (Entry::Ended, _) => Err(refused(format!("the entry of the certificate `{name}` is revoked or too old"))),
            (Entry::Unknown, Some(scope)) => {
                let own = name.to_owned();
                let taken = self.identify(move |engine| engine.has_token_named(&own)).await?;
                if taken || crate::auth::is_reserved(name) {
                    return Err(refused(format!("the name of the certificate, `{name}`, is that of another client")));
                }
                let client = Client::new(name, scope);
                self.remember(certificate_hash(name), &client);
                Ok(client)
            }
            (Entry::Unknown, None) => Err(refused(format!("the certificate `{name}` has no scope"))),
        }
    }

    /// Refuses a client whose token or certificate has ended since its request came: for streams, which have no end of their own.
    pub async fn still(&self, client: &Client) -> Result<(), Problem> {
        let too_old = client.until_unix_s.is_some_and(|t| now_unix_s() >= t as f64);
        let ended = match &client.entry {
            Some(hash) => !matches!(self.entry(hash.clone()).await?, Entry::Valid(_)),
            None => false,
        };
        if !too_old && !ended {
            return Ok(());
        }
        let remedy = "open the stream again with a new token";
        Err(Problem::new(StatusCode::UNAUTHORIZED, "wrong_token", "the token was revoked or is too old now", remedy))
    }

    /// The entry with this hash, kept for [`limits::TOKEN_TIME`].
    async fn entry(&self, hash: String) -> Result<Entry, Problem> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&hash).cloned();
        if let Some((client, at)) = known
            && at.elapsed() < limits::TOKEN_TIME
        {
            return Ok(Entry::Valid(client));
        }
        let key = hash.clone();
        let found = self.identify(move |engine| engine.token(&key)).await?;
        let entry = match found {
            None => Entry::Unknown,
            Some(t) => match t.scope.parse() {
                Ok(scope) if t.is_valid(now_unix_s()) => {
                    Entry::Valid(Client { entry: Some(hash.clone()), ..Client::new(t.name, scope) })
                }
                _ => Entry::Ended,
            },
        };
        match &entry {
            Entry::Valid(client) => self.remember(hash, client),
            _ => _ = self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&hash),
        }
        Ok(entry)
    }

    /// Keeps a client that was found valid for [`limits::TOKEN_TIME`].
    fn remember(&self, hash: String, client: &Client) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= limits::CLIENTS_MAX {
            known.clear();
        }
        known.insert(hash, (client.clone(), Instant::now()));
    }

    /// Takes one request from the rate of a client.
    pub fn pace(&self, client: &str) -> Result<(), Problem> {
        self.rates.take(client, Instant::now()).map_err(|s| {
            let detail = format!("`{client}` sends more requests than this server allows a client");
            let remedy = "send fewer requests, or ask the operator for a higher rate";
            let status = StatusCode::TOO_MANY_REQUESTS;
            Problem::new(status, "too_many_requests", detail, remedy).retry_after(s.ceil().clamp(1.0, 3600.0) as u32)
        })
    }
}

/// What the state knows of a token or of the name of a certificate.
enum Entry {
    Unknown,
    /// Revoked, too old, or with a scope that this version does not know.
    Ended,
    Valid(Client),
}

impl Entry {
    fn valid(self) -> Option<Client> {
        match self {
            Entry::Valid(client) => Some(client),
            _ => None,
        }
    }
}

/// Searches that examine every candidate.
const LONG_SEARCHES: [&str; 2] = ["exact", "oracle"];

/// Whose workers take a request.
fn kind_of(request: &Request) -> Kind {
    match request {
        Request::Place(r) if r.search.as_deref().is_some_and(|s| LONG_SEARCHES.contains(&s)) => Kind::Long,
        Request::Diagnose(_) => Kind::Long,
        Request::Place(r) if r.commit.is_none() => Kind::Question,
        Request::Explain(_) => Kind::Question,
        _ => Kind::Change,
    }
}

/// What a request does, for its span.
fn name_of(request: &Request) -> &'static str {
    match request {
        Request::Place(r) if r.commit.is_some() => "place and allocate",
        Request::Place(_) => "place",
        Request::Allocate(_) => "allocate",
        Request::Release(_) => "release",
        Request::Renew(_) => "renew",
        Request::Drain(_) => "drain",
        Request::Undrain(_) => "undrain",
        Request::Observe(_) => "observe",
        Request::Diagnose(_) => "diagnose",
        Request::Explain(_) => "explain",
        _ => "read or correct",
    }
}

/// The author of a client's changes.
pub fn by(client: &Client) -> By<'_> {
    By { who: &client.name, why: &client.why, at_unix_s: now_unix_s(), own_only: client.scope < Scope::Operate }
}

/// A place among the requests that wait for a worker.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(waiting: &'a AtomicUsize, most: usize) -> Result<Self, Problem> {
        if waiting.fetch_add(1, Ordering::AcqRel) >= most {
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

fn changed() -> Problem {
    let detail = "the state has changed since the version in the header `If-Match`";
    let remedy = "read the state again, and send the request with its version";
    Problem::new(StatusCode::PRECONDITION_FAILED, "version_changed", detail, remedy)
}

fn no_worker() -> Problem {
    let detail = format!("the requests before this one took longer than {} s", limits::WORK_TIME.as_secs());
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail, "send the request again later").retry_after(10)
}

fn overloaded() -> Problem {
    let detail = "more requests wait for an answer than the server takes";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail, "send the request again later").retry_after(1)
}

fn too_many(address: &str) -> Problem {
    let detail = format!("too many wrong tokens came from {address}");
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_wrong_tokens", detail, "send a valid token").retry_after(1)
}

#[cfg(test)]
pub mod tests;
