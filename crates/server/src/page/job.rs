//! A job: what was asked, what was chosen and instead of what, what limits it, and what it got.

use super::picture::{Chart, Links, Series};
use super::{Visit, ask, listed, page};
use crate::problem::Problem;
use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::Response;
use engine::{Answer, GpuList, PlaceAnswer, ReadingsRequest, ScoredAnswer, StoredReadingAnswer};
use serde_json::{Value, json};
use topology::Cluster;

/// Readings of a job's page.
const READINGS_SHOWN: usize = 50;
/// Runner-ups of a list of choices.
const RUNNER_UPS: usize = 4;
/// Longest list of GPUs in a table, characters.
const LIST_SHOWN: usize = 160;
/// Loss of a neighbour that is listed, GB/s.
const LOSS_SHOWN: f64 = 0.05;

/// The GPUs as a list, shortened.
pub fn short_list(cluster: &Cluster, g: &GpuList) -> String {
    super::cut(&cluster.gpu_list(&g.allocation(cluster)), LIST_SHOWN)
}

/// A line of a comparison, with the length of its bar in percent of the largest.
fn choice(cluster: &Cluster, name: &str, class: &str, s: (&str, &GpuList, f64, f64)) -> Value {
    let (split, gpus, busbw, std) = s;
    json!({ "name": name, "class": class, "split": split, "list": short_list(cluster, gpus), "busbw": busbw, "std": std})
}

/// The choice beside packing, the even split and the runner-ups. `got` is what the job reported.
pub fn choices(cluster: &Cluster, a: &PlaceAnswer, got: Option<f64>) -> Vec<Value> {
    let own = (a.split.as_str(), &a.gpus, a.predicted_busbw_gb_per_s, a.std_gb_per_s);
    let scored = |name: &str, class: &str, s: &ScoredAnswer| {
        choice(cluster, name, class, (s.split.as_str(), &s.gpus, s.predicted_busbw_gb_per_s, s.std_gb_per_s))
    };
    let mut all = vec![choice(cluster, "linkwise", "own", own)];
    if let Some(got) = got {
        all.push(json!({ "name": "reported, newest", "class": "got", "split": a.split, "list": "", "busbw": got}));
    }
    all.extend(a.packed.as_ref().map(|s| scored("packing", "other", s)));
    all.extend(a.rule.as_ref().map(|s| scored("fewest hosts, even split", "other", s)));
    all.extend(a.equal_counts.as_ref().map(|s| scored("equal counts", "other", s)));
    all.extend(a.uneven_counts.as_ref().map(|s| scored("uneven counts", "other", s)));
    all.extend(a.runner_ups.iter().take(RUNNER_UPS).map(|s| scored("runner-up", "other", s)));
    let of = |v: &Value, k: &str| v[k].as_f64().unwrap_or(0.0);
    let most = all.iter().map(|v| of(v, "busbw") + of(v, "std")).fold(1e-9, f64::max);
    for v in &mut all {
        let (b, s) = (of(v, "busbw"), of(v, "std"));
        let percent = |x: f64| (1000.0 * x.max(0.0) / most).round() / 10.0;
        v["bar"] = json!(percent(b));
        v["low"] = json!(percent(b - s));
        v["high"] = json!(percent(b + s));
    }
    all
}

/// Running jobs that lose bandwidth by a choice.
pub fn losers(a: &PlaceAnswer) -> Vec<Value> {
    let jobs = a.contention.iter().flat_map(|c| &c.jobs);
    let lose = jobs.filter(|j| j.before_busbw_gb_per_s - j.after_busbw_gb_per_s >= LOSS_SHOWN);
    lose.take(20)
        .map(|j| json!({ "id": j.id, "before": j.before_busbw_gb_per_s, "after": j.after_busbw_gb_per_s}))
        .collect()
}

/// The gain of a choice over packing and over the simple rule, percent.
pub fn gains(a: &PlaceAnswer) -> Value {
    let over = |s: Option<&ScoredAnswer>| {
        let other = s?.predicted_busbw_gb_per_s;
        (other > 0.0).then(|| 100.0 * (a.predicted_busbw_gb_per_s / other - 1.0))
    };
    json!({ "packed": over(a.packed.as_ref()), "rule": over(a.rule.as_ref())})
}

/// A request as phrases.
fn asked_words(asked: &Value) -> Vec<String> {
    let mut words = Vec::new();
    let text = |v: &Value| match v {
        Value::String(s) => s.clone(),
        Value::Array(a) => a
            .iter()
            .take(12)
            .map(|x| x.as_str().map_or_else(|| x.to_string(), str::to_owned))
            .collect::<Vec<_>>()
            .join(", "),
        other => other.to_string(),
    };
    let fields = asked.as_object().into_iter().flatten().filter(|(k, _)| *k != "constraints" && *k != "seed");
    let limits = asked["constraints"].as_object().into_iter().flatten();
    for (k, v) in fields.chain(limits) {
        let shown = match (k.as_str(), v.as_u64()) {
            ("size_bytes", Some(n)) => topology::Bytes(n).to_string(),
            ("lease_s", _) => super::words(v.as_f64().unwrap_or(0.0)),
            _ => text(v),
        };
        let name = k.trim_end_matches("_bytes").trim_end_matches("_s").replace('_', " ").replace("gpus", "GPUs");
        words.push(super::cut(&format!("{name} {shown}"), 300));
    }
    words
}

