//! What a decision is kept for: calls that are alike share one.

use crate::arm::words;
use std::fmt;
use std::str::FromStr;

words! {
    /// The collectives that NCCL asks a tuner about; NCCL's numbers 0 to 4.
    Collective {
        /// One rank to all.
        Broadcast = "BROADCAST",
        /// All to one rank, summed.
        Reduce = "REDUCE",
        /// Every rank's part to all.
        AllGather = "ALLGATHER",
        /// Summed, one part to every rank.
        ReduceScatter = "REDUCESCATTER",
        /// Summed, all to all.
        AllReduce = "ALLREDUCE",
    }
}

/// Calls with equal keys share a policy. It holds only what every rank of a communicator sees alike: a registered buffer, for example,
/// is one rank's fact and must not be in it, or ranks decide differently for one call and hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The collective.
    pub collective: Collective,
    /// Number of the size bucket.
    pub bucket: u8,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Its nodes.
    pub nodes: u32,
    /// NCCL's version number as it reports it, 22809 for 2.28.9; 0 if unknown.
    pub nccl: u32,
    /// A hash over what the hardware is (agreed by all ranks); 0 if unknown.
    pub hardware: u64,
}
