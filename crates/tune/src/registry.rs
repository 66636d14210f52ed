//! Policies by name.

use crate::arm::Arm;
use crate::ledger::ARMS_MAX;
use crate::objective::Objective;
use crate::policy::Policy;
use crate::round_robin::RoundRobin;

/// What a policy may be made with, besides arms.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    /// Random numbers of the policies that draw; the same on every rank.
    pub seed: u64,
    /// This process's rank: only `v1` looks at it, and that is its fault.
    pub rank: u32,
    /// What to make small.
    pub objective: Objective,
}

/// A registered policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// Here to be compared with, not to be used: it leaves AUTO without evidence, or worse.
    pub is_for_comparison: bool,
}

/// All policies that [`build`] knows, the default first.
pub const POLICIES: &[Entry] = &[
    // `adaptive` goes here, first: it is the default.
    Entry {
        name: "round-robin",
        about: "ten rounds, trimmed means, 5 % gate (the paper's v2)",
        is_for_comparison: false,
    },
    Entry { name: "round-robin-ungated", about: "the same without its gate, as published", is_for_comparison: true },
];

/// AUTO's place in a list of arms.
///
/// # Errors
/// No arm, too many ([`ARMS_MAX`]), AUTO missing, or an arm named twice.
pub fn check_arms(arms: &[Arm]) -> Result<usize, String> {
    if arms.len() > ARMS_MAX {
        return Err(format!("{} arms; at most {ARMS_MAX}", arms.len()));
    }
    for (i, arm) in arms.iter().enumerate() {
        if arms[..i].contains(arm) {
            return Err(format!("{arm} is named twice among the arms"));
        }
    }
    let auto = arms.iter().position(|a| a.is_auto());
    auto.ok_or_else(|| "AUTO is not among the arms; a policy must be able to do what NCCL does by itself".into())
}

/// The policy of a name.
///
/// # Errors
/// An unknown name, arms that [`check_arms`] refuses, or options that the policy cannot use.
pub fn build(name: &str, arms: &[Arm], options: &Options) -> Result<Box<dyn Policy>, String> {
    let auto = check_arms(arms)?;
    let objective = options.objective;
    Ok(match name {
        // "adaptive" => Box::new(Adaptive::new(arms, auto, objective)),
        "round-robin" => Box::new(RoundRobin::new(arms, auto, objective)),
        "round-robin-ungated" => Box::new(RoundRobin::without_gate(arms, auto, objective)),
        _ => {
            let known: Vec<_> = POLICIES.iter().map(|e| e.name).collect();
            return Err(format!("there is no policy `{name}`; known are {}", known.join(", ")));
        }
    })
}
