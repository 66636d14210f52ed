//! Use and fragmentation of the cluster over time, and how well the model predicts.
//!
//! Nothing is recorded for this page but the predictions in [`super::Memory`]: use and fragmentation are the present state undone event by
//! event, newest first, and the model is compared with the stored readings.

use super::memory::{Kept, Said, locked};
use super::picture::{Chart, Series};
use super::{Visit, page};
use crate::problem::Problem;
use axum::body::Body;
use axum::http::Response;
use engine::{
    Engine, EngineError, EventsRequest, ExplainRequest, HostsAnswer, ModelVersion, ReadingsRequest,
    StoredReadingAnswer, VersionState,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::state::Event;
use topology::{Allocation, Cluster, GpuMask};

/// Newest events that are undone. A site with 100 jobs a day sees ten days.
const EVENTS_SEEN: i64 = 2_000;
/// Events of one question to the state.
const EVENTS_PART: usize = 1_000;
/// Newest readings that are compared with the model.
const READINGS_SEEN: usize = 200;
/// Longest reason of a version, characters.
const WHY_SHOWN: usize = 300;
/// Readings of the headline about the present.
const RECENT: usize = 20;
/// Time for which the page is shown again although the state changed.
const HISTORY_TIME: Duration = Duration::from_secs(15);

/// The state of the cluster between two events.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moment {
    at: f64,
    /// Share of all GPUs that jobs hold.
    held: f64,
    /// Share of the free GPUs that are on hosts with a job or a drained GPU.
    broken: f64,
}

/// Jobs' and drained GPUs by host; undoing an event leads to the state before it.
struct Past<'a> {
    cluster: &'a Cluster,
    held: Vec<u32>,
    drained: Vec<u32>,
}

impl<'a> Past<'a> {
    fn new(cluster: &'a Cluster, now: &HostsAnswer) -> Past<'a> {
        let mask = |some: &dyn Fn(&engine::GpuStatus) -> bool, h: &engine::HostStatus| {
            GpuMask::from_indices((0..h.gpus.len()).filter(|g| some(&h.gpus[*g]))).0
        };
        let all = |some: &dyn Fn(&engine::GpuStatus) -> bool| now.hosts.iter().map(|h| mask(some, h)).collect();
        Past { cluster, held: all(&|g| g.job.is_some()), drained: all(&|g| g.drained.is_some()) }
    }

    /// O(hosts).
    fn moment(&self, at: f64) -> Moment {
        let (mut held, mut free, mut whole, mut all) = (0, 0, 0, 0);
        for h in self.cluster.host_ids() {
            let (i, n) = (h.index(), self.cluster.type_of(h).gpu_count());
            let open = GpuMask::first(n).0 & !(self.held[i] | self.drained[i]);
            let count = open.count_ones() as usize;
            held += self.held[i].count_ones() as usize;
            free += count;
            all += n;
            whole += if count == n { n } else { 0 };
        }
        let share = |a: usize, b: usize| if b == 0 { 0.0 } else { a as f64 / b as f64 };
        Moment { at, held: share(held, all), broken: share(free - whole, free) }
    }

    /// False if the event's GPUs cannot be read: a long list is cut, and hosts may have been renamed.
    fn undo(&mut self, e: &Event) -> bool {
        let (held, drained) = match e.what.as_str() {
            "allocate" => (Some(false), None),
            "release" | "expire" => (Some(true), None),
            "drain" => (None, Some(false)),
            "undrain" => (None, Some(true)),
            _ => return true,
        };
        let Ok(gpus) = self.cluster.parse_gpus(e.gpus.split_whitespace()) else { return false };
        set(&mut self.held, &gpus, held);
        set(&mut self.drained, &gpus, drained);
        true
    }
}

fn set(masks: &mut [u32], gpus: &Allocation, to: Option<bool>) {
    for (h, m) in gpus.parts() {
        match to {
            Some(true) => masks[h.index()] |= m.0,
            Some(false) => masks[h.index()] &= !m.0,
            None => {}
        }
    }
}

/// The moments after every change of the GPUs, oldest first, and whether all events could be read.
fn past(cluster: &Cluster, now: &HostsAnswer, events: &[Event], now_unix_s: f64) -> (Vec<Moment>, bool) {
    let mut past = Past::new(cluster, now);
    let mut moments = vec![past.moment(now_unix_s)];
    for e in events.iter().rev() {
        let changes = matches!(e.what.as_str(), "allocate" | "release" | "expire" | "drain" | "undrain");
        if !changes {
            continue;
        }
        // The state that was found begins with this event.
        if let Some(last) = moments.last_mut() {
            last.at = e.at_unix_s.min(now_unix_s);
        }
        if !past.undo(e) {
            moments.reverse();
            return (moments, false);
        }
        moments.push(past.moment(e.at_unix_s));
    }
    moments.reverse();
    (moments, true)
}

fn percent(v: f64) -> String {
    format!("{:.0} %", 100.0 * v)
}

fn tenths(v: f64) -> String {
    format!("{:.1} %", 100.0 * v)
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    let n = all.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(all[n / 2]),
        _ => Some((all[n / 2 - 1] + all[n / 2]) / 2.0),
    }
}

