//! The Gibbs sampler: one step draws one part of a set again, or one of the other unknowns, given all others.

use super::SHARES;
use super::classes::{OFFSET_MEAN, OFFSET_SD};
use super::problem::Problem;
use crate::infer::{AGREEING_MAX, OUTLIER_DENSITY, OUTLIER_SHARES, ln_add, outlier_share};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Log density of a reading far above its expectation.
const FAST_LN_DENSITY: f64 = -16.0;
/// Maximum number of slow parts of a set.
const PARTS_MAX: usize = 24;
/// Candidate numbers of slow parts that are expected before any reading, and their prior probabilities.
const EXPECTED: [(f64, f64); 4] = [(0.1, 0.3), (0.5, 0.4), (2.0, 0.2), (6.0, 0.1)];
/// Candidate shares of the latency in the physics that even readings show, and their prior probabilities: the physics of
/// latency is rough, and large messages have none.
const LATENCY: [(f64, f64); 2] = [(0.0, 0.97), (1.0, 0.03)];
/// Candidate shares of the offset between classes that a slow part hides: 0 if a slow part lowers every class by the
/// same factor, 1 if the slow part alone decides the bandwidth.
const HIDDEN: [f64; 3] = [0.0, 0.5, 1.0];
/// Standard deviation of an effect's logarithm around the physics, as a share of the effect. The share that a slow part
/// hides ([`HIDDEN`]) is known otherwise, so this is less than in [`super::infer`].
pub(crate) const EFFECT_SD: f64 = 0.035;
/// Candidate standard deviations of ordinary readings, and their prior probabilities.
pub(super) const SDS: [f64; 7] = [0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.14];
const SD_PRIOR: [f64; 7] = [0.2, 0.4, 0.28, 0.1, 0.017, 0.002, 0.001];
/// Prior probabilities of [`OUTLIER_SHARES`].
const OUTLIERS_PRIOR: [f64; 4] = [0.97, 0.02, 0.008, 0.002];
/// Index in [`SDS`] at the start.
const SD_START: usize = 3;
/// Weights below the largest by this factor (of the logarithm) count as 0.
const NEGLIGIBLE: f32 = 18.0;

/// A slow part of a set: group, index of its share, and the first reading that it slows.
pub(super) type Element = (u32, u32);

#[derive(Clone)]
pub(super) struct State {
    /// By slot: the part, if there is one, and the moment.
    pub slots: Vec<(Option<Element>, u32)>,
    pub offsets: Vec<f64>,
    /// The highest offset, and the share of the distance from it that a slow part hides, see [`HIDDEN`].
    pub top: f64,
    pub hidden: f64,
    /// The share of the predicted latency that readings show, one of [`LATENCY`].
    pub latency: f64,
    pub sd: usize,
    /// Index in [`OUTLIER_SHARES`].
    pub outliers: usize,
    pub expected: f64,
}

impl Problem {
    fn ln_density(&self, s: &State, i: usize, explained: f64) -> f64 {
        let r = &self.readings[i];
        let offset = s.offsets[r.class] + s.latency * r.latency;
        let effect = if explained < 0.0 { (explained + s.hidden * (s.top - offset)).min(0.0) } else { 0.0 };
        let variance = SDS[s.sd] * SDS[s.sd] + (EFFECT_SD * effect) * (EFFECT_SD * effect);
        let agreeing = (r.repetitions.clamp(1, AGREEING_MAX) - 1) as usize;
        ln_density_below(r.ln_ratio - offset - effect, variance, self.outliers[s.outliers][agreeing])
    }

    fn explain_by(&self, explained: &mut [f64], (g, l): Element, start: u32) {
        for &(i, row) in &self.groups[g as usize].touched {
            if i >= start {
                let e = &mut explained[i as usize];
                *e = e.min(self.readings[i as usize].rows[row as usize][l as usize]);
            }
        }
    }

    /// Logarithm of the probability of the readings, given a state.
    pub(super) fn ln_likelihood(&self, s: &State) -> f64 {
        let explained = self.explained(s, None);
        (0..self.readings.len()).map(|i| self.ln_density(s, i, explained[i])).sum()
    }

    /// What the parts of a state explain of every reading, without the part of one slot.
    fn explained(&self, s: &State, without: Option<usize>) -> Vec<f64> {
        let mut explained: Vec<f64> = self.readings.iter().map(|r| r.known).collect();
        for (k, (element, start)) in s.slots.iter().enumerate() {
            if let Some(element) = element
                && Some(k) != without
            {
                self.explain_by(&mut explained, *element, *start);
            }
        }
        explained
    }

