//! Which defect explains the residuals best, and how sure that is.

use super::effect::{Component, Effects};
use super::evidence::{Evidence, Residual, median};
use super::{DEFECTS_MAX, PROBABILITY_MIN};
use std::collections::BTreeMap;

/// Shares of its rate that a slow component may have left.
pub const FACTORS: [f64; 10] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88];
/// Share of readings that may be anything.
const STRAY_SHARE: f64 = 0.01;
/// Density of such a reading, per unit of the logarithm: between a twentieth and thrice what is expected.
const STRAY_DENSITY: f64 = 0.25;
/// Probability, before any reading, that a given component is slow.
const PRIOR: f64 = 2e-3;
/// The same of a link between two GPUs; there are many more of them.
const PRIOR_LINK: f64 = 1e-4;
/// Most moments since which a component may be slow.
const MOMENTS_MAX: usize = 64;
/// What an effect told by the physics may be off by, as a share of its logarithm: NCCL may balance better or worse than it should.
const EFFECT_SD: f64 = 0.07;
/// The best factor is refined by steps of this (of the logarithm), so many to either side.
const REFINE: (f64, i32) = (0.03, 9);
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
    /// What defects found so far do to it.
    explained: f64,
    /// What its class turned out to be off by, now that defects are known.
    shift: f64,
}

impl Judged<'_> {
    /// What is not explained yet.
    fn left(&self) -> f64 {
        self.r.ln_ratio - self.explained - self.shift
    }
    /// What an ordinary reading deviates by, and what was explained may be off by.
    fn sd(&self) -> f64 {
        self.r.sd.hypot(EFFECT_SD * self.explained)
    }
    /// How much better an effect explains it than none, as a logarithm.
    fn gain(&self, effect: f64) -> f64 {
        self.gain_with(effect, 0.0)
    }
    /// The same, when its class is moved by `shift` at the same time.
    fn gain_with(&self, effect: f64, shift: f64) -> f64 {
        if effect == 0.0 && shift == 0.0 {
            return 0.0;
        }
        let with = ln_density(self.left() - effect - shift, self.sd().hypot(EFFECT_SD * effect));
        with - ln_density(self.left(), self.sd())
    }
}

/// Finds defects one after the other, each given those before it, while they are probable.
pub fn explain(effects: &Effects, evidence: &[Evidence], residuals: &[Option<Residual>]) -> Vec<Defect> {
    let cluster = effects.cluster();
    let mut judged: Vec<Judged> = evidence
        .iter()
        .zip(residuals)
        .filter_map(|(of, r)| Some(Judged { of, r: (*r)?, explained: 0.0, shift: 0.0 }))
        .collect();
    judged.sort_by(|a, b| a.of.at_unix_s.total_cmp(&b.of.at_unix_s));
    let mut touching: BTreeMap<Component, Vec<usize>> = BTreeMap::new();
    for (i, j) in judged.iter().enumerate() {
        for c in Component::touched_by(&cluster, &j.of.allocation) {
            touching.entry(c).or_default().push(i);
        }
    }
    let classes = Classes::new(&judged);
    // A component none of whose readings lies low cannot be slow: most are set aside unasked.
    let mut defects: Vec<Defect> = Vec::new();
    while defects.len() < DEFECTS_MAX {
        let low = |i: &usize| judged[*i].left() < -1.5 * judged[*i].sd();
        let suspects = touching
            .iter()
            .filter(|(c, of)| of.iter().any(low) && defects.iter().all(|d| d.candidates[0].component != **c));
        let mut all: Vec<(f64, Candidate)> =
            suspects.map(|(c, of)| hypothesis(effects, *c, of, &judged, &classes)).collect();
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
        classes.settle(&mut judged);
        defects.push(Defect { probability, candidates });
    }
    defects
}

/// Readings whose expectation is only that of their class: its level moves with what a defect is said to have taken from them. Without this, a
/// host that most allocations touch would pass for what is normal.
struct Classes {
    /// By class: its members.
    members: Vec<Vec<usize>>,
    /// By reading: its class.
    of: Vec<Option<usize>>,
}

impl Classes {
    fn new(judged: &[Judged]) -> Self {
        let mut members: Vec<Vec<usize>> = Vec::new();
        let of = judged
            .iter()
            .enumerate()
            .map(|(i, j)| {
                let class = j.r.class?;
                members.resize(members.len().max(class + 1), Vec::new());
                members[class].push(i);
                Some(class)
            })
            .collect();
        Classes { members, of }
    }

