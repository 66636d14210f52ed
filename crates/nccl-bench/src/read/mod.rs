//! Readers of what NCCL writes: its log, between the lines of the runner, and its graph dump. Text goes in, values come out; any text is
//! read without a panic, and what is too large is refused.

pub mod graphs;
pub mod log;

/// Largest log of one node, bytes; 64 ranks with every line that the bench asks for stay below 16 MiB.
pub const LOG_BYTES_MAX: u64 = 64 << 20;
/// Largest graph dump, bytes.
pub const GRAPHS_BYTES_MAX: u64 = 4 << 20;
/// Most channels that NCCL has (64 from 2.25 on).
pub const CHANNELS_MAX: usize = 64;
