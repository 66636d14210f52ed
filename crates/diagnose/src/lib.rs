//! The diagnosis: finds the hosts, NICs and GPUs that explain why jobs ran slower than comparable jobs.
//!
//! Every reading is compared with the expectation of its class: a subset of one host with the same subset of other
//! hosts of its type, a multi-host allocation with a model's prediction. Hypotheses explain the residual `r = ln(got /
//! expected)`: *no defect*, or *component c has had the share f of its rate since time t*. The physics gives the effect
//! of a hypothesis on an allocation ([`effect`]): a slow NIC halves the jobs that touch it and no others. Residuals are
//! normal except for outliers, whose share the readings show ([`infer`]): bad readings do not convict a component. Posterior
//! probabilities over all (c, f, t) rank the findings and the alternatives. The search finds defects one after the
//! other, each given those before it ([`search`]).
//!
//! The model must not have learned the defect as normal. Therefore [`examine`] fits its own models, in rounds: first
//! the bare physics with one factor per class of allocations, then a Gaussian process on the readings that no finding
//! touches. [`suspicions`] takes a fitted model. [`Monitor`] keeps the readings between diagnoses, for a process that
//! gets readings one by one.
//!
//! With few readings over hosts, at most three per host, whole sets of slow parts are compared instead ([`sets`]): no
//! part then has evidence of its own. [`Diagnosis::next_reading`] proposes the reading that tells most ([`ask`]).
//!
//! Limits: a diagnosis uses the newest readings of every host ([`window`]), at most [`PAIRS_MAX`] pairs of allocation
//! and host for multi-host jobs, and at most [`SUBSETS_PER_HOST_MAX`] subsets per host. A fit uses at most
//! [`FIT_READINGS_MAX`] multi-host allocations.
//!
//! Cost (`cargo run -p diagnose --example doctor_scale`): about ten components x [`FACTORS`] additions per pair, one
//! prediction per distinct allocation, and about twenty estimates of a few microseconds per new shape of an allocation.

mod ask;
pub mod effect;
mod evidence;
mod infer;
mod monitor;
mod probe;
mod search;
mod sets;
mod window;

pub use ask::rail_sweep;
pub use effect::{Component, Effects};
pub use evidence::HostDeviation;
pub use infer::{Candidate, Defect, FACTORS};
pub use monitor::{Monitor, ReadingId, Work};
pub use probe::most_informative_allocation;
pub use window::{
    ALLOCATIONS_PER_HOST_MIN, JOB_HOSTS_MAX, PAIRS_MAX, REPETITIONS_MAX, SUBSETS_PER_HOST_MAX, allocations_per_host_max,
};

use effect::EffectCache;
use evidence::{Baseline, Evidence, Expectations, Expected};
use predict::Kind;
use predict::{BandwidthModel, Correction, Model};
use predict::{FitError, FitOptions, Stop, fit, slow_shared_parts};
use predict::{LearnedRates, SlowPart};
use search::Search;
use std::collections::HashMap;
use store::{Measurement, Quality};
use topology::{Allocation, Bytes, Cluster, Collective};

/// Maximum number of defects that a diagnosis names.
pub const DEFECTS_MAX: usize = 16;
/// Maximum number of multi-host readings in a fit of [`examine`], spread evenly over time. At this limit the Gaussian
/// process takes half a second; its cost grows with the third power.
pub const FIT_READINGS_MAX: usize = 256;
/// Number of fits of [`examine`]. Readings that the findings of one round touch are left out of the next fit.
const ROUNDS: usize = 3;
/// Minimum probability of a named defect.
pub const PROBABILITY_MIN: f64 = 0.5;

/// The defects of a cluster, with the evidence.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// Defects of single hosts, in the order found: the one that explains most first.
    pub defects: Vec<Defect>,
    /// Slow rails and switches. They are found first, and hosts are compared as if these parts were normal.
    pub shared: Vec<SlowPart>,
    /// Deviation of every host with readings from its class, lowest first.
    pub hosts: Vec<HostDeviation>,
    /// Number of distinct readings compared; repetitions count once.
    pub readings: usize,
    /// Number of readings without a class to compare them with.
    pub left_out: usize,
    /// Readings far below their expectation that no defect explains, lowest first.
    pub outliers: Vec<UnexplainedOutlier>,
    /// Standard deviation of ordinary multi-host readings around their expectation (of the logarithm).
    pub noise: f64,
    /// The posterior over sets of slow parts, with few readings over hosts.
    sets: Option<sets::Sets>,
}