/// The newest events, oldest first.
fn events(engine: &Engine) -> Result<Vec<Event>, EngineError> {
    let last = engine.last_event()?;
    let mut all = Vec::new();
    let mut after = (last - EVENTS_SEEN).max(0);
    while after < last {
        let part = engine.events(&EventsRequest { after: Some(after), limit: Some(EVENTS_PART) })?;
        let Some(end) = part.events.last() else { break };
        after = end.id;
        all.extend(part.events);
    }
    Ok(all)
}

/// The charts of use and fragmentation.
fn use_of(cluster: &Cluster, now: &HostsAnswer, events: &[Event], now_unix_s: f64) -> Value {
    let (moments, complete) = past(cluster, now, events, now_unix_s);
    let from = moments.first().map_or(now_unix_s, |m| m.at);
    let held: Vec<(f64, f64)> = moments.iter().map(|m| (m.at, m.held)).collect();
    let broken: Vec<(f64, f64)> = moments.iter().map(|m| (m.at, m.broken)).collect();
    let last = moments.last().copied().unwrap_or(Moment { at: now_unix_s, held: 0.0, broken: 0.0 });
    let chart = |what: &str, class: &'static str, points: &[(f64, f64)], last: f64| {
        let (low, high) = points.iter().fold((1.0f64, 0.0f64), |(a, b), p| (a.min(p.1), b.max(p.1)));
        Chart::new(&Series {
            label: format!("{what} between {} and {}, now {}", percent(low), percent(high), percent(last)),
            from,
            to: now_unix_s,
            low: 0.0,
            high: 1.0,
            steps: vec![(class, points)],
            dots: Vec::new(),
            marks: Vec::new(),
            text: percent,
        })
    };
    json!({
        "changes": moments.len() - 1, "complete": complete, "from": super::words(now_unix_s - from),
        "held": percent(last.held), "broken": percent(last.broken),
        "held_chart": chart("GPUs that jobs hold:", "held", &held, last.held),
        "broken_chart": chart("Free GPUs on partly used hosts:", "broken", &broken, last.broken),
    })
}

/// A reading as a share of what the present model predicts for it: time, share.
type Compared = (Option<f64>, f64);

/// The present model beside the readings that it can be compared with; none without a model or a store.
fn quality(engine: &Engine, events: &[Event], said: &[Said], now_unix_s: f64) -> Option<Value> {
    let model = engine.model_answer().ok()?;
    let r = ReadingsRequest { collective: Some(model.collective), limit: Some(READINGS_SEEN), ..Default::default() };
    let readings = engine.readings(&r).ok()?.readings;
    let usable = |x: &&StoredReadingAnswer| x.contention.is_none() && x.busbw_gb_per_s > 0.0;
    let usable: Vec<&StoredReadingAnswer> = readings.iter().filter(usable).collect();
    let simulated = usable.iter().filter(|x| x.source == store::Source::Simulated).count();
    let compared = |x: &&StoredReadingAnswer| -> Option<Compared> {
        let gpus = Some(x.gpus.names().collect());
        let e = engine.explain(&ExplainRequest { gpus, job: None, size_bytes: Some(x.size_bytes.0) }).ok()?;
        let predicted = e.expected.predicted_busbw_gb_per_s;
        (predicted > 0.0).then(|| (x.taken_at_unix_s, x.busbw_gb_per_s / predicted))
    };
    let ratios: Vec<Compared> = usable.iter().filter_map(compared).collect();
    let deviation = |some: &[Compared]| median(some.iter().map(|r| (r.1 - 1.0).abs()).collect()).map(tenths);
    let recent = &ratios[ratios.len().saturating_sub(RECENT)..];
    let timed: Vec<(f64, f64)> = ratios.iter().filter_map(|r| Some((r.0?, r.1))).collect();
    let chart = (timed.len() >= 3).then(|| {
        let from = timed.iter().map(|t| t.0).fold(f64::MAX, f64::min);
        let most = timed.iter().map(|t| t.1).fold(1.25, f64::max).min(3.0);
        let dots = timed.iter().map(|(t, q)| {
            (*t, *q, "alone", format!("{} of the prediction, {} ago", percent(*q), super::words(now_unix_s - t)))
        });
        let changes = ["fit", "promote", "fit_refused"];
        let fits = events.iter().filter(|e| changes.contains(&e.what.as_str()) && e.at_unix_s >= from);
        let one = [(from, 1.0)];
        Chart::new(&Series {
            label: format!("Reported over predicted bandwidth of {} readings, by the present model", timed.len()),
            from,
            to: now_unix_s,
            low: 0.0,
            high: most,
            steps: vec![("predicted", &one)],
            dots: dots.collect(),
            marks: fits.map(|e| (e.at_unix_s, mark(e))).collect(),
            text: percent,
        })
    });
    let before = median(said.iter().map(|s| (s.got / s.expected - 1.0).abs()).collect()).map(tenths);
    Some(json!({
        "model": model, "readings": ratios.len(), "simulated": simulated, "all": deviation(&ratios),
        "recent": (ratios.len() > RECENT).then(|| deviation(recent)), "chart": chart,
        "said": said.len(), "before": before, "versions": versions(engine, now_unix_s),
    }))
}

