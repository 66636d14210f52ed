//! Starts and stops a server: the listening socket, connections, signals.

use crate::app::{App, now_unix_s};
use crate::connection::{Patient, Principal, handshake};
use crate::limits;
use crate::log::Log;
use crate::oidc::{self, Oidc, Provider};
use crate::problem::Problem;
use crate::renew::{self, Certificates};
use crate::routes;
use crate::spans::Spans;
use crate::tls::Tls;
use axum::Router;
use axum::body::Body;
use engine::{Engine, EngineError};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Number of threads for connections. They parse and write; the engine's calls run elsewhere.
const THREADS: usize = 2;

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on; port 0: a free port.
    pub listen: SocketAddr,
    /// Listen beyond this machine although nothing encrypts the connections.
    pub force_plain: bool,
    /// Requests per second of one client.
    pub rate_per_s: f64,
    /// Longest time in which a body arrives.
    pub body_time: Duration,
    /// Longest time in which a client reads nothing of an answer.
    pub write_time: Duration,
    /// Longest handshake of TLS.
    pub handshake_time: Duration,
    /// The log of requests.
    pub log: Log,
    /// Number of new readings after which a fit starts by itself; none: it never does.
    pub refit_after: Option<usize>,
    /// Folder of status files of the NCCL plugin, for the metrics.
    pub plugin_status: Option<PathBuf>,
    /// The identity provider whose tokens are accepted.
    pub oidc: Option<Oidc>,
    /// Collector of spans, in a build with the feature `otel`.
    pub otlp: Option<String>,
    /// Certificates; none: plain HTTP.
    pub tls: Option<Tls>,
}

impl Default for Config {
    fn default() -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 7878));
        Config {
            listen,
            force_plain: false,
            rate_per_s: limits::RATE_PER_S,
            body_time: limits::BODY_TIME,
            write_time: limits::WRITE_TIME,
            handshake_time: limits::HANDSHAKE_TIME,
            log: Log::None,
            refit_after: None,
            plugin_status: None,
            oidc: None,
            otlp: None,
            tls: None,
        }
    }
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Others could read tokens and answers.
    #[error(
        "{0} is reached from other machines, and nothing is encrypted: give --tls-cert and --tls-key, listen on 127.0.0.1 behind a \
         proxy with TLS, or give --force-plain-http, which sends tokens and answers in clear"
    )]
    Open(SocketAddr),
    /// Everybody could change everything.
    #[error(
        "{0} is reached from other machines, and no client can prove who it is: make a token with `linkwise token create`, or give \
         --client-ca or --oidc-issuer"
    )]
    NoClients(SocketAddr),
    /// A certificate or key cannot be used.
    #[error("{0}")]
    Tls(String),
    /// A setting of the identity provider, or of the collector of spans, cannot be used.
    #[error("{0}")]
    Setting(String),
    /// No engine can answer without a state.
    #[error("a server needs a state")]
    NoState,
    /// The state cannot be read.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The address is taken or foreign.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    /// The system gives no threads or signals.
    #[error("cannot start: {0}")]
    System(std::io::Error),
}

/// The address of the other end of a connection.
#[derive(Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// A server that runs.
pub struct Running {
    runtime: Runtime,
    app: Arc<App>,
    address: SocketAddr,
    accepting: JoinHandle<()>,
    ticking: JoinHandle<()>,
    spans: Spans,
}

/// Starts a server. It takes connections when the function returns.
///
/// # Errors
/// See [`ServeError`].
pub fn start(mut engine: Engine, config: &Config) -> Result<Running, ServeError> {
    let certified = config.tls.as_ref().is_some_and(|t| t.client_ca.is_some());
    let exposed = !config.listen.ip().is_loopback() && !config.force_plain;
    if exposed && config.tls.is_none() {
        return Err(ServeError::Open(config.listen));
    }
    if !engine.has_state() {
        return Err(ServeError::NoState);
    }
    let oidc = config.oidc.as_ref().map(Provider::new).transpose().map_err(ServeError::Setting)?.map(Arc::new);
    let asks = certified || oidc.is_some() || engine.has_tokens()?;
    if exposed && !asks {
        return Err(ServeError::NoClients(config.listen));
    }
    let tls = config.tls.as_ref().map(Certificates::read).transpose().map_err(ServeError::Tls)?.map(Arc::new);
    engine.restart_leases(now_unix_s())?;
    engine.read_apart()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(limits::Kind::ALL.map(limits::workers).iter().sum::<usize>() + 4)
        .thread_name("linkwise-serve")
        .enable_all()
        .build()
        .map_err(ServeError::System)?;
    let spans = Spans::new(config.otlp.as_deref(), runtime.handle()).map_err(ServeError::Setting)?;
    let app = App::new(engine, config, oidc);
    app.asks_for_tokens.store(asks, Ordering::Release);
    app.newest.send_replace(app.engine.last_event()?);
    let app = Arc::new(app);
    let listener = runtime.block_on(TcpListener::bind(config.listen));
    let listener = listener.map_err(|e| ServeError::Listen(config.listen, e))?;
    let address = listener.local_addr().map_err(ServeError::System)?;
    let ticking = runtime.spawn(crate::tick::run(app.clone()));
    if let Some(provider) = app.oidc.clone() {
        runtime.spawn(oidc::prepare(provider, config.log));
    }
    if let Some(certificates) = tls.clone() {
        runtime.spawn(renew::run(app.clone(), certificates));
    }
    let accepting = runtime.spawn(accept(listener, app.clone(), tls, spans.clone()));
    Ok(Running { runtime, app, address, accepting, ticking, spans })
}