/// A reading far below its expectation that no defect explains.
#[derive(Clone, Debug, PartialEq)]
pub struct UnexplainedOutlier {
    /// The GPUs of the reading.
    pub allocation: Allocation,
    /// The message size of the reading.
    pub size: Bytes,
    /// Measured bandwidth, GB/s.
    pub busbw_gb_per_s: f64,
    /// Expected bandwidth, GB/s.
    pub expected_gb_per_s: f64,
}

/// Searches for defects in all readings, with models that it fits itself.
///
/// # Errors
/// The errors of [`fit`]: no usable reading, or several collectives of which none is named.
pub fn examine(
    cluster: &Cluster,
    measurements: &[Measurement],
    collective: Option<Collective>,
    constants: fabric::Constants,
) -> Result<(Diagnosis, Model), FitError> {
    examine_until(cluster, measurements, collective, constants, Stop::default())
}

/// [`examine`] that ends with [`FitError::Cancelled`] when it is told to: within a fit, or before the next of its steps.
///
/// # Errors
/// Those of [`examine`]; [`FitError::Cancelled`].
pub fn examine_until(
    cluster: &Cluster,
    measurements: &[Measurement],
    collective: Option<Collective>,
    constants: fabric::Constants,
    stop: Stop<'_>,
) -> Result<(Diagnosis, Model), FitError> {
    let options =
        |kind, collective| FitOptions { collective, stop, ..FitOptions::of(kind).constants(constants.clone()) };
    let go_on = || if stop.is_set() { Err(FitError::Cancelled) } else { Ok(()) };
    let collective = match collective {
        Some(c) => c,
        None => fit(cluster, &thin_each(measurements), &options(Kind::Bound, None))?.0.collective(),
    };
    let evidence = window::gather(cluster, measurements, collective);
    // Readings of a slow host must not become its expectation, so they are left out; the class gives the expectation.
    let low = evidence::low_on_one_host(cluster, &evidence);
    let healthy: Vec<&Measurement> = measurements
        .iter()
        .filter(|m| m.collective == collective && m.quality != Quality::Rejected && m.contention.is_none())
        .filter(|m| m.allocation.host_count() > 1 || !low.contains(&(m.size, m.allocation.clone())))
        .collect();
    let thinned = thin(healthy.iter().copied());
    let mut bound = fit(cluster, &thinned, &options(Kind::Bound, Some(collective)))?.0;
    go_on()?;
    if let Some(found) = few_readings(cluster, &healthy, &evidence, &bound, &constants)? {
        return Ok(found);
    }
    let shared = slow_shared_parts(&bound, &thinned);
    if !shared.is_empty() {
        bound = bound.at_rates(LearnedRates { slow: shared.clone(), ..LearnedRates::default() });
    }
    go_on()?;
    let effects = Effects::new(&bound.site().cluster, &bound);
    let (mut search, mut found) = explain(&effects, &bound, &evidence, Baseline::Classes);
    let mut model = bound.clone();
    for _ in 1..ROUNDS {
        go_on()?;
        let touched = |m: &Measurement| {
            found.iter().any(|d| {
                let c = &d.candidates[0];
                !m.allocation.mask(c.component.host()).is_empty()
                    && c.since.is_none_or(|t| m.taken_at_unix_s.is_some_and(|at| at >= t))
                    && effects.of(c.component, c.factor, &m.allocation, m.size) < -0.02
            })
        };
        let clean = thin(healthy.iter().copied().filter(|m| !(m.allocation.host_count() > 1 && touched(m))));
        if clean.iter().filter(|m| m.allocation.host_count() > 1).count() < evidence::FIT_MIN {
            break; // too few readings are left: the physics with its factors stays
        }
        let known_slow_parts = Some(shared.clone());
        model = fit(cluster, &clean, &FitOptions { known_slow_parts, ..options(Kind::Gp, Some(collective)) })?.0;
        let next = explain(&effects, &model, &evidence, Baseline::Model);
        let same = next.1.iter().map(|d| d.candidates[0].component).eq(found.iter().map(|d| d.candidates[0].component));
        (search, found) = next;
        if same && matches!(model.correction(), Correction::Gp(_)) {
            break;
        }
    }
    Ok((diagnosis(&search, &effects, &model, found), model))
}

/// Bandwidth inside the slowest host of an allocation, GB/s. O(hosts).
fn inside_gb_per_s(model: &Model, a: &Allocation, size: Bytes) -> f64 {
    let table = model.share_table(size);
    a.parts().iter().map(|&(h, mask)| table.part(h, mask).intra_gb_per_s).fold(f64::INFINITY, f64::min)
}

