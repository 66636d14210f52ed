//! Decisions per second of the engine and of a server in front of it, on the same cluster with the same requests; and a long run that
//! watches the memory. `scripts/bench-server.sh` and `scripts/soak-server.sh` run it.
//!
//! The clients run in the same process, so their cost counts against the server. Half of the GPUs are held by jobs before. With a state in
//! PostgreSQL the database runs on the same machine. A part that is in the file of results is not measured again.

#[path = "drive.rs"]
mod drive;
#[allow(dead_code)] // the tests of the store use the rest
#[path = "../../../store/tests/common/postgres.rs"]
mod postgres;
#[path = "soak.rs"]
mod soak;

use drive::{Kind, closed, of_engine, open, over_http};
use engine::{AllocateRequest, Engine, FitRequest};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{State, Store};
use topology::cluster::Host;
use topology::{Cluster, Collective};

/// Clients of an open loop: enough that a slow answer does not delay the next request.
const OPEN_CLIENTS: usize = 16;

/// What is measured.
pub struct Settings {
    /// GPUs of each simulated cluster.
    pub gpus: Vec<usize>,
    /// Where the state is: `file`, `postgresql`.
    pub backends: Vec<String>,
    /// Length of a part, seconds.
    pub seconds: f64,
    /// Where parts are kept, so that a run that was cut off goes on.
    pub results: Option<PathBuf>,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// GPUs of the simulated cluster.
    pub gpus: usize,
    /// Where the state is.
    pub backend: String,
    /// What the clients ask for.
    pub kind: String,
    /// Length of a part, seconds.
    pub seconds: f64,
    /// Decisions per second of the engine alone.
    pub engine_per_s: f64,
    /// Decisions per second of the server, as fast as it answers.
    pub server_per_s: f64,
    /// Server over engine.
    pub ratio: f64,
    /// At half of the server's rate, from the planned moment.
    pub half_per_s: f64,
    /// Median time of an answer at that rate.
    pub p50_ms: f64,
    /// Its 99th percentile.
    pub p99_ms: f64,
    /// Memory of the process before the part.
    pub memory_before_mib: f64,
    /// And after it.
    pub memory_after_mib: f64,
    /// Load of the machine over a minute, after the part.
    pub load: f64,
}

fn cluster(hosts: usize) -> Cluster {
    let mut c = topology::catalog::cluster("h100").expect("a cluster of the catalog");
    let one = c.hosts[0].clone();
    c.hosts = (0..hosts).map(|i| Host { name: format!("n{i}"), ..one.clone() }).collect();
    c
}

/// An engine whose first half of hosts is held by jobs of 12 GPUs.
fn engine(state: &Path, store: &Path, hosts: usize) -> Engine {
    let cluster = cluster(hosts);
    let state = State::init(state, &cluster, 0.0).expect("a state");
    let store = Store::create(store, &cluster).expect("a store");
    let mut engine = Engine::builder(cluster).state(state).store(store).models_in_state().build().expect("an engine");
    engine.read_apart().expect("a second connection");
    let cold = FitRequest { kind: Some("nccl".into()), collective: Some(Collective::AllReduce), seed: 0 };
    engine.fit(&cold).expect("a model");
    for i in 0..hosts / 4 {
        let gpus = vec![format!("n{}", 2 * i), format!("n{}:[0-3]", 2 * i + 1)];
        let job = AllocateRequest { job: format!("old-{i}"), gpus, ..Default::default() };
        engine.allocate(&job, 1.0).expect("GPUs");
    }
    engine
}

fn start(engine: Engine) -> server::Running {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    server::start(engine, &server::Config { listen, rate_per_s: 1e6, ..Default::default() }).expect("a server")
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|v| v.parse().ok()).unwrap_or(0.0)
}

fn known(results: Option<&PathBuf>) -> Vec<Row> {
    let text = results.and_then(|r| std::fs::read_to_string(r).ok()).unwrap_or_default();
    text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect()
}

