//! The trial: policies against environments whose truth is known. Simulated, and called so wherever it is shown.
//!
//! An [`Environment`] says what each call takes; a [`Spec`] describes one and is made into a [`Simulated`] environment by a seed.
//! [`run`] plays one policy (or one per rank) through one environment and returns an [`Outcome`]; a [`Score`] sums up many.
//! [`aims`] is the list of what a policy should reach; [`policies`] are those of `tune` and those that they are compared with. Pure: same spec, policy and seed, same outcome; callers run seeds in parallel.

pub mod aims;
mod detector;
mod environment;
mod outcome;
mod play;
pub mod policies;
mod score;

pub use detector::{Detection, detect};
pub use environment::{Change, Environment, Noise, Overlap, Simulated, Spec};
pub use outcome::{Curve, Outcome};
pub use play::{MakePolicy, RANKS_MAX, run};
pub use score::{Score, share};

#[cfg(test)]
mod tests;
