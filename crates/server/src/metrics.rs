//! Metrics in the text form of OpenMetrics, which Prometheus reads.

use crate::app::App;
use crate::limits::{GPU_SERIES_MAX, JOB_SERIES_MAX};
use crate::problem::Problem;
use axum::http::{Method, StatusCode};
use engine::{Answer, ObserveAnswer, StatusAnswer};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use topology::Cluster;

type Labels = Vec<(&'static str, String)>;
type Share = Gauge<f64, AtomicU64>;

/// The counters of a server. Series: routes times statuses, and codes; no client chooses a label.
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    request_s: Family<Labels, Histogram, fn() -> Histogram>,
    decisions: Family<Labels, Counter>,
    decision_s: Histogram,
    wait_s: Histogram,
    got_over_predicted: Histogram,
    error_over_std: Family<Labels, Histogram, fn() -> Histogram>,
    retries: Counter,
    /// Last bandwidth that each job reported, GB/s.
    got: Mutex<HashMap<String, f64>>,
    expired: Counter,
    renewed: Counter,
    failures: Family<Labels, Counter>,
    /// Held while the state is read for the metrics: one scrape works, the others wait.
    scrape: tokio::sync::Mutex<()>,
}

/// 0.1 ms to 26 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-4, 2.0, 19))
}

impl Metrics {
    pub fn new() -> Metrics {
        let mut registry = Registry::with_prefix("linkwise");
        let m = Metrics {
            requests: Family::default(),
            request_s: Family::new_with_constructor(seconds),
            decisions: Family::default(),
            decision_s: seconds(),
            wait_s: seconds(),
            got_over_predicted: Histogram::new((1..=30).map(|i| f64::from(i) * 0.05)),
            error_over_std: Family::new_with_constructor(deviations),
            retries: Counter::default(),
            got: Mutex::default(),
            expired: Counter::default(),
            renewed: Counter::default(),
            failures: Family::default(),
            scrape: tokio::sync::Mutex::default(),
            registry: Registry::default(),
        };
        let r = &mut registry;
        r.register("requests", "Requests by route, method and status", m.requests.clone());
        r.register("request_seconds", "Time to the start of the answer", m.request_s.clone());
        r.register("decisions", "Requests for GPUs by outcome: placed, or the code of the error", m.decisions.clone());
        r.register("decision_seconds", "Time of a request for GPUs, waiting included", m.decision_s.clone());
        r.register("worker_wait_seconds", "Time that calls of the engine waited for a worker", m.wait_s.clone());
        let about = "Bandwidth that jobs reported over the predicted one";
        r.register("observed_over_predicted", about, m.got_over_predicted.clone());
        let about = "Reported less predicted bandwidth, in stated standard deviations, by model";
        r.register("observed_error_deviations", about, m.error_over_std.clone());
        r.register("decision_retries", "Choices that were made again because others had taken GPUs", m.retries.clone());
        r.register(
            "leases_ended",
            "Jobs that lost their GPUs because their lease was not renewed in time",
            m.expired.clone(),
        );
        r.register("certificates_read_again", "New certificates that the server took over", m.renewed.clone());
        r.register("failures", "What failed outside of a request, by code", m.failures.clone());
        Metrics { registry, ..m }
    }

    /// Counts an answer.
    pub fn served(&self, route: &'static str, method: &Method, status: StatusCode, time: Duration) {
        let of = vec![("route", route.to_owned()), ("method", method.to_string())];
        self.request_s.get_or_create(&of).observe(time.as_secs_f64());
        let of = [of, vec![("status", status.as_u16().to_string())]].concat();
        self.requests.get_or_create(&of).inc();
    }

    /// Counts a request for GPUs.
    pub fn decided(&self, time: Duration, problem: Option<&Problem>) {
        let outcome = problem.map_or_else(|| "placed".to_owned(), |p| p.code.clone());
        self.decisions.get_or_create(&vec![("outcome", outcome)]).inc();
        self.decision_s.observe(time.as_secs_f64());
    }

    /// Counts what an answer tells: readings against their predictions, and repeated decisions.
    pub fn answered(&self, answer: &Answer, model: impl FnOnce() -> String) {
        match answer {
            Answer::Observe(a) if !a.repeated => self.observed(a, &model()),
            Answer::Place(a) => {
                if let Some(c) = a.committed.as_ref().filter(|c| !c.repeated) {
                    self.retries.inc_by(u64::from(c.attempts.saturating_sub(1)));
                }
            }
            _ => {}
        }
    }

