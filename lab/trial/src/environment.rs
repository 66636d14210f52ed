//! The times of calls: levels of arms, noise, and changes during a run.

use stats::random::Random;
use std::sync::Arc;
use tune::arm::Arm;
use tune::objective::Objective;
use tune::policy::Context;

/// The calls of one key, one after another. The trial calls [`begin`](Environment::begin) once per call, in order, and
/// then draws times.
pub trait Environment {
    /// The arms, including AUTO.
    fn arms(&self) -> &[Arm];

    /// Moves to a call; `in_use` is the arm that the policy uses when it does not explore. Returns true if the true
    /// times change with this call (a step, not drift).
    fn begin(&mut self, call: u64, in_use: usize) -> bool;

    /// The context of the current call.
    fn context(&self) -> Context;

    /// Whether computation runs during the current call, known or not.
    fn is_overlapped(&self) -> bool;

    /// The expected time of an arm at the current call, microseconds: the truth.
    fn mean_us(&self, arm: usize) -> f64;

    /// Records that the current call runs with an arm. Only these records determine first uses, not queries of times.
    fn use_arm(&mut self, arm: usize);

    /// The time of the current call with an arm, microseconds; the time of a first use if the call is the first one
    /// recorded for the arm. Two queries for one call and arm give the same time. Times of different arms are
    /// independent, as in an interleaved comparison with AUTO.
    fn time_us(&self, arm: usize) -> f64;

    /// Whether the reading of the current call is lost.
    fn is_lost(&self) -> bool;
}

/// The scatter of times around their mean.
#[derive(Debug, Clone, PartialEq)]
pub enum Noise {
    /// Log-normal with this coefficient of variation.
    LogNormal {
        /// Standard deviation over mean.
        cv: f64,
    },
    /// Two modes, drawn independently for every call; an arm scales both. Each mode is log-normal.
    TwoModes {
        /// Mean of the fast mode, in any unit.
        low: f64,
        /// Mean of the slow mode, same unit.
        high: f64,
        /// Share of calls in the slow mode.
        share_high: f64,
        /// Coefficient of variation within a mode.
        cv: f64,
    },
    /// The shape of these raw values, drawn with replacement; an arm scales them all.
    Resampled(Arc<[f64]>),
    /// Every arm has separate raw values in microseconds, in the order of the arms, drawn with replacement.
    PerArm(Arc<[Vec<f64>]>),
}

impl Noise {
    /// The two modes that a published reward log shows for the same arm, near 110 and 295 ms, with about half of the
    /// calls in each.
    pub const BANDIT_LOG: Noise = Noise::TwoModes { low: 110.0, high: 295.0, share_high: 0.5, cv: 0.15 };

    /// One draw with mean 1; for [`Noise::PerArm`] the arm's own shape.
    fn factor(&self, arm: usize, random: &mut Random) -> f64 {
        let pick = |values: &[f64], random: &mut Random| {
            let mean = stats::mean(values);
            values.get(random.below(values.len())).map_or(1.0, |v| v / mean)
        };
        match self {
            Noise::LogNormal { cv } => random.log_normal(*cv),
            Noise::TwoModes { low, high, share_high, cv } => {
                let mode = if random.unit() < *share_high { *high } else { *low };
                mode * random.log_normal(*cv) / (low * (1.0 - share_high) + high * share_high)
            }
            Noise::Resampled(values) => pick(values, random),
            Noise::PerArm(values) => values.get(arm).map_or(1.0, |v| pick(v, random)),
        }
    }
}

/// A step in the true times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// The arm in use at that call takes this many times as long from then on.
    InUse(f64),
    /// The slowest arm that is neither in use nor AUTO is first set to AUTO's level and then multiplied by this factor.
    Unused(f64),
    /// The job moves to other nodes: the levels are shuffled among all arms, including AUTO.
    OtherNodes,
}

/// Phases with and without computation during the calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Overlap {
    /// Mean times under overlap, microseconds, in the order of the arms.
    pub means_us: Vec<f64>,
    /// Calls of one phase; phases alternate, isolated first.
    pub phase_calls: u64,
    /// True if policies get the phase as context; otherwise they must infer it.
    pub is_told: bool,
}

/// The description of an environment.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Its name on the command line.
    pub name: String,
    /// The arms, including AUTO.
    pub arms: Vec<Arm>,
    /// Mean times, microseconds, in the order of the arms.
    pub means_us: Vec<f64>,
    /// Shuffle the means among the arms other than AUTO for every seed, so that no policy profits from an order.
    pub is_shuffled: bool,
    /// Scatter of times.
    pub noise: Noise,
    /// All times grow by this share in every 1,000 calls.
    pub drift_per_1000: f64,
    /// The call of a change, and the change.
    pub change: Option<(u64, Change)>,
    /// The first call with an arm takes this many times as long (connections, graphs); 1: no effect.
    pub first_use_factor: f64,
    /// Share of readings that never arrive.
    pub lost: f64,
    /// Calls decided at once before any of their readings arrives; 1: each reading arrives before the next call.
    pub epoch_calls: u64,
    /// Phases of overlap.
    pub overlap: Option<Overlap>,
    /// Calls of one run.
    pub calls: u64,
    /// An arm is right if its mean is at most this share above the best.
    pub right_within: f64,
    /// Calls before a policy counts as settled. The cost of exploration is counted from here to the end or the change.
    pub settled_at: u64,
    /// The objective of the scores. Policies have a separate objective.
    pub objective: Objective,
}

