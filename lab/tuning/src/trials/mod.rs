//! The trial of tuning policies, many runs in parallel, and the environments that need data.

pub mod catalog;
pub mod data;
pub mod paper;

use ::trial::{self, Curve, Outcome, Score, Simulated, Spec};
use ::tune::profile::Profile;
use ::tune::{Objective, PolicyOptions};
use console::Failure;
use rayon::prelude::*;

/// Runs of one parallel batch. Batches are merged in order, so that sums do not depend on the number of threads.
const RUNS_PER_PIECE: u64 = 20;
/// Batches that are played before they are merged. Until then they hold curves of up to 100,000 calls, 2.4 MB each.
const PIECES_AT_ONCE: u64 = 64;
/// Maximum number of runs of one environment.
pub const RUNS_MAX: u64 = 1_000_000;
/// Maximum number of runs over all environments and policies; each uses about 250 bytes.
const RUNS_IN_ALL_MAX: u64 = 10_000_000;

/// Settings of a trial.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Runs of each environment, one seed each.
    pub runs: u64,
    /// The first seed.
    pub seed: u64,
    /// Ranks of each run.
    pub ranks: u32,
    /// The quantity that policies minimise.
    pub objective: Objective,
}

/// Size of the calls of every environment, for policies that use it. It is below the size from which the gates are
/// stricter.
const SIZE: u64 = 16 << 20;
/// Readings of each arm of an offline profile: the paper's 50.
const PROFILE_READINGS: u64 = 50;

/// The profile of policy `profile`: every arm measured alone on the nodes of the run's start.
fn offline(spec: &Spec, seed: u64) -> Profile {
    let readings = Simulated::new(spec, seed).offline_us(PROFILE_READINGS);
    let (line, _) = Profile::line(&spec.arms, &readings, SIZE);
    Profile { arms: spec.arms.clone(), lines: vec![line] }
}

/// Refuses work that would not fit into memory.
pub fn check_work(environments: usize, policies: usize, settings: &Settings) -> Result<(), Failure> {
    let all = (environments as u64).saturating_mul(policies as u64).saturating_mul(settings.runs);
    if all <= RUNS_IN_ALL_MAX {
        return Ok(());
    }
    Err(Failure::input(format!(
        "--runs {}: with {policies} policies in {environments} environments {all} runs in all; at most {RUNS_IN_ALL_MAX}",
        settings.runs
    )))
}

/// Plays `policy` through `spec`, once per seed. `tick` is called after each run.
pub fn score(policy: &str, spec: &Spec, settings: &Settings, tick: &(dyn Fn() + Sync)) -> Result<Score, Failure> {
    let make = |spec: &Spec, seed: u64, rank: u32| {
        let profile = (policy == "profile").then(|| offline(spec, seed));
        let options = PolicyOptions {
            seed,
            rank,
            objective: settings.objective,
            profile,
            size_bytes: SIZE,
            ..PolicyOptions::default()
        };
        ::trial::policies::build(policy, &spec.arms, &options)
    };
    let spec = &Spec { objective: settings.objective, ..spec.clone() };
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
    let mut score = Score::default();
    for from in (0..pieces).step_by(PIECES_AT_ONCE as usize) {
        let some = from..(from + PIECES_AT_ONCE).min(pieces);
        let done = some.into_par_iter().map(piece).collect::<Result<Vec<_>, _>>();
        let done = done.map_err(|e| Failure::input(format!("{policy} on {}: {e}", spec.name)))?;
        for (outcomes, curve) in done {
            score.outcomes.extend(outcomes);
            score.curve.merge(&curve);
        }
    }
    Ok(score)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::trial::Noise;

    #[test]
    fn any_number_of_runs_counts_once_each_and_in_the_order_of_seeds() {
        let spec = Spec { calls: 3, ..Spec::new("x", 1_000.0, &[0.7], Noise::LogNormal { cv: 0.1 }) };
        let settings = |runs, seed| Settings { runs, seed, ranks: 1, objective: Objective::Time };
        let runs = RUNS_PER_PIECE * PIECES_AT_ONCE + 33;
        let all = score("epsilon-greedy", &spec, &settings(runs, 1), &|| ()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((all.outcomes.len() as u64, all.curve.runs), (runs, runs));
        for n in [0, runs - 34, runs - 1] {
            let one = score("epsilon-greedy", &spec, &settings(1, 1 + n), &|| ()).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(all.outcomes[n as usize], one.outcomes[0], "run {n}");
        }
    }

    #[test]
    fn more_runs_than_memory_holds_are_refused() {
        let settings = Settings { runs: RUNS_MAX, seed: 1, ranks: 1, objective: Objective::Time };
        assert!(check_work(2, 5, &settings).is_ok());
        assert!(check_work(2, 6, &settings).unwrap_err().to_string().contains("12000000 runs in all"));
    }
}
