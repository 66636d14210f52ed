//! The probabilities of defects: densities of residuals and priors.

use super::effect::{Component, Effects, RING_USES_ALL};
use super::evidence::Evidence;

/// Candidate shares of its rate for a slow component.
pub const FACTORS: [f64; 10] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88];
/// Candidate shares of outliers among the readings; an outlier may have any value.
pub(super) const OUTLIER_SHARES: [f64; 4] = [0.01, 0.03, 0.06, 0.12];
/// Number of agreeing readings of an allocation beyond which more do not make an outlier less probable: they may share
/// their disturbance.
pub(super) const AGREEING_MAX: u32 = 3;
/// Density of an outlier, per unit of the logarithm: between a twentieth and three times the expected value.
pub(super) const OUTLIER_DENSITY: f64 = 0.25;
/// Maximum prior probability that a given component is slow.
const PRIOR: f64 = 2e-3;
/// Prior probability of a slow link between two GPUs relative to another component; links outnumber other components.
const LINK: f64 = 0.05;
/// Maximum expected number of slow components in a cluster, before any reading. The sum of many small suspicions must
/// not become a defect: a site has twenty thousand components.
const EXPECTED_MAX: f64 = 0.2;
/// Minimum standard deviation of a host's own level (of the logarithm).
const LEVEL_SD_MIN: f64 = 0.01;
/// Minimum number of hosts for comparing levels.
const LEVELS_MIN: usize = 12;

/// Prior probability that a component is slow, in a cluster with `components` components.
pub(super) fn prior(component: Component, components: usize) -> f64 {
    let each = PRIOR.min(EXPECTED_MAX / components.max(1) as f64);
    if matches!(component, Component::Link(..)) { LINK * each } else { each }
}

/// Standard deviation of healthy hosts' levels, from the mean residual of every host and the variance of that mean. It
/// includes effects that hosts of a leaf or a mix of jobs share and that the expectation does not model. Rounded to a
/// power of 1.4, so that one more reading rarely changes it.
pub(super) fn level_sd(hosts: &[(f64, f64)]) -> f64 {
    if hosts.len() < LEVELS_MIN {
        return LEVEL_SD_MIN;
    }
    let between = stats::mad_sd(&hosts.iter().map(|h| h.0).collect::<Vec<_>>()).powi(2);
    let within = stats::upper_median(&hosts.iter().map(|h| h.1).collect::<Vec<_>>());
    let steps = 2.0 * ((between - within).max(0.0).sqrt() / LEVEL_SD_MIN).max(1.0).log2();
    LEVEL_SD_MIN * (steps.round() / 2.0).exp2()
}

/// Candidate levels of a healthy host, in standard deviations of the levels.
pub(super) const LEVELS: [f64; 7] = [-0.5, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0];
/// Maximum number of moments at which a component may have become slow.
pub(super) const MOMENTS_MAX: usize = 64;
/// Standard deviation of an effect's logarithm around the physics, as a share of the effect: NCCL may balance the load
/// better or worse.
pub(super) const EFFECT_SD: f64 = 0.07;
/// Step (in the logarithm) and number of steps to either side when the best factor is refined.
pub(super) const REFINE: (f64, i32) = (0.03, 9);
/// Effects below this count as slowing a reading (of the logarithm).
pub(super) const SLOWED: f64 = -0.02;
/// Minimum probability of a listed candidate.
pub(super) const LISTED_MIN: f64 = 1e-3;
/// A reading more than this many standard deviations below its expectation is an outlier.
pub const OUTLIER_SDS: f64 = 5.0;

/// A component that may be the defect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The slow component.
    pub component: Component,
    /// Most probable remaining share of the component's rate.
    pub factor: f64,
    /// Start of the slowness, seconds since 1970; `None`: slow in all readings.
    pub since: Option<f64>,
    /// Posterior probability of this candidate.
    pub probability: f64,
    /// Number of distinct readings that the candidate slows.
    pub readings: usize,
    /// Log-likelihood ratio of the best form of this candidate against no defect.
    pub ln_likelihood_ratio: f64,
}

