//! Sets of slow parts that explain few readings over many hosts.
//!
//! With fewer readings than parts, no part has its own evidence: a reading of one rail over 32 hosts shows the slowest
//! of 32 NICs, and only several readings together single it out. Here whole sets of slow parts are compared. Hypothesis:
//! a set of parts, the share of its rate of each, the moment since when, the offset of every class of readings from the
//! physics, the scatter, and the expected number of slow parts. A reading shows the slowest part that it touches, so
//! that effects combine by their minimum. Residuals are normal except for outliers, as in [`super::infer`].
//!
//! A Gibbs sampler draws hypotheses from the posterior, many states side by side while the weight of the readings rises
//! from little to all; after every rise states are drawn again by their weights (population annealing, Hukushima and
//! Iba 2003), so that no state stays in an improbable set. One step removes a part of the set and draws a part and a share
//! again, from all parts and shares, given the rest. Parts that the same readings touch with the same effects form a
//! group; a step costs (readings of all groups) x [`SHARES`] additions, whatever the size of the cluster. The draws have
//! fixed seeds, so equal readings give equal results.
//!
//! A slow GPU in a reading over hosts looks as a slow NIC. It would also slow readings of its own host, and these are
//! judged separately ([`super::search`]); therefore the parts here are NICs, networks, hosts, rails and switches.

mod classes;
mod problem;
mod sampler;
mod summary;

pub(crate) use classes::{Class, Expectation, INSIDE_MIN, Offsets};
pub(crate) use problem::effects_by_share;
pub(crate) use sampler::EFFECT_SD;

use super::effect::{Component, Effects};
use super::evidence::Evidence;
use super::infer::Defect;
use predict::SlowPart;
use problem::Problem;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use sampler::Work;

/// Maximum number of multi-host readings that are explained by sets.
pub(super) const READINGS_MAX: usize = 128;
/// Sets explain the readings as long as there are at most this many per host: beyond, hosts have evidence of their own.
pub(super) const READINGS_PER_HOST_MAX: usize = 3;
/// Minimum number of hosts: on fewer, hosts soon have evidence of their own.
pub(super) const HOSTS_MIN: usize = 8;
/// Number of candidate shares of a part's rate, the highest share, and the step of the logarithm between two.
pub(super) const SHARES: usize = 40;
const SHARE_MAX: f64 = 0.9;
const SHARE_STEP: f64 = 0.07;
/// States that are drawn side by side, and sweeps of each: first those with rising weight of the readings, then others
/// until the draws are kept.
const STATES: usize = 48;
/// Fewer states on large problems, so that a diagnosis of a thousand hosts takes seconds: at most this many group and
/// reading pairs over all states, and at least so many states.
const PAIRS_OF_STATES_MAX: usize = 400_000;
const STATES_MIN: usize = 8;
const SWEEPS_WARM: usize = 24;
const SWEEPS_SETTLE: usize = 4;
const SWEEPS_KEPT: usize = 8;
/// Weight of the readings at the first sweep.
const WEIGHT_MIN: f64 = 0.15;
/// Weights of the readings at which states are kept as doubts.
const DOUBTS: std::ops::Range<f64> = 0.4..0.6;

/// A part that may be slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Thing {
    /// A part of one host.
    One(Component),
    /// The NICs of one index on all hosts.
    Rail(u8),
    /// The NICs of all hosts below a switch: tier and switch.
    Switch(u8, u32),
}

/// One draw of slow parts, each with the number of the share of its rate.
pub(super) type Drawn = Vec<(Thing, usize)>;

/// The posterior over sets.
#[derive(Clone, Debug, Default)]
pub(super) struct Sets {
    /// Equally probable draws.
    pub draws: Vec<Drawn>,
    /// Draws with half of the readings' weight: what few draws with all of the weight may miss.
    pub doubts: Vec<Drawn>,
    /// Standard deviation of ordinary readings.
    pub sd: f64,
    /// What is known of the offsets of classes.
    pub offsets: Offsets,
    /// By reading: its residual with the offset of its class removed.
    pub residuals: Vec<f64>,
    pub defects: Vec<Defect>,
    pub shared: Vec<SlowPart>,
}

/// The logarithm of share number `l`.
pub(super) fn ln_share(l: usize) -> f64 {
    SHARE_MAX.ln() - SHARE_STEP * l as f64
}

/// The sets of slow parts that explain readings over several hosts. `None` if there are too many.
pub(super) fn explain(effects: &Effects, readings: &[(&Evidence, Expectation, f64)]) -> Option<Sets> {
    if readings.is_empty() || readings.len() > READINGS_MAX {
        return None;
    }
    let p = Problem::new(effects, readings)?;
    let mut work = Work::default();
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let many = (PAIRS_OF_STATES_MAX / p.pairs().max(1)).clamp(STATES_MIN, STATES);
    let mut states = vec![p.start(); many];
    let mut weight = WEIGHT_MIN;
    let mut doubts = Vec::new();
    for i in 1..=SWEEPS_WARM {
        states.iter_mut().for_each(|s| p.sweep(s, weight, &mut work, &mut rng));
        if DOUBTS.contains(&weight) {
            doubts.extend(states.iter().map(|s| p.drawn(s, &mut rng)));
        }
        let next = WEIGHT_MIN + (1.0 - WEIGHT_MIN) * i as f64 / SWEEPS_WARM as f64;
        // States that are caught in an improbable set give way to others.
        let ln_weights: Vec<f64> = states.iter().map(|s| (next - weight) * p.ln_likelihood(s)).collect();
        states = stats::resampled(&states, &ln_weights, rng.random());
        weight = next;
    }
    let mut draws = Vec::with_capacity(many * SWEEPS_KEPT);
    for i in 0..SWEEPS_SETTLE + SWEEPS_KEPT {
        states.iter_mut().for_each(|s| p.sweep(s, 1.0, &mut work, &mut rng));
        if i >= SWEEPS_SETTLE {
            draws.extend_from_slice(&states);
        }
    }
    Some(Sets { doubts, ..p.sets(effects.cluster(), &draws, &mut rng) })
}
