//! `linkwise tune`: measure every arm before a job, judge AUTO, and report what the plugin did.

mod characterize;
mod policy_table;
mod profile;
pub mod report;

use console::Failure;

/// Measure algorithms, protocols and channels before a job, and report what the plugin chose in one
#[derive(clap::Subcommand)]
pub enum Tune {
    /// Measure every arm at every size before a job, and write which to use
    Profile(Box<profile::Args>),
    /// How good is AUTO, and what does computation beside it change?
    Characterize(characterize::Args),
    /// What the NCCL plugin saw and did in a job, from its traces
    Report(report::Args),
}

/// Runs it.
pub fn run(command: Tune) -> Result<(), Failure> {
    match command {
        Tune::Profile(args) => profile::run(*args),
        Tune::Characterize(args) => characterize::run(args),
        Tune::Report(args) => report::run(args),
    }
}

/// A policy file or a sweep as text.
pub fn read_text(path: &std::path::Path) -> Result<String, Failure> {
    Ok(files::read_text(path, autotune::policy_file::FILE_BYTES_MAX)?)
}

/// Refuses an unknown policy with the known ones and the nearest.
pub fn check_policy(name: &str) -> Result<(), Failure> {
    let names: Vec<&str> = ::tune::registry::POLICIES.iter().map(|p| p.name).collect();
    if names.contains(&name) {
        return Ok(());
    }
    let hint = topology::diagnose::did_you_mean(name, names.iter().copied());
    let hint = hint.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
    Err(Failure::input(format!("there is no policy `{name}`; known are {}{hint}", names.join(", "))))
}