/// A change of the model in a chart.
fn mark(e: &Event) -> String {
    let what = match e.what.as_str() {
        "promote" => "in use",
        "fit_refused" => "refused",
        _ => "fit",
    };
    format!("{what}: {}", super::cut(&e.subject, 40))
}

/// The versions of the model, newest first, each with what became of it and why.
fn versions(engine: &Engine, now_unix_s: f64) -> Vec<Value> {
    let state = |v: &ModelVersion| match v.state {
        VersionState::Present => "in use",
        VersionState::Earlier => "earlier",
        VersionState::Refused => "refused",
    };
    let one = |v: &ModelVersion| {
        json!({
            "number": v.version, "kind": v.kind, "collective": v.collective, "state": state(v), "who": v.who,
            "ago": (v.at_unix_s > 0.0).then(|| super::words(now_unix_s - v.at_unix_s)), "why": super::cut(&v.why, WHY_SHOWN),
            "held_back": v.compared.map(|c| c.held_back), "error": v.compared.map(|c| tenths(c.fitted)),
            "before": v.compared.map(|c| tenths(c.present)),
        })
    };
    engine.versions().iter().rev().map(one).collect()
}

/// The content of the page, if the state did not change since or it is young.
fn kept(v: &Visit) -> Option<Arc<Value>> {
    let slot = locked(&v.app.pages.history);
    let fresh = |k: &&Kept<Arc<Value>>| {
        let age = k.at.elapsed();
        age < HISTORY_TIME || (k.event == *v.app.newest.borrow() && age < 10 * HISTORY_TIME)
    };
    slot.as_ref().filter(fresh).map(|k| k.value.clone())
}

/// The content of the page; one request makes it, others wait for it.
async fn content(v: &Visit) -> Result<Arc<Value>, Problem> {
    if let Some(k) = kept(v) {
        return Ok(k);
    }
    let _one = v.app.pages.looks.lock().await;
    if let Some(k) = kept(v) {
        return Ok(k);
    }
    let event = *v.app.newest.borrow();
    let (said, now) = (v.app.pages.said(), crate::app::now_unix_s());
    let look = move |engine: &Engine| {
        let (h, log) = (engine.hosts()?, events(engine)?);
        let used = use_of(engine.cluster(), &h, &log, now);
        Ok(json!({ "use": used, "events": log.len(), "quality": quality(engine, &log, &said, now)}))
    };
    let value = Arc::new(v.app.work_as(crate::limits::Kind::Question, look).await?);
    *locked(&v.app.pages.history) = Some(Kept { event, at: Instant::now(), value: value.clone() });
    Ok(value)
}

pub async fn history(v: Visit) -> Result<Response<Body>, Problem> {
    let shown = content(&v).await?;
    page("history.html", json!({ "here": "history", "visitor": v.visitor(), "h": *shown}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{AllocateRequest, DrainRequest, ReleaseRequest};
    use store::State;

    #[test]
    fn undoing_the_log_leads_through_every_earlier_state_to_the_empty_cluster() {
        let folder = std::env::temp_dir().join(format!("linkwise-history-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let cluster = topology::catalog::cluster("h100").unwrap();
        let state = State::init(&folder.join("s.db"), &cluster, 0.0).unwrap();
        let e = Engine::builder(cluster.clone()).state(state).build().unwrap();
        let job =
            |id: &str, gpus: &str| AllocateRequest { job: id.into(), gpus: vec![gpus.into()], ..Default::default() };
        e.allocate(&job("a", "n0"), 10.0).unwrap();
        e.allocate(&job("b", "n1:[0-3]"), 20.0).unwrap();
        e.drain(&DrainRequest { gpus: vec!["n2:0".into()], ..Default::default() }, 30.0).unwrap();
        e.release(&ReleaseRequest { jobs: vec!["a".into()], key: None }, 40.0).unwrap();
        let events = e.events(&EventsRequest { after: Some(0), limit: None }).unwrap().events;
        let (moments, complete) = past(&cluster, &e.hosts().unwrap(), &events, 50.0);
        let found: Vec<(f64, f64, f64)> = moments.iter().map(|m| (m.at, m.held * 32.0, m.broken)).collect();
        let expected = [
            (10.0, 0.0, 0.0),
            (10.0, 8.0, 0.0),
            (20.0, 12.0, 4.0 / 20.0),
            (30.0, 12.0, 11.0 / 19.0),
            (40.0, 4.0, 11.0 / 27.0),
        ];
        assert!(complete);
        assert_eq!(found, expected);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
