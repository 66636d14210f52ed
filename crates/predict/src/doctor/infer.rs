//! Which defect explains the residuals best, and how sure that is.

use super::effect::{Component, Effects};
use super::evidence::{Evidence, Residual};
use super::{DEFECTS_MAX, PROBABILITY_MIN};
use std::collections::BTreeMap;

/// Shares of its rate that a slow component may have left.
pub const FACTORS: [f64; 10] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88];
/// One reading in so many may be anything.
const STRAY_SHARE: f64 = 0.02;
/// Density of such a reading, per unit of the logarithm: between a twentieth and thrice what is expected.
const STRAY_DENSITY: f64 = 0.25;
/// Probability, before any reading, that a given component is slow.
const PRIOR: f64 = 1e-3;
/// The same of a link between two GPUs; there are many more of them.
const PRIOR_LINK: f64 = 1e-4;
/// Most moments since which a component may be slow.
const MOMENTS_MAX: usize = 64;
/// A candidate less probable than this is not listed.
const LISTED_MIN: f64 = 1e-3;
/// Below expectation by so many deviations, a reading is far off.
pub const STRAY_SDS: f64 = 5.0;

/// One thing that a defect may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// What is slow.
    pub component: Component,
    /// Share of its rate that is left, the most probable one.
    pub factor: f64,
    /// Since when, seconds since 1970; none: in all readings.
    pub since: Option<f64>,
    /// Posterior probability that it is this one.
    pub probability: f64,
    /// Distinct readings that it slows.
    pub readings: usize,
    /// Logarithm of how much better it explains all readings than nothing does, at its best.
    pub ln_likelihood_ratio: f64,
}

/// Something is slow.
#[derive(Clone, Debug, PartialEq)]
pub struct Defect {
    /// Probability that there is one.
    pub probability: f64,
    /// What it may be, the most probable first; never empty.
    pub candidates: Vec<Candidate>,
}

/// `ln(e^a + e^b)`.
fn ln_add(a: f64, b: f64) -> f64 {
    let (hi, lo) = if a > b { (a, b) } else { (b, a) };
    if lo == f64::NEG_INFINITY { hi } else { hi + (lo - hi).exp().ln_1p() }
}

/// Log density of a residual that should be 0.
fn ln_density(r: f64, sd: f64) -> f64 {
    let z = r / sd;
    let normal = (1.0 - STRAY_SHARE).ln() - 0.5 * z * z - sd.ln() - 0.5 * std::f64::consts::TAU.ln();
    ln_add(normal, (STRAY_SHARE * STRAY_DENSITY).ln())
}

/// A residual that can be judged: which evidence it is of, itself, and what defects found before explain of it.
struct Judged<'e> {
    of: &'e Evidence,
    r: Residual,
    explained: f64,
}

/// Finds defects one after the other, each given those before it, while they are probable.
pub fn explain(effects: &Effects, evidence: &[Evidence], residuals: &[Option<Residual>]) -> Vec<Defect> {
    let cluster = effects.cluster();
    let mut judged: Vec<Judged> = evidence
        .iter()
        .zip(residuals)
        .filter_map(|(of, r)| Some(Judged { of, r: (*r)?, explained: 0.0 }))
        .collect();
    judged.sort_by(|a, b| a.of.at_unix_s.total_cmp(&b.of.at_unix_s));
    let mut touching: BTreeMap<Component, Vec<usize>> = BTreeMap::new();
    for (i, j) in judged.iter().enumerate() {
        for c in Component::touched_by(&cluster, &j.of.allocation) {
            touching.entry(c).or_default().push(i);
        }
    }
    // A component none of whose readings lies low cannot be slow: most are set aside unasked.
    let mut defects: Vec<Defect> = Vec::new();
    while defects.len() < DEFECTS_MAX {
        let low = |i: &usize| judged[*i].r.ln_ratio - judged[*i].explained < -1.5 * judged[*i].r.sd;
        let suspects = touching.iter().filter(|(c, of)| {
            of.iter().any(low) && defects.iter().all(|d| d.candidates[0].component != **c)
        });
        let mut all: Vec<(f64, Candidate)> =
            suspects.map(|(c, of)| hypothesis(effects, *c, of, &judged)).collect();
        let total = all.iter().fold(0.0, |s, (ln, _)| ln_add(s, *ln)); // 0: the logarithm of "nothing", which is the unit
        let probability = 1.0 - (-total).exp();
        if all.is_empty() || probability < PROBABILITY_MIN {
            break;
        }
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.component.cmp(&b.1.component)));
        let candidates: Vec<Candidate> = all
            .iter()
            .map(|(ln, c)| Candidate { probability: (ln - total).exp(), ..*c })
            .filter(|c| c.probability >= LISTED_MIN)
            .collect();
        let Some(best) = candidates.first().copied() else { break };
        for j in &mut judged {
            j.explained += effect(effects, &best, j.of);
        }
        defects.push(Defect { probability, candidates });
    }
    defects
}

