//! Requests of the "dynamic workload", answered by each method.

use super::Effort;
use crate::evaluation::guides::{Timed, sample};
use crate::evaluation::requests::{Scenario, scenarios};
use crate::evaluation::sampling::readings;
use console::Failure;
use measure::design::DesignKind;
use place::{Objective, Request};
use predict::{BandwidthModel, FitOptions, HostShare, Kind, Oracle};
use std::time::Instant;
use store::Measurement;
use topology::Allocation;
use truths::{Irregularity, Truth};

/// Readings that linkwise's own model learns from.
const OWN_SAMPLES: usize = 100;

/// A method: its name in the paper, its search, and its guide.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Name in the paper.
    pub name: &'static str,
    /// Name of the search.
    pub search: &'static str,
    guide: Guide,
}

#[derive(Clone, Copy, Debug)]
enum Guide {
    Truth,
    Network,
    Labels,
    Own,
}

/// The paper's methods, and linkwise's own.
pub const METHODS: [Method; 6] = [
    Method { name: "UpperLiteGD", search: "litegd", guide: Guide::Truth },
    Method { name: "LiteGD", search: "litegd", guide: Guide::Network },
    Method { name: "Topo", search: "topo-greedy", guide: Guide::Labels },
    Method { name: "Default", search: "default", guide: Guide::Labels },
    Method { name: "Random", search: "random", guide: Guide::Labels },
    Method { name: "linkwise", search: "auto", guide: Guide::Own },
];

/// The results of a method, request by request.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Name of the method.
    pub name: &'static str,
    /// Requested GPUs.
    pub k: Vec<usize>,
    /// GBE, percent.
    pub gbe_pct: Vec<f64>,
    /// Milliseconds to decide.
    pub decide_ms: Vec<f64>,
    /// Milliseconds of each decision inside the model.
    pub predict_ms: Vec<f64>,
}

/// A truth as a model, and models fitted on it.
pub struct Guides<'t> {
    truth: &'t dyn Truth,
    upper: Box<dyn BandwidthModel + 't>,
    own: Box<dyn BandwidthModel>,
    network: Option<Box<dyn BandwidthModel>>,
}

fn samples(truth: &dyn Truth, n: usize, kind: DesignKind, seed: u64) -> Vec<Measurement> {
    sample(truth, n, kind, &fabric::Constants::unfitted(), seed, &[])
}

impl<'t> Guides<'t> {
    /// Fits the models of the methods; without `network`, LiteGD itself is omitted.
    pub fn new(truth: &'t dyn Truth, samples_of_network: Option<usize>, seed: u64) -> Result<Self, Failure> {
        let tables = readings(truth, seed, |r| r.intra());
        let fit = |kind, more: Vec<Measurement>| {
            let rows: Vec<Measurement> = tables.iter().cloned().chain(more).collect();
            let options = FitOptions {
                kind,
                collective: Some(truth.collective()),
                constants: fabric::Constants::unfitted(),
                known_slow_parts: None,
                seed,
                stop: predict::Stop::default(),
            };
            predict::fit(truth.cluster(), &rows, &options).map(|f| f.0).map_err(Failure::impossible)
        };
        // A single host has no multi-host readings.
        let several = truth.cluster().hosts.len() > 1;
        let own = match several {
            true => fit(Kind::Gp, samples(truth, OWN_SAMPLES, DesignKind::Stratified, seed))?,
            false => fit(Kind::Bound, Vec::new())?,
        };
        let table = own.share_table(truth.size()).clone();
        let value = move |parts: &[HostShare]| {
            let mut sorted: Vec<_> = parts.iter().map(|p| (p.host, p.mask)).collect();
            sorted.sort_by_key(|p| p.0);
            truth.of_parts(&sorted, Irregularity::With).unwrap_or(0.0)
        };
        let network: Option<Box<dyn BandwidthModel>> = match samples_of_network.filter(|_| several) {
            Some(n) => Some(Box::new(fit(
                Kind::Learned(&papers::network::kinds::TRANSFORMER_LITEGD),
                samples(truth, n, DesignKind::Random, seed),
            )?)),
            None => None,
        };
        Ok(Guides { truth, upper: Box::new(Oracle { table, truth: value }), own: Box::new(own), network })
    }

    fn of(&self, guide: Guide) -> Option<&dyn BandwidthModel> {
        Some(match guide {
            Guide::Truth => &*self.upper,
            Guide::Network => &**self.network.as_ref()?,
            Guide::Labels | Guide::Own => &*self.own,
        })
    }

    /// The choice of a method: its GPUs, the time in milliseconds, and the part of that time inside the model.
    pub fn choose(&self, m: &Method, free: &Allocation, k: usize, seed: u64) -> Option<(Allocation, f64, f64)> {
        let search = crate::evaluation::searches().search(m.search, seed).ok()?;
        let timed = Timed::new(self.of(m.guide)?);
        let request = Request::new(k, free.clone(), self.truth.size());
        let start = Instant::now();
        let objective = Objective::new(self.truth.cluster(), &timed, &request);
        let found = search.search(&objective, 1).ok()?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        Some((found.best.first()?.allocation.clone(), ms, timed.us() / 1e3))
    }

    /// GBE of a method on one request, percent.
    pub fn gbe_pct(&self, m: &Method, free: &Allocation, k: usize, seed: u64) -> Option<f64> {
        let best = self.truth.optimum(free, k, Irregularity::With).best?;
        Some(100.0 * self.truth.busbw_gb_per_s(&self.choose(m, free, k, seed)?.0)? / best)
    }
}

/// Every method on every request of one seed. Requests without a certain optimum are left out.
pub fn replay(truth: &dyn Truth, effort: &Effort, seed: u64) -> Result<Vec<Run>, Failure> {
    let guides = Guides::new(truth, (!effort.quick).then_some(effort.samples), seed)?;
    let there = METHODS.iter().filter(|m| guides.of(m.guide).is_some());
    let mut runs: Vec<(&Method, Run)> = there.map(|m| (m, Run { name: m.name, ..Run::default() })).collect();
    for (i, Scenario { k, free, .. }) in scenarios(truth.cluster(), effort.per_k, seed).into_iter().enumerate() {
        let optimum = truth.optimum(&free, k, Irregularity::With);
        let (Some(best), false) = (optimum.best, optimum.missing) else { continue };
        for (m, run) in &mut runs {
            let seed = seed.wrapping_mul(1_000_003).wrapping_add(i as u64);
            let Some((chosen, ms, predict_ms)) = guides.choose(m, &free, k, seed) else { continue };
            let Some(v) = truth.busbw_gb_per_s(&chosen) else { continue };
            run.k.push(k);
            run.gbe_pct.push(100.0 * v / best);
            run.decide_ms.push(ms);
            run.predict_ms.push(predict_ms);
        }
    }
    Ok(runs.into_iter().map(|r| r.1).collect())
}