/// What a job reported over time, with the prediction as a line.
fn chart(readings: &[StoredReadingAnswer], predicted: Option<f64>, now: f64) -> Option<Chart> {
    let timed: Vec<(f64, &StoredReadingAnswer)> =
        readings.iter().filter_map(|r| Some((r.taken_at_unix_s?, r))).collect();
    if timed.len() < 3 {
        return None;
    }
    let from = timed.iter().map(|t| t.0).fold(f64::MAX, f64::min);
    let to = timed.iter().map(|t| t.0).fold(now, f64::max);
    let most = timed.iter().map(|t| t.1.busbw_gb_per_s).chain(predicted).fold(0.0, f64::max);
    let line: Vec<(f64, f64)> = predicted.into_iter().map(|p| (from, p)).collect();
    let dots = timed.iter().map(|(t, r)| {
        let class = if r.contention.is_some() { "shared" } else { "alone" };
        (*t, r.busbw_gb_per_s, class, format!("{:.1} GB/s, {} ago", r.busbw_gb_per_s, super::words(to - t)))
    });
    let label = format!(
        "Bus bandwidth of {} readings over {}{}",
        timed.len(),
        super::words(to - from),
        predicted.map_or(String::new(), |p| format!("; predicted were {p:.1} GB/s"))
    );
    Some(Chart::new(&Series {
        label,
        from,
        to,
        low: 0.0,
        high: most * 1.1,
        steps: vec![("predicted", &line)],
        dots: dots.collect(),
        marks: Vec::new(),
        text: |v| format!("{v:.0}"),
    }))
}

pub async fn job(v: Visit) -> Result<Response<Body>, Problem> {
    let params = axum::extract::RawPathParams::from_request_parts(&mut v.parts.clone(), &()).await;
    let id = params.ok().and_then(|p| p.iter().next().map(|x| x.1.to_owned())).unwrap_or_default();
    let Answer::Job(job) = ask(&v, engine::Request::Job(engine::JobRequest { job: id.clone() })).await? else {
        return Err(Problem::bad("internal", "another answer was expected"));
    };
    let explain = engine::ExplainRequest {
        gpus: Some(job.gpus.names().collect()),
        job: None,
        size_bytes: job.size_bytes.map(|b| b.0),
    };
    let explained = match ask(&v, engine::Request::Explain(explain)).await {
        Ok(Answer::Explain(e)) => Some(e),
        _ => None, // without a model, or for one GPU, the page has less to say
    };
    let wanted = id.clone();
    let placed = v.app.work(move |engine| engine.placed(&wanted)).await.ok().flatten();
    let readings = ReadingsRequest { job: Some(id.clone()), limit: Some(READINGS_SHOWN), ..Default::default() };
    let readings = match ask(&v, engine::Request::Readings(readings)).await {
        // A job that ended and another one may have had the same id.
        Ok(Answer::Readings(r)) => r.readings,
        _ => Vec::new(),
    };
    let cluster = v.app.engine.cluster();
    let same = |r: &&StoredReadingAnswer| r.size_bytes.0 == job.size_bytes.map_or(r.size_bytes.0, |b| b.0);
    let got = readings.iter().rev().find(same).map(|r| r.busbw_gb_per_s);
    let limit = explained.as_ref().map(|e| &e.bottleneck).or(placed.as_ref().map(|p| &p.bottleneck));
    let limit = limit.cloned().unwrap_or(engine::BottleneckAnswer::None);
    let asked = v.app.pages.request_of(&id);
    let now = crate::app::now_unix_s();
    page(
        "job.html",
        json!({
            "here": "map", "visitor": v.visitor(), "job": listed(&v.app, &job), "explained": explained,
            "limit": limit.text(), "links": Links::new(cluster, &job.gpus, &limit), "placed": placed,
            "asked": asked.as_ref().map(asked_words), "choices": placed.as_ref().map(|p| choices(cluster, p, got)),
            "gains": placed.as_ref().map(gains), "got": got,
            "short": got.zip(job.predicted_gb_per_s).map(|(g, p)| 100.0 * (g / p - 1.0)),
            "chart": chart(&readings, job.predicted_gb_per_s, now),
            "readings": readings.iter().rev().map(|r| json!({
                "id": r.id, "collective": r.collective, "size_bytes": r.size_bytes, "busbw": r.busbw_gb_per_s,
                "contention": r.contention, "withdrawn": r.withdrawn,
                "ago": r.taken_at_unix_s.map(|t| super::words(now - t))})).collect::<Vec<_>>(),
        }),
    )
}
