//! Replays requests against a truth: the share of the best possible bandwidth (GBE) that each method's choice gets.

use super::contended::ContendedTruth;
use super::guides::{Guides, Timed, oracle};
use super::methods::{Guide, MethodSpec};
use super::requests::{Load, Scenario, load, scenarios};
use place::{
    Contention, Objective, ProbeReading, Request, Search, decide, exact, promote_by_lower_confidence_bound,
    worth_measuring,
};
use predict::BandwidthModel;
use std::collections::HashMap;
use std::time::Instant;
use topology::Allocation;
use truths::{Irregularity, Keyed, Truth};

/// Number of candidates that are tried if the first choices may have no row.
const KEEP_RESTRICTED: usize = 400;
/// Candidates that probing may choose from.
const KEEP_PROBING: usize = 1 + place::RUNNER_UPS;
/// Default of [`Settings::probe_noise`], and the purpose of its random numbers.
pub const PROBE_NOISE: f64 = 0.03;
const OF_PROBES: u64 = 0x9b0b_e500;

/// Treatment of requests with a candidate without a row in the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Missing {
    /// Leave the request out and count it.
    LeaveOut,
    /// Keep the request; neither the optimum nor a method may take a candidate without a row.
    Restrict,
}

/// The optimum that GBE refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Best {
    /// The best bandwidth with the irregularity of single allocations
    #[default]
    Realised,
    /// The best bandwidth without irregularity, which is the part that a model can predict
    Smooth,
}

impl Best {
    /// The part of the truth that the optimum includes.
    pub fn irregularity(self) -> Irregularity {
        match self {
            Best::Realised => Irregularity::With,
            Best::Smooth => Irregularity::Without,
        }
    }
}

/// Settings of an evaluation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Requests per number of GPUs.
    pub per_k: usize,
    pub missing: Missing,
    /// Use the shipped constants of the physics, some of which were fitted on published tables; otherwise only nominal
    /// ones.
    pub shipped: bool,
    /// Load on the GPUs that are not free.
    pub load: Load,
    /// Rule by which jobs share bandwidth, in the truth and in the models.
    pub contention: Contention,
    pub best: Best,
    /// Relative noise of a probe, at least: the published tables have one number per allocation, and a probe that reads
    /// the number by which its choice is judged would be no measurement.
    pub probe_noise: f64,
}

impl Settings {
    /// The physics that models may use.
    pub fn constants(&self) -> fabric::Constants {
        if self.shipped { fabric::Constants::default() } else { fabric::Constants::unfitted() }
    }
}

/// The results of one method on the requests of one seed, in lists of equal length.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Run {
    pub name: String,
    /// Number of the request.
    #[serde(default)]
    pub request: Vec<usize>,
    /// GPUs of the request.
    pub k: Vec<usize>,
    /// GBE, percent.
    pub gbe_pct: Vec<f64>,
    /// Optimum minus choice, GB/s.
    pub loss_gb_per_s: Vec<f64>,
    /// Microseconds per decision.
    pub decide_us: Vec<f64>,
    /// Microseconds of each decision inside the model.
    pub predict_us: Vec<f64>,
    /// Candidates judged.
    pub evaluations: Vec<u64>,
    /// Requests that the method could not answer or whose choice has no row.
    pub unanswered: usize,
    /// Seconds to fit its model.
    pub fit_s: f64,
    /// Multi-host readings that its model learned from.
    pub samples: usize,
}

/// The result of one seed.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct SeedResult {
    pub runs: Vec<Run>,
    /// Requests left out because a candidate has no row.
    pub left_out: usize,
}

/// One request with its optimum.
struct Posed<'a> {
    request: Request,
    /// The best of all allocations for the request; if the search is not exhaustive, the best of those examined.
    best_gb_per_s: f64,
    truth: &'a dyn Truth,
    oracle: &'a dyn BandwidthModel,
    settings: &'a Settings,
}

