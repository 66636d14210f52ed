//! Trials of tuning policies in environments whose truth is known. All of it is simulated, and every output says so.
//!
//! An [`Environment`] says what each call takes; a [`Spec`] describes one and is made into a [`Simulated`] environment by a seed.
//! [`run`] plays one policy (or one per rank) through one environment and returns an [`Outcome`]; a [`Score`] sums up many.
//! [`targets`] lists what a policy should reach; [`policies`] are those of `tune` and the ones that they are compared with. Pure: same
//! spec, policy and seed, same outcome; callers run seeds in parallel.

mod detector;
mod environment;
mod outcome;
mod play;
pub mod policies;
mod score;
pub mod targets;

pub use detector::{Detection, detect};
pub use environment::{Change, Environment, Noise, Overlap, Simulated, Spec};
pub use outcome::{Curve, Outcome};
pub use play::{MakePolicy, RANKS_MAX, run};
pub use score::{Score, share};

#[cfg(test)]
mod tests;