/// The diagnosis by sets of slow parts ([`sets`]); `None` if there are many readings over hosts.
fn few_readings(
    cluster: &Cluster,
    healthy: &[&Measurement],
    evidence: &[Evidence],
    bound: &Model,
    constants: &fabric::Constants,
) -> Result<Option<(Diagnosis, Model)>, FitError> {
    let is_one = |e: &Evidence| e.allocation.host_count() < 2;
    let several: Vec<usize> = (0..evidence.len()).filter(|i| !is_one(&evidence[*i])).collect();
    if cluster.hosts.len() < sets::HOSTS_MIN {
        return Ok(None);
    }
    if several.is_empty() || several.len() > sets::READINGS_MAX.min(sets::READINGS_PER_HOST_MAX * cluster.hosts.len()) {
        return Ok(None);
    }
    let effects = Effects::new(cluster, bound);
    let one_host: Vec<Evidence> = evidence.iter().filter(|e| is_one(e)).cloned().collect();
    let mut defects = explain(&effects, bound, &one_host, Baseline::Classes).1;
    let mut expectations = Expectations::new(bound, Baseline::Classes);
    let readings: Vec<(&Evidence, sets::Expectation, f64)> = several
        .iter()
        .map(|i| {
            let e = &evidence[*i];
            let expected = match expectations.of(&e.allocation, e.size) {
                Expected::Class(v, _) | Expected::Model(v) => v,
                Expected::OneHost => 0.0,
            };
            let known = defects.iter().map(|d| infer::effect(&effects, &d.candidates[0], e)).fold(0.0, f64::min);
            let inside = inside_gb_per_s(bound, &e.allocation, e.size);
            (e, sets::Expectation::of(cluster, &e.allocation, expected, inside), known)
        })
        .collect();
    let Some(sets) = sets::explain(&effects, &readings) else { return Ok(None) };
    let mut search = prepared(&effects, bound, evidence, Baseline::Classes);
    for (i, r) in several.iter().zip(&sets.residuals) {
        search.set_residual(*i as u32, Some(evidence::Residual { ln_ratio: *r, sd: sets.sd, class: None }));
    }
    defects.extend(sets.defects.iter().cloned());
    defects.truncate(DEFECTS_MAX);
    let untouched = |m: &&&Measurement| {
        let slowed = |d: &Defect| {
            let c = &d.candidates[0];
            effects.of(c.component, c.factor, &m.allocation, m.size) < -0.02
        };
        m.allocation.host_count() < 2 || !defects.iter().any(slowed)
    };
    let clean: Vec<Measurement> = healthy.iter().filter(untouched).map(|m| (*m).clone()).collect();
    let collective = bound.collective();
    let options = FitOptions { collective: Some(collective), ..FitOptions::of(Kind::Bound) };
    let mut model = match fit(cluster, &clean, &options.constants(constants.clone())) {
        Ok((model, _)) => model,
        Err(_) => bound.clone(), // every reading is slowed
    };
    if !sets.shared.is_empty() {
        model = model.at_rates(LearnedRates { slow: sets.shared.clone(), ..LearnedRates::default() });
    }
    let mut d = diagnosis(&search, &effects, &model, defects);
    d.sets = Some(sets);
    Ok(Some((d, model)))
}

/// All single-host readings, and at most [`FIT_READINGS_MAX`] multi-host allocations, spread evenly over time.
fn thin<'m>(measurements: impl Iterator<Item = &'m Measurement>) -> Vec<Measurement> {
    let (mut several, one): (Vec<&Measurement>, Vec<&Measurement>) =
        measurements.partition(|m| m.allocation.host_count() > 1);
    if several.len() > FIT_READINGS_MAX {
        several.sort_by(|a, b| {
            let at = |m: &Measurement| m.taken_at_unix_s.unwrap_or(f64::NEG_INFINITY);
            let value = |m: &Measurement| m.busbw.gb_per_s();
            at(a)
                .total_cmp(&at(b))
                .then_with(|| (a.size, &a.allocation).cmp(&(b.size, &b.allocation)))
                .then(value(a).total_cmp(&value(b)))
        });
        let n = several.len();
        several = (0..FIT_READINGS_MAX).map(|i| several[(2 * i + 1) * n / (2 * FIT_READINGS_MAX)]).collect();
    }
    one.into_iter().chain(several).cloned().collect()
}

