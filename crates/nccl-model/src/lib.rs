//! NCCL's own decisions per version: cost model, correction tables, AUTO, channels, and what its rings and trees load.
//!
//! Three levels, each checked against the real library (crate `nccl-bench`):
//! 1. [`Agreed`], [`Table`], [`choose`]: given the graphs that NCCL's search found on every host, everything that follows from them.

pub mod agreed;
pub mod choose;
mod constants;
pub mod machines;
pub mod releases;
pub mod table;

pub use agreed::{AgreeError, Agreed, AgreedGraph};
pub use choose::{Choice, choose, time_us};
pub use machines::{Cpu, CpuArch, CpuVendor, GpuClass, Machine, Machines};
pub use table::{COLLECTIVES, Cell, Table};
