//! The policies of [`tune`] by name.

use agreement::Slot;
use tune::registry::POLICIES;
use tune::steps::{ByPolicy, SlotLearner, StepRace};
use tune::{Arm, PolicyOptions};

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

/// Builds a learner. Only the leader of a communicator has one, so its random numbers may differ from those of other ranks. The default policy compares
/// arms in blocks of whole steps; any other one decides once per block.
pub fn build(name: &str, arms: &[Arm], slot: Slot) -> Option<Box<dyn SlotLearner>> {
    if name == default_name() {
        return Some(Box::new(StepRace::new(arms.len())));
    }
    let size_bytes = tune::bucket::middle(slot.bucket);
    let policy = tune::build(name, arms, &PolicyOptions { size_bytes, ..PolicyOptions::default() }).ok()?;
    Some(Box::new(ByPolicy::new(policy)))
}
