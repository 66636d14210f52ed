#![doc = include_str!("../README.md")]

pub mod constants;
pub mod cycles;
pub mod estimate;
pub mod intra;
pub mod jobs;
pub mod maxmin;
pub mod network;
pub mod sides;
pub mod tree;

pub use constants::{Constants, GpuClass};
pub use estimate::{Bottleneck, Estimate, Fabric, Parts, Tables};
pub use intra::{Intra, IntraTable, Run, intra_busbw};
pub use jobs::{Claim, Job, Link};
