//! Which GPUs a job gets: requests, searches, baselines, explanations.

pub mod baselines;
pub mod constraints;
pub mod decide;
pub mod exact;
pub mod explain;
mod merge;
pub mod objective;
pub mod options;
mod ordered;
mod physical;
pub mod pods;
pub mod ranks;
pub mod read;
mod refusal;
pub mod request;
pub mod search;
pub mod shape;
pub mod threshold;

pub use decide::{Decision, Reading, decide, worth_measuring};
pub use exact::{Found, Scored, cautiously, exact};
pub use explain::{Answer, Bottleneck, answer, answer_by};
pub use merge::MergeRule;
pub use objective::{Effect, Objective};
pub use request::{Constraints, Contention, Job, Refusal, Request};
pub use search::{Registry, Search};
