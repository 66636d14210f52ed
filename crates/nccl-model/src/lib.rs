//! NCCL's decisions per release: cost model, correction tables, AUTO, channels, and the NIC loads of rings and trees.
//!
//! The model has three levels. Each is compared with the real library (crate `nccl-bench`):
//! 1. [`CostModelInput`], [`CostTable`], [`choose()`]: all decisions that follow from the graphs that NCCL's search
//!    found on every host.
//! 2. [`Communicator`]: hosts of the catalog in any order. The searches of these hosts are recorded ([`templates`]).
//!    NCCL's rules merge the searches into channels, rings and trees.
//! 3. [`search`]: the model's own search for hosts without a record.
//!
//! [`Communicator::busbw`] gives the expected bandwidth of a decision and the limit of that bandwidth.
//!
//! The crate is pure: no clock, no I/O, no randomness.

pub mod advice;
pub mod agreed;
pub mod choose;
pub mod communicator;
mod constants;
mod from_library;
pub mod load;
pub mod machines;
pub mod releases;
pub mod search;
pub mod table;
pub mod templates;
pub mod tree;

pub use advice::{Advice, by_model};
pub use agreed::{AgreeError, AgreedGraph, CostModelInput};
pub use choose::{CallChoice, choose, time_us};
pub use communicator::{BuildError, Communicator, Crossing, GraphSource, HostCache, MemberHost, gpus_in_rank_order};
pub use from_library::ReportedGraphs;
pub use load::{CallLimit, ExpectedBusbw, LoadConstants};
pub use machines::{AgreedMachines, CostModelGeneration, Cpu, CpuArch, CpuVendor, HostMachine};
pub use table::{COLLECTIVES, CostTable, NotTuned, TableCell, collective_by_name};
