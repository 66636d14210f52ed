//! Requests under random availability: the choice of each method, judged by the true bandwidths.

use super::source::DemoTruth;
use super::{Fit, PROBES};
use crate::evaluation::{Method, Summary, even, scenarios, summary};
use console::Failure;
use place::baselines::random;
use place::{Answer, ProbeReading, Request, answer, decide, exact, promote_by_lower_confidence_bound, worth_measuring};
use predict::{BandwidthModel, Model};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::collections::HashSet;
use std::time::Instant;
use store::Measurement;
use topology::{Allocation, Cluster, HostId};

/// Number of rows of a simulated cluster that judge predictions.
pub const HELD_OUT_SIMULATED: usize = 400;
/// Candidates that probing may choose from.
const KEEP_PROBING: usize = 1 + place::RUNNER_UPS;
/// A gain over the packed choice that users notice.
pub const NOTICEABLE_GAIN: f64 = 1.2;

/// Indices of the methods in [`Replay::methods`]: the even split over the fewest hosts.
pub const EVEN: usize = 0;
/// The packed choice.
pub const PACKED: usize = 1;
/// Random GPUs.
pub const RANDOM: usize = 2;
/// linkwise with its fitted Gaussian process.
pub const LINKWISE: usize = 4;

/// One placed request.
pub struct Decided {
    /// Requested GPUs.
    pub k: usize,
    /// Free GPUs.
    pub free: Allocation,
    /// The answer of linkwise.
    pub answer: Answer,
    /// True bandwidth of its choice, GB/s.
    pub chosen_gb_per_s: f64,
    /// True bandwidth of the packed choice, GB/s.
    pub packed_gb_per_s: f64,
    /// True bandwidth of the even split, GB/s.
    pub even_gb_per_s: f64,
    /// True bandwidth of the best choice, GB/s.
    pub best_gb_per_s: f64,
    /// Time of the answer.
    pub elapsed_us: f64,
}

impl Decided {
    /// The choice's bandwidth over that of the packed choice.
    pub fn gain(&self) -> f64 {
        self.chosen_gb_per_s / self.packed_gb_per_s
    }
}

/// The replay of all requests, in order.
pub struct Replay {
    pub decided: Vec<Decided>,
    /// GBE by method; see the constants of this module.
    pub methods: Vec<Method>,
    /// Requests left out because a candidate has no true row.
    pub left_out: usize,
}

impl Replay {
    /// The request at which linkwise gains most over packing; none without requests.
    pub fn most_gained(&self) -> Option<&Decided> {
        self.decided.iter().reduce(|a, b| if b.gain() > a.gain() { b } else { a })
    }
    /// Number of requests that get at least `factor` times the packed choice's bandwidth.
    pub fn gaining(&self, factor: f64) -> usize {
        self.decided.iter().filter(|d| d.gain() > factor).count()
    }
    /// Number of requests that get at least `factor` times the even split's bandwidth.
    pub fn gaining_over_even(&self, factor: f64) -> usize {
        self.decided.iter().filter(|d| d.chosen_gb_per_s > factor * d.even_gb_per_s).count()
    }
    /// Number of requests that get less than the packed choice's bandwidth, by more than 1 %.
    pub fn losing(&self) -> usize {
        self.decided.iter().filter(|d| d.gain() < 0.99).count()
    }
    /// Median microseconds of an answer.
    pub fn elapsed_us_median(&self) -> f64 {
        let us: Vec<f64> = self.decided.iter().map(|d| d.elapsed_us).collect();
        if us.is_empty() { 0.0 } else { stats::upper_median(&us) }
    }
}

/// Mean, 5th percentile and worst GBE of a method, percent.
pub fn summary_of(method: &Method) -> Option<Summary> {
    summary(method.gbe_pct.iter().map(|g| g.1))
}

/// Mean GBE by number of GPUs.
pub fn by_k(method: &Method) -> Vec<(usize, f64)> {
    let max = method.gbe_pct.iter().map(|g| g.0).max().unwrap_or(0);
    let of = |k: usize| summary(method.gbe_pct.iter().filter(|g| g.0 == k).map(|g| g.1));
    (2..=max).filter_map(|k| Some((k, of(k)?.mean))).collect()
}