fn effect(effects: &Effects, c: &Candidate, e: &Evidence) -> f64 {
    if c.since.is_some_and(|t| e.at_unix_s < t) {
        return 0.0;
    }
    effects.of(c.component, c.factor, &e.allocation, e.size)
}

/// What defects explain of every reading.
pub fn explained(effects: &Effects, evidence: &[Evidence], defects: &[Defect]) -> Vec<f64> {
    let of = |e: &Evidence| defects.iter().map(|d| effect(effects, &d.candidates[0], e)).sum();
    evidence.iter().map(of).collect()
}

/// How well "this component is slow" explains the readings that touch it: the logarithm of its weight against "nothing is", summed over
/// factors and moments, and its best form.
fn hypothesis(effects: &Effects, component: Component, of: &[usize], judged: &[Judged]) -> (f64, Candidate) {
    let prior = match component {
        Component::Link(..) => PRIOR_LINK,
        _ => PRIOR,
    };
    // Moments: the first reading, and every later one that something can have happened before.
    let times: Vec<f64> = of.iter().map(|i| judged[*i].of.at_unix_s).collect();
    let mut starts: Vec<usize> = (1..of.len()).filter(|&k| times[k] > times[k - 1]).collect();
    let step = starts.len().div_ceil(MOMENTS_MAX).max(1);
    starts = starts.into_iter().rev().step_by(step).collect();
    let ln_always = if starts.is_empty() { 0.0 } else { 0.5f64.ln() };
    let ln_moment = (0.5 / starts.len().max(1) as f64).ln();
    let ln_factor = -(FACTORS.len() as f64).ln();

    let mut weight = f64::NEG_INFINITY;
    let mut best = (f64::NEG_INFINITY, 1.0, 0usize, 0.0);
    let mut gain_from = vec![0.0; of.len() + 1];
    for factor in FACTORS {
        for (k, &i) in of.iter().enumerate().rev() {
            let j = &judged[i];
            let e = effects.of(component, factor, &j.of.allocation, j.of.size);
            let left = j.r.ln_ratio - j.explained;
            let gain = if e == 0.0 { 0.0 } else { ln_density(left - e, j.r.sd) - ln_density(left, j.r.sd) };
            gain_from[k] = gain_from[k + 1] + gain;
        }
        for (start, ln_when) in std::iter::once((0, ln_always)).chain(starts.iter().map(|&s| (s, ln_moment))) {
            let ln = prior.ln() + ln_factor + ln_when + gain_from[start];
            weight = ln_add(weight, ln);
            if ln > best.0 {
                best = (ln, factor, start, gain_from[start]);
            }
        }
    }
    let (_, factor, start, ln_likelihood_ratio) = best;
    let slowed = |i: &&usize| effects.of(component, factor, &judged[**i].of.allocation, judged[**i].of.size) < -0.02;
    let candidate = Candidate {
        component,
        factor,
        since: (start > 0).then(|| times[start]),
        probability: 0.0,
        readings: of[start..].iter().filter(slowed).count(),
        ln_likelihood_ratio,
    };
    (weight, candidate)
}
