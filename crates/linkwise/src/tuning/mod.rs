//! The trial of tuning policies, many runs in parallel, and the environments that need data.

pub mod catalog;
pub mod data;
pub mod paper;
pub mod policy_file;

use crate::failure::Failure;
use ::tune::profile::Profile;
use ::tune::trial::{self, Curve, Outcome, Score, Simulated, Spec};
use ::tune::{Objective, Options};
use rayon::prelude::*;

/// Runs of one parallel piece: pieces are merged in order, so that sums do not depend on the number of threads.
const RUNS_PER_PIECE: u64 = 20;
/// The most runs of one environment.
pub const RUNS_MAX: u64 = 1_000_000;

/// How policies are tried.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Runs of each environment, one seed each.
    pub runs: u64,
    /// The first seed.
    pub seed: u64,
    /// Ranks of each run.
    pub ranks: u32,
    /// What policies make small.
    pub objective: Objective,
}

/// The size of the calls of every environment, for policies that ask: below the size from which the gates are stricter.
const SIZE: u64 = 16 << 20;
/// Samples of each arm of an offline profile: the paper's 50.
const PROFILE_SAMPLES: u64 = 50;

/// What `profile` goes by: every arm measured alone on the nodes of the run's beginning.
fn offline(spec: &Spec, seed: u64) -> Profile {
    let samples = Simulated::new(spec, seed).offline_us(PROFILE_SAMPLES);
    let (line, _) = Profile::line(&spec.arms, &samples, SIZE);
    Profile { arms: spec.arms.clone(), lines: vec![line] }
}

/// Plays `policy` through `spec`, once per seed. `tick` is called after each run.
pub fn score(policy: &str, spec: &Spec, settings: &Settings, tick: &(dyn Fn() + Sync)) -> Result<Score, Failure> {
    let make = |spec: &Spec, seed: u64, rank: u32| {
        let profile = (policy == "profile").then(|| offline(spec, seed));
        let options =
            Options { seed, rank, objective: settings.objective, profile, size_bytes: SIZE, ..Options::default() };
        ::tune::build(policy, &spec.arms, &options)
    };
    let pieces = settings.runs.div_ceil(RUNS_PER_PIECE);
    let piece = |i: u64| -> Result<(Vec<Outcome>, Curve), String> {
        let mut curve = Curve::default();
        let from = i * RUNS_PER_PIECE;
        let outcomes = (from..(from + RUNS_PER_PIECE).min(settings.runs)).map(|n| {
            let outcome = trial::run(spec, &make, settings.seed.wrapping_add(n), settings.ranks, &mut curve);
            tick();
            outcome
        });
        Ok((outcomes.collect::<Result<_, _>>()?, curve))
    };
    let done = (0..pieces).into_par_iter().map(piece).collect::<Result<Vec<_>, _>>();
    let done = done.map_err(|e| Failure::input(format!("{policy} on {}: {e}", spec.name)))?;
    let mut score = Score::default();
    for (outcomes, curve) in done {
        score.outcomes.extend(outcomes);
        score.curve.merge(&curve);
    }
    Ok(score)
}
