//! What is asked for, and why it may be refused.

use topology::{Allocation, Bytes};

/// A request for GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// How many GPUs, 1 or more.
    pub gpus: usize,
    /// The GPUs to choose from.
    pub free: Allocation,
    /// The message size to optimise for.
    pub size: Bytes,
}

/// Why a request cannot be met. `code` is stable for scripts.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// `gpus` is 0.
    #[error("a request needs at least one GPU")]
    NoGpus,
    /// Not enough GPUs are free.
    #[error("{wanted} GPUs are wanted and {free} are free")]
    NotEnough {
        /// Asked for.
        wanted: usize,
        /// There.
        free: usize,
    },
    /// The search space is beyond what exact search takes.
    #[error(
        "exact search would combine {combinations} candidates (limit {limit}); offer fewer hosts with --free, \
         or use a model of kind `bound`, whose search prunes"
    )]
    TooLarge {
        /// Count vectors times masks.
        combinations: u128,
        /// The limit.
        limit: u64,
    },
}

impl Refusal {
    /// Stable code for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::NoGpus => "no_gpus",
            Refusal::NotEnough { .. } => "not_enough_free",
            Refusal::TooLarge { .. } => "too_large_for_exact",
        }
    }
}
