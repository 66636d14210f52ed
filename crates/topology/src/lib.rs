//! The hardware: clusters, hosts, GPUs, NICs and their links; allocations of GPUs; and the readers of topology files.
//!
//! Functions take text and return values. No function opens a file or reads a clock.

pub mod allocation;
pub mod catalog;
pub mod cluster;
pub mod diagnose;
pub mod file;
pub mod host;
pub mod layout;
pub mod list;
pub mod names;
pub mod nccl;
pub mod quantity;
pub mod rails;
pub mod read;
pub mod switches;

pub use allocation::{Allocation, GPUS_PER_HOST_MAX, GpuId, GpuMask, HOSTS_MAX, HostId};
pub use cluster::{Cluster, Host, HostLink, LinkHealth, Network, NetworkClass};
pub use diagnose::ReadError;
pub use host::{Gpu, HostType, NICS_PER_HOST_MAX, Nic, NvLinkFabric, PathKind, Pcie};
pub use list::{ListError, ListErrorKind, ListReader};
pub use nccl_types::Collective;
pub use quantity::{Bandwidth, Bytes, Seconds, count};
pub use switches::{NamedSwitch, NamedSwitches, Rails, SwitchError, Switches, Tier};