    /// The gain of effects (by reading, those of `touched` not 0) with the levels of all classes that they move.
    fn gain(&self, judged: &[Judged], touched: &[(usize, f64)]) -> f64 {
        let mut gain = 0.0;
        let mut moved: Vec<usize> = Vec::new();
        for &(i, e) in touched.iter().filter(|t| t.1 != 0.0) {
            match self.of[i] {
                None => gain += judged[i].gain(e),
                Some(c) => moved.push(c),
            }
        }
        moved.sort_unstable();
        moved.dedup();
        for c in moved {
            let effect = |i: usize| touched.binary_search_by_key(&i, |t| t.0).map_or(0.0, |at| touched[at].1);
            let mut left: Vec<f64> = self.members[c].iter().map(|&i| judged[i].left() - effect(i)).collect();
            let shift = median(&mut left);
            gain += self.members[c].iter().map(|&i| judged[i].gain_with(effect(i), shift)).sum::<f64>();
        }
        gain
    }

    /// Moves every class to where its readings lie, given what is explained.
    fn settle(&self, judged: &mut [Judged]) {
        for members in &self.members {
            let shift = median(&mut members.iter().map(|&i| judged[i].left()).collect::<Vec<_>>());
            members.iter().for_each(|&i| judged[i].shift += shift);
        }
    }
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
fn hypothesis(
    effects: &Effects,
    component: Component,
    of: &[usize],
    judged: &[Judged],
    classes: &Classes,
) -> (f64, Candidate) {
    let prior = match component {
        Component::Link(..) => PRIOR_LINK,
        _ => PRIOR,
    };
    // Moments: the first reading, and every later one that something can have happened before. The longer nothing was read, the likelier.
    let times: Vec<f64> = of.iter().map(|i| judged[*i].of.at_unix_s).collect();
    let mut starts: Vec<usize> = (1..of.len()).filter(|&k| times[k] > times[k - 1]).collect();
    let step = starts.len().div_ceil(MOMENTS_MAX).max(1);
    starts = starts.into_iter().rev().step_by(step).collect();
    let newest_unix_s = judged.last().map_or(f64::INFINITY, |j| j.of.at_unix_s);
    let ln_when = ln_moments(&times, &starts, newest_unix_s);
    let ln_always = if starts.is_empty() { 0.0 } else { 0.5f64.ln() };
    let ln_factor = -(FACTORS.len() as f64).ln();

    let mut weight = f64::NEG_INFINITY;
    let mut best = (f64::NEG_INFINITY, 1.0, 0usize, 0.0);
    let mut gain_from = vec![0.0; of.len() + 1];
    let mut touched = vec![(0, 0.0); of.len()];
    let effect = |i: usize, factor: f64| effects.of(component, factor, &judged[i].of.allocation, judged[i].of.size);
    for factor in FACTORS {
        for (k, &i) in of.iter().enumerate().rev() {
            touched[k] = (i, effect(i, factor));
            gain_from[k] = gain_from[k + 1] + judged[i].gain(touched[k].1);
        }
        gain_from[0] = classes.gain(judged, &touched);
        for (start, ln_when) in
            std::iter::once((0, ln_always)).chain(starts.iter().copied().zip(ln_when.iter().copied()))
        {
            let ln = prior.ln() + ln_factor + ln_when + gain_from[start];
            weight = ln_add(weight, ln);
            if ln > best.0 {
                best = (ln, factor, start, gain_from[start]);
            }
        }
    }
    let (_, coarse, start, _) = best;
    let (factor, ln_likelihood_ratio) = (-REFINE.1..=REFINE.1)
        .map(|k| {
            let factor = (coarse * (f64::from(k) * REFINE.0).exp()).min(0.95);
            let touched: Vec<(usize, f64)> = of[start..].iter().map(|&i| (i, effect(i, factor))).collect();
            let gain = match start {
                0 => classes.gain(judged, &touched),
                _ => touched.iter().map(|&(i, e)| judged[i].gain(e)).sum(),
            };
            (factor, gain)
        })
        .reduce(|a, b| if b.1 > a.1 { b } else { a })
        .unwrap_or((coarse, best.3));
    let slowed = |i: &&usize| effect(**i, factor) < -0.02;
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

/// Prior of every moment: half of it even, half in proportion to the time since the reading before; a half of all is for "always". The
/// newest of all readings (`newest_unix_s`) counts as much again as all others together: what just began shows there first, however
/// little time has passed.
fn ln_moments(times: &[f64], starts: &[usize], newest_unix_s: f64) -> Vec<f64> {
    // From an unknown time to a known one: as long as all that is known together.
    let known = times.iter().copied().filter(|t| t.is_finite());
    let span = known.clone().fold(f64::NEG_INFINITY, f64::max) - known.fold(f64::INFINITY, f64::min);
    let gap = |&k: &usize| {
        let g = times[k] - times[k - 1];
        if g.is_finite() { g } else { span.max(1.0) }
    };
    let total: f64 = starts.iter().map(gap).sum();
    let even = 1.0 / starts.len().max(1) as f64;
    let weight = |k: &usize| {
        let newest = f64::from(u8::from(times[*k] >= newest_unix_s));
        0.25 * (even + gap(k) / total.max(f64::MIN_POSITIVE)) + 0.25 * newest
    };
    starts.iter().map(|k| weight(k).ln()).collect()
}
