//! Which host, NIC or GPU explains that jobs got less than their like?
//!
//! Every reading is compared with what its class gets: a subset of one host with the same subset of the other hosts of its type, an
//! allocation over hosts with what a model expects of it. What is left, `r = ln(got / expected)`, is explained by hypotheses: *nothing*,
//! or *component c has only a share f of its rate, since time t*. What a hypothesis does to an allocation is told by the physics
//! ([`effect`]): a slow NIC halves the jobs that touch it and no other. Readings are normal around what is expected, except that one in
//! fifty may be anything ([`infer`]), so that one bad reading convicts nobody. Posterior probabilities over all (c, f, t) say how sure a finding is
//! and what else it could be; defects are found one after the other, each given those before it.
//!
//! The model must not have learned the defect as normal. So [`examine`] fits one itself, in rounds: first the bare physics with one factor per
//! class of allocations, then a Gaussian process on the readings that no finding touches. [`suspicions`] takes a model that is there: for
//! a quick look after every job.
//!
//! Pure. Cost: readings x components that they touch x [`FACTORS`] estimates of a microsecond; a hundred readings of a four-host cluster take
//! some 50 ms, besides the fits of [`examine`].

pub mod effect;
mod evidence;
mod infer;
mod probe;

pub use effect::{Component, Effects};
pub use evidence::HostDeviation;
pub use infer::{Candidate, Defect, FACTORS};
pub use probe::telling;

use crate::fit::{FitError, FitOptions, fit};
use crate::kind::Kind;
use crate::model::Model;
use evidence::{Evidence, Residual};
use store::{Measurement, Quality};
use topology::{Allocation, Bytes, Cluster, Collective};

/// Most defects that are looked for.
pub const DEFECTS_MAX: usize = 16;
/// Fits of [`examine`]: the readings that the findings of one round touch are left out of the fit of the next.
const ROUNDS: usize = 3;
/// A defect is told if it is at least this probable that there is one.
pub const PROBABILITY_MIN: f64 = 0.3;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// Defects, the one that explains most first.
    pub defects: Vec<Defect>,
    /// How far every host with readings is from its class, farthest below first.
    pub hosts: Vec<HostDeviation>,
    /// Distinct readings that were judged: repetitions count once.
    pub readings: usize,
    /// Readings that nothing could be compared with.
    pub left_out: usize,
    /// Single readings far below what is expected that no defect explains.
    pub stray: Vec<Stray>,
    /// Deviation of ordinary readings over several hosts around their expectation (of the logarithm).
    pub noise: f64,
}

/// A reading that is far off for no reason found.
#[derive(Clone, Debug, PartialEq)]
pub struct Stray {
    /// Its GPUs.
    pub allocation: Allocation,
    /// Its size.
    pub size: Bytes,
    /// Read, GB/s.
    pub busbw_gb_per_s: f64,
    /// Expected, GB/s.
    pub expected_gb_per_s: f64,
}

/// Looks for defects in all that was measured, with models fitted on the way.
///
/// # Errors
/// As [`fit`]: nothing usable, or several collectives and none named.
pub fn examine(
    cluster: &Cluster,
    measurements: &[Measurement],
    collective: Option<Collective>,
    constants: fabric::Constants,
) -> Result<(Diagnosis, Model), FitError> {
    let options = |kind, collective| FitOptions { kind, collective, constants: constants.clone(), seed: 0 };
    let collective = fit(cluster, measurements, &options(Kind::Bound, collective))?.0.collective();
    let evidence = evidence::gather(cluster, measurements, collective);
    // What a slow host reads inside must not become what is expected of it: its class stands in.
    let low = evidence::low_on_one_host(cluster, &evidence);
    let healthy: Vec<Measurement> = measurements
        .iter()
        .filter(|m| m.quality != Quality::Rejected && !low.contains(&(m.size, m.allocation.clone())))
        .cloned()
        .collect();
    let bound = fit(cluster, &healthy, &options(Kind::Bound, Some(collective)))?.0;
    let effects = Effects::new(cluster, &bound);
    let residuals = evidence::residuals(&bound, &evidence, evidence::Baseline::Classes);
    let mut found = infer::explain(&effects, &evidence, &residuals);
    let mut model = bound.clone();
    let mut residuals = residuals;
    for _ in 1..ROUNDS {
        let touched = |m: &Measurement| {
            found.iter().any(|d| {
                let c = &d.candidates[0];
                c.since.is_none_or(|t| m.taken_at_unix_s.is_some_and(|at| at >= t))
                    && effects.of(c.component, c.factor, &m.allocation, m.size) < -0.02
            })
        };
        let clean: Vec<Measurement> =
            healthy.iter().filter(|m| !(m.allocation.host_count() > 1 && touched(m))).cloned().collect();
        if clean.iter().filter(|m| m.allocation.host_count() > 1).count() < evidence::FIT_MIN {
            break; // too little is left to learn from: the physics with its factors stays
        }
        model = fit(cluster, &clean, &options(Kind::Gp, Some(collective)))?.0;
        residuals = evidence::residuals(&model, &evidence, evidence::Baseline::Model);
        let next = infer::explain(&effects, &evidence, &residuals);
        let same = next.iter().map(|d| d.candidates[0].component).eq(found.iter().map(|d| d.candidates[0].component));
        found = next;
        if same && matches!(model.correction(), crate::model::Correction::Gp(_)) {
            break;
        }
    }
    Ok((diagnosis(cluster, &effects, &evidence, &residuals, found), model))
}

