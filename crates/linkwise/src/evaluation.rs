//! Replaying requests against a truth: how much of the best possible bandwidth (GBE) each method's choice gets.

use crate::learning::Learning;
use crate::truth::Truth;
use measure::design::{DesignKind, Uncertainty, adaptive_round, design};
use place::baselines::{below, packed, random};
use place::{Reading, Request, Scored, cautiously, decide, exact, worth_measuring};
use predict::{BandwidthModel, Correction, Kind, Model, Oracle, fit};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::collections::HashMap;
use std::time::Instant;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Cluster, GpuMask, HostId};

/// Candidates that are followed when rows are missing and the first choices may have none.
const KEEP_RESTRICTED: usize = 400;
/// Candidates that probing may choose from.
const KEEP_PROBING: usize = 1 + place::explain::RUNNER_UPS;

/// What to do with requests some of whose candidates have no row in the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Missing {
    /// Leave the request out and count it.
    LeaveOut,
    /// Keep the request; candidates without a row exist for nobody, neither for the optimum nor for a method.
    Restrict,
}

/// How to evaluate.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Multi-host samples that the model learns from.
    pub samples: usize,
    /// How they are chosen.
    pub design: DesignKind,
    /// Requests per number of GPUs.
    pub per_k: usize,
    /// Probes of the probing method.
    pub probes: usize,
    /// What to do about missing rows.
    pub missing: Missing,
    /// Take the shipped constants of the physics, some of which were fitted on published tables; else only nominal ones.
    pub shipped: bool,
}

/// One request of the replay.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// GPUs wanted.
    pub k: usize,
    /// GPUs free.
    pub free: Allocation,
}

/// k from 2 to all GPUs, `per_k` random availabilities each: the number of free GPUs even between k and all, then which.
pub fn scenarios(cluster: &Cluster, per_k: usize, seed: u64) -> Vec<Scenario> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5ce7_a210);
    let all = cluster.usable();
    let n = all.gpu_count();
    let mut out = Vec::new();
    for k in 2..=n {
        for _ in 0..per_k {
            let free = k + below(&mut rng, n - k + 1);
            out.push(Scenario { k, free: random(&all, free, &mut rng).unwrap_or_default() });
        }
    }
    out
}

/// GBE of one method, per request.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Method {
    /// Its name.
    pub name: String,
    /// (k, GBE in percent).
    pub gbe_pct: Vec<(usize, f64)>,
}

/// Mean, 5th percentile and worst of a list.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Summary {
    /// Mean.
    pub mean: f64,
    /// 5th percentile.
    pub p5: f64,
    /// Worst.
    pub worst: f64,
    /// How many.
    pub requests: usize,
}

/// Summarises; none for an empty list.
pub fn summary(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
    let mut v: Vec<f64> = values.into_iter().collect();
    v.sort_by(f64::total_cmp);
    let n = v.len();
    if n == 0 {
        return None;
    }
    // Linear interpolation between order statistics, as numpy's default.
    let at = 0.05 * (n - 1) as f64;
    let (i, f) = (at as usize, at.fract());
    let p5 = v[i] + f * (v[(i + 1).min(n - 1)] - v[i]);
    Some(Summary { mean: v.iter().sum::<f64>() / n as f64, p5, worst: v[0], requests: n })
}

/// How well a fitted model knows rows that it has not seen.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Accuracy {
    /// Coefficient of determination over held-out rows.
    pub r2: f64,
    /// Mean absolute error, percent.
    pub mape_pct: f64,
    /// Share of rows within one and two predicted deviations (a calibrated normal model: 0.68 and 0.95).
    pub within_one_sd: f64,
    /// See above.
    pub within_two_sd: f64,
    /// Rows.
    pub rows: usize,
}

/// One seed's outcome.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct SeedResult {
    /// The methods.
    pub methods: Vec<Method>,
    /// Requests left out because a candidate has no row.
    pub left_out: usize,
    /// Accuracy of the process on held-out rows.
    pub accuracy: Accuracy,
    /// Seconds to fit the process.
    pub fit_s: f64,
    /// Microseconds per decision with the process, every request.
    pub decide_us: Vec<f64>,
    /// Multi-host samples really taken (fewer if the truth has fewer rows).
    pub samples: usize,
}

/// The tables of single hosts, as measurements.
pub fn intra_measurements(truth: &Truth) -> Vec<Measurement> {
    let mut out = Vec::new();
    for (h, table) in truth.intra.iter().enumerate() {
        let mut rows: Vec<_> = table.iter().collect();
        rows.sort_by_key(|r| *r.0);
        out.extend(rows.into_iter().map(|(m, v)| row(truth, Allocation::new([(HostId(h as u32), *m)]), *v)));
    }
    out
}

