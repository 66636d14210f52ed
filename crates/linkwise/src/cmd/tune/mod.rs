//! `linkwise tune`: policies that choose algorithm, protocol and channels, tried honestly.

mod aims;
mod characterize;
mod detector;
mod evaluate;
mod page;
mod play;
mod print;
mod profile;
pub mod report;
mod sample_line;

use crate::failure::Failure;
use ::tune::registry::Entry;
use ::tune::{Arm, Objective};

/// Policies that choose algorithm, protocol and channels: try them, measure for them, let one decide.
#[derive(clap::Subcommand)]
pub enum Tune {
    /// Try policies against environments whose truth is known
    Evaluate(Box<evaluate::Args>),
    /// Measure every arm at every size before a job, and write which to use
    Profile(Box<profile::Args>),
    /// How good is AUTO, and what does computation beside it change?
    Characterize(characterize::Args),
    /// Let a policy decide for your own program, line by line over standard input and output
    Play(play::Args),
    /// What the NCCL plugin saw and did in a job, from its traces
    Report(report::Args),
}

/// Runs it.
pub fn run(command: Tune) -> Result<(), Failure> {
    match command {
        Tune::Evaluate(args) => evaluate::run(*args),
        Tune::Profile(args) => profile::run(*args),
        Tune::Characterize(args) => characterize::run(args),
        Tune::Play(args) => play::run(args),
        Tune::Report(args) => report::run(args),
    }
}

/// A policy file or a sweep as text.
pub fn read_text(path: &std::path::Path) -> Result<String, Failure> {
    let bytes_max = crate::tuning::policy_file::FILE_BYTES_MAX;
    super::shared::read_text(path, bytes_max).map_err(|e| match e {
        Failure::Located(_) => {
            Failure::file("read", path, format!("larger than {} MiB: not a policy file", bytes_max >> 20))
        }
        other => other,
    })
}

/// Refuses a policy that is not among the known ones; the error lists them and names the nearest.
pub fn check_policy(known: &[Entry], name: &str) -> Result<(), Failure> {
    if known.iter().any(|p| p.name == name) {
        return Ok(());
    }
    let names: Vec<&str> = known.iter().map(|p| p.name).collect();
    let all = names.join(", ");
    let near = topology::diagnose::did_you_mean(name, names);
    let hint = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
    Err(Failure::input(format!("there is no policy `{name}`; known are {all}{hint}")))
}

/// A list of arms, separated by commas.
pub fn arms(list: &str) -> Result<Vec<Arm>, Failure> {
    let arms = list.split(',').map(|a| a.parse::<Arm>()).collect::<Result<Vec<_>, _>>();
    let arms = arms.map_err(|e| Failure::input(format!("--arms: {e}")))?;
    ::tune::registry::check_arms(&arms).map_err(|e| Failure::input(format!("--arms: {e}")))?;
    Ok(arms)
}

/// An objective from a price per channel.
pub fn objective(price: f64) -> Result<Objective, Failure> {
    Objective::with_price(price).map_err(|e| Failure::input(format!("--channel-price: {e}")))
}