impl<'a> Posed<'a> {
    /// `None` if the request must be left out.
    fn new(
        truth: &'a dyn Truth,
        oracle: &'a dyn BandwidthModel,
        settings: &'a Settings,
        mut s: Scenario,
        seed: u64,
    ) -> Option<Self> {
        if !load(truth, &truth.cluster().usable(), &mut s, settings.load, seed) {
            return None;
        }
        let optimum = truth.optimum(&s.free, s.k, settings.best.irregularity());
        if optimum.missing && settings.missing == Missing::LeaveOut {
            return None;
        }
        let mut request = Request::new(s.k, s.free, truth.size());
        request.jobs = s.jobs;
        request.contention = settings.contention;
        let mut posed = Posed { request, best_gb_per_s: optimum.best?, truth, oracle, settings };
        if !posed.request.jobs.is_empty() {
            // With limits, so that the search never refuses. Among running jobs the result is only a lower bound.
            let objective = Objective::new(truth.cluster(), oracle, &posed.request);
            let searched = exact::within(&objective, 1, exact::COMBINATIONS_MAX, exact::NODES_MAX).ok()?;
            let searched = posed.value(&searched.best.first()?.allocation)?;
            let contended = ContendedTruth { truth, oracle, request: &posed.request };
            let enumerated = contended.optimum_gb_per_s(settings.best.irregularity());
            posed.best_gb_per_s = enumerated.map_or(searched, |v| v.max(searched));
        }
        (posed.best_gb_per_s > 0.0).then_some(posed)
    }

    /// True bandwidth of a choice among the running jobs.
    fn value(&self, a: &Allocation) -> Option<f64> {
        let alone = self.truth.of_parts(a.parts(), self.settings.best.irregularity())?;
        if self.request.jobs.is_empty() {
            return Some(alone);
        }
        let table = self.oracle.share_table(self.request.size);
        let parts: Vec<predict::HostShare> = a.parts().iter().map(|&(h, m)| table.part(h, m)).collect();
        Some(Objective::new(self.truth.cluster(), self.oracle, &self.request).effect(&parts).shared_gb_per_s)
    }
}

/// The choice of a method, with its cost.
struct Choice {
    allocation: Allocation,
    evaluations: u64,
    decide_us: f64,
    predict_us: f64,
}

/// Whether the search is one of linkwise's own.
fn ours(search: &str) -> bool {
    matches!(search, "exact" | "threshold" | "auto")
}

/// The reading of a probe, with noise of the truth or of [`Settings::probe_noise`], whichever is larger.
fn probe(posed: &Posed, a: &Allocation, seed: u64) -> Option<f64> {
    let own = posed.truth.noise(a.host_count());
    let added = (posed.settings.probe_noise.powi(2) - own * own).max(0.0).sqrt();
    let noise = added * Keyed::new(seed, OF_PROBES).parts(a.parts()).normal();
    Some(posed.truth.measured(a, seed)? * noise.exp())
}