impl Running {
    /// The address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for SIGTERM or SIGINT.
    ///
    /// # Errors
    /// The signals cannot be caught.
    pub fn wait_for_signal(&self) -> Result<(), ServeError> {
        let wait = async {
            let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            Ok(())
        };
        self.runtime.block_on(wait).map_err(ServeError::System)
    }

    /// Stops: no new connection is taken, requests that run get their answers, streams end, tasks end. Takes at most a few times
    /// [`limits::STOP_TIME`].
    pub fn stop(self) {
        self.app.stopping.send_replace(true);
        let _ = self.runtime.block_on(self.accepting);
        let _ = self.runtime.block_on(async { tokio::time::timeout(limits::STOP_TIME, self.ticking).await });
        // After the last request, which may have begun a task.
        let ends = crate::tasks::stop(&self.app);
        let _ = self.runtime.block_on(async { tokio::time::timeout(limits::STOP_TIME, ends).await });
        self.spans.end();
        self.runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

/// Takes connections until the server stops, then waits for the open ones.
async fn accept(listener: TcpListener, app: Arc<App>, tls: Option<Arc<Certificates>>, spans: Spans) {
    let service = TowerToHyperService::new(routes::router(app.clone(), spans));
    let permits = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    let mut stopping = app.stopping.subscribe();
    loop {
        let (stream, peer) = tokio::select! {
            () = async { _ = stopping.wait_for(|s| *s).await } => break,
            accepted = listener.accept() => match accepted {
                Ok(a) => a,
                // The process has no file left, or the client is gone: others end meanwhile.
                Err(_) => {
                    app.metrics.broken("accept");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            },
        };
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            app.metrics.broken("too_many_connections");
            refuse(&stream);
            continue;
        };
        let _ = stream.set_nodelay(true);
        let stream = Patient::new(stream, app.write_time);
        let (service, watcher, tls) = (service.clone(), graceful.watcher(), tls.as_ref().map(|t| t.now()));
        let within = app.handshake_time;
        tokio::spawn(async move {
            let _permit = permit;
            match tls {
                None => talk(stream, peer, None, service, watcher).await,
                Some(config) => {
                    if let Some((stream, name)) = handshake(config, stream, within).await {
                        talk(stream, peer, name, service, watcher).await;
                    }
                }
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(limits::STOP_TIME, graceful.shutdown()).await;
}

/// Answers the requests of a connection.
async fn talk<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: SocketAddr,
    name: Option<String>,
    service: TowerToHyperService<Router>,
    watcher: Watcher,
) {
    let principal = Principal(name.map(Into::into));
    let with_peer = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        request.extensions_mut().insert(principal.clone());
        let answer = service.call(request);
        async move {
            let answer: Result<hyper::Response<Body>, Infallible> = answer.await;
            answer
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEADER_TIME)
        .max_headers(limits::HEADERS_MAX)
        // hyper refuses without a body what does not fit: what is little more than the limit gets its answer here.
        .max_buf_size(2 * limits::HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), with_peer);
    // An error is a client that broke off or wrote no HTTP; hyper has answered if it could.
    let _ = watcher.watch(connection).await;
}

/// Answers a connection beyond the limit without reading it.
fn refuse(stream: &TcpStream) {
    let _ = stream.try_write(refusal().raw().as_bytes());
}

/// The answer to a connection beyond the limit.
fn refusal() -> Problem {
    let detail = "the server has as many connections as it takes";
    let status = axum::http::StatusCode::SERVICE_UNAVAILABLE;
    Problem::new(status, "too_many_connections", detail, "try again").retry_after(1)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_answer_to_a_connection_beyond_the_limit_is_json() {
        let answer = super::refusal().raw();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
        assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\n") && head.contains("retry-after: 1"), "{head}");
        let v: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(v["code"], "too_many_connections");
    }
}
