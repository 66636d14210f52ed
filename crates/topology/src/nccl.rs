//! NCCL's search graphs, rates and decisions. The real library (`nccl-bench`) and its model (`nccl-model`) both report
//! results in these types, so that tests can compare the results cell by cell.

pub use nccl_types::{Algorithm, GraphKind, PathType, Protocol, Version};

use nccl_types::Collective;
use serde::{Deserialize, Serialize};

/// One node's order of devices on one search channel.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Channel {
    /// GPUs of the node in the order of the channel: NVML indices, 0 to 63.
    pub gpus: Vec<u8>,
    /// NICs through which the channel enters and leaves the node; empty on a single node. NVLS: the NIC of each head.
    pub nics: Vec<u8>,
}

/// The result of one of NCCL's searches on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// The search.
    pub kind: GraphKind,
    /// NCCL's pattern number: 1 balanced tree, 2 split tree, 3 tree, 4 ring, 5 NVLS, 6 CollNet direct.
    pub pattern: u8,
    /// NCCL's crossNic: 0 same NIC in and out, 1 any NIC, 2 the NIC of the neighbouring rail.
    pub cross_nic: u8,
    /// Number of channels found; equals `channels.len()` if the channels are known.
    pub channel_count: usize,
    /// GB/s (1e9 bytes) per channel inside the node.
    pub bw_intra_gb_per_s: f64,
    /// GB/s per channel between nodes.
    pub bw_inter_gb_per_s: f64,
    /// The NIC's latency, microseconds.
    pub latency_inter_us: f64,
    /// Longest path between GPUs of the node.
    pub type_intra: PathType,
    /// Longest path from a GPU to a NIC.
    pub type_inter: PathType,
    /// True if all channels have the same order.
    pub same_channels: bool,
    /// The channels, if known. NCCL's log line of a graph omits them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Channel>,
}

/// NCCL's prediction for one algorithm and protocol of a collective: time = latency + bytes / bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NcclRate {
    /// The collective.
    pub collective: Collective,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// Microseconds.
    pub latency_us: f64,
    /// Algorithm bandwidth, GB/s; 0 if not available.
    pub bandwidth_gb_per_s: f64,
}

/// Source of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionSource {
    /// The model in `nccl-model`.
    Model,
    /// The real library in `nccl-bench`.
    Bench,
}

/// The algorithm, protocol and channels that NCCL chooses for one collective call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NcclDecision {
    /// The collective.
    pub collective: Collective,
    /// Bytes, as NCCL counts them: the whole buffer of all ranks for all-gather and reduce-scatter.
    pub size_bytes: u64,
    /// The algorithm chosen.
    pub algorithm: Algorithm,
    /// The protocol chosen.
    pub protocol: Protocol,
    /// Channels that carry the call.
    pub channels: u32,
    /// NCCL's own estimate, microseconds; `None` if the library reports none.
    pub time_us: Option<f64>,
    /// The model or the library.
    pub source: DecisionSource,
}
