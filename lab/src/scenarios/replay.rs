//! Learns from a few readings, then decides every request of a file.

use super::reader::{Load, Scenario};
use crate::ground_truth::PublicCode;
use crate::ground_truth::public_code::SIZE;
use measure::design::{DesignKind, design};
use place::baselines::{below, random};
use place::{Contention, Job, Request};
use predict::{BandwidthModel, FitOptions, Kind, Model, fit};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::time::Instant;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Collective, GpuMask, HostId};
use truths::Truth;

/// Number of allocations drawn per sample, because a design may choose rows that the table lacks.
const DRAWS_PER_SAMPLE: usize = 4;

/// Number of times that every request is answered. The fastest answer counts, so that other work on the machine has
/// little influence.
const TIMED: usize = 3;

/// Settings of a replay.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Readings over several hosts that the model learns from.
    pub samples: usize,
    /// Their sampling design. `random` draws rows of the table uniformly, without repetition.
    pub design: DesignKind,
}

/// One decision.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The choice.
    pub choice: Allocation,
    /// The bandwidth of the choice, GB/s; `None` if the tables do not determine it.
    pub truth_gb_per_s: Option<f64>,
    /// Time of the decision, microseconds.
    pub us: f64,
}

/// One seed's decisions, in the order of the requests.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The decisions.
    pub decided: Vec<Decided>,
    /// Number of readings over several hosts that the table had.
    pub samples: usize,
    /// Time of the fit, seconds.
    pub fit_s: f64,
}

fn measured(a: Allocation, gb_per_s: f64) -> Measurement {
    Measurement::new(a, Collective::AllReduce, SIZE, Bandwidth::from_gb_per_s(gb_per_s), Source::Published)
}

/// Readings over several hosts, by design. They come from the table only, never from rows recovered from files of
/// requests.
pub fn samples(truth: &PublicCode, settings: &Settings, seed: u64) -> Vec<Measurement> {
    let cluster = truth.cluster();
    let n = settings.samples;
    if settings.design != DesignKind::Random {
        let idle = cluster.usable();
        let mut seen = std::collections::HashSet::new();
        return design(cluster, &idle, n * DRAWS_PER_SAMPLE + 200, settings.design, seed)
            .into_iter()
            .filter_map(|a| {
                let v = truth.reading(&a)?;
                let mut counts = a.counts();
                counts.sort_unstable();
                seen.insert(counts).then(|| measured(a, v))
            })
            .take(n)
            .collect();
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5a3b_1e55);
    let mut rows = truth.splits();
    let mut out = Vec::new();
    while out.len() < n && !rows.is_empty() {
        let row = rows.swap_remove(below(&mut rng, rows.len()));
        // The order of hosts and the GPUs of each host are drawn, too.
        let mut hosts: Vec<HostId> = cluster.host_ids().collect();
        let parts: Vec<(HostId, GpuMask)> = row
            .counts()
            .filter_map(|count| {
                let host = hosts.swap_remove(below(&mut rng, hosts.len()));
                let all = Allocation::new([(host, cluster.type_of(host).all_gpus())]);
                random(&all, count, &mut rng).map(|a| (host, a.mask(host)))
            })
            .collect();
        let a = Allocation::new(parts);
        if let Some(v) = truth.reading(&a) {
            out.push(measured(a, v));
        }
    }
    out
}

/// All readings for a model: tables of single hosts and the samples.
pub fn lessons(truth: &PublicCode, inside: &[Measurement], settings: &Settings, seed: u64) -> Vec<Measurement> {
    let mut out: Vec<Measurement> = inside.to_vec();
    for (h, table) in truth.intra().iter().enumerate() {
        out.extend(table.rows().map(|(m, v)| measured(Allocation::new([(HostId(h as u32), m)]), v)));
    }
    out.extend(samples(truth, settings, seed));
    out
}

/// A request as in the file. Running jobs of an idle load use no bandwidth.
pub fn request(s: &Scenario) -> Request {
    let mut r = Request::new(s.k, s.available.clone(), SIZE);
    r.slack = place::Slack::NONE; // judged by bandwidth only
    r.contention = Contention::MergeBy(&papers::bandpilot::MERGE_COUNTS); // the rule of the truth
    r.jobs = s
        .background
        .iter()
        .enumerate()
        .map(|(i, b)| Job {
            id: format!("background {i}"),
            gpus: b.gpus.clone(),
            demand_gb_per_s: Some(if s.load == Load::Idle { 0.0 } else { b.demand_gb_per_s }),
            duty: 1.0,
        })
        .collect();
    r
}

/// Fits a model. The physics has nominal constants, because the shipped ones were fitted on published tables.
pub fn learn(truth: &PublicCode, inside: &[Measurement], settings: &Settings, seed: u64) -> Result<Model, String> {
    let rows = lessons(truth, inside, settings, seed);
    let options = FitOptions::of(Kind::Gp).constants(fabric::Constants::unfitted());
    fit(truth.cluster(), &rows, &options).map(|f| f.0).map_err(|e| e.to_string())
}

/// Decides every request.
pub fn decide(truth: &PublicCode, model: &dyn BandwidthModel, scenarios: &[Scenario]) -> Result<Vec<Decided>, String> {
    scenarios
        .iter()
        .map(|s| {
            let request = request(s);
            let mut us = f64::INFINITY;
            let mut answer = None;
            for _ in 0..TIMED {
                let start = Instant::now();
                let a = place::answer(truth.cluster(), model, &request).map_err(|e| format!("{}: {e}", s.id))?;
                us = us.min(start.elapsed().as_secs_f64() * 1e6);
                answer = Some(a);
            }
            let Some(answer) = answer else { return Err("no answer".into()) };
            let choice = answer.choice.allocation;
            Ok(Decided { truth_gb_per_s: truth.judge(s, &choice), choice, us })
        })
        .collect()
}

/// Replays one seed.
pub fn replay(
    truth: &PublicCode,
    inside: &[Measurement],
    scenarios: &[Scenario],
    settings: &Settings,
    seed: u64,
) -> Result<Replay, String> {
    let start = Instant::now();
    let model = learn(truth, inside, settings, seed)?;
    let fit_s = start.elapsed().as_secs_f64();
    let predict::Correction::Gp(gp) = model.correction() else {
        return Err("there are no samples to learn from".into());
    };
    let samples = gp.len();
    Ok(Replay { decided: decide(truth, &model, scenarios)?, samples, fit_s })
}