    pub(super) fn start(&self) -> State {
        // Most readings may be slow; the fast ones show the offset.
        let fast = |latency: f64| {
            let ratios: Vec<f64> = self.readings.iter().map(|r| r.ln_ratio - latency * r.latency).collect();
            stats::sorted(&ratios)[(ratios.len() - 1) * 9 / 10]
        };
        let off = |l: &f64| (fast(*l) - OFFSET_MEAN).abs();
        let latency =
            LATENCY.map(|l| l.0).into_iter().reduce(|a, b| if off(&b) < off(&a) { b } else { a }).unwrap_or(0.0);
        let offset = fast(latency).clamp(OFFSET_MEAN - 3.0 * OFFSET_SD, OFFSET_MEAN + 3.0 * OFFSET_SD);
        State {
            slots: vec![(None, 0); PARTS_MAX],
            offsets: vec![offset; self.precision.len()],
            top: offset,
            hidden: HIDDEN[1],
            latency,
            sd: SD_START,
            outliers: 0,
            expected: 1.0,
        }
    }

    /// Draws the moment of an empty slot from its prior.
    fn any_start(&self, rng: &mut ChaCha8Rng) -> u32 {
        reached(self.start_prior.iter().copied(), rng.random()).map_or(0, |i| self.starts[i])
    }

    /// Draws the part of one slot given all others. `weight` is that of the readings against the prior, 0 to 1.
    fn draw_slot(&self, s: &mut State, k: usize, weight: f64, work: &mut Work, rng: &mut ChaCha8Rng) {
        let start = s.slots[k].1;
        let explained = self.explained(s, Some(k));
        let n = self.readings.len();
        work.base.clear();
        work.base.extend((0..n).map(|i| self.ln_density(s, i, explained[i])));
        // Expected number of parts in this slot, if there is no reading.
        let odds = s.expected / PARTS_MAX as f64;
        // By row of a reading and share: the gain of the reading's density, the same for all groups of the row.
        let rows = self.readings.last().map_or(0, |r| r.rows_before as usize + r.rows.len());
        work.gains.clear();
        work.gains.resize(rows, None);
        let mut live = [false; SHARES];
        for (i, r) in self.readings.iter().enumerate().skip(start as usize) {
            for (effects, gains) in r.rows.iter().zip(&mut work.gains[r.rows_before as usize..]) {
                let gain = |l: usize| match effects[l] < explained[i] {
                    true => (weight * (self.ln_density(s, i, effects[l]) - work.base[i])) as f32,
                    false => 0.0,
                };
                if effects.iter().any(|e| *e < explained[i]) {
                    *gains = Some(std::array::from_fn(gain));
                    live.iter_mut().zip(effects).for_each(|(l, e)| *l |= *e < explained[i]);
                }
            }
        }
        let unseen: f64 = (0..SHARES).filter(|l| !live[*l]).map(|l| self.share_prior[l]).sum();
        work.scores.clear();
        let mut most = 0f32;
        for group in &self.groups {
            let mut sum = [0f32; SHARES];
            for &(i, row) in &group.touched {
                if let Some(gains) = &work.gains[(self.readings[i as usize].rows_before + row) as usize] {
                    sum.iter_mut().zip(gains).for_each(|(s, g)| *s += g);
                }
            }
            most = sum.iter().copied().fold(most, f32::max);
            work.scores.push(sum);
        }
        // Weights relative to the largest.
        let scale = f64::from(-most).exp();
        let (empty, hidden) = (scale, scale * odds * unseen);
        let mut sum = 0.0;
        work.weights.clear();
        for (g, (scores, group)) in work.scores.iter().zip(&self.groups).enumerate() {
            let p = odds * group.prior;
            for l in (0..SHARES).filter(|l| live[*l]) {
                let below = scores[l] - most;
                if below > -NEGLIGIBLE {
                    sum += p * self.share_prior[l] * f64::from(below.exp());
                    work.weights.push((sum, (g as u32, l as u32)));
                }
            }
        }
        let all = empty + hidden + sum;
        let at = rng.random::<f64>() * all;
        s.slots[k].0 = if at < empty {
            None
        } else if at < empty + hidden {
            Some(self.hidden(&live, rng))
        } else {
            let at = at - empty - hidden;
            let found = work.weights.partition_point(|w| w.0 < at).min(work.weights.len().saturating_sub(1));
            work.weights.get(found).map(|w| w.1)
        };
    }

