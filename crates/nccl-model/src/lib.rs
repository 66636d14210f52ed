//! NCCL's own decisions per version: cost model, correction tables, AUTO, channels, and what its rings and trees load.
//!
//! Levels, each checked against the real library (crate `nccl-bench`):
//! 1. [`Agreed`], [`Table`], [`choose()`]: given the graphs that NCCL's search found on every host, everything that follows from them.
//! 2. [`Communicator`]: hosts of the catalog in any order; their searches are recorded ([`templates`]), NCCL's rules merge them into
//!    channels, rings and trees.
//! 3. [`search`]: the model's own search for hosts that were not recorded.
//!
//! [`Communicator::busbw`] turns decisions into an expected bandwidth and says what limits it.
//!
//! Pure: no clock, no I/O, no randomness.

pub mod agreed;
pub mod choose;
pub mod communicator;
mod constants;
mod given;
pub mod load;
pub mod machines;
pub mod releases;
pub mod search;
pub mod table;
pub mod templates;
pub mod tree;

pub use agreed::{AgreeError, Agreed, AgreedGraph};
pub use choose::{Choice, choose, time_us};
pub use communicator::{BuildError, Cache, Communicator, Crossing, GraphSource, Member};
pub use load::{Busbw, Limit, LoadConstants};
pub use machines::{Cpu, CpuArch, CpuVendor, GpuClass, Machine, Machines};
pub use table::{COLLECTIVES, Cell, Table};