/// Chooses by a method. `serving`: the searches of one seed that learn from request to request.
fn choose(
    m: &MethodSpec,
    guide: &dyn BandwidthModel,
    posed: &Posed,
    serving: &HashMap<&str, Box<dyn Search>>,
    seed: u64,
) -> Option<Choice> {
    let drawn;
    let search = match serving.get(m.name.as_str()) {
        Some(s) => s,
        None => {
            drawn = crate::evaluation::searches().search(&m.search, seed).ok()?;
            &drawn
        }
    };
    let restricted = posed.settings.missing == Missing::Restrict;
    let keep = match m.guide {
        Guide::Model { .. } if restricted && ours(&m.search) => KEEP_RESTRICTED,
        _ => KEEP_PROBING,
    };
    let timed = Timed::new(guide);
    let start = Instant::now();
    let objective = Objective::new(posed.truth.cluster(), &timed, &posed.request);
    let mut found = search.search(&objective, keep).ok()?;
    let (decide_us, predict_us) = (start.elapsed().as_secs_f64() * 1e6, timed.us());
    let there = |a: &Allocation| posed.truth.busbw_gb_per_s(a).is_some();
    if restricted {
        found.best.retain(|c| there(&c.allocation));
    }
    // Caution about suspects and probes is part of linkwise's decision; the papers' methods use the result of their
    // search.
    if ours(&m.search) {
        let head = found.best.len().min(KEEP_PROBING);
        promote_by_lower_confidence_bound(&mut found.best[..head]);
    }
    let chosen = if m.probes == 0 {
        0
    } else {
        let mut readings: Vec<ProbeReading> = Vec::new();
        for _ in 0..m.probes {
            let next = worth_measuring(&found.best, &readings, 1, guide.repeat_noise());
            let read = |i: &usize| probe(posed, &found.best[*i].allocation, seed ^ 0x9e37);
            let Some((candidate, busbw_gb_per_s)) = next.first().and_then(|i| Some((*i, read(i)?))) else { break };
            readings.push(ProbeReading { candidate, busbw_gb_per_s });
        }
        decide(&found.best, &readings, guide.repeat_noise())?.candidate
    };
    let allocation = found.best.get(chosen)?.allocation.clone();
    Some(Choice { allocation, evaluations: found.evaluations, decide_us, predict_us })
}

