//! Clients: as fast as they can (closed loop), or at planned moments (open loop).

use engine::{Engine, PlaceRequest, ReleaseRequest, Request};
use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What clients ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Chooses GPUs without allocating them.
    WhatIf,
    /// Allocates; each job is released in a request of its own, which is not timed.
    Commit,
    /// Two what-ifs, an allocation and a release in turn.
    Mixed,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::WhatIf, Kind::Commit, Kind::Mixed];

    pub fn name(self) -> &'static str {
        match self {
            Kind::WhatIf => "what-if",
            Kind::Commit => "commit",
            Kind::Mixed => "mixed",
        }
    }

    /// The requests of one round.
    fn round(self, job: &str, n: u64) -> Vec<Request> {
        let gpus = [1, 2, 4, 8, 8, 16, 24, 32][n as usize % 8];
        let place = |commit: Option<String>| {
            Request::Place(Box::new(PlaceRequest {
                gpus: Some(gpus),
                key: commit.clone(),
                commit,
                ..Default::default()
            }))
        };
        let (what_if, commit) = (|| place(None), || place(Some(job.to_owned())));
        let release = || Request::Release(ReleaseRequest { jobs: vec![job.to_owned()], key: None });
        match self {
            Kind::WhatIf => vec![what_if()],
            Kind::Commit => vec![commit(), release()],
            Kind::Mixed => vec![what_if(), commit(), what_if(), release()],
        }
    }
}

/// A client: sends a request, and says if it was answered as it should be.
pub type Client = Box<dyn FnMut(&Request) -> bool + Send>;

/// A client that calls the engine.
pub fn of_engine(engine: &Arc<Engine>) -> Client {
    let engine = engine.clone();
    Box::new(move |r| engine.handle(r, 2.0).is_ok())
}

/// A client that sends the engine's requests over HTTP.
pub fn over_http(address: SocketAddr) -> Client {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    Box::new(move |request| {
        let to = |path: &str| format!("http://{address}{path}");
        let json = |r: &PlaceRequest| serde_json::to_vec(r).expect("JSON");
        let sent = match request {
            Request::Place(r) => {
                let path = if r.commit.is_some() { "/v1/allocations" } else { "/v1/place" };
                agent.post(to(path)).content_type("application/json").send(&json(r)[..])
            }
            Request::Release(r) => agent.delete(to(&format!("/v1/allocations/{}", r.jobs[0]))).call(),
            _ => return false,
        };
        let Ok(mut response) = sent else { return false };
        let mut text = Vec::new();
        response.status().is_success() && response.body_mut().as_reader().read_to_end(&mut text).is_ok()
    })
}

/// Decisions per second, and the sorted times of the decisions in milliseconds.
pub struct Driven {
    pub decisions_per_s: f64,
    pub times_ms: Vec<f64>,
}

impl Driven {
    pub fn at(&self, share: f64) -> f64 {
        let last = self.times_ms.len().saturating_sub(1);
        self.times_ms.get(((self.times_ms.len() as f64 * share) as usize).min(last)).copied().unwrap_or(0.0)
    }

    fn of(mut times_ms: Vec<f64>, took: Duration) -> Driven {
        times_ms.sort_by(f64::total_cmp);
        Driven { decisions_per_s: times_ms.len() as f64 / took.as_secs_f64(), times_ms }
    }
}

fn is_decision(r: &Request) -> bool {
    matches!(r, Request::Place(_))
}

/// Numbers jobs over all parts of a run, so that no name and no key comes twice.
static JOBS: AtomicU64 = AtomicU64::new(0);

/// Clients that send the next request when they have the answer to the one before.
pub fn closed(kind: Kind, clients: usize, seconds: f64, client: impl Fn() -> Client + Sync) -> Driven {
    let begin = Instant::now();
    let run = || {
        let (mut send, mut times) = (client(), Vec::new());
        while begin.elapsed().as_secs_f64() < seconds {
            let n = JOBS.fetch_add(1, Ordering::Relaxed);
            for request in kind.round(&format!("load-{n}"), n) {
                let at = Instant::now();
                assert!(send(&request), "refused: {request:?}");
                if is_decision(&request) {
                    times.push(at.elapsed().as_secs_f64() * 1e3);
                }
            }
        }
        times
    };
    let times = std::thread::scope(|s| {
        let all: Vec<_> = (0..clients).map(|_| s.spawn(run)).collect();
        all.into_iter().flat_map(|t| t.join().expect("a client")).collect()
    });
    Driven::of(times, begin.elapsed())
}

/// Clients that send `decisions_per_s` at planned moments. A time counts from the planned moment: a request that could not be sent in
/// time because the ones before were slow has waited.
pub fn open(
    kind: Kind,
    clients: usize,
    seconds: f64,
    decisions_per_s: f64,
    client: impl Fn() -> Client + Sync,
) -> Driven {
    let per_round = kind.round("x", 0).iter().filter(|r| is_decision(r)).count();
    let rounds_per_s = decisions_per_s / per_round as f64;
    let rounds = ((seconds * rounds_per_s) as usize).max(1);
    let (next, begin) = (AtomicUsize::new(0), Instant::now());
    let run = || {
        let (mut send, mut times) = (client(), Vec::new());
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= rounds {
                return times;
            }
            let n = JOBS.fetch_add(1, Ordering::Relaxed);
            let requests = kind.round(&format!("load-{n}"), n);
            let each = 1.0 / (rounds_per_s * requests.len() as f64);
            for (step, request) in requests.iter().enumerate() {
                let planned = begin + Duration::from_secs_f64(i as f64 / rounds_per_s + step as f64 * each);
                std::thread::sleep(planned.saturating_duration_since(Instant::now()));
                assert!(send(request), "refused: {request:?}");
                if is_decision(request) {
                    times.push(planned.elapsed().as_secs_f64() * 1e3);
                }
            }
        }
    };
    let times = std::thread::scope(|s| {
        let all: Vec<_> = (0..clients).map(|_| s.spawn(run)).collect();
        all.into_iter().flat_map(|t| t.join().expect("a client")).collect()
    });
    Driven::of(times, begin.elapsed())
}
