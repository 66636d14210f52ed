//! Sets of slow parts that explain few readings over many hosts.
//!
//! With fewer readings than parts, no part has its own evidence: a reading of one rail over 32 hosts shows the slowest
//! of 32 NICs, and only several readings together single it out. Here whole sets of slow parts are compared. Hypothesis:
//! a set of parts, the share of its rate of each, the moment since when, the offset of every class of readings from the
//! physics, the scatter, and the expected number of slow parts. A reading shows the slowest part that it touches, so
//! that effects combine by their minimum. Residuals are normal except for outliers, as in [`super::infer`].
//!
//! A Gibbs sampler draws hypotheses from the posterior. One step removes a part of the set and draws a part and a share
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

pub(crate) use classes::{Expectation, INSIDE_MIN};
pub(crate) use problem::effects_by_share;
pub(crate) use sampler::EFFECT_SD;

use super::effect::{Component, Effects};
use super::evidence::Evidence;
use super::infer::Defect;
use predict::SlowPart;
use problem::Problem;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use sampler::{State, Work};

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
/// Chains, and sweeps of each: first those with rising weight of the readings, then others until the draws are kept.
const CHAINS: u64 = 4;
const SWEEPS_WARM: usize = 40;
const SWEEPS_SETTLE: usize = 10;
const SWEEPS_KEPT: usize = 60;
/// A chain whose mean log probability is this much below that of the best chain is left out.
const CAUGHT: f64 = 5.0;

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
    /// Standard deviation of ordinary readings.
    pub sd: f64,
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
    let mut chains: Vec<(f64, Vec<State>)> = Vec::new();
    let mut work = Work::default();
    for chain in 0..CHAINS {
        let mut rng = ChaCha8Rng::seed_from_u64(chain);
        let mut s = p.start();
        let mut draws = Vec::with_capacity(SWEEPS_KEPT);
        let mut sum = 0.0;
        for i in 0..SWEEPS_WARM {
            let weight = 0.2 + 0.8 * i as f64 / SWEEPS_WARM as f64;
            p.sweep(&mut s, weight, &mut work, &mut rng);
        }
        for i in 0..SWEEPS_SETTLE + SWEEPS_KEPT {
            p.sweep(&mut s, 1.0, &mut work, &mut rng);
            if i >= SWEEPS_SETTLE {
                sum += p.ln_joint(&s);
                draws.push(s.clone());
            }
        }
        chains.push((sum / SWEEPS_KEPT as f64, draws));
    }
    // A chain far below the best one is caught in an improbable set.
    let best = chains.iter().map(|c| c.0).fold(f64::NEG_INFINITY, f64::max);
    let draws: Vec<State> = chains.into_iter().filter(|c| c.0 > best - CAUGHT).flat_map(|c| c.1).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(CHAINS);
    Some(p.sets(effects.cluster(), &draws, &mut rng))
}
