//! A server under all kinds of requests for a long time, tasks included: its memory must be flat.

use serde_json::json;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Counts what the program holds. SQLite allocates by itself and is not counted; its caches have limits.
#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Requests per second, of all clients.
const RATE: f64 = 200.0;
/// Clients that send them.
const CLIENTS: u64 = 4;
/// Rounds of a client from one task to the next.
const TASK_EVERY: u64 = 500;
/// Rounds of a client from one reading to the next. A diagnosis needs memory for all readings: with many new ones the memory would show their number.
const READING_EVERY: u64 = 50;
/// The memory may grow by so much per hour after the first quarter of the run, in MiB, plus [`SLACK_MIB`] for the whole run: a cache that
/// fills up to its limit is no leak.
pub const GROWTH_MIB_PER_H: f64 = 8.0;
/// See [`GROWTH_MIB_PER_H`].
pub const SLACK_MIB: f64 = 8.0;
/// What the program holds may grow by half of that: it has no fragments.
const HELD_SHARE: f64 = 0.5;

/// Memory of this process, MiB.
pub fn resident_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// What this process holds on the heap of Rust, MiB.
pub fn held_mib() -> f64 {
    let now = COUNTED.stats(); // what grows in its place counts as allocated, too
    (now.bytes_allocated as f64 - now.bytes_deallocated as f64) / f64::from(1 << 20)
}

/// The slope of a line through points (seconds, MiB), MiB per hour.
pub fn slope_mib_per_h(points: &[(f64, f64)]) -> f64 {
    let n = points.len().max(1) as f64;
    let (mx, my) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let square: f64 = points.iter().map(|p| (p.0 - mx).powi(2)).sum();
    let product: f64 = points.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum();
    if square == 0.0 { 0.0 } else { 3600.0 * product / square }
}

/// One round of requests; returns the number of those that the server failed.
fn round(agent: &ureq::Agent, at: SocketAddr, n: u64) -> usize {
    let turn = n / CLIENTS;
    let task =
        (turn % TASK_EVERY == 1).then(|| ["/v1/diagnose/task", "/v1/models/fit"][(turn / TASK_EVERY + n) as usize % 2]);
    let to = |path: &str| format!("http://{at}{path}");
    let (job, typed) = (format!("soak-{n}"), "application/json");
    let post = |path: &str, body: serde_json::Value| {
        let sent = agent.post(to(path)).content_type(typed).header("idempotency-key", format!("{path}-{n}"));
        sent.send(&serde_json::to_vec(&body).expect("JSON")[..])
    };
    let asked = [
        task.map_or_else(|| post("/v1/place", json!({"gpus": 8})), |path| post(path, json!({}))),
        post("/v1/allocations", json!({"gpus": 16, "commit": job, "lease_s": 600})),
        match turn % READING_EVERY {
            0 => {
                let reading = json!({"collective": "all_reduce", "busbw_gb_per_s": 100.0 + (n % 97) as f64});
                post("/v1/readings", json!({"job": job, "readings": [reading]}))
            }
            _ => agent.get(to("/v1/readings?limit=100")).call(),
        },
        agent.get(to("/v1/cluster")).call(),
        agent.get(to(["/", "/metrics", "/history", "/v1/events?after=0", "/what-if"][n as usize % 5])).call(),
        agent.delete(to(&format!("/v1/allocations/{job}"))).call(),
    ];
    let failed = |r: Result<ureq::http::Response<ureq::Body>, ureq::Error>| match r {
        Ok(mut r) => r.status().as_u16() >= 500 || r.body_mut().read_to_vec().is_err(),
        Err(_) => true,
    };
    asked.into_iter().map(failed).filter(|f| *f).count()
}

/// Runs for `minutes`, prints the memory every minute and adds it to `results`; true if it grew no more than it may and no request failed.
pub fn run(at: SocketAddr, minutes: f64, results: Option<&Path>) -> bool {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let (begin, end) = (Instant::now(), minutes * 60.0);
    let (mut resident, mut held) = (Vec::new(), Vec::new());
    let mut told = begin;
    let tell = |n: u64, failed: usize| {
        let (s, resident, held) = (begin.elapsed().as_secs_f64(), resident_mib(), held_mib());
        println!("{s:.0} s: {resident:.1} MiB, of these {held:.1} held; {n} rounds, {failed} failed");
        if let Some(path) = results {
            let mut file = std::fs::File::options().create(true).append(true).open(path).expect("the results");
            let line = json!({"s": s, "resident_mib": resident, "held_mib": held, "rounds": n, "failed": failed});
            writeln!(file, "{line}").expect("the results");
        }
    };
    let (rounds, failures) = (AtomicU64::new(0), AtomicUsize::new(0));
    std::thread::scope(|threads| {
        for client in 0..CLIENTS {
            let (agent, rounds, failures) = (agent.clone(), &rounds, &failures);
            threads.spawn(move || {
                for turn in 1.. {
                    if begin.elapsed().as_secs_f64() >= end {
                        return;
                    }
                    failures.fetch_add(round(&agent, at, turn * CLIENTS + client), Ordering::Relaxed);
                    rounds.fetch_add(1, Ordering::Relaxed);
                    let planned = begin + Duration::from_secs_f64((turn * CLIENTS) as f64 * 6.0 / RATE);
                    std::thread::sleep(planned.saturating_duration_since(Instant::now()));
                }
            });
        }
        while begin.elapsed().as_secs_f64() < end {
            std::thread::sleep(Duration::from_secs(1));
            let s = begin.elapsed().as_secs_f64();
            if s > end / 4.0 {
                resident.push((s, resident_mib()));
                held.push((s, held_mib()));
            }
            if told.elapsed() > Duration::from_secs(60) {
                told = Instant::now();
                tell(rounds.load(Ordering::Relaxed), failures.load(Ordering::Relaxed));
            }
        }
    });
    let (n, failed) = (rounds.into_inner(), failures.into_inner());
    tell(n, failed);
    let hours = 0.75 * minutes / 60.0;
    let most = GROWTH_MIB_PER_H * hours + SLACK_MIB;
    let grown = |points: &[(f64, f64)]| slope_mib_per_h(points) * hours;
    let (resident, held) = (grown(&resident), grown(&held));
    println!(
        "{n} rounds of 6 requests, {failed} failed; after the first quarter the memory grew by {resident:.1} MiB, at most {most:.1}; what is \
         held grew by {held:.1} MiB, at most {:.1}",
        HELD_SHARE * most
    );
    failed == 0 && resident <= most && held <= HELD_SHARE * most
}