/// Replays `per_k` requests for every number of GPUs from 2 to all.
pub fn replay(cluster: &Cluster, fit: &Fit, truth: &DemoTruth, per_k: usize, seed: u64) -> Result<Replay, Failure> {
    let with_probes = format!("linkwise + {PROBES} probes");
    let names = ["even", "packed", "random", "linkwise, bound model", "linkwise", &with_probes];
    let methods = names.iter().map(|n| Method { name: (*n).into(), gbe_pct: Vec::new() }).collect();
    let mut replay = Replay { decided: Vec::new(), methods, left_out: 0 };
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xbad5eed);
    for s in scenarios(cluster, per_k, seed) {
        let at_random = random(&s.free, s.k, &mut rng);
        let evenly = even(cluster, &s.free, s.k);
        let Some(best) = truth.optimum(&s.free, s.k).filter(|b| *b > 0.0) else {
            replay.left_out += 1;
            continue;
        };
        // Judged by bandwidth only.
        let request = Request { slack: place::Slack::NONE, ..Request::new(s.k, s.free, truth.size()) };
        let begun = Instant::now();
        let answer = answer(cluster, &fit.gp, &request).map_err(Failure::impossible)?;
        let elapsed_us = begun.elapsed().as_secs_f64() * 1e6;
        let by_bound = exact(cluster, &fit.bound, &request, 1).map_err(Failure::impossible)?;
        let probed = probe(cluster, &fit.gp, truth, &request)?;
        let choices = [
            evenly.as_ref(),
            answer.packed.as_ref().map(|p| &p.allocation),
            at_random.as_ref(),
            by_bound.best.first().map(|c| &c.allocation),
            Some(&answer.choice.allocation),
            probed.as_ref(),
        ];
        let got: Option<Vec<f64>> = choices.into_iter().map(|c| truth.of(c?)).collect();
        let Some(got) = got else {
            replay.left_out += 1;
            continue;
        };
        for (method, v) in replay.methods.iter_mut().zip(&got) {
            method.gbe_pct.push((request.gpus, 100.0 * v / best));
        }
        replay.decided.push(Decided {
            k: request.gpus,
            free: request.free,
            answer,
            chosen_gb_per_s: got[LINKWISE],
            packed_gb_per_s: got[PACKED],
            even_gb_per_s: got[EVEN],
            best_gb_per_s: best,
            elapsed_us,
        });
    }
    Ok(replay)
}

/// Chooses, measures the few candidates that are worth a probe, and decides.
fn probe(
    cluster: &Cluster,
    model: &Model,
    truth: &DemoTruth,
    request: &Request,
) -> Result<Option<Allocation>, Failure> {
    let mut candidates = exact(cluster, model, request, KEEP_PROBING).map_err(Failure::impossible)?.best;
    promote_by_lower_confidence_bound(&mut candidates);
    let mut readings: Vec<ProbeReading> = Vec::new();
    for _ in 0..PROBES {
        let next = worth_measuring(&candidates, &readings, 1, model.repeat_noise());
        let read = |i: &usize| truth.of(&candidates[*i].allocation);
        let Some((candidate, busbw_gb_per_s)) = next.first().and_then(|i| Some((*i, read(i)?))) else { break };
        readings.push(ProbeReading { candidate, busbw_gb_per_s });
    }
    let decision = decide(&candidates, &readings, model.repeat_noise());
    Ok(decision.map(|d| candidates[d.candidate].allocation.clone()))
}

/// Predictions of rows that the model has not learned.
pub struct HeldOut {
    /// (hosts, true, predicted), GB/s.
    pub rows: Vec<(usize, f64, f64)>,
    /// Coefficient of determination.
    pub r2: f64,
    /// Median absolute error, percent.
    pub median_error_pct: f64,
    /// Share of rows within one and two predicted standard deviations.
    pub within: (f64, f64),
}

/// Predicts every multi-host row whose split is not among the measured ones.
pub fn held_out(model: &Model, truth: &DemoTruth, cluster: &Cluster, seen: &[Measurement], seed: u64) -> HeldOut {
    // A published row such as 4+2 is one reading for all hosts; simulated hosts differ from each other.
    let key = |a: &Allocation| match truth.is_simulated() {
        true => cluster.host_ids().map(|h: HostId| a.mask(h).count()).collect(),
        false => {
            let mut counts = a.counts();
            counts.sort_unstable();
            counts
        }
    };
    let known: HashSet<Vec<usize>> = seen.iter().map(|m| key(&m.allocation)).collect();
    let (mut rows, mut one, mut two) = (Vec::new(), 0, 0);
    for (a, v) in truth.multi_host_rows(cluster, seed) {
        if known.contains(&key(&a)) {
            continue;
        }
        let p = model.predict_allocation(truth.size(), &a);
        let z = (v - p.busbw_gb_per_s).abs() / p.std_gb_per_s.max(1e-9);
        one += usize::from(z <= 1.0);
        two += usize::from(z <= 2.0);
        rows.push((a.host_count(), v, p.busbw_gb_per_s));
    }
    let n = rows.len().max(1) as f64;
    let mean = rows.iter().map(|r| r.1).sum::<f64>() / n;
    let residual: f64 = rows.iter().map(|r| (r.2 - r.1).powi(2)).sum();
    let total: f64 = rows.iter().map(|r| (r.1 - mean).powi(2)).sum();
    let errors: Vec<f64> = rows.iter().map(|r| 100.0 * (r.2 / r.1 - 1.0).abs()).collect();
    HeldOut {
        r2: 1.0 - residual / total.max(1e-12),
        median_error_pct: if errors.is_empty() { 0.0 } else { stats::upper_median(&errors) },
        within: (f64::from(one as u32) / n, f64::from(two as u32) / n),
        rows,
    }
}
