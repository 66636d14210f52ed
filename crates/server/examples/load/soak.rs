//! A server under a low rate of all kinds of requests for a long time: its memory must be flat.

use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Requests per second.
const RATE: f64 = 20.0;
/// The memory may grow by so much per hour after the first quarter of the run, in MiB, plus [`SLACK_MIB`] for the whole run: a cache that
/// fills up to its limit is no leak.
pub const GROWTH_MIB_PER_H: f64 = 8.0;
/// See [`GROWTH_MIB_PER_H`].
pub const SLACK_MIB: f64 = 8.0;

/// Memory of this process, MiB.
pub fn resident_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
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
    let to = |path: &str| format!("http://{at}{path}");
    let (job, typed) = (format!("soak-{n}"), "application/json");
    let post = |path: &str, body: serde_json::Value| {
        let sent = agent.post(to(path)).content_type(typed).header("idempotency-key", format!("{path}-{n}"));
        sent.send(&serde_json::to_vec(&body).expect("JSON")[..])
    };
    let asked = [
        post("/v1/place", json!({"gpus": 8})),
        post("/v1/allocations", json!({"gpus": 16, "commit": job, "lease_s": 600})),
        post(
            "/v1/readings",
            json!({"job": job, "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 100.0 + (n % 97) as f64}]}),
        ),
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

/// Runs for `minutes` and prints the memory; true if it grew no more than it may and no request failed.
pub fn run(at: SocketAddr, minutes: f64) -> bool {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let (begin, end) = (Instant::now(), minutes * 60.0);
    let (mut points, mut failed, mut n) = (Vec::new(), 0, 0u64);
    let mut told = begin;
    while begin.elapsed().as_secs_f64() < end {
        n += 1;
        failed += round(&agent, at, n);
        points.push((begin.elapsed().as_secs_f64(), resident_mib()));
        if told.elapsed() > Duration::from_secs(60) {
            told = Instant::now();
            println!("{:.0} s: {:.1} MiB, {n} rounds", begin.elapsed().as_secs_f64(), resident_mib());
        }
        let planned = begin + Duration::from_secs_f64(n as f64 * 6.0 / RATE);
        std::thread::sleep(planned.saturating_duration_since(Instant::now()));
    }
    points.retain(|p| p.0 > end / 4.0);
    let slope = slope_mib_per_h(&points);
    let hours = 0.75 * minutes / 60.0;
    let (grown, most) = (slope * hours, GROWTH_MIB_PER_H * hours + SLACK_MIB);
    println!(
        "{n} rounds of 6 requests, {failed} failed; {:.1} MiB at the end; slope after the first quarter {slope:.1} MiB/h: {grown:.1} MiB, \
         at most {most:.1}",
        resident_mib()
    );
    failed == 0 && grown <= most
}
