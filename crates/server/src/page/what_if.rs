//! What GPUs would a job get now? The answer beside packing and the even split; nothing is allocated.

use super::job::{choices, gains, losers};
use super::map::blocks;
use super::picture::Links;
use super::{Visit, ask, hosts, page};
use crate::problem::Problem;
use crate::read;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use engine::{Answer, PlaceAnswer, PlaceRequest};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::HashMap;

/// Most hosts that are drawn GPU by GPU.
const HOSTS_DRAWN: usize = 64;

/// What the form asks. A browser sends empty fields.
#[derive(Default, Deserialize, Serialize)]
pub struct Form {
    #[serde(default)]
    gpus: String,
    #[serde(default)]
    size: String,
    #[serde(default)]
    per_host: String,
    #[serde(default)]
    hosts_max: String,
    #[serde(default)]
    level: String,
    #[serde(default)]
    gpu_type: String,
    #[serde(default)]
    exclude: String,
    #[serde(default)]
    exclusive_nics: String,
    #[serde(default)]
    uneven: String,
}

fn number(text: &str, what: &str) -> Result<Option<u64>, Problem> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |_| Problem::bad("bad_query", format!("{what}: `{}` is not a whole number", read::excerpt(text)));
    text.parse().map(Some).map_err(wrong)
}

fn some(text: &str) -> Option<String> {
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

/// The request of the form; none for an empty one.
fn request(form: &Form) -> Result<Option<PlaceRequest>, Problem> {
    let Some(gpus) = number(&form.gpus, "GPUs")? else { return Ok(None) };
    let size = |t: String| {
        let wrong = |e| Problem::bad("bad_query", format!("message size: {e}"));
        topology::Bytes::parse(&t).map(|b| b.0).map_err(wrong)
    };
    let excluded: Vec<String> = form.exclude.split_whitespace().map(str::to_owned).collect();
    let constraints = engine::ConstraintsIn {
        per_host: number(&form.per_host, "GPUs per host")?,
        hosts_max: number(&form.hosts_max, "hosts")?,
        require_level: some(&form.level),
        gpu_type: some(&form.gpu_type),
        excluded_hosts: (!excluded.is_empty()).then_some(excluded),
        exclusive_nics: (!form.exclusive_nics.is_empty()).then_some(true),
        uneven: (!form.uneven.is_empty()).then_some(true),
        ..Default::default()
    };
    let constraints = (constraints != engine::ConstraintsIn::default()).then_some(constraints);
    let size_bytes = some(&form.size).map(size).transpose()?;
    Ok(Some(PlaceRequest { gpus: Some(gpus), size_bytes, constraints, ..Default::default() }))
}

pub async fn what_if(v: Visit) -> Result<Response<Body>, Problem> {
    let form: Form = read::query(&v.parts.uri)?;
    let asked = match request(&form) {
        Ok(None) => None,
        Ok(Some(r)) => Some(match ask(&v, engine::Request::Place(Box::new(r))).await {
            Ok(Answer::Place(a)) => Ok(a),
            Ok(_) => Err(Problem::bad("internal", "another answer was expected")),
            Err(p) => Err(p),
        }),
        Err(p) => Some(Err(p)),
    };
    let (answer, problem): (Option<PlaceAnswer>, Option<Problem>) = match asked {
        None => (None, None),
        Some(Ok(a)) => (Some(a), None),
        Some(Err(p)) => (None, Some(p)),
    };
    let status = problem.as_ref().map_or(StatusCode::OK, Problem::status_code);
    let cluster = v.app.engine.cluster();
    let mut marked: HashMap<(&str, u8), &str> = HashMap::new();
    for h in answer.iter().flat_map(|a| &a.gpus.0) {
        marked.extend(h.gpus.iter().map(|g| ((h.host.as_str(), *g), "chosen")));
    }
    let drawn = match &answer {
        Some(a) if a.gpus.0.len() <= HOSTS_DRAWN => {
            let h = hosts(&v).await?;
            let chosen: std::collections::HashSet<&str> = a.gpus.0.iter().map(|g| g.host.as_str()).collect();
            let some = cluster.host_ids().zip(&h.hosts).filter(|(_, x)| chosen.contains(x.name.as_str()));
            blocks(cluster, some, &marked, "")
        }
        _ => Vec::new(),
    };
    let types: Vec<&str> = cluster.types.iter().map(|t| t.name.as_str()).collect();
    let levels: Vec<&str> = std::iter::once("host").chain(cluster.tiers().iter().map(|t| t.name.as_str())).collect();
    let mut r = page(
        "what_if.html",
        json!({
            "here": "what-if", "visitor": v.visitor(), "form": form, "types": types, "levels": levels,
            "size": v.app.engine.default_size(),
            "list": answer.as_ref().map(|a| super::job::short_list(cluster, &a.gpus)),
            "limit": answer.as_ref().and_then(|a| a.bottleneck.text()),
            "links": answer.as_ref().and_then(|a| Links::new(cluster, &a.gpus, &a.bottleneck)),
            "note": answer.as_ref().and_then(|a| engine::extrapolation_note(&a.outside_validated)),
            "choices": answer.as_ref().map(|a| choices(cluster, a, None)), "gains": answer.as_ref().map(gains),
            "losers": answer.as_ref().map(losers), "blocks": drawn, "answer": answer, "problem": problem,
        }),
    )?;
    *r.status_mut() = status;
    Ok(r)
}
