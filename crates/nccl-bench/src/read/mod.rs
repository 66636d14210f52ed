//! Readers of NCCL's log and graph dump. They turn text into values, never panic, and refuse text above the limits.

pub mod graphs;
pub mod log;

/// Largest log of one node, bytes. 64 ranks with every enabled line stay below 16 MiB.
pub const LOG_BYTES_MAX: u64 = 64 << 20;
/// Largest graph dump, bytes.
pub const GRAPHS_BYTES_MAX: u64 = 4 << 20;
/// Most channels of NCCL (64 from 2.25 on).
pub const CHANNELS_MAX: usize = 64;
