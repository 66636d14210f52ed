#![doc = include_str!("../README.md")]

pub mod constants;
pub mod crossing;
pub mod cycles;
pub mod estimate;
pub mod intra;
pub mod job_hosts;
pub mod jobs;
pub mod maxmin;
pub mod network;
pub mod tree;
pub mod validated;

pub use constants::{Constants, GpuClass};
pub use crossing::Crossings;
pub use estimate::{BandwidthLimits, Bottleneck, Estimate, Fabric, FabricTables};
pub use intra::{IntraEntry, IntraTable, RunOptions, intra_busbw};
pub use jobs::{Claim, ConcurrentJob, Joined, RunningClaims, SharedLink};
pub use validated::{Outside, validated};