/// [`thin`] applied to each collective separately.
fn thin_each(measurements: &[Measurement]) -> Vec<Measurement> {
    let mut out = Vec::new();
    for collective in Collective::ALL {
        out.extend(thin(measurements.iter().filter(|m| m.collective == collective)));
    }
    out
}

/// Searches for defects with a model that was fitted before they began. `measurements` may be the whole store or its
/// newest part.
pub fn suspicions(model: &Model, measurements: &[Measurement]) -> Diagnosis {
    let model = &model.with_healthy_hosts();
    let evidence = window::gather(model.cluster(), measurements, model.collective());
    let effects = Effects::with_cache(model, EffectCache::default());
    let (search, found) = explain(&effects, model, &evidence, Baseline::Model);
    diagnosis(&search, &effects, model, found)
}

/// Searches for defects in readings, compared with `model`.
fn explain(effects: &Effects, model: &Model, evidence: &[Evidence], baseline: Baseline) -> (Search, Vec<Defect>) {
    let mut search = prepared(effects, model, evidence, baseline);
    let found = search.explain(effects);
    (search, found)
}

/// The readings with their residuals. The number of a reading is its index.
fn prepared(effects: &Effects, model: &Model, evidence: &[Evidence], baseline: Baseline) -> Search {
    let mut search = Search::new(model.cluster().hosts.len());
    let mut expectations = Expectations::new(model, baseline);
    let mut known: HashMap<(Bytes, &Allocation), Expected> = HashMap::new();
    for e in evidence {
        let expected =
            known.entry((e.size, &e.allocation)).or_insert_with(|| expectations.of(&e.allocation, e.size)).clone();
        search.insert(effects, e.clone(), expected);
    }
    compare(model.cluster(), &mut search, 0.0);
    search
}

/// Updates the residual of every reading. Residuals that moved by less than `tolerance` standard deviations are
/// unchanged. O(n log n) additions.
fn compare(cluster: &Cluster, search: &mut Search, tolerance: f64) {
    let all: Vec<(&Evidence, &Expected)> = search.items().map(|(_, x)| (&x.evidence, &x.expected)).collect();
    let next = evidence::settle(cluster, &all);
    let moved: Vec<(u32, Option<evidence::Residual>)> = search
        .items()
        .zip(next)
        .filter(|((_, x), next)| match (x.residual, next) {
            (Some(a), Some(b)) => {
                a.class != b.class
                    || (a.ln_ratio - b.ln_ratio).abs() > tolerance * b.sd
                    || (a.sd / b.sd - 1.0).abs() > tolerance
            }
            (a, b) => a.is_some() != b.is_some(),
        })
        .map(|((i, _), next)| (i, next))
        .collect();
    moved.into_iter().for_each(|(i, r)| search.set_residual(i, r));
}

fn diagnosis(search: &Search, effects: &Effects, model: &Model, defects: Vec<Defect>) -> Diagnosis {
    let mut outliers: Vec<(f64, UnexplainedOutlier)> = Vec::new();
    let (mut readings, mut left_out, mut noise) = (0, 0, 0.0);
    for (_, x) in search.items() {
        let e = &x.evidence;
        let Some(r) = x.residual else {
            left_out += 1;
            continue;
        };
        readings += 1;
        if e.allocation.host_count() > 1 {
            noise = r.sd;
        }
        if r.ln_ratio / r.sd >= -infer::OUTLIER_SDS {
            continue; // defects only raise a residual
        }
        let explain = |left: f64, d: &Defect| left - infer::explained(effects, &d.candidates[0], e, left);
        let z = defects.iter().fold(r.ln_ratio, explain) / r.sd;
        if z < -infer::OUTLIER_SDS {
            let outlier = UnexplainedOutlier {
                allocation: e.allocation.clone(),
                size: e.size,
                busbw_gb_per_s: e.ln_busbw.exp(),
                expected_gb_per_s: (e.ln_busbw - r.ln_ratio).exp(),
            };
            outliers.push((z, outlier));
        }
    }
    outliers.sort_by(|a, b| a.0.total_cmp(&b.0));
    Diagnosis {
        hosts: evidence::hosts(effects.cluster(), search.items().map(|(_, x)| (&x.evidence, x.residual))),
        readings,
        left_out,
        outliers: outliers.into_iter().map(|s| s.1).collect(),
        noise,
        defects,
        shared: model.rates().slow.iter().filter(|s| s.part.is_shared()).cloned().collect(),
        sets: None,
    }
}