/// Runs one seed: samples, fits, replays.
pub fn run_seed(
    truth: &dyn Truth,
    methods: &[MethodSpec],
    settings: &Settings,
    seed: u64,
    tick: &(dyn Fn() + Sync),
) -> Result<SeedResult, String> {
    let guides = Guides::new(truth, methods, &settings.constants(), settings.best.irregularity(), seed)?;
    let table = guides.fitted.values().next().ok_or("no methods")?.model.share_table(truth.size()).clone();
    let oracle = oracle(truth, table, settings.best.irregularity());
    let mut result = SeedResult::default();
    for m in methods {
        let f = &guides.fitted[&m.guide];
        result.runs.push(Run { name: m.name.clone(), fit_s: f.fit_s, samples: f.samples, ..Run::default() });
    }
    let learns = |m: &&MethodSpec| m.search == "bandpilot-v4";
    let serving: HashMap<&str, Box<dyn Search>> = methods
        .iter()
        .filter(learns)
        .filter_map(|m| Some((m.name.as_str(), crate::evaluation::searches().search(&m.search, seed).ok()?)))
        .collect();
    for (i, s) in scenarios(truth.cluster(), settings.per_k, seed).into_iter().enumerate() {
        tick();
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(i as u64);
        let k = s.k;
        let Some(posed) = Posed::new(truth, &oracle, settings, s, seed) else {
            result.left_out += 1;
            continue;
        };
        let choices: Vec<Option<(f64, Choice)>> = methods
            .iter()
            .map(|m| {
                let choice = choose(m, guides.fitted[&m.guide].model.as_ref(), &posed, &serving, seed)?;
                Some((posed.value(&choice.allocation)?, choice))
            })
            .collect();
        // If the optimum among jobs is not certain, a method may find a better allocation than the search.
        let best = choices.iter().flatten().map(|c| c.0).fold(posed.best_gb_per_s, f64::max);
        for (choice, run) in choices.into_iter().zip(&mut result.runs) {
            let Some((v, c)) = choice else {
                run.unanswered += 1;
                continue;
            };
            run.request.push(i);
            run.k.push(k);
            run.gbe_pct.push(100.0 * v / best);
            run.loss_gb_per_s.push(best - v);
            run.decide_us.push(c.decide_us);
            run.predict_us.push(c.predict_us);
            run.evaluations.push(c.evaluations);
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::methods;
    use measure::design::DesignKind;
    use topology::{GpuId, catalog};

    fn settings(load: Load, contention: Contention) -> Settings {
        Settings {
            per_k: 2,
            missing: Missing::LeaveOut,
            shipped: false,
            load,
            contention,
            best: Best::Realised,
            probe_noise: 0.0,
        }
    }

    fn rule_r(cluster: &str) -> Box<dyn Truth> {
        truths::by_name("rule-r", &catalog::cluster(cluster).unwrap(), 1, 0.02).unwrap()
    }

    #[test]
    fn no_choice_gets_more_than_the_optimum_with_any_running_jobs() {
        let truth = rule_r("het-4mix");
        let names = ["gp", "topo", "ideal-bandpilot"];
        let methods: Vec<MethodSpec> =
            names.iter().map(|n| methods::parse(n, (100, DesignKind::Stratified)).unwrap()).collect();
        for contention in [Contention::Merge, Contention::Physical] {
            let result = run_seed(&*truth, &methods, &settings(Load::Common, contention), 1, &|| ()).unwrap();
            for run in &result.runs {
                let most = run.gbe_pct.iter().copied().fold(0.0, f64::max);
                assert!(run.gbe_pct.len() > 40 && most <= 100.0 + 1e-9, "{}: {most} %", run.name);
                assert!(run.loss_gb_per_s.iter().all(|l| *l >= 0.0), "{} loses less than nothing", run.name);
            }
        }
    }

    #[test]
    fn a_probe_does_not_read_the_number_by_which_its_choice_is_judged() {
        let truth = rule_r("h100");
        let names = ["gp", "gp+3"];
        let methods: Vec<MethodSpec> =
            names.iter().map(|n| methods::parse(n, (60, DesignKind::Stratified)).unwrap()).collect();
        let of = |probe_noise: f64| {
            let settings = Settings { probe_noise, per_k: 4, ..settings(Load::None, Contention::Merge) };
            let result = run_seed(&*truth, &methods, &settings, 1, &|| ()).unwrap();
            result.runs.iter().map(|r| stats::mean(&r.gbe_pct)).collect::<Vec<f64>>()
        };
        let (without, with) = (of(0.0), of(0.2));
        assert_eq!(without[0], with[0], "a method without probes");
        assert!(with[1] < without[1], "three probes of 20 % noise: {} %, of the truth's: {} %", with[1], without[1]);
    }

    #[test]
    fn the_optimum_among_jobs_is_that_of_all_subsets() {
        let truth = rule_r("het-4mix");
        let table = Guides::new(
            &*truth,
            &[methods::parse("bound", (100, DesignKind::Stratified)).unwrap()],
            &fabric::Constants::unfitted(),
            Irregularity::With,
            1,
        )
        .unwrap();
        let table = table.fitted.values().next().unwrap().model.share_table(truth.size()).clone();
        let oracle = oracle(&*truth, table, Irregularity::With);
        let settings = settings(Load::Common, Contention::Merge);
        let mut compared = 0;
        for (i, mut s) in scenarios(truth.cluster(), 1, 3).into_iter().enumerate() {
            // Few GPUs are free, so that every subset can be examined; jobs hold the others.
            let free: Vec<GpuId> = s.free.gpus().step_by(2).take(11).collect();
            (s.free, s.k) = (Allocation::from_gpus(free.iter().copied()), 2 + s.k % 7);
            if s.k > free.len() {
                continue;
            }
            let Some(posed) = Posed::new(&*truth, &oracle, &settings, s, i as u64) else { continue };
            let brute = (0u32..1 << free.len())
                .filter(|m| m.count_ones() as usize == posed.request.gpus)
                .filter_map(|m| {
                    let chosen = (0..free.len()).filter(|i| m >> i & 1 == 1).map(|i| free[i]);
                    posed.value(&Allocation::from_gpus(chosen))
                })
                .fold(0.0, f64::max);
            assert_eq!(posed.best_gb_per_s, brute, "request {i}");
            compared += 1;
        }
        assert!(compared > 15, "{compared} requests");
    }
}