    /// A part whose share is too high to show, drawn from the prior.
    fn hidden(&self, live: &[bool; SHARES], rng: &mut ChaCha8Rng) -> Element {
        let of = |l: usize| if live[l] { 0.0 } else { self.share_prior[l] };
        let at = rng.random::<f64>() * (0..SHARES).map(of).sum::<f64>();
        let l = reached((0..SHARES).map(of), at).unwrap_or(0);
        let g = reached(self.groups.iter().map(|g| g.prior), rng.random()).unwrap_or(0);
        (g as u32, l as u32)
    }

    /// Draws everything but the parts.
    fn draw_rest(&self, s: &mut State, weight: f64, rng: &mut ChaCha8Rng) {
        let explained = self.explained(s, None);
        let pick = |ln: &[f64], rng: &mut ChaCha8Rng| {
            let most = ln.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let at = rng.random::<f64>() * ln.iter().map(|l| (l - most).exp()).sum::<f64>();
            let mut sum = 0.0;
            ln.iter().position(|l| {
                sum += (l - most).exp();
                sum >= at
            })
        };
        // Moments of the parts.
        if self.starts.len() > 1 {
            for k in 0..s.slots.len() {
                let Some(element) = s.slots[k].0 else {
                    s.slots[k].1 = self.any_start(rng);
                    continue;
                };
                let others = self.explained(s, Some(k));
                let mut gains = vec![0.0; self.readings.len() + 1];
                for &(i, row) in &self.groups[element.0 as usize].touched {
                    let at = i as usize;
                    let e = self.readings[at].rows[row as usize][element.1 as usize].min(others[at]);
                    gains[at] = weight * (self.ln_density(s, at, e) - self.ln_density(s, at, others[at]));
                }
                for i in (0..self.readings.len()).rev() {
                    gains[i] += gains[i + 1];
                }
                let ln: Vec<f64> =
                    self.starts.iter().zip(&self.start_prior).map(|(i, p)| gains[*i as usize] + p.ln()).collect();
                s.slots[k].1 = pick(&ln, rng).map_or(0, |i| self.starts[i]);
            }
        }
        // Offsets: a grid around their mean given the other classes.
        let all: Vec<usize> = (0..self.readings.len()).collect();
        let likelihood = |s: &State, which: &[usize]| -> f64 {
            weight * which.iter().map(|i| self.ln_density(s, *i, explained[*i])).sum::<f64>()
        };
        for c in 0..s.offsets.len() {
            let q = &self.precision[c];
            let others = (0..q.len()).filter(|d| *d != c).map(|d| q[d] * (s.offsets[d] - OFFSET_MEAN)).sum::<f64>();
            let (mean, sd) = (OFFSET_MEAN - others / q[c], q[c].sqrt().recip());
            let own: Vec<usize> = all.iter().copied().filter(|i| self.readings[*i].class == c).collect();
            let ln: Vec<f64> = grid()
                .map(|z| {
                    s.offsets[c] = mean + z * sd;
                    likelihood(s, &own) - 0.5 * z * z
                })
                .collect();
            s.offsets[c] = pick(&ln, rng).and_then(|i| grid().nth(i)).map_or(mean, |z| mean + z * sd);
        }
        // All offsets together.
        let before = s.offsets.clone();
        let sums: Vec<f64> = self.precision.iter().map(|q| q.iter().sum()).collect();
        let (square, cross): (f64, f64) =
            sums.iter().zip(&before).fold((0.0, 0.0), |(a, b), (q, o)| (a + q, b + q * (o - OFFSET_MEAN)));
        let moved = |s: &mut State, d: f64| {
            s.offsets.iter_mut().zip(&before).for_each(|(o, b)| *o = b + d);
            s.top = s.offsets.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        };
        let step = |z: f64| 0.04 * z;
        let ln: Vec<f64> = grid()
            .map(|z| {
                let d = step(z);
                moved(s, d);
                likelihood(s, &all) - 0.5 * d * d * square - d * cross
            })
            .collect();
        let d = pick(&ln, rng).and_then(|i| grid().nth(i)).map_or(0.0, step);
        moved(s, d);
        let ln: Vec<f64> = HIDDEN
            .into_iter()
            .map(|h| {
                s.hidden = h;
                likelihood(s, &all)
            })
            .collect();
        s.hidden = pick(&ln, rng).map_or(HIDDEN[1], |i| HIDDEN[i]);
        let ln: Vec<f64> = LATENCY
            .into_iter()
            .map(|(latency, prior)| {
                s.latency = latency;
                prior.ln() + likelihood(s, &all)
            })
            .collect();
        s.latency = pick(&ln, rng).map_or(0.0, |i| LATENCY[i].0);
        // The scatter.
        let ln: Vec<f64> = (0..SDS.len())
            .map(|k| {
                s.sd = k;
                SD_PRIOR[k].ln()
                    + weight * (0..self.readings.len()).map(|i| self.ln_density(s, i, explained[i])).sum::<f64>()
            })
            .collect();
        s.sd = pick(&ln, rng).unwrap_or(SD_START);
        let ln: Vec<f64> = OUTLIERS_PRIOR
            .iter()
            .enumerate()
            .map(|(k, prior)| {
                s.outliers = k;
                prior.ln() + likelihood(s, &all)
            })
            .collect();
        s.outliers = pick(&ln, rng).unwrap_or(0);
        // The expected number of slow parts: each slot has one with probability odds / (1 + odds).
        let have = s.slots.iter().filter(|x| x.0.is_some()).count() as f64;
        let ln: Vec<f64> = EXPECTED
            .iter()
            .map(|(m, p)| {
                let odds = m / PARTS_MAX as f64;
                p.ln() + have * odds.ln() - PARTS_MAX as f64 * odds.ln_1p()
            })
            .collect();
        s.expected = pick(&ln, rng).map_or(1.0, |i| EXPECTED[i].0);
    }

