//! Detection of overlap from times only, and its limit.

use crate::environment::{Environment, Noise, Simulated, Spec};
use tune::overlap::{OverlapDetector, RegimeFilter};

/// Steps of the probability in a receiver operating curve.
const BINS: usize = 200;

/// Calls of one run, by their true state and the state that was predicted just before the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detection {
    /// Overlapped, predicted overlapped.
    pub hits: u64,
    /// Alone, predicted overlapped.
    pub false_alarms: u64,
    /// Overlapped, predicted alone or unknown.
    pub misses: u64,
    /// Alone, predicted alone or unknown.
    pub quiet: u64,
    /// Calls by the predicted probability of overlap, alone and overlapped; unknown counts as one half.
    bins: Vec<[u64; 2]>,
}

impl Default for Detection {
    fn default() -> Self {
        Detection { hits: 0, false_alarms: 0, misses: 0, quiet: 0, bins: vec![[0; 2]; BINS + 1] }
    }
}

impl Detection {
    /// Share of truly overlapped calls among those predicted overlapped; `None` if there are none.
    pub fn precision(&self) -> Option<f64> {
        let said = self.hits + self.false_alarms;
        (said > 0).then(|| self.hits as f64 / said as f64)
    }

    /// Share of the overlapped calls that were predicted overlapped; `None` if there were none.
    pub fn recall(&self) -> Option<f64> {
        let were = self.hits + self.misses;
        (were > 0).then(|| self.hits as f64 / were as f64)
    }

    /// Share of the calls alone that were predicted overlapped.
    pub fn false_alarm_rate(&self) -> Option<f64> {
        let were = self.false_alarms + self.quiet;
        (were > 0).then(|| self.false_alarms as f64 / were as f64)
    }

    /// Share of right predictions among all calls; unknown counts as alone.
    pub fn accuracy(&self) -> Option<f64> {
        let all = self.hits + self.false_alarms + self.misses + self.quiet;
        (all > 0).then(|| (self.hits + self.quiet) as f64 / all as f64)
    }

    /// Area under the receiver operating curve: the share of pairs in which the overlapped call got a higher probability than the call alone.
    pub fn area(&self) -> Option<f64> {
        let [mut alone, mut overlapped, mut won] = [0.0; 3];
        for [a, o] in self.bins.iter().map(|b| b.map(|n| n as f64)) {
            won += o * (alone + a / 2.0);
            alone += a;
            overlapped += o;
        }
        (alone > 0.0 && overlapped > 0.0).then(|| won / (alone * overlapped))
    }

    /// Adds another run's calls.
    pub fn add(&mut self, other: &Detection) {
        self.hits += other.hits;
        self.false_alarms += other.false_alarms;
        self.misses += other.misses;
        self.quiet += other.quiet;
        for (mine, theirs) in self.bins.iter_mut().zip(&other.bins) {
            mine[0] += theirs[0];
            mine[1] += theirs[1];
        }
    }

    /// Counts a call.
    pub(super) fn count(&mut self, is_overlapped: bool, probability: Option<f64>) {
        match (is_overlapped, probability.is_some_and(|p| p > 0.5)) {
            (true, true) => self.hits += 1,
            (true, false) => self.misses += 1,
            (false, true) => self.false_alarms += 1,
            (false, false) => self.quiet += 1,
        }
        let bin = (probability.unwrap_or(0.5) * BINS as f64).round() as usize;
        self.bins[bin.min(BINS)][usize::from(is_overlapped)] += 1;
    }
}

/// Log density of a time, up to a constant, given its mean and the shape of the noise; `None` for shapes without a formula.
fn log_density(noise: &Noise, time_us: f64, mean_us: f64) -> Option<f64> {
    let normal = |cv: f64, of: f64| {
        let variance = (1.0 + cv * cv).ln().max(1e-12);
        let x = (time_us / of).ln() + variance / 2.0;
        (-x * x / (2.0 * variance)).exp() / variance.sqrt()
    };
    let density = match noise {
        Noise::LogNormal { cv } => normal(*cv, mean_us),
        Noise::TwoModes { low, high, share_high, cv } => {
            let mean = low * (1.0 - share_high) + high * share_high;
            (1.0 - share_high) * normal(*cv, mean_us * low / mean) + share_high * normal(*cv, mean_us * high / mean)
        }
        Noise::Resampled(_) | Noise::PerArm(_) => return None,
    };
    Some(density.max(f64::MIN_POSITIVE).ln())
}

/// Plays one arm through an environment and queries two predictors before every call: the detector, and a
/// [`RegimeFilter`] that knows both levels and the noise. The filter is the limit of any prediction from times without
/// knowledge of the phases. It is absent if the noise has no formula.
pub fn detect(spec: &Spec, arm: usize, seed: u64) -> [Detection; 2] {
    let mut environment = Simulated::new(spec, seed);
    let mut detector = OverlapDetector::new(spec.arms.len());
    let mut filter = RegimeFilter::default();
    let mut out = [Detection::default(), Detection::default()];
    let levels = spec.overlap.as_ref().map(|o| [spec.means_us[arm], o.means_us[arm]]);
    for call in 0..spec.calls {
        environment.begin(call, arm);
        let known = levels.filter(|_| log_density(&spec.noise, 1.0, 1.0).is_some());
        out[0].count(environment.is_overlapped(), detector.probability());
        out[1].count(environment.is_overlapped(), known.map(|_| filter.probability()));
        let time_us = environment.time_us(arm);
        detector.learn(arm, time_us);
        if let Some([alone, overlapped]) = known.map(|l| l.map(|l| log_density(&spec.noise, time_us, l).unwrap_or(0.0)))
        {
            filter.learn(alone, overlapped);
        }
    }
    out
}