fn row(truth: &Truth, a: Allocation, v: f64) -> Measurement {
    Measurement::new(a, truth.collective, truth.size, Bandwidth::from_gb_per_s(v), Source::Published)
}

fn constants(settings: &Settings) -> fabric::Constants {
    if settings.shipped { fabric::Constants::default() } else { fabric::Constants::unfitted() }
}

fn fit_kind(cluster: &Cluster, rows: &[Measurement], kind: Kind, settings: &Settings) -> Result<Model, String> {
    fit(cluster, rows, None, kind, constants(settings)).map(|f| f.0).map_err(|e| e.to_string())
}

/// Multi-host samples by design, read from the truth; allocations without a row are passed over.
pub fn samples(
    cluster: &Cluster,
    truth: &Truth,
    settings: &Settings,
    seed: u64,
    intra: &[Measurement],
) -> Vec<Measurement> {
    let n = settings.samples;
    let read = |list: Vec<Allocation>, n: usize| -> Vec<Measurement> {
        let mut seen = Vec::new();
        list.into_iter()
            .filter_map(|a| {
                // One row of the truth is one reading, whichever hosts and GPUs stand for it.
                let split = a.split();
                let v = truth.of(&a)?;
                (!seen.contains(&split)).then(|| {
                    seen.push(split);
                    row(truth, a, v)
                })
            })
            .take(n)
            .collect()
    };
    let idle = cluster.usable();
    if settings.design != DesignKind::Adaptive {
        return read(design(cluster, &idle, n * 4 + 200, settings.design, seed), n);
    }
    let mut learning = Learning::new(cluster, intra, constants(settings));
    let mut out = read(design(cluster, &idle, n * 2 + 100, DesignKind::Stratified, seed), (n * 2 / 5).max(10).min(n));
    let mut round = 0;
    while out.len() < n && round < 60 {
        round += 1;
        if learning.refit(&out).is_err() {
            break;
        }
        let taken: Vec<Allocation> = out.iter().map(|m| m.allocation.clone()).collect();
        let known: Vec<String> = taken.iter().map(Allocation::split).collect();
        let next = adaptive_round(cluster, &idle, 60, seed + round, &taken, &learning);
        let next = next.into_iter().filter(|a| !known.contains(&a.split())).collect();
        let want = (n - out.len()).min(10);
        out.extend(read(next, want));
    }
    out
}

/// Runs one seed: samples, fits, replays.
pub fn run_seed(cluster: &Cluster, truth: &Truth, settings: &Settings, seed: u64) -> Result<SeedResult, String> {
    let intra = intra_measurements(truth);
    let multi = samples(cluster, truth, settings, seed, &intra);
    let rows: Vec<Measurement> = intra.iter().chain(&multi).cloned().collect();
    let start = Instant::now();
    let gp = fit_kind(cluster, &rows, Kind::Gp, settings)?;
    let fit_s = start.elapsed().as_secs_f64();
    let bound = fit_kind(cluster, &rows, Kind::Bound, settings)?;
    let mut result =
        SeedResult { fit_s, samples: multi.len(), accuracy: accuracy(&gp, truth, &multi), ..SeedResult::default() };
    let names = ["random", "packed", "bound", "gp", "gp + probes"];
    result.methods = names.iter().map(|n| Method { name: (*n).into(), gbe_pct: Vec::new() }).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xbad5eed);
    for s in scenarios(cluster, settings.per_k, seed) {
        let (best, missing) = truth.optimum(&s.free, s.k);
        let Some(best) = best else {
            result.left_out += 1;
            continue;
        };
        if missing && settings.missing == Missing::LeaveOut {
            result.left_out += 1;
            continue;
        }
        let request = Request::new(s.k, s.free.clone(), truth.size);
        let keep = if settings.missing == Missing::Restrict { KEEP_RESTRICTED } else { KEEP_PROBING };
        let there = |found: place::Found| -> Vec<Scored> {
            found.best.into_iter().filter(|c| truth.of(&c.allocation).is_some()).collect()
        };
        let start = Instant::now();
        place::answer(cluster, &gp, &request).map_err(|e| e.to_string())?;
        result.decide_us.push(start.elapsed().as_secs_f64() * 1e6);
        let mut by_gp = there(exact(cluster, &gp, &request, keep).map_err(|e| e.to_string())?);
        let head = by_gp.len().min(KEEP_PROBING);
        cautiously(&mut by_gp[..head]);
        let by_bound = there(exact(cluster, &bound, &request, keep).map_err(|e| e.to_string())?);
        let probed = {
            let readings: Vec<Reading> = worth_measuring(&by_gp, settings.probes)
                .into_iter()
                .filter_map(|i| Some(Reading { candidate: i, busbw_gb_per_s: truth.of(&by_gp[i].allocation)? }))
                .collect();
            decide(&by_gp, &readings, gp.repeat_noise()).map(|d| by_gp[d.candidate].allocation.clone())
        };
        let first = |v: &[Scored]| v.first().map(|c| c.allocation.clone());
        let choices =
            [random(&s.free, s.k, &mut rng), packed(cluster, &s.free, s.k), first(&by_bound), first(&by_gp), probed];
        for (method, choice) in result.methods.iter_mut().zip(choices) {
            if let Some(v) = choice.and_then(|a| truth.of(&a)) {
                method.gbe_pct.push((s.k, 100.0 * v / best));
            }
        }
    }
    Ok(result)
}