/// A slow component, with the candidates for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Defect {
    /// Probability that the defect exists.
    pub probability: f64,
    /// Candidates, the most probable first; never empty.
    pub candidates: Vec<Candidate>,
}

/// A summand smaller than another by this factor (of the logarithm) does not change their sum.
const NEGLIGIBLE_LN: f64 = 40.0;

/// `ln(e^a + e^b)`.
pub(super) fn ln_add(a: f64, b: f64) -> f64 {
    let (hi, lo) = if a > b { (a, b) } else { (b, a) };
    if lo == f64::NEG_INFINITY || lo < hi - NEGLIGIBLE_LN { hi } else { hi + (lo - hi).exp().ln_1p() }
}

/// The share of outliers among allocations with so many agreeing readings.
pub(super) fn outlier_share(of_readings: f64, repetitions: u32) -> f64 {
    of_readings.powi(repetitions.clamp(1, AGREEING_MAX) as i32)
}

/// Log density of a residual whose expectation is 0, if this share of the readings are outliers.
pub(super) fn ln_density(r: f64, sd: f64, outliers: f64) -> f64 {
    let z = r / sd;
    let normal = (1.0 - outliers).ln() - 0.5 * z * z - sd.ln() - 0.5 * std::f64::consts::TAU.ln();
    ln_add(normal, (outliers * OUTLIER_DENSITY).ln())
}

/// Log prior of every moment. Half of the probability is for "always slow". Of the rest, half is equal for all moments,
/// and half is proportional to the time since the previous reading. A moment at the newest of all readings
/// (`newest_unix_s`) gets an additional 0.25, because a recent defect appears there first, however short the time.
pub(super) fn ln_moments(times: &[f64], starts: &[usize], newest_unix_s: f64) -> Vec<f64> {
    // The time from an unknown moment to the first known one is set to the total known time.
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

/// Log-likelihood gain of an effect on a reading over no effect, if the reading's class moves by `shift`. `left` is the
/// residual that the defects found so far leave, `sd` is its standard deviation, and `ln_density_of_left` is their log
/// density. `outliers`: the share of outliers.
pub(super) fn gain(left: f64, sd: f64, ln_density_of_left: f64, effect: f64, shift: f64, outliers: f64) -> f64 {
    if effect == 0.0 && shift == 0.0 {
        return 0.0;
    }
    ln_density(left - effect - shift, sd.hypot(EFFECT_SD * effect), outliers) - ln_density_of_left
}

/// The effect of a candidate on a reading; 0 for readings before its start.
pub(super) fn effect(effects: &Effects, c: &Candidate, e: &Evidence) -> f64 {
    if c.since.is_some_and(|t| e.at_unix_s < t) {
        return 0.0;
    }
    effects.of(c.component, c.factor, &e.allocation, e.size)
}

/// What a found defect explains of a reading whose residual is `left`: its effect. A ring of more GPUs may avoid a slow
/// link or not, so that a slow link explains what is missing there, at most its own slowness. Otherwise such readings
/// would accuse a GPU at one of its ends.
pub(super) fn explained(effects: &Effects, c: &Candidate, e: &Evidence, left: f64) -> f64 {
    let Component::Link(h, a, b) = c.component else { return effect(effects, c, e) };
    let mask = e.allocation.mask(h);
    let both = mask.contains(a.into()) && mask.contains(b.into());
    let sure = e.allocation.host_count() == 1 && mask.count() <= RING_USES_ALL;
    if sure || !both || c.since.is_some_and(|t| e.at_unix_s < t) {
        return effect(effects, c, e);
    }
    // A ring through the link loses what it would lose by a slow GPU.
    left.clamp(effects.of(Component::Gpu(h, a), c.factor, &e.allocation, e.size).min(0.0), 0.0)
}
