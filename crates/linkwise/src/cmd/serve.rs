//! `linkwise serve`: the engine over HTTP.

mod oidc;

use crate::cmd::open;
use crate::store_errors::OrFailure;
use console::{Failure, Format, load_cluster, now_unix_s, wrap};
use engine::FitRequest;
use predict::Model;
use serde_json::json;
use server::auth::Scope;
use server::{Config, Log, ServeError, Tls};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use store::{State, StateError};
use topology::Collective;

/// Arguments of `linkwise serve`.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  linkwise serve --cluster site.yaml --state site.db
  curl -s localhost:7878/v1/cluster
  curl -s localhost:7878/v1/place -H 'Content-Type: application/json' -d '{\"gpus\":16}'

A missing state is made. Readings go to site.readings.db beside it; the state keeps the model and its earlier versions. Until a fit the \
predictions are those of NCCL's own decisions. http://localhost:7878/ is the page, /openapi.json describes every request.

--state postgres://USER@HOST:PORT/DATABASE (or postgres://USER@/DATABASE?host=/run/postgresql) is a state that several servers share; \
the readings go to the same database. The first server makes the tables.

SIGHUP, or a change of their files, makes the server read its certificates again. Ctrl-C or SIGTERM ends it after the requests that run. Until `linkwise token create` makes the first token, every user of this \
machine may do everything.")]
pub struct Args {
    /// Built-in cluster or cluster file; needed to make a state
    #[arg(long)]
    cluster: Option<String>,
    /// State of `linkwise cluster`: a file, or the URL of a PostgreSQL database; made if it is missing
    #[arg(long)]
    state: PathBuf,
    /// Store of readings (default: beside the state, or in its database); made if it is missing
    #[arg(long)]
    store: Option<PathBuf>,
    /// Model file that the state takes in as a new version, once (default: the model that the state keeps)
    #[arg(long)]
    model: Option<PathBuf>,
    /// Collective of the predictions while the state has no model
    #[arg(long, value_parser = clap::value_parser!(Collective), default_value = "all_reduce")]
    collective: Collective,
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:7878", value_parser = address)]
    listen: SocketAddr,
    /// Requests per second that one client may send
    #[arg(long, default_value_t = server::limits::RATE_PER_S, value_parser = console::number::real)]
    rate: f64,
    /// Certificate of the server with those of its authorities, PEM; the server then answers over TLS only
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Authorities of client certificates, PEM: the common name of a client's certificate is the author of its changes
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,
    /// What a client certificate may do without an entry of its own: read, request, operate or administer
    #[arg(long, value_name = "SCOPE", requires = "client_ca", value_parser = Scope::from_str)]
    client_scope: Option<Scope>,
    /// Readings after which the server fits a new model, and uses it if it predicts better; 0: never
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = console::number::whole::<usize>)]
    refit_after: usize,
    /// Log every request on standard error: `none`, or `json` for one line each
    #[arg(long, default_value = "none", value_parser = log)]
    log: Log,
    /// Listen beyond this machine although nothing is encrypted: tokens and answers can be read on the network
    #[arg(long)]
    force_plain_http: bool,
    /// Folder of status files of the NCCL plugin, shown in /metrics
    #[arg(long, value_name = "FOLDER")]
    plugin_status: Option<PathBuf>,
    /// Collector to which spans are sent by OTLP over HTTP, such as http://127.0.0.1:4318
    #[cfg(feature = "otel")]
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    #[command(flatten)]
    oidc: oidc::OidcArgs,
    /// Output format of the line that says where the server listens
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "an address and a port were expected, such as 127.0.0.1:7878".into())
}

fn log(text: &str) -> Result<Log, String> {
    match text {
        "none" => Ok(Log::None),
        "json" => Ok(Log::Json),
        _ => Err("`none` or `json` was expected".into()),
    }
}

/// The store that belongs to a state: `site.db` has `site.readings.db`, a database has its readings.
fn store_of(state: &Path) -> PathBuf {
    if store::db::is_url(state) { state.into() } else { state.with_extension("readings.db") }
}

