//! `linkwise-lab tune`: policies that choose algorithm, protocol and channels, evaluated in environments whose true
//! times are known.

mod characterize;
mod detector;
mod evaluate;
mod loops;
mod page;
mod play;
mod print;
mod reading_line;
mod targets;
mod trials;

use ::trial::policies::POLICIES;
use ::tune::{Arm, Objective};
use console::Failure;

// The structure of the product's `tune`: a variant and an arm per subcommand.
/// Evaluate tuning policies in environments whose true times are known
#[derive(clap::Subcommand)]
pub enum Tune {
    /// Score policies on simulated and published environments
    Evaluate(Box<evaluate::Args>),
    /// Let a policy decide for a program, line by line over standard input and output
    Play(play::Args),
    /// Print the published data of the tuning paper: AUTO's gap, and the effect of computation
    Characterize(characterize::Args),
}

/// Runs the command.
pub fn run(command: Tune) -> Result<(), Failure> {
    match command {
        Tune::Evaluate(args) => evaluate::run(*args),
        Tune::Play(args) => play::run(args),
        Tune::Characterize(args) => characterize::run(args),
    }
}

/// The policies, for help and errors.
pub fn known_policies() -> String {
    POLICIES.iter().map(|p| p.name).collect::<Vec<_>>().join(", ")
}

/// Refuses an unknown policy with the known ones and the nearest.
pub fn check_policy(name: &str) -> Result<(), Failure> {
    if POLICIES.iter().any(|p| p.name == name) {
        return Ok(());
    }
    let names: Vec<&str> = POLICIES.iter().map(|p| p.name).collect();
    let near = topology::diagnose::did_you_mean(name, names);
    let hint = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
    Err(Failure::input(format!("there is no policy `{name}`; known are {}{hint}", known_policies())))
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
