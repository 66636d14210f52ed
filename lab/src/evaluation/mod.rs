//! Evaluation of choices: requests replayed against a truth.

pub mod accuracy;
pub mod ceiling;
mod contended;
pub mod guides;
pub mod methods;
pub mod online;
mod registry;
pub mod replay;
pub mod requests;
pub mod sampling;
mod summary;

pub use registry::{even, searches};
pub use replay::{Missing, PROBE_NOISE, Settings, run_seed};
pub use requests::{Load, scenarios};
pub use summary::{Method, Summary, summary};