/// The model file that servers of earlier versions wrote beside a state file.
fn model_of(state: &Path) -> Option<PathBuf> {
    Some(state.with_extension("model.json")).filter(|m| !store::db::is_url(state) && m.is_file())
}

/// Opens the state, or makes it for the named cluster. Of servers that start at once, one makes it.
fn state(path: &Path, cluster: Option<&str>) -> Result<State, Failure> {
    match (State::open(path), cluster) {
        (Err(StateError::Missing(_)), Some(name)) => match State::init(path, &load_cluster(name)?, now_unix_s()) {
            Err(StateError::Exists { same: true, .. }) => State::open(path).or_failure(),
            made => made.or_failure(),
        },
        (Err(StateError::Missing(shown)), None) => {
            Err(Failure::input(format!("{} does not exist; give --cluster to make it", shown.display())))
        }
        (opened, _) => opened.or_failure(),
    }
}

pub fn run(args: Args) -> Result<(), Failure> {
    if !(args.rate > 0.0 && args.rate <= 1e6) {
        return Err(Failure::input(format!("--rate: {} is not above 0 and at most 1,000,000", args.rate)));
    }
    let state = state(&args.state, args.cluster.as_deref())?;
    let cluster = open::cluster(args.cluster.as_deref(), Some(&state))?;
    let store = args.store.unwrap_or_else(|| store_of(&args.state));
    let shown = state.path().to_owned();
    let has_model = state.models().or_failure()?.present > 0;
    // A file that is named must be there; one that an earlier version left beside the state counts until the state has a model.
    let file = args.model.or_else(|| model_of(&args.state).filter(|_| !has_model));
    let builder =
        open::new(cluster.clone()).state(state).store(open::store_or_new(&store, &cluster)?).models_in_state();
    let builder = match &file {
        Some(file) => open::model_text(builder, file)?,
        None if has_model => builder,
        None => {
            // A model of NCCL's own decisions needs no reading.
            let cold = FitRequest { kind: Some("nccl".into()), collective: Some(args.collective), seed: 0 };
            let cold_engine = open::new(cluster).build().or_failure()?;
            cold_engine.fit(&cold).or_failure()?;
            builder.model(Model::clone(&*cold_engine.model().or_failure()?))
        }
    };
    let engine = open::build(builder, file.as_deref().unwrap_or(&shown))?;
    let (client_ca, client_scope) = (args.client_ca, args.client_scope);
    let tls = args.tls_cert.zip(args.tls_key).map(|(cert, key)| Tls { cert, key, client_ca, client_scope });
    let scheme = if tls.is_some() { "https" } else { "http" };
    let config = Config {
        listen: args.listen,
        force_plain: args.force_plain_http,
        rate_per_s: args.rate,
        tls,
        log: args.log,
        plugin_status: args.plugin_status,
        oidc: args.oidc.settings()?,
        #[cfg(feature = "otel")]
        otlp: args.otlp,
        refit_after: (args.refit_after > 0).then_some(args.refit_after),
        ..Config::default()
    };
    let asks = engine.has_tokens().or_failure()?;
    let running = server::start(engine, &config).map_err(|e| match e {
        ServeError::Engine(e) => Err::<(), _>(e).or_failure().unwrap_err(),
        e => Failure::input(e),
    })?;
    let at = running.address();
    match args.format {
        Format::Text => {
            console::print(&format!("linkwise listens on {scheme}://{at}\n"));
            if args.force_plain_http && !asks {
                let note = "note: no token exists: every client that reaches this address may do everything; \
                            `linkwise token create` makes one";
                console::say(&wrap(note, 2).trim_end());
            }
        }
        Format::Json => console::print(&format!("{}\n", json!({"listens": at, "asks_for_tokens": asks}))),
    }
    running.wait_for_signal().map_err(Failure::input)?;
    running.stop();
    Ok(())
}