    fn observed(&self, a: &ObserveAnswer, model: &str) {
        for r in &a.readings {
            let Some(expected) = r.taught.expected_gb_per_s.filter(|e| *e > 0.0) else { continue };
            self.got_over_predicted.observe(r.busbw_gb_per_s / expected);
            if let Some(std) = r.taught.std_gb_per_s.filter(|s| *s > 0.0) {
                let of = vec![("model", model.to_owned())];
                self.error_over_std.get_or_create(&of).observe((r.busbw_gb_per_s - expected) / std);
            }
        }
        let mut got = self.got.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = a.readings.last().filter(|_| got.len() < JOB_SERIES_MAX || got.contains_key(&a.job)) {
            got.insert(a.job.clone(), last.busbw_gb_per_s);
        }
    }

    /// Counts the wait for a worker.
    pub fn waited(&self, time: Duration) {
        self.wait_s.observe(time.as_secs_f64());
    }

    /// Counts leases that ended.
    pub fn expired(&self, jobs: usize) {
        self.expired.inc_by(jobs as u64);
    }

    /// Counts certificates that were read again.
    pub fn renewed(&self) {
        self.renewed.inc();
    }

    /// Counts a failure outside of a request.
    pub fn broken(&self, code: &str) {
        self.failures.get_or_create(&vec![("code", code.to_owned())]).inc();
    }
}

/// -8 to 8 standard deviations.
fn deviations() -> Histogram {
    Histogram::new((-16..=16).map(|i| f64::from(i) * 0.5))
}

/// All metrics as text: the counters, and the state of the cluster now. O(GPUs held).
pub async fn text(app: &App) -> Result<String, Problem> {
    // The counters are also there while the state is not. An overloaded server must be seen to be overloaded.
    let one = app.metrics.scrape.lock().await;
    let now = app.own_work(|engine| Ok((engine.status()?, engine.model_answer().ok().map(|m| m.kind)))).await;
    drop(one);
    let mut text = String::new();
    let failed =
        |e: std::fmt::Error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", e.to_string(), "report this");
    prometheus_client::encoding::text::encode_registry(&mut text, &app.metrics.registry).map_err(failed)?;
    let (waits, waited) = store::lock_waits();
    let seen = seen(now.is_ok(), app.waiting(), waits, waited);
    prometheus_client::encoding::text::encode_registry(&mut text, &seen).map_err(failed)?;
    let Ok(now) = now else {
        prometheus_client::encoding::text::encode_eof(&mut text).map_err(failed)?;
        return Ok(text);
    };
    let got = {
        let mut got = app.metrics.got.lock().unwrap_or_else(PoisonError::into_inner);
        let running: HashSet<&str> = now.0.jobs.iter().map(|j| j.id.as_str()).collect();
        got.retain(|job, _| running.contains(job.as_str()));
        got.clone()
    };
    if let Some(plugin) = app.plugin.clone() {
        let reader = plugin.clone();
        let read = tokio::task::spawn_blocking(move || reader.metrics(crate::app::now_unix_s() as u64));
        // A folder on a file system that hangs costs its own metrics, not the others.
        let read = match tokio::time::timeout(crate::plugin_status::LOOK, read).await {
            Ok(read) => read.map_err(|_| Problem::failed("reading of the plugin's status files"))?,
            Err(_) => plugin.known().map(|k| k.1),
        };
        if let Some(read) = read {
            prometheus_client::encoding::text::encode_registry(&mut text, &read).map_err(failed)?;
        }
    }
    encode(&mut text, &present(app.engine.cluster(), &now.0, &got, now.1.as_deref().unwrap_or("none")))
        .map_err(failed)?;
    Ok(text)
}

/// The state as this process sees it.
fn seen(reachable: bool, waiting: usize, waits: u64, waited: Duration) -> Registry {
    let mut registry = Registry::with_prefix("linkwise");
    let is_there = Gauge::<i64>::default();
    is_there.set(reachable.into());
    registry.register(
        "state_reachable",
        "1 if the state answers; without it there are no gauges of the cluster",
        is_there,
    );
    let wait = Gauge::<i64>::default();
    wait.set(waiting as i64);
    registry.register("waiting_requests", "Requests that wait for a worker now", wait);
    let (count, seconds) = (Counter::<u64>::default(), Counter::<f64, AtomicU64>::default());
    count.inc_by(waits);
    seconds.inc_by(waited.as_secs_f64());
    registry.register("state_locks", "Writes of state and store that took the lock of their database", count);
    registry.register("state_lock_wait_seconds", "Time that these writes waited for the lock", seconds);
    registry
}