    /// One sweep: all parts of the set, and empty slots until one of them gets a part.
    pub(super) fn sweep(&self, s: &mut State, weight: f64, work: &mut Work, rng: &mut ChaCha8Rng) {
        for k in 0..s.slots.len() {
            if s.slots[k].0.is_some() {
                self.draw_slot(s, k, weight, work, rng);
            }
        }
        // Empty slots without a moment have the same probability of staying empty, so one evaluation serves all.
        let mut empty: Vec<usize> = (0..s.slots.len()).filter(|k| s.slots[*k].0.is_none()).collect();
        for _ in 0..2 {
            let Some(k) = empty.pop() else { break };
            self.draw_slot(s, k, weight, work, rng);
        }
        self.draw_rest(s, weight, rng);
    }
}

/// Log densities of outliers by share of outliers and number of agreeing readings: `ln` of the share of ordinary
/// readings, and of the density of the others.
pub(super) type Outliers = [[(f64, f64); AGREEING_MAX as usize]; OUTLIER_SHARES.len()];

pub(super) fn outliers() -> Outliers {
    OUTLIER_SHARES.map(|of_readings| {
        std::array::from_fn(|i| {
            let share = outlier_share(of_readings, i as u32 + 1);
            ((1.0 - share).ln(), (share * OUTLIER_DENSITY).ln())
        })
    })
}

/// Log density of a residual. An interruption makes a reading slow, never fast: otherwise the healthy readings of a site
/// whose readings are mostly slow would count as outliers.
fn ln_density_below(r: f64, variance: f64, (ordinary, outlier): (f64, f64)) -> f64 {
    let normal = -0.5 * (r * r / variance + variance.ln() + std::f64::consts::TAU.ln());
    if r > 0.0 { normal.max(FAST_LN_DENSITY) } else { ln_add(ordinary + normal, outlier) }
}

/// Points of a grid, in standard deviations.
fn grid() -> impl Iterator<Item = f64> {
    (-8..=8).map(|k| 0.35 * f64::from(k))
}

/// The first index at which the running sum reaches `at`.
fn reached(mut weights: impl Iterator<Item = f64>, at: f64) -> Option<usize> {
    let mut sum = 0.0;
    weights.position(|w| {
        sum += w;
        sum >= at
    })
}

/// Buffers of a step.
#[derive(Default)]
pub(super) struct Work {
    base: Vec<f64>,
    gains: Vec<Option<[f32; SHARES]>>,
    /// By group and share.
    scores: Vec<[f32; SHARES]>,
    weights: Vec<(f64, Element)>,
}
