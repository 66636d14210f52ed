//! What the links are: clusters, hosts, GPUs, NICs, allocations, and the readers of topology files.

pub mod allocation;
pub mod catalog;
pub mod cluster;
pub mod collective;
pub mod host;
pub mod quantity;

pub use allocation::{Allocation, GPUS_PER_HOST_MAX, GpuId, GpuMask, HOSTS_MAX, HostId};
pub use cluster::{Cluster, Host, HostLink, Network, NetworkClass, Tier};
pub use collective::Collective;
pub use host::{Gpu, HostType, Nic, NvLinkFabric, PathKind, Pcie};
pub use quantity::{Bandwidth, Bytes, Seconds};
