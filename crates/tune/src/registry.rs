//! Policies by name.

use crate::adaptive::{self, Adaptive};
use crate::arm::Arm;
use crate::epsilon_greedy::EpsilonGreedy;
use crate::ledger::ARMS_MAX;
use crate::objective::Objective;
use crate::overlap::Overlap;
use crate::policy::Policy;
use crate::profile::{Profile, Static};
use crate::round_robin::RoundRobin;
use crate::thompson::Thompson;
use crate::ucb1::Ucb1;

/// What a policy may be made with, besides arms.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    /// Random numbers of the policies that draw; the same on every rank.
    pub seed: u64,
    /// This process's rank: only `v1` looks at it, and that is its fault.
    pub rank: u32,
    /// What to make small.
    pub objective: Objective,
    /// What `profile` goes by; without one it stays on AUTO.
    pub profile: Option<Profile>,
    /// What `profile` goes by for calls that are told to run beside computation; without one, by the other.
    pub profile_overlapped: Option<Profile>,
    /// The size of the calls, bytes: where `profile` looks.
    pub size_bytes: u64,
    /// The policy that `overlap` keeps twice; [`INNER`] if empty.
    pub inner: String,
}

/// The policy that `overlap` keeps twice unless told otherwise.
pub const INNER: &str = "adaptive";

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
    Entry {
        name: "adaptive",
        about: "races, a watch on the arm in use, cheap looks at the others (the default)",
        is_for_comparison: false,
    },
    Entry {
        name: "round-robin",
        about: "ten rounds, trimmed means, 5 % gate (the paper's v2)",
        is_for_comparison: false,
    },
    Entry {
        name: "profile",
        about: "what an offline measurement found, never learning (the paper's tuner)",
        is_for_comparison: false,
    },
    Entry {
        name: "overlap",
        about: "one policy for calls alone and one for calls beside computation",
        is_for_comparison: false,
    },
    Entry { name: "auto", about: "what NCCL does by itself, always", is_for_comparison: false },
    Entry { name: "round-robin-ungated", about: "round-robin without its gate, as published", is_for_comparison: true },
    Entry { name: "ucb1", about: "upper confidence bounds, no gate", is_for_comparison: true },
    Entry { name: "thompson", about: "Thompson sampling on log times, no gate", is_for_comparison: true },
    Entry {
        name: "epsilon-greedy",
        about: "lowest mean, a random arm in a tenth of the calls, no gate",
        is_for_comparison: true,
    },
    Entry {
        name: "v1",
        about: "epsilon-greedy whose ranks draw different numbers (the paper's v1); ranks disagree",
        is_for_comparison: true,
    },
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
        "adaptive" => Box::new(Adaptive::new(arms, auto, objective, adaptive::Care::default())),
        "round-robin" => Box::new(RoundRobin::new(arms, auto, objective)),
        "round-robin-ungated" => Box::new(RoundRobin::without_gate(arms, auto, objective)),
        "profile" => {
            let alone = Static::new(arms, auto, options.profile.as_ref(), options.size_bytes);
            Box::new(alone.with_overlapped(arms, auto, options.profile_overlapped.as_ref(), options.size_bytes))
        }
        "overlap" => {
            let inner = if options.inner.is_empty() { INNER } else { &options.inner };
            if inner == "overlap" {
                return Err("overlap cannot keep itself twice".into());
            }
            Box::new(Overlap::new(arms, objective, build(inner, arms, options)?, build(inner, arms, options)?))
        }
        "auto" => Box::new(Static::auto(auto)),
        "ucb1" => Box::new(Ucb1::new(arms, auto, objective)),
        "thompson" => Box::new(Thompson::new(arms, auto, objective, options.seed)),
        "epsilon-greedy" => Box::new(EpsilonGreedy::new(arms, auto, objective, options.seed)),
        "v1" => Box::new(EpsilonGreedy::v1(arms, auto, objective, options.seed, options.rank)),
        _ => {
            let known: Vec<_> = POLICIES.iter().map(|e| e.name).collect();
            return Err(format!("there is no policy `{name}`; known are {}", known.join(", ")));
        }
    })
}
