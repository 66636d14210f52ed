//! Readers of NCCL's log and graph dump. The readers convert text to values, never panic, and refuse text above the
//! limits.

pub mod graphs;
pub mod log;

/// Maximum size of the log of one node, bytes. A log of 64 ranks with every enabled line is below 16 MiB.
pub const LOG_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of a graph dump, bytes.
pub const GRAPHS_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of channels of NCCL (64 from 2.25 on).
pub const CHANNELS_MAX: usize = 64;
