//! Evaluates the targets of a tuning policy.

use super::print;
use crate::trials::{self, Settings};
use ::trial::targets::{self, Target};
use ::trial::{Score, Spec};
use console::{Failure, Format, Progress};
use serde::Serialize;

/// One target and the results of the policies.
#[derive(Serialize)]
pub struct TargetResult {
    /// The target.
    pub target: String,
    /// `at least`, `at most`, or `below`.
    pub bound: &'static str,
    /// The limit.
    pub limit: f64,
    /// Its unit.
    pub unit: &'static str,
    /// One per policy, in order.
    pub measured: Vec<Measured>,
}

/// The result of one policy.
#[derive(Serialize)]
pub struct Measured {
    pub policy: String,
    /// In the target's unit: the worst of the target's environments.
    pub value: f64,
    /// The environment that was worst.
    pub environment: String,
    /// Whether the target is met.
    pub is_met: bool,
}

/// Evaluates and prints.
pub fn run(policies: &[String], settings: &Settings, only: Option<&str>, format: Format) -> Result<(), Failure> {
    let log = trials::data::bandit_log()?;
    let mut all = targets::all(log.as_ref());
    if let Some(words) = only {
        all.retain(|a| a.statement.contains(words));
        if all.is_empty() {
            return Err(Failure::input(format!("--only {words}: no target's statement contains that")));
        }
    }
    // Several targets use the same environment: it is played once.
    let mut specs: Vec<&Spec> = Vec::new();
    for spec in all.iter().flat_map(|a| &a.specs) {
        if !specs.contains(&spec) {
            specs.push(spec);
        }
    }
    trials::check_work(specs.len(), policies.len(), settings)?;
    let bar = Progress::new("trials (runs)", specs.len() * policies.len() * settings.runs as usize);
    let mut scores: Vec<Vec<Score>> = Vec::new();
    for spec in &specs {
        let of_policy = policies.iter().map(|policy| trials::score(policy, spec, settings, &|| bar.advance(1)));
        scores.push(of_policy.collect::<Result<_, _>>()?);
    }
    drop(bar);
    let rows = all.iter().map(|target| result(target, policies, &specs, &scores)).collect::<Vec<_>>();
    print::targets(&rows, policies, settings, log.is_some(), format)
}

/// `scores`: by environment in the order of `specs`, then by policy.
fn result(target: &Target, policies: &[String], specs: &[&Spec], scores: &[Vec<Score>]) -> TargetResult {
    let measured = |(i, policy): (usize, &String)| {
        let values = target.specs.iter().filter_map(|spec| {
            let at = specs.iter().position(|s| *s == spec)?;
            Some((target.measure.of(&scores[at][i], spec.arms.len()), spec.name.clone()))
        });
        let worst = values.reduce(|a, b| if target.measure.worse(a.0, b.0) == a.0 { a } else { b });
        let (value, environment) = worst.unwrap_or((f64::NAN, String::new()));
        Measured { policy: policy.clone(), value, environment, is_met: target.is_met(value) }
    };
    TargetResult {
        target: target.statement.clone(),
        bound: target.bound(),
        limit: target.limit,
        unit: target.measure.unit(),
        measured: policies.iter().enumerate().map(measured).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::trial::Noise;
    use ::trial::targets::Measure;

    #[test]
    fn environments_with_one_name_and_different_levels_are_distinguished() {
        let spec =
            |level: f64| Spec { calls: 60, ..Spec::new("same", 1_000.0, &[level], Noise::LogNormal { cv: 0.01 }) };
        let (good, bad) = (spec(0.5), spec(1.5));
        let target = |spec: &Spec| Target {
            statement: "x".into(),
            specs: vec![spec.clone()],
            measure: Measure::RightAfter(50),
            limit: 95.0,
            is_strict: false,
        };
        let settings = Settings { runs: 3, seed: 1, ranks: 1, objective: Default::default() };
        let policies = ["auto".to_owned()];
        let score = |s: &Spec| vec![trials::score("auto", s, &settings, &|| ()).unwrap_or_else(|e| panic!("{e}"))];
        let (specs, scores) = ([&good, &bad], [score(&good), score(&bad)]);
        let value = |s: &Spec| result(&target(s), &policies, &specs, &scores).measured[0].value;
        assert_eq!((value(&good), value(&bad)), (0.0, 100.0), "AUTO is right where the other arm is slower");
    }
}
