//! Policies by name.

use crate::adaptive::{self, Adaptive};
use crate::arm::Arm;
use crate::ledger::ARMS_MAX;
use crate::objective::Objective;
use crate::overlap::Overlap;
use crate::policy::Policy;
use crate::profile::{Profile, Static};
use crate::round_robin::RoundRobin;

/// The options of a policy.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PolicyOptions {
    /// Seed of policies that draw random numbers, the same on every rank. No shipped policy draws random numbers.
    pub seed: u64,
    /// This process's rank. No shipped policy uses it, because ranks would then disagree.
    pub rank: u32,
    /// The quantity to minimise.
    pub objective: Objective,
    /// The table of policy `profile`; without one it stays on AUTO.
    pub profile: Option<Profile>,
    /// The table of policy `profile` for calls that are known to run during computation; without one, the other table.
    pub profile_overlapped: Option<Profile>,
    /// The size of the calls, bytes. It selects the line of the table.
    pub size_bytes: u64,
    /// The policy that `overlap` keeps twice; [`INNER`] if empty.
    pub inner: String,
}

/// The policy that `overlap` keeps twice by default.
pub const INNER: &str = "adaptive";

/// Makes a policy for checked arms. `auto` is the index of AUTO; `known` are the policies that another policy may
/// contain.
pub type Make =
    fn(known: &[PolicyEntry], arms: &[Arm], auto: usize, options: &PolicyOptions) -> Result<Box<dyn Policy>, String>;

/// A policy that is built by name.
#[derive(Debug, Clone, Copy)]
pub struct PolicyEntry {
    /// Its name on the command line.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    /// The constructor. Its error names the option that the policy cannot use.
    pub make: Make,
}

/// The shipped policies, the default first.
pub const POLICIES: &[PolicyEntry] = &[
    PolicyEntry {
        name: "adaptive",
        about: "races arms, monitors the arm in use, explores the others at low cost (the default)",
        make: |_, arms, auto, o| {
            Ok(Box::new(Adaptive::new(arms, auto, o.objective, adaptive::AdaptiveConfig::default())))
        },
    },
    PolicyEntry {
        name: "round-robin",
        about: "ten rounds, trimmed means, 5 % gate (the paper's v2)",
        make: |_, arms, auto, o| Ok(Box::new(RoundRobin::new(arms, auto, o.objective))),
    },
    PolicyEntry {
        name: "profile",
        about: "the arms of an offline measurement, without learning (the paper's tuner)",
        make: |_, arms, auto, o| {
            let alone = Static::new(arms, auto, o.profile.as_ref(), o.size_bytes);
            Ok(Box::new(alone.with_overlapped(arms, auto, o.profile_overlapped.as_ref(), o.size_bytes)))
        },
    },
    PolicyEntry {
        name: "overlap",
        about: "one policy for calls alone and one for calls during computation",
        make: |known, arms, _, o| {
            let inner = if o.inner.is_empty() { INNER } else { &o.inner };
            if inner == "overlap" {
                return Err("overlap cannot be its own inner policy".into());
            }
            let inner = || build_from(known, inner, arms, o);
            Ok(Box::new(Overlap::new(arms, o.objective, inner()?, inner()?)))
        },
    },
    PolicyEntry {
        name: "auto",
        about: "always NCCL's own choice",
        make: |_, _, auto, _| Ok(Box::new(Static::auto(auto))),
    },
];

/// The index of AUTO in a list of arms.
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
    auto.ok_or_else(|| "AUTO is not among the arms; a policy needs NCCL's own choice as an arm".into())
}

/// The shipped policy with this name.
///
/// # Errors
/// An unknown name, arms that [`check_arms`] refuses, or options that the policy cannot use.
pub fn build(name: &str, arms: &[Arm], options: &PolicyOptions) -> Result<Box<dyn Policy>, String> {
    build_from(POLICIES, name, arms, options)
}

/// The policy with this name among `known`, for callers with additional policies.
///
/// # Errors
/// Same as [`build`].
pub fn build_from(
    known: &[PolicyEntry],
    name: &str,
    arms: &[Arm],
    options: &PolicyOptions,
) -> Result<Box<dyn Policy>, String> {
    let auto = check_arms(arms)?;
    let entry = known.iter().find(|e| e.name == name).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|e| e.name).collect();
        format!("there is no policy `{name}`; known are {}", names.join(", "))
    })?;
    (entry.make)(known, arms, auto, options)
}
