//! Which GPUs a job gets: requests, searches, baselines, explanations.

pub mod baselines;
pub mod exact;
pub mod options;
pub mod request;

pub use exact::{Found, Scored, exact};
pub use request::{Refusal, Request};