/// Measures what the file of results lacks.
pub fn measure(s: &Settings, mut told: impl FnMut(&Row)) {
    let known = known(s.results.as_ref());
    let server = s.backends.iter().any(|b| b == "postgresql").then(postgres::Server::start).flatten();
    for &gpus in &s.gpus {
        for backend in &s.backends {
            let is = |r: &&Row, k: Kind| {
                (r.gpus, r.backend.as_str(), r.kind.as_str(), r.seconds)
                    == (gpus, backend.as_str(), k.name(), s.seconds)
            };
            let missing: Vec<Kind> = Kind::ALL.into_iter().filter(|k| !known.iter().any(|r| is(&r, *k))).collect();
            known.iter().filter(|r| Kind::ALL.iter().any(|k| is(r, *k))).for_each(&mut told);
            if missing.is_empty() {
                continue;
            }
            let folder = tempfile::tempdir().expect("a folder");
            let (state, store) = match (backend.as_str(), &server) {
                ("postgresql", Some(p)) => (PathBuf::from(p.database()), None),
                ("postgresql", None) => {
                    postgres::skip("postgresql");
                    continue;
                }
                _ => (folder.path().join("s.db"), Some(folder.path().join("r.db"))),
            };
            let clients = server::limits::workers(server::limits::Kind::Change);
            let store = store.unwrap_or_else(|| state.clone());
            let mut own = Some(Arc::new(engine(&state, &store, gpus / 8)));
            let rates: Vec<f64> = missing
                .iter()
                .map(|k| {
                    let engine = own.as_ref().expect("the engine");
                    closed(*k, clients, s.seconds, || of_engine(engine)).decisions_per_s
                })
                .collect();
            let running = start(own.take().and_then(Arc::into_inner).expect("the only owner"));
            let address = running.address();
            for (kind, engine_per_s) in missing.into_iter().zip(rates) {
                let before = soak::resident_mib();
                let served = closed(kind, clients, s.seconds, || over_http(address));
                let half = served.decisions_per_s / 2.0;
                let opened = open(kind, OPEN_CLIENTS, s.seconds, half, || over_http(address));
                let row = Row {
                    gpus,
                    backend: backend.clone(),
                    kind: kind.name().into(),
                    seconds: s.seconds,
                    engine_per_s,
                    server_per_s: served.decisions_per_s,
                    ratio: served.decisions_per_s / engine_per_s,
                    half_per_s: half,
                    p50_ms: opened.at(0.5),
                    p99_ms: opened.at(0.99),
                    memory_before_mib: before,
                    memory_after_mib: soak::resident_mib(),
                    load: load(),
                };
                if let Some(path) = &s.results {
                    let mut file = std::fs::File::options().create(true).append(true).open(path).expect("the results");
                    writeln!(file, "{}", serde_json::to_string(&row).expect("JSON")).expect("the results");
                }
                told(&row);
            }
            running.stop();
        }
    }
}

fn text(r: &Row) -> String {
    format!(
        "{:>6} {:<10} {:<8} {:>9.0} {:>9.0} {:>6.2} {:>9.0} {:>7.1} {:>7.1} {:>7.0} {:>7.0} {:>6.1}",
        r.gpus,
        r.backend,
        r.kind,
        r.engine_per_s,
        r.server_per_s,
        r.ratio,
        r.half_per_s,
        r.p50_ms,
        r.p99_ms,
        r.memory_before_mib,
        r.memory_after_mib,
        r.load
    )
}

const HEAD: &str =
    "  GPUs state      requests  engine/s  server/s  ratio  half-rate p50/ms p99/ms MiB-before -after load";
const USAGE: &str = "arguments: [--gpus N,N] [--states file,postgresql] [--seconds S] [--results FILE] [--format text|json] [--soak MINUTES]";

#[allow(dead_code)] // the smoke test calls `measure`
fn main() {
    let mut settings = Settings {
        gpus: vec![1024, 10240],
        backends: vec!["file".into(), "postgresql".into()],
        seconds: 5.0,
        results: None,
    };
    let (mut json, mut minutes) = (false, None);
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().expect(USAGE);
        match flag.as_str() {
            "--gpus" => settings.gpus = value.split(',').map(|n| n.parse().expect(USAGE)).collect(),
            "--states" => settings.backends = value.split(',').map(str::to_owned).collect(),
            "--seconds" => settings.seconds = value.parse().expect(USAGE),
            "--results" => settings.results = Some(value.into()),
            "--format" => json = value == "json",
            "--soak" => minutes = Some(value.parse::<f64>().expect(USAGE)),
            _ => panic!("{USAGE}"),
        }
    }
    if let Some(minutes) = minutes {
        let folder = tempfile::tempdir().expect("a folder");
        let running = start(engine(&folder.path().join("s.db"), &folder.path().join("r.db"), settings.gpus[0] / 8));
        let flat = soak::run(running.address(), minutes, settings.results.as_deref());
        running.stop();
        assert!(flat, "the memory grew, or requests failed");
        return;
    }
    if !json {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        println!(
            "{cores} cores, load {:.1} before; {} s per part; the clients run in the same process\n{HEAD}",
            load(),
            settings.seconds
        );
    }
    measure(&settings, |row| match json {
        true => println!("{}", serde_json::to_string(row).expect("JSON")),
        false => println!("{}", text(row)),
    });
}
