//! What a decision is kept for: calls that are alike share one.
//!
//! Alike are calls of one collective, one bucket of sizes ([`crate::bucket`]) and one communicator. Its ranks, nodes, ranks per node,
//! NCCL and hardware do not change while it lives, so inside a job the communicator stands for all of them, and the bytes of one rank's
//! share follow from the total. Across jobs they are written down: in the provenance of a policy file, where a run that finds others
//! refuses to go on, and ranks and nodes in the plugin's tables.
//!
//! A key holds only what every rank of a communicator sees alike: a registered buffer, for example, is one rank's fact and must not be
//! in it, or ranks decide differently for one call and hang.

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