/// The state of the cluster as gauges.
fn present(cluster: &Cluster, s: &StatusAnswer, got: &HashMap<String, f64>, model: &str) -> Registry {
    let mut registry = Registry::with_prefix("linkwise");
    let r = &mut registry;
    let gpus: Family<Labels, Gauge> = Family::default();
    let held: usize = s.jobs.iter().map(|j| j.gpus.gpu_count()).sum();
    let drained: usize = s.drained.iter().map(|d| d.gpus.gpu_count()).sum();
    for (state, n) in [("free", s.free.gpu_count()), ("held", held), ("drained", drained)] {
        gpus.get_or_create(&vec![("state", state.to_owned())]).set(n as i64);
    }
    r.register("gpus", "GPUs by state; a drained GPU may be held, too", gpus);
    let number = |n: usize| {
        let g = Gauge::<i64>::default();
        g.set(n as i64);
        g
    };
    r.register("jobs", "Jobs that hold GPUs", number(s.jobs.len()));
    let largest: HashMap<&str, usize> = s.free.0.iter().map(|h| (h.host.as_str(), h.gpus.len())).collect();
    let most = largest.values().copied().max().unwrap_or(0);
    let alone: usize = largest.values().filter(|n| **n < most).sum();
    let share = Share::default();
    share.set(if s.free.gpu_count() == 0 { 0.0 } else { alone as f64 / s.free.gpu_count() as f64 });
    let about = "Share of the free GPUs on hosts with fewer free GPUs than the freest host";
    r.register("fragmentation", about, share);
    let suspects: Family<Labels, Share> = Family::default();
    for x in &s.suspects {
        let of = vec![("component", x.component.clone()), ("host", x.host.clone())];
        suspects.get_or_create(&of).set(x.probability);
    }
    r.register("suspect_probability", "Probability of a defect, by component", suspects);
    let busbw: Family<Labels, Share> = Family::default();
    for j in s.jobs.iter().take(JOB_SERIES_MAX) {
        let of = |kind: &str| vec![("job", j.id.clone()), ("kind", kind.to_owned())];
        for (kind, v) in [("predicted", j.predicted_gb_per_s), ("observed", got.get(&j.id).copied())] {
            if let Some(v) = v {
                busbw.get_or_create(&of(kind)).set(v * 1e9);
            }
        }
    }
    r.register(
        "job_busbw_bytes_per_second",
        "Bus bandwidth of the jobs that run: predicted, and the last reported one",
        busbw,
    );
    let info: Family<Labels, Gauge> = Family::default();
    let index = cluster.host_index();
    let named = s.jobs.iter().flat_map(|j| j.gpus.0.iter().map(move |h| (j, h)));
    for ((j, h), g) in named.flat_map(|x| x.1.gpus.iter().map(move |g| (x, g))).take(GPU_SERIES_MAX) {
        let uuids = index.get(h.host.as_str()).map(|i| &cluster.host(*i).gpu_uuids);
        let uuid = uuids.and_then(|u| u.get(usize::from(*g))).cloned().unwrap_or_default();
        let of = vec![("host", h.host.clone()), ("gpu", g.to_string()), ("uuid", uuid), ("job", j.id.clone())];
        info.get_or_create(&of).set(1);
    }
    r.register("gpu_info", "1 for every GPU that a job holds", info);
    let build: Family<Labels, Gauge> = Family::default();
    let of = vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("model", model.to_owned())];
    build.get_or_create(&of).set(1);
    r.register("build_info", "The version of the server and its kind of model", build);
    registry
}

#[cfg(test)]
mod tests {
    use crate::app::tests::{app, flood, run};

    #[test]
    fn an_overloaded_server_has_all_its_metrics() {
        let (_folder, app) = app(None);
        let flood = flood(&app);
        let text = run(super::text(&app)).unwrap();
        drop(flood);
        for line in ["linkwise_state_reachable 1", "linkwise_waiting_requests 1024", "linkwise_gpus{state=\"free\"} 32"]
        {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
    }
}
