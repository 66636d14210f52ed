//! What a run found. The JSON of these types is read by others: fields are added, never renamed.

use serde::{Deserialize, Serialize};
use topology::Collective;
use topology::nccl::{Decision, Graph, Rate, Version};

/// Everything that the library said about one communicator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// The library's own version.
    pub version: Version,
    /// SHA-256 of the library file, hexadecimal.
    pub library_sha256: String,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Nodes as NCCL counts them: hosts, or NVLink domains.
    pub nccl_nodes: u32,
    /// The simulated hosts in the order of their ranks.
    pub nodes: Vec<NodeReport>,
    /// The graphs that all nodes agree on: least channels and bandwidths, farthest paths. By NCCL's merge rule, applied here to what the
    /// nodes found: NCCL does not print them.
    pub merged_graphs: Vec<Graph>,
    /// Channels of the communicator.
    pub channels: ChannelCounts,
    /// Ranks in the order of the ring, one ring per channel, each from rank 0.
    pub rings: Vec<Vec<u32>>,
    /// Places in the tree, one list per channel, by rank. Channel `c` and `c + n/2` are the two trees of one search channel.
    pub trees: Vec<Vec<TreePlace>>,
    /// Ranks of each NVLS head, one per node.
    pub nvls_heads: Vec<Vec<u32>>,
    /// NCCL's cost model: every collective x algorithm x protocol.
    pub rates: Vec<Rate>,
    /// What was asked and what NCCL did, in order.
    pub calls: Vec<ReportedCall>,
    /// How ranks reach each other, by channel and ranks; as often as NCCL connected them (rings, trees, NVLS).
    pub connections: Vec<Connection>,
    /// Driver and NVML functions that the library looks up and the emulation does not have: as with an older driver. None for the releases that
    /// the tests run.
    pub absent: Vec<String>,
    /// NCCL's warnings, each once.
    pub warnings: Vec<String>,
    /// Seconds from the start of the processes to the end of the communicator's initialisation and to their end.
    pub seconds: BenchSeconds,
}

/// How long it took on this machine; says nothing about NCCL on GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchSeconds {
    /// Until every rank had its communicator.
    pub initialised: f64,
    /// Until the last process ended.
    pub total: f64,
    /// All calls of the slowest process, from the first to the end of the last.
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
    /// The processor that the topology file names, an assumption of the bench: NCCL's LL bandwidth between nodes depends on it.
    pub cpu: String,
    /// GPUs in the order of the ranks.
    pub gpus: Vec<u8>,
    /// Its first rank.
    pub first_rank: u32,
    /// What its first rank's search found, with channels. GPUs and NICs by their index on the host; in an NVLink domain over several hosts (one
    /// node for NCCL) counted on through the domain's hosts.
    pub graphs: Vec<Graph>,
    /// The largest bandwidth of one GPU as NCCL adds it up, GB/s ("maxBw").
    pub max_bw_gb_per_s: f64,
    /// NVLink or PCIe bandwidth of a GPU, GB/s ("totalBw").
    pub total_bw_gb_per_s: f64,
}

/// "16 coll channels, 16 collnet channels, ..."
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

/// Where a rank stands in the tree of one channel.
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
    /// Which collective.
    pub collective: Collective,
    /// Bytes that were asked for.
    pub requested_bytes: u64,
    /// Bytes that were run: whole elements, equal shares.
    pub size_bytes: u64,
    /// Captured into a CUDA graph.
    pub captured: bool,
    /// What NCCL decided; `None` where it was only simulated, and for alltoall and sendrecv, which have no algorithm.
    pub decision: Option<Decision>,
    /// First and last channel; `None` before 2.24, which does not say.
    pub channel_range: Option<(u32, u32)>,
    /// NCCL's own estimate (`ncclGroupSimulateEnd` from 2.22 on, the decision line before 2.24), microseconds.
    pub estimate_us: Option<f64>,
    /// The kernel of rank 0, if one was launched.
    pub launch: Option<KernelLaunch>,
}

/// A kernel launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLaunch {
    /// How many kernels; twice as many for a captured call, whose graph is launched twice.
    pub kernels: u32,
    /// Blocks: one per channel.
    pub grid: u32,
    /// Threads per block.
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
    /// `Some(true)`: seen from the sender, `Some(false)`: from the receiver, `None`: not over the network.
    pub send: Option<bool>,
    /// NCCL's words: `P2P/CUMEM`, `NET/Simulated/3/GDRDMA`.
    pub via: String,
    /// The NIC's index on the host, for the network.
    pub nic: Option<u8>,
    /// The rank whose GPU stands beside the NIC, where the bytes go through it (PXN).
    pub through: Option<u32>,
}

impl BenchReport {
    /// The decisions, in the order of the calls.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.calls.iter().filter_map(|c| c.decision.as_ref())
    }
}