impl Spec {
    /// A description with AUTO as the last arm, means relative to AUTO's `auto_us`, shuffled, every reading in time,
    /// 2,000 calls.
    pub fn new(name: impl Into<String>, auto_us: f64, levels: &[f64], noise: Noise) -> Spec {
        let arms = some_arms(levels.len());
        Spec {
            name: name.into(),
            arms,
            means_us: levels.iter().map(|l| l * auto_us).chain([auto_us]).collect(),
            is_shuffled: true,
            noise,
            drift_per_1000: 0.0,
            change: None,
            first_use_factor: 1.0,
            lost: 0.0,
            epoch_calls: 1,
            overlap: None,
            calls: 2_000,
            right_within: 0.0,
            settled_at: 400,
            objective: Objective::Time,
        }
    }
}

/// AUTO after `others` different forced arms.
fn some_arms(others: usize) -> Vec<Arm> {
    use nccl_types::{Algorithm, Protocol};
    let forced = Algorithm::ALL.iter().flat_map(|a| Protocol::ALL.iter().rev().map(|p| Arm::new(*a, *p)));
    forced.take(others).chain([Arm::AUTO]).collect()
}

/// A [`Spec`] with a seed.
#[derive(Debug, Clone)]
pub struct Simulated {
    spec: Spec,
    seed: u64,
    auto: usize,
    means_us: Vec<f64>,
    /// The call that each arm was first used in.
    first_use: Vec<Option<u64>>,
    call: u64,
}

/// Calls from here on belong to measurements before the job.
const OFFLINE: u64 = 1 << 48;
/// Random streams of one seed that do not belong to calls.
const LEVELS: u64 = u64::MAX;
const NODES: u64 = u64::MAX - 1;
/// Random streams per call: one for each arm and one for the loss of the reading.
const STREAMS_PER_CALL: u64 = tune::ledger::ARMS_MAX as u64 + 1;

impl Simulated {
    /// The environment with this seed.
    pub fn new(spec: &Spec, seed: u64) -> Self {
        let auto = spec.arms.iter().position(|a| a.is_auto()).unwrap_or(0);
        let mut means_us = spec.means_us.clone();
        if spec.is_shuffled {
            let mut random = Random::of(seed, LEVELS);
            let others: Vec<usize> = (0..means_us.len()).filter(|i| *i != auto).collect();
            let mut levels: Vec<f64> = others.iter().map(|i| means_us[*i]).collect();
            random.shuffle(&mut levels);
            others.iter().zip(levels).for_each(|(i, level)| means_us[*i] = level);
        }
        let first_use = vec![None; means_us.len()];
        Simulated { spec: spec.clone(), seed, auto, means_us, first_use, call: 0 }
    }

    /// An offline measurement on the same nodes before the job: `count` readings of every arm alone after warm-up,
    /// microseconds. Independent of the calls' random numbers.
    pub fn offline_us(&self, count: u64) -> Vec<Vec<f64>> {
        let one = |arm: usize, i: u64| {
            let mut random = Random::of(self.seed, (OFFLINE + i) * STREAMS_PER_CALL + arm as u64);
            self.means_us[arm] * self.spec.noise.factor(arm, &mut random)
        };
        (0..self.means_us.len()).map(|arm| (0..count).map(|i| one(arm, i)).collect()).collect()
    }

    fn apply(&mut self, change: Change, in_use: usize) {
        match change {
            Change::InUse(factor) => self.means_us[in_use] *= factor,
            Change::Unused(factor) => {
                let unused = (0..self.means_us.len()).filter(|i| *i != in_use && *i != self.auto);
                if let Some(i) = unused.max_by(|a, b| self.means_us[*a].total_cmp(&self.means_us[*b])) {
                    self.means_us[i] = self.means_us[self.auto].min(self.means_us[i]) * factor;
                }
            }
            Change::OtherNodes => Random::of(self.seed, NODES).shuffle(&mut self.means_us),
        }
    }
}

impl Environment for Simulated {
    fn arms(&self) -> &[Arm] {
        &self.spec.arms
    }

    fn begin(&mut self, call: u64, in_use: usize) -> bool {
        self.call = call;
        match self.spec.change {
            Some((at, change)) if at == call => {
                self.apply(change, in_use);
                true
            }
            _ => false,
        }
    }

    fn context(&self) -> Context {
        let told = self.spec.overlap.as_ref().is_some_and(|o| o.is_told);
        Context { overlapped: told.then(|| self.is_overlapped()), compute_intensity: None }
    }

    fn is_overlapped(&self) -> bool {
        self.spec.overlap.as_ref().is_some_and(|o| self.call / o.phase_calls.max(1) % 2 == 1)
    }

    fn mean_us(&self, arm: usize) -> f64 {
        let drift = 1.0 + self.spec.drift_per_1000 * self.call as f64 / 1000.0;
        let overlapped = self.spec.overlap.as_ref().filter(|_| self.is_overlapped()).and_then(|o| o.means_us.get(arm));
        overlapped.copied().unwrap_or(self.means_us[arm]) * drift
    }

    fn use_arm(&mut self, arm: usize) {
        self.first_use[arm].get_or_insert(self.call);
    }

    fn time_us(&self, arm: usize) -> f64 {
        let mut random = Random::of(self.seed, self.call * STREAMS_PER_CALL + arm as u64);
        let first = if self.first_use[arm] == Some(self.call) { self.spec.first_use_factor } else { 1.0 };
        self.mean_us(arm) * self.spec.noise.factor(arm, &mut random) * first
    }

    fn is_lost(&self) -> bool {
        let mut random = Random::of(self.seed, self.call * STREAMS_PER_CALL + STREAMS_PER_CALL - 1);
        self.spec.lost > 0.0 && random.unit() < self.spec.lost
    }
}