/// Looks for defects with a model that was fitted before they began.
pub fn suspicions(model: &Model, measurements: &[Measurement]) -> Diagnosis {
    let cluster = model.cluster();
    let evidence = evidence::gather(cluster, measurements, model.collective());
    let effects = Effects::new(cluster, model);
    let residuals = evidence::residuals(model, &evidence, evidence::Baseline::Model);
    let found = infer::explain(&effects, &evidence, &residuals);
    diagnosis(cluster, &effects, &evidence, &residuals, found)
}

fn diagnosis(
    cluster: &Cluster,
    effects: &Effects,
    evidence: &[Evidence],
    residuals: &[Option<Residual>],
    defects: Vec<Defect>,
) -> Diagnosis {
    let explained = infer::explained(effects, evidence, &defects);
    let mut stray: Vec<(f64, Stray)> = evidence
        .iter()
        .zip(residuals)
        .zip(&explained)
        .filter_map(|((e, r), d)| {
            let r = r.as_ref()?;
            let z = (r.ln_ratio - d) / r.sd;
            let stray = Stray {
                allocation: e.allocation.clone(),
                size: e.size,
                busbw_gb_per_s: e.ln_busbw.exp(),
                expected_gb_per_s: (e.ln_busbw - r.ln_ratio).exp(),
            };
            (z < -infer::STRAY_SDS).then_some((z, stray))
        })
        .collect();
    stray.sort_by(|a, b| a.0.total_cmp(&b.0));
    let noise = residuals.iter().zip(evidence).find(|(r, e)| r.is_some() && e.allocation.host_count() > 1);
    Diagnosis {
        hosts: evidence::hosts(cluster, evidence, residuals),
        readings: residuals.iter().flatten().count(),
        left_out: residuals.iter().filter(|r| r.is_none()).count(),
        stray: stray.into_iter().map(|s| s.1).collect(),
        noise: noise.and_then(|(r, _)| r.as_ref()).map_or(0.0, |r| r.sd),
        defects,
    }
}

impl Diagnosis {
    /// What of an allocation's bandwidth the defects are expected to leave, 0 to 1: candidates of one defect exclude each other, defects
    /// multiply.
    pub fn share_left(&self, model: &Model, allocation: &Allocation, size: Bytes) -> f64 {
        let effects = Effects::new(model.cluster(), model);
        let left = |d: &Defect| {
            let lost =
                |c: &Candidate| c.probability * (1.0 - effects.of(c.component, c.factor, allocation, size).exp());
            (1.0 - d.candidates.iter().map(lost).sum::<f64>()).clamp(0.0, 1.0)
        };
        self.defects.iter().map(left).product()
    }
}

/// What a defect costs the allocations that touch it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Allocations among those asked about that it slows by 2 % and more.
    pub touched: usize,
    /// Their mean prediction without the defect, GB/s.
    pub healthy_gb_per_s: f64,
    /// With it, GB/s.
    pub defective_gb_per_s: f64,
}

/// What a defect costs, over given allocations. O(allocations) predictions.
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
