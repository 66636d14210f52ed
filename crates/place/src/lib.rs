//! Placement: requests, searches, baselines and explanations.

mod answer;
pub mod baselines;
pub mod constraints;
pub mod cost;
pub mod decide;
pub mod exact;
pub mod groups;
mod levels;
mod means;
mod merge;
pub mod objective;
pub mod options;
mod ordered;
mod physical;
pub mod pods;
pub mod policy;
mod rails;
pub mod ranks;
pub mod read;
mod refusal;
pub mod request;
pub mod rule;
pub mod search;
pub mod shape;
pub mod threshold;

pub use answer::{Answer, Bottleneck, RUNNER_UPS, answer, answer_with, bottleneck};
pub use cost::Cost;
pub use decide::{ProbeDecision, ProbeReading, decide, worth_measuring};
pub use exact::{Scored, SearchResult, exact, promote_by_lower_confidence_bound};
pub use groups::{Group, GroupBandwidth, GroupKind};
pub use merge::MergeRule;
pub use objective::{Effect, Objective};
pub use policy::{Price, Slack};
pub use request::{Constraints, Contention, Job, Refusal, Request, Split};
pub use search::{Registry, Search};