impl Diagnosis {
    /// True if whole sets of slow parts were compared, because there are few readings over hosts. The next reading then
    /// concerns all defects together.
    pub fn compares_sets(&self) -> bool {
        self.sets.is_some()
    }

    /// The free GPUs whose reading is expected to tell most about what is slow: over whole sets of slow parts if there
    /// are few readings, else about the first defect that is not certain. `None` if no reading tells anything. `read`
    /// are allocations that are not proposed again, because a repetition shares their irregularity. Cost: about a
    /// thousand trials of a few microseconds each.
    pub fn next_reading(
        &self,
        model: &Model,
        free: &Allocation,
        size: Bytes,
        read: &std::collections::HashSet<Allocation>,
    ) -> Option<Allocation> {
        match &self.sets {
            // A reading over hosts does not tell the parts inside a host apart.
            Some(sets) => {
                let inside =
                    |d: &&Defect| matches!(d.candidates[0].component, Component::Gpu(..) | Component::Link(..));
                ask::most_informative(sets, model, free, size, read)
                    .or_else(|| self.about_open(model, free, size, read, inside))
            }
            None => self.about_open(model, free, size, read, |_| true),
        }
    }

    /// The reading that tells most about the first of these defects that is not certain.
    fn about_open(
        &self,
        model: &Model,
        free: &Allocation,
        size: Bytes,
        read: &std::collections::HashSet<Allocation>,
        of: impl Fn(&&Defect) -> bool,
    ) -> Option<Allocation> {
        let open = self.defects.iter().filter(of).find(|d| d.candidates[0].probability < ask::SURE)?;
        let read: Vec<Allocation> = read.iter().cloned().collect();
        most_informative_allocation(model, open, free, size, &read)
    }

    /// The free GPUs whose reading tells most about one defect: `next` of [`Diagnosis::next_reading`] if it concerns the
    /// defect, else GPUs of the suspects with those of an unsuspected host. It contains GPUs of a candidate. `None` if no
    /// reading separates the candidates.
    pub fn worth_measuring(
        &self,
        model: &Model,
        defect: &Defect,
        next: Option<&Allocation>,
        free: &Allocation,
        size: Bytes,
    ) -> Option<Allocation> {
        if self.compares_sets()
            && let Some(a) = next
            && probe::concerns(model.cluster(), defect, a)
        {
            return Some(a.clone());
        }
        most_informative_allocation(model, defect, free, size, &[])
    }

    /// Expected remaining share of an allocation's bandwidth under the defects, 0 to 1, where the allocation's own reading is among those of the
    /// diagnosis: only candidates count that slow another reading, too, because a reading is no evidence of what explains it. Candidates of one
    /// defect exclude each other; shares of different defects multiply.
    pub fn share_left(&self, model: &Model, allocation: &Allocation, size: Bytes) -> f64 {
        if self.defects.iter().flat_map(|d| &d.candidates).all(|c| allocation.mask(c.component.host()).is_empty()) {
            return 1.0;
        }
        let effects = Effects::new(model.cluster(), model);
        let left = |d: &Defect| {
            let lost =
                |c: &Candidate| c.probability * (1.0 - effects.of(c.component, c.factor, allocation, size).exp());
            let shown = d.candidates.iter().filter(|c| c.readings > 1);
            (1.0 - shown.map(lost).sum::<f64>()).clamp(0.0, 1.0)
        };
        self.defects.iter().map(left).product()
    }
}

/// The cost of a defect to the allocations that touch it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Number of the given allocations that the defect slows by at least 2 %.
    pub touched: usize,
    /// Mean prediction for these allocations without the defect, GB/s.
    pub healthy_gb_per_s: f64,
    /// Mean prediction for these allocations with the defect, GB/s.
    pub defective_gb_per_s: f64,
}

/// The cost of a defect to the given allocations. O(allocations) predictions.
pub fn cost(model: &Model, candidate: &Candidate, size: Bytes, allocations: &[Allocation]) -> Cost {
    let effects = Effects::new(model.cluster(), model);
    let mut c = Cost::default();
    for a in allocations {
        let e = effects.of(candidate.component, candidate.factor, a, size);
        if e < -0.02 {
            let v = model.predict_allocation(size, a).busbw_gb_per_s;
            c.touched += 1;
            c.healthy_gb_per_s += v;
            c.defective_gb_per_s += v * e.exp();
        }
    }
    let n = c.touched.max(1) as f64;
    Cost { touched: c.touched, healthy_gb_per_s: c.healthy_gb_per_s / n, defective_gb_per_s: c.defective_gb_per_s / n }
}
