//! Suspected hardware by defect, and the reading that would tell most about it.

use super::memory::{Kept, locked};
use super::{Visit, page, status};
use crate::problem::Problem;
use axum::body::Body;
use axum::http::Response;
use engine::{DiagnoseAnswer, DiagnoseRequest, SuspectAnswer};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which a diagnosis is shown again although the state changed: it reads every reading.
const DIAGNOSIS_TIME: Duration = Duration::from_secs(60);
/// Candidates of a defect that are listed.
const CANDIDATES: usize = 6;

type Found = (Result<Arc<DiagnoseAnswer>, String>, Duration);

/// The last diagnosis with its age, if the state did not change since or it is young.
fn kept(v: &Visit) -> Option<Found> {
    let slot = locked(&v.app.pages.diagnosis);
    let fresh = |k: &&Kept<Result<Arc<DiagnoseAnswer>, String>>| {
        let age = k.at.elapsed();
        // A command can add readings without an event.
        age < DIAGNOSIS_TIME || (k.event == *v.app.newest.borrow() && age < 10 * DIAGNOSIS_TIME)
    };
    slot.as_ref().filter(fresh).map(|k| (k.value.clone(), k.at.elapsed()))
}

/// The newest diagnosis, made anew if the last one is old; one request makes it, others wait for it. It changes nothing.
async fn diagnosis(v: &Visit) -> Found {
    if let Some(k) = kept(v) {
        return k;
    }
    let _one = v.app.pages.looks.lock().await;
    if let Some(k) = kept(v) {
        return k;
    }
    let event = *v.app.newest.borrow();
    let asked = |engine: &engine::Engine| {
        let collective = engine.model_answer().ok().map(|m| m.collective);
        engine.diagnosis(&DiagnoseRequest { collective })
    };
    let value = v.app.work_as(crate::limits::Kind::Question, asked).await.map(Arc::new).map_err(|p| p.detail.clone());
    *locked(&v.app.pages.diagnosis) = Some(Kept { event, at: Instant::now(), value: value.clone() });
    (value, Duration::ZERO)
}

/// A candidate with its bar.
fn candidate(component: &str, host: &str, probability: f64, factor: f64) -> Value {
    let percent = (1000.0 * probability).round() / 10.0;
    json!({ "component": component, "host": host, "probability": probability, "factor": factor, "bar": percent})
}

/// The suspects of the state by defect, most probable defect first, each with the cost and the reading of the diagnosis.
fn defects(v: &Visit, suspects: &[SuspectAnswer], d: Option<&DiagnoseAnswer>) -> Vec<Value> {
    let cluster = v.app.engine.cluster();
    let mut by: Vec<(u32, Vec<&SuspectAnswer>)> = Vec::new();
    for s in suspects {
        match by.iter_mut().find(|b| b.0 == s.defect) {
            Some(b) => b.1.push(s),
            None => by.push((s.defect, vec![s])),
        }
    }
    let told = |(defect, list): &(u32, Vec<&SuspectAnswer>)| {
        let sum: f64 = list.iter().map(|s| s.probability).sum();
        // A diagnosis may have changed since: its defect is the one with the same first component.
        let same = d.and_then(|d| {
            d.defects.iter().find(|x| x.candidates.first().is_some_and(|c| c.component == list[0].component))
        });
        json!({
            "number": defect + 1, "probability": sum.min(1.0), "first": list[0].component,
            "candidates": list.iter().take(CANDIDATES)
                .map(|s| candidate(&s.component, &s.host, s.probability, s.factor)).collect::<Vec<_>>(),
            "more": list.len().saturating_sub(CANDIDATES),
            "cost": same.map(|x| &x.cost).filter(|c| c.allocations > 0),
            "since": same.and_then(|x| x.candidates[0].since_unix_s)
                .map(|t| super::words(crate::app::now_unix_s() - t)),
            "next": same.and_then(|x| x.worth_measuring.as_ref()).map(|g| super::job::short_list(cluster, g)),
        })
    };
    let mut all: Vec<Value> = by.iter().map(told).collect();
    all.sort_by(|a, b| b["probability"].as_f64().unwrap_or(0.0).total_cmp(&a["probability"].as_f64().unwrap_or(0.0)));
    all
}

pub async fn suspects(v: Visit) -> Result<Response<Body>, Problem> {
    let s = status(&v).await?;
    let (result, age) = diagnosis(&v).await;
    let (found, why_not) = match result {
        Ok(d) => (Some(d), None),
        Err(e) => (None, Some(e)),
    };
    let cluster = v.app.engine.cluster();
    let d = found.as_deref();
    let next = d.and_then(|d| d.measure_next.as_ref());
    let next = next.or_else(|| d.and_then(|d| d.defects.iter().find_map(|x| x.worth_measuring.as_ref())));
    page(
        "suspects.html",
        json!({
            "here": "suspects", "visitor": v.visitor(), "defects": defects(&v, &s.suspects, d), "why_not": why_not,
            "readings": d.map(|d| d.judged), "simulated": d.map(|d| d.simulated_readings),
            "next": next.map(|g| json!({ "list": cluster.gpu_list(&g.allocation(cluster)), "gpus": g.gpu_count()})),
            "age": super::words(age.as_secs_f64()),
            "shared": d.map(|d| d.shared.clone()),
            "hosts": d.map(|d| d.hosts.iter().filter(|h| h.deviations.abs() >= 2.0).take(12).collect::<Vec<_>>()),
            "stray": d.map(|d| d.stray.iter().take(12).map(|x| json!({
                "list": super::job::short_list(cluster, &x.gpus), "size": x.size_bytes, "got": x.busbw_gb_per_s,
                "expected": x.expected_gb_per_s})).collect::<Vec<_>>()),
            "drained": s.drained.iter().map(|d| json!({
                "list": super::job::short_list(cluster, &d.gpus), "gpus": d.gpus.gpu_count(),
                "reason": super::cut(&d.reason, 300)})).collect::<Vec<_>>(),
        }),
    )
}