/// GBE that the same kind of model reaches when every row's prediction comes from a fit on all other rows.
pub fn leave_one_out(cluster: &Cluster, truth: &Truth, settings: &Settings, seeds: &[u64]) -> Result<Method, String> {
    let intra = intra_measurements(truth);
    let mut rows: Vec<(Allocation, Vec<u8>, f64)> = truth
        .multi
        .iter()
        .map(|(k, v)| {
            let parts = k.iter().enumerate().map(|(h, c)| (HostId(h as u32), GpuMask::first(*c as usize)));
            (Allocation::new(parts), k.clone(), *v)
        })
        .collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0)); // the order in which `fit` sees them
    let all: Vec<Measurement> =
        intra.iter().cloned().chain(rows.iter().map(|r| row(truth, r.0.clone(), r.2))).collect();
    let model = fit_kind(cluster, &all, Kind::Gp, settings)?;
    let Correction::Gp(gp) = model.correction() else { return Err("no process was fitted".into()) };
    let without: HashMap<Vec<u8>, f64> =
        rows.iter().zip(gp.leave_one_out()).map(|((_, k, _), y)| (k.clone(), y)).collect();
    let table = model.part_table(truth.size).clone();
    let oracle = Oracle {
        table,
        truth: |parts: &[predict::Part]| {
            let b = model.bounds(truth.size).of(parts, &mut Default::default()).bound_gb_per_s;
            if parts.len() < 2 { b } else { without.get(&Truth::key(parts)).map_or(0.0, |y| b * y.exp()) }
        },
    };
    let mut method = Method { name: "leave-one-out ceiling".into(), gbe_pct: Vec::new() };
    for seed in seeds {
        for s in scenarios(cluster, settings.per_k, *seed) {
            let (Some(best), missing) = truth.optimum(&s.free, s.k) else { continue };
            if missing && settings.missing == Missing::LeaveOut {
                continue;
            }
            let request = Request::new(s.k, s.free, truth.size);
            let found = exact(cluster, &oracle, &request, KEEP_RESTRICTED).map_err(|e| e.to_string())?;
            if let Some(v) = found.best.iter().find_map(|c| truth.of(&c.allocation)) {
                method.gbe_pct.push((s.k, 100.0 * v / best));
            }
        }
    }
    Ok(method)
}

fn accuracy(model: &Model, truth: &Truth, seen: &[Measurement]) -> Accuracy {
    let known: Vec<String> = seen.iter().map(|m| m.allocation.split()).collect();
    let mut rows: Vec<(&Vec<u8>, &f64)> = truth.multi.iter().collect();
    rows.sort_by(|a, b| a.0.cmp(b.0));
    let (mut pairs, mut one, mut two) = (Vec::new(), 0, 0);
    for (k, v) in rows {
        let a = Allocation::new(k.iter().enumerate().map(|(h, c)| (HostId(h as u32), GpuMask::first(*c as usize))));
        if known.contains(&a.split()) {
            continue;
        }
        let p = model.predict_allocation(truth.size, &a);
        let z = (v - p.busbw_gb_per_s).abs() / p.std_gb_per_s.max(1e-9);
        one += usize::from(z <= 1.0);
        two += usize::from(z <= 2.0);
        pairs.push((p.busbw_gb_per_s, *v));
    }
    let n = pairs.len().max(1) as f64;
    let mean = pairs.iter().map(|p| p.1).sum::<f64>() / n;
    let (res, tot) = pairs.iter().fold((0.0, 0.0), |s, p| (s.0 + (p.1 - p.0).powi(2), s.1 + (p.1 - mean).powi(2)));
    Accuracy {
        r2: 1.0 - res / tot.max(1e-12),
        mape_pct: 100.0 * pairs.iter().map(|p| (p.0 / p.1 - 1.0).abs()).sum::<f64>() / n,
        within_one_sd: one as f64 / n,
        within_two_sd: two as f64 / n,
        rows: pairs.len(),
    }
}
