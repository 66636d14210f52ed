//! Which GPUs a job gets: requests, searches, baselines, explanations.

pub mod baselines;
pub mod exact;
pub mod options;
pub mod request;

pub use exact::{Found, Scored, cautiously, exact};
pub use request::{Refusal, Request};
pub mod decide;
pub mod explain;
pub use decide::{Decision, Reading, decide, worth_measuring};
pub use explain::{Answer, Bottleneck, answer};
