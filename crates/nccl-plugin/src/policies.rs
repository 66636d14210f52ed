//! The policies of [`tune`] by name.

use tune::registry::POLICIES;
use tune::{Arm, Policy, PolicyOptions};

/// The default policy: the first one registered.
pub fn default_name() -> &'static str {
    POLICIES.first().map_or("auto", |p| p.name)
}

/// Checks a policy's name; the error lists all names.
pub fn check(name: &str) -> Result<(), String> {
    if POLICIES.iter().any(|p| p.name == name) {
        return Ok(());
    }
    let known: Vec<_> = POLICIES.iter().map(|p| p.name).collect();
    Err(format!("there is no policy `{name}`; there are {}", known.join(", ")))
}

/// Builds a policy. Only the leader of a communicator has one, so its random numbers may differ from those of other ranks.
pub fn build(name: &str, arms: &[Arm], size_bytes: u64) -> Option<Box<dyn Policy>> {
    tune::build(name, arms, &PolicyOptions { size_bytes, ..PolicyOptions::default() }).ok()
}
