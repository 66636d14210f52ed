//! All policies of a trial: the shipped ones, and those for comparison. The latter leave AUTO without evidence.

mod epsilon_greedy;
mod thompson;
mod ucb1;

pub use epsilon_greedy::{EPSILON, EpsilonGreedy};
pub use thompson::Thompson;
pub use ucb1::Ucb1;

use std::sync::LazyLock;
use tune::registry::{self, PolicyEntry};
use tune::round_robin::RoundRobin;
use tune::{Arm, Policy, PolicyOptions};

/// Policies from papers and textbooks; none of them is shipped.
pub const FOR_COMPARISON: [PolicyEntry; 5] = [
    PolicyEntry {
        name: "round-robin-ungated",
        about: "round-robin without its gate, as published",
        make: |_, arms, auto, o| Ok(Box::new(RoundRobin::without_gate(arms, auto, o.objective))),
    },
    PolicyEntry {
        name: "ucb1",
        about: "upper confidence bounds, no gate",
        make: |_, arms, auto, o| Ok(Box::new(Ucb1::new(arms, auto, o.objective))),
    },
    PolicyEntry {
        name: "thompson",
        about: "Thompson sampling on log times, no gate",
        make: |_, arms, auto, o| Ok(Box::new(Thompson::new(arms, auto, o.objective, o.seed))),
    },
    PolicyEntry {
        name: "epsilon-greedy",
        about: "lowest mean, a random arm in a tenth of the calls, no gate",
        make: |_, arms, auto, o| Ok(Box::new(EpsilonGreedy::new(arms, auto, o.objective, o.seed))),
    },
    PolicyEntry {
        name: "v1",
        about: "epsilon-greedy with different random numbers on each rank (the paper's v1); ranks disagree",
        make: |_, arms, auto, o| Ok(Box::new(EpsilonGreedy::v1(arms, auto, o.objective, o.seed, o.rank))),
    },
];

/// The shipped policies, the default first, then [`FOR_COMPARISON`].
pub static POLICIES: LazyLock<Vec<PolicyEntry>> =
    LazyLock::new(|| registry::POLICIES.iter().chain(&FOR_COMPARISON).copied().collect());

/// The policy with this name among [`POLICIES`].
///
/// # Errors
/// Same as [`tune::build`].
pub fn build(name: &str, arms: &[Arm], options: &PolicyOptions) -> Result<Box<dyn Policy>, String> {
    registry::build_from(&POLICIES, name, arms, options)
}
