//! Trials of tuning policies in environments whose true times are known. Everything is simulated, and every output says
//! so.
//!
//! An [`Environment`] gives the time of each call; a [`Spec`] with a seed makes a [`Simulated`] environment. [`run`]
//! plays one policy (or one per rank) through one environment and returns an [`Outcome`]; a [`Score`] summarises many
//! outcomes. [`targets`] lists the targets of a policy; [`policies`] holds those of `tune` and those for comparison.
//! Pure: the same spec, policy and seed give the same outcome. Callers run seeds in parallel.

mod detector;
mod environment;
mod outcome;
mod play;
pub mod policies;
mod score;
pub mod targets;
pub mod training;

pub use detector::{Detection, detect};
pub use environment::{Change, Environment, Noise, Overlap, Simulated, Spec};
pub use outcome::{Curve, Outcome};
pub use play::{MakePolicy, RANKS_MAX, run};
pub use score::{Score, share};

#[cfg(test)]
mod tests;
