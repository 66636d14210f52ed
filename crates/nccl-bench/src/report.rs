//! The report of a run. Other programs read the JSON of these types, so fields may be added but never renamed.

use serde::{Deserialize, Serialize};
use topology::Collective;
use topology::nccl::{Graph, NcclDecision, NcclRate, Version};

/// The library's complete report on one communicator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// The library's own version.
    pub version: Version,
    /// SHA-256 of the library file, hexadecimal.
    pub library_sha256: String,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of nodes as NCCL counts them: hosts or NVLink domains.
    pub nccl_nodes: u32,
    /// The simulated hosts in rank order.
    pub nodes: Vec<NodeReport>,
    /// The graphs that all nodes agree on: smallest channel counts and bandwidths, farthest paths. The bench applies
    /// NCCL's merge rule to the nodes' graphs, because NCCL does not print the result.
    pub merged_graphs: Vec<Graph>,
    /// Numbers of channels of the communicator.
    pub channels: ChannelCounts,
    /// Ranks in ring order, one ring per channel, each starting at rank 0.
    pub rings: Vec<Vec<u32>>,
    /// Parents and children, one list per channel, by rank. Channels `c` and `c + n/2` are the two trees of one search channel.
    pub trees: Vec<Vec<TreePlace>>,
    /// Ranks of each NVLS head, one per node.
    pub nvls_heads: Vec<Vec<u32>>,
    /// NCCL's cost table: every collective x algorithm x protocol.
    pub rates: Vec<NcclRate>,
    /// The calls in order, with NCCL's decisions.
    pub calls: Vec<ReportedCall>,
    /// Connections between ranks, ordered by channel and ranks. Repeated connections (rings, trees, NVLS) are listed each time.
    pub connections: Vec<Connection>,
    /// Driver and NVML functions that the library looks up but the emulation does not have, as with an older driver.
    /// Empty for the tested releases.
    pub absent: Vec<String>,
    /// NCCL's warnings without duplicates.
    pub warnings: Vec<String>,
    /// Times of the run on this machine.
    pub seconds: BenchSeconds,
}

/// Times of the run on this machine, in seconds since the start of the processes. Unrelated to NCCL's speed on GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchSeconds {
    /// Time until every rank had its communicator.
    pub initialised: f64,
    /// Time until the last process ended.
    pub total: f64,
    /// Duration of all calls in the slowest process.
    #[serde(default)]
    pub calls: f64,
}

/// One simulated host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its name in the cluster.
    pub host: String,
    /// The name of its type.
    pub host_type: String,
    /// The processor in the topology file, assumed by the bench. NCCL's LL bandwidth between nodes depends on it.
    pub cpu: String,
    /// GPUs in rank order.
    pub gpus: Vec<u8>,
    /// Its first rank.
    pub first_rank: u32,
    /// The graphs that its first rank's search found, with channels. GPUs and NICs are indices on the host; in an NVLink domain of several hosts
    /// (one node for NCCL) the indices continue through the domain's hosts.
    pub graphs: Vec<Graph>,
    /// NCCL's "maxBw", GB/s: the largest total bandwidth of one GPU.
    pub max_bw_gb_per_s: f64,
    /// NCCL's "totalBw", GB/s: the NVLink or PCIe bandwidth of a GPU.
    pub total_bw_gb_per_s: f64,
}

/// Numbers of channels by use, from NCCL's line "16 coll channels, 16 collnet channels, ...".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ChannelCounts {
    /// For collectives.
    pub coll: u32,
    /// For CollNet.
    pub collnet: u32,
    /// For NVLS.
    pub nvls: u32,
    /// For send and receive.
    pub p2p: u32,
    /// For send and receive with one peer.
    pub p2p_per_peer: u32,
}

/// A rank's parent and children in the tree of one channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreePlace {
    /// The rank.
    pub rank: u32,
    /// Its parent; `None` for the root.
    pub up: Option<u32>,
    /// Its children, three at most.
    pub down: Vec<u32>,
}

/// One call of a collective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportedCall {
    /// The collective.
    pub collective: Collective,
    /// Requested bytes.
    pub requested_bytes: u64,
    /// Bytes of the call: requested bytes rounded down to whole elements and equal shares.
    pub size_bytes: u64,
    /// True if the call was captured into a CUDA graph.
    pub captured: bool,
    /// NCCL's decision; `None` for simulated calls, and for alltoall and sendrecv, which have no algorithm.
    pub decision: Option<NcclDecision>,
    /// First and last channel; `None` for releases before 2.24, which do not print them.
    pub channel_range: Option<(u32, u32)>,
    /// NCCL's own estimate (`ncclGroupSimulateEnd` from 2.22 on, the decision line before 2.24), microseconds.
    pub estimate_us: Option<f64>,
    /// The kernel that rank 0 launched, if any.
    pub launch: Option<KernelLaunch>,
}

/// A kernel launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLaunch {
    /// Number of kernels. Twice as many for a captured call, whose graph is launched twice.
    pub kernels: u32,
    /// Number of blocks: one per channel.
    pub grid: u32,
    /// Number of threads per block.
    pub block: u32,
}

/// One direction of one connection between two ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Channel.
    pub channel: u32,
    /// Sending rank.
    pub from: u32,
    /// Receiving rank.
    pub to: u32,
    /// For network connections: `Some(true)` in the sender's log, `Some(false)` in the receiver's log. `None` for other connections.
    pub send: Option<bool>,
    /// NCCL's name of the transport: `P2P/CUMEM`, `NET/Simulated/3/GDRDMA`.
    pub via: String,
    /// For network connections: the NIC's index on the host.
    pub nic: Option<u8>,
    /// With PXN: the rank whose GPU is next to the NIC and forwards the bytes.
    pub through: Option<u32>,
}

impl BenchReport {
    /// The decisions, in the order of the calls.
    pub fn decisions(&self) -> impl Iterator<Item = &NcclDecision> {
        self.calls.iter().filter_map(|c| c.decision.as_ref())
    }
}
