//! Decisions per second of the engine and of a server in front of it, on the same cluster with the same requests.
//!
//! Half of the requests ask what if, a quarter allocates and a quarter releases. The clients run in the same process, so their cost counts
//! against the server. `scripts/bench-server.sh` runs it; the arguments are the number of hosts and the seconds of each part.

use engine::{AllocateRequest, Answer, Engine, FitRequest, PlaceRequest, ReleaseRequest, Request};
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use store::{State, Store};
use topology::cluster::Host;
use topology::{Cluster, Collective};

fn cluster(hosts: usize) -> Cluster {
    let mut c = topology::catalog::cluster("h100").expect("a cluster of the catalog");
    let one = c.hosts[0].clone();
    c.hosts = (0..hosts).map(|i| Host { name: format!("n{i}"), ..one.clone() }).collect();
    c
}

/// An engine whose first half of hosts is held by jobs of 12 GPUs.
fn engine(folder: &Path, hosts: usize) -> Engine {
    let cluster = cluster(hosts);
    let state = State::init(&folder.join("s.db"), &cluster, 0.0).expect("a state");
    let store = Store::create(&folder.join("r.db"), &cluster).expect("a store");
    let engine = Engine::builder(cluster).state(state).store(store).build().expect("an engine");
    let cold = FitRequest { kind: Some("nccl".into()), collective: Some(Collective::AllReduce), seed: 0 };
    engine.fit(&cold).expect("a model");
    for i in 0..hosts / 4 {
        let gpus = vec![format!("n{}", 2 * i), format!("n{}:[0-3]", 2 * i + 1)];
        let job = AllocateRequest { job: format!("old-{i}"), gpus, ..Default::default() };
        engine.allocate(&job, 1.0).expect("GPUs");
    }
    engine
}

fn place(gpus: u64, commit: Option<String>) -> PlaceRequest {
    PlaceRequest { gpus: Some(gpus), key: commit.clone(), commit, ..Default::default() }
}

/// Runs the same requests, whose jobs and keys start with `part`, on `threads` threads for a time; returns the decisions (what-if and allocations) a second, all requests a second,
/// and the sorted times of the decisions in milliseconds.
fn drive(
    part: &str,
    threads: usize,
    seconds: f64,
    pause: Duration,
    start: impl Fn(usize) -> Box<dyn FnMut(Request) -> bool + Send> + Sync,
) -> (f64, f64, Vec<f64>) {
    let all = AtomicUsize::new(0);
    let begin = Instant::now();
    let mut times: Vec<f64> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..threads)
            .map(|t| {
                let (all, start) = (&all, &start);
                s.spawn(move || {
                    let mut send = start(t);
                    let mut times = Vec::new();
                    let mut n = 0u64;
                    while begin.elapsed().as_secs_f64() < seconds {
                        n += 1;
                        let gpus = [1, 2, 4, 8, 8, 16, 24, 32][(n as usize + t) % 8];
                        let job = format!("{part}-{t}-{n}");
                        for step in 0..4 {
                            let request = match step {
                                0 | 2 => Request::Place(Box::new(place(gpus, None))),
                                1 => Request::Place(Box::new(place(gpus, Some(job.clone())))),
                                _ => Request::Release(ReleaseRequest { jobs: vec![job.clone()], key: None }),
                            };
                            let at = Instant::now();
                            assert!(send(request), "a request of {gpus} GPUs was refused");
                            all.fetch_add(1, Ordering::Relaxed);
                            if step < 3 {
                                times.push(at.elapsed().as_secs_f64() * 1e3);
                            }
                            std::thread::sleep(pause);
                        }
                    }
                    times
                })
            })
            .collect();
        threads.into_iter().flat_map(|t| t.join().expect("a client")).collect()
    });
    let took = begin.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    (times.len() as f64 / took, all.into_inner() as f64 / took, times)
}

fn at(sorted: &[f64], share: f64) -> f64 {
    sorted.get(((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// A client that sends the engine's requests over HTTP.
fn over_http(address: SocketAddr) -> Box<dyn FnMut(Request) -> bool + Send> {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    Box::new(move |request| {
        let to = |path: &str| format!("http://{address}{path}");
        let sent = match &request {
            Request::Place(r) => {
                let path = if r.commit.is_some() { "/v1/allocations" } else { "/v1/place" };
                agent.post(to(path)).content_type("application/json").send(&serde_json::to_vec(r).expect("JSON")[..])
            }
            Request::Release(r) => agent.delete(to(&format!("/v1/allocations/{}", r.jobs[0]))).call(),
            _ => return false,
        };
        let Ok(mut response) = sent else { return false };
        let mut text = Vec::new();
        response.status().is_success() && response.body_mut().as_reader().read_to_end(&mut text).is_ok()
    })
}

fn main() {
    let mut args = std::env::args().skip(1);
    let hosts: usize = args.next().and_then(|a| a.parse().ok()).unwrap_or(128);
    let seconds: f64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(5.0);
    let threads = server::limits::workers(server::limits::Kind::Change);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = Arc::new(engine(folder.path(), hosts));
    println!("{} GPUs, {threads} clients, {seconds} s each: 2 what-if, 1 allocation, 1 release in turn", hosts * 8);
    let told = |name: &str, (decisions, all, times): &(f64, f64, Vec<f64>)| {
        let (p50, p99) = (at(times, 0.5), at(times, 0.99));
        println!("{name}: {decisions:.0} decisions/s, {all:.0} requests/s, p50 {p50:.2} ms, p99 {p99:.2} ms");
    };
    let own = drive("own", threads, seconds, Duration::ZERO, |_| {
        let engine = engine.clone();
        Box::new(move |r| matches!(engine.handle(&r, 2.0), Ok(Answer::Place(_) | Answer::Release(_))))
    });
    told("engine", &own);

    let engine = Arc::into_inner(engine).expect("the only owner");
    let config =
        server::Config { listen: SocketAddr::from(([127, 0, 0, 1], 0)), rate_per_s: 1e6, ..Default::default() };
    let running = server::start(engine, &config).expect("a server");
    let address = running.address();
    let served = drive("served", threads, seconds, Duration::ZERO, |_| over_http(address));
    told("server", &served);
    // Each client pauses as long as its requests take: about half of the load.
    let pause = Duration::from_secs_f64(threads as f64 / served.1);
    let half = drive("half", threads, seconds, pause, |_| over_http(address));
    told("server at half load", &half);
    running.stop();
    println!("ratio server/engine: {:.2}", served.0 / own.0);
}
