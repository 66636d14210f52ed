//! The aims of a tuner, measured.

use super::evaluate::progress;
use super::print;
use crate::cmd::shared::Format;
use crate::failure::Failure;
use crate::tuning::{self, Settings};
use ::tune::trial::aims::{self, Aim};
use ::tune::trial::{Score, Spec};
use serde::Serialize;
use std::collections::HashMap;

/// One aim and what the policies came to.
#[derive(Serialize)]
pub struct Row {
    /// The aim.
    pub aim: String,
    /// `at least` or `at most`.
    pub bound: &'static str,
    /// The limit.
    pub limit: f64,
    /// Its unit.
    pub unit: &'static str,
    /// One per policy, in order.
    pub measured: Vec<Measured>,
}

/// What one policy came to.
#[derive(Serialize)]
pub struct Measured {
    /// The policy.
    pub policy: String,
    /// In the aim's unit: the worst of the aim's environments.
    pub value: f64,
    /// The environment that was worst.
    pub environment: String,
    /// Whether the aim is met.
    pub is_met: bool,
}

/// Measures and prints.
pub fn run(policies: &[String], settings: &Settings, only: Option<&str>, format: Format) -> Result<(), Failure> {
    let log = tuning::data::bandit_log();
    let mut all = aims::all(log.as_ref());
    if let Some(words) = only {
        all.retain(|a| a.statement.contains(words));
        if all.is_empty() {
            return Err(Failure::input(format!("--only {words}: no aim's statement contains that")));
        }
    }
    // Several aims look at one environment: it is played once.
    let mut specs: Vec<&Spec> = Vec::new();
    for spec in all.iter().flat_map(|a| &a.specs) {
        if !specs.contains(&spec) {
            specs.push(spec);
        }
    }
    let bar = progress((specs.len() * policies.len()) as u64 * settings.runs, format);
    let mut scores: HashMap<(&str, &str), Score> = HashMap::new();
    for spec in &specs {
        bar.set_message(spec.name.clone());
        for policy in policies {
            let score = tuning::score(policy, spec, settings, &|| bar.inc(1))?;
            scores.insert((policy, &spec.name), score);
        }
    }
    bar.finish_and_clear();
    let rows = all.iter().map(|aim| row(aim, policies, &scores)).collect::<Vec<_>>();
    print::aims(&rows, policies, settings, log.is_some(), format)
}

fn row(aim: &Aim, policies: &[String], scores: &HashMap<(&str, &str), Score>) -> Row {
    let measured = |policy: &String| {
        let values = aim.specs.iter().filter_map(|spec| {
            let score = scores.get(&(policy.as_str(), spec.name.as_str()))?;
            Some((aim.measure.of(score, spec.arms.len()), spec.name.clone()))
        });
        let worst = values.reduce(|a, b| if aim.measure.worse(a.0, b.0) == a.0 { a } else { b });
        let (value, environment) = worst.unwrap_or((f64::NAN, String::new()));
        Measured { policy: policy.clone(), value, environment, is_met: aim.is_met(value) }
    };
    Row {
        aim: aim.statement.clone(),
        bound: if aim.measure.is_at_least() { "at least" } else { "at most" },
        limit: aim.limit,
        unit: aim.measure.unit(),
        measured: policies.iter().map(measured).collect(),
    }
}
