//! Policies by name: those of [`tune`].

use tune::registry::POLICIES;
use tune::{Arm, Policy, PolicyOptions};

/// The policy where none is named: the first that is registered.
pub fn default_name() -> &'static str {
    POLICIES.first().map_or("auto", |p| p.name)
}

/// Is there a policy of this name? The error lists them.
pub fn check(name: &str) -> Result<(), String> {
    if POLICIES.iter().any(|p| p.name == name) {
        return Ok(());
    }
    let known: Vec<_> = POLICIES.iter().map(|p| p.name).collect();
    Err(format!("there is no policy `{name}`; there are {}", known.join(", ")))
}

/// A policy for some arms. Only the leader of a communicator has one, so its random numbers, if it draws any, need not be those of other ranks.
pub fn build(name: &str, arms: &[Arm], size_bytes: u64) -> Option<Box<dyn Policy>> {
    tune::build(name, arms, &PolicyOptions { size_bytes, ..PolicyOptions::default() }).ok()
}
