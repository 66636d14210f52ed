//! The real NCCL library on simulated hosts, without a GPU.
//!
//! NCCL makes its decisions (graph search, channels, cost model, algorithm, protocol) before any kernel runs. The bench
//! runs an unmodified `libnccl.so.2` from a wheel on simulated hosts, with an emulation of CUDA and NVML in C
//! ([`emulation`]), topology files written from `topology`'s host types ([`topology_file`]) and one process per host
//! ([`Bench::run`]). It reads the logs ([`read`]) into one [`BenchReport`].
//!
//! In these runs kernels do nothing: they show decisions, and all times of calls are NCCL's own estimates. In the runs of [`bytes`]
//! ([`Bench::run_bytes`]) the CPU plays NCCL's kernels and real bytes move, through NCCL's own proxies and the network of this machine.

pub mod bytes;
pub mod emulate;
pub mod emulation;
mod error;
pub mod layout;
pub mod library;
mod machine;
pub mod order;
pub mod read;
mod report;
mod run;
mod spec;
pub mod topology_file;

pub use emulate::{EmulateSpec, Emulated};
pub use error::BenchError;
pub use library::{Library, default_cache};
pub use report::{
    BenchReport, BenchSeconds, ChannelCounts, Connection, KernelLaunch, NodeReport, ReportedCall, TreePlace,
};
pub use run::Bench;
pub use spec::{BenchSpec, CALL_BYTES_MAX, CALLS_MAX, CallMode, NODES_MAX, PlannedCall, RANKS_MAX, SimulatedNode};
pub use topology_file::TopologyFile;
