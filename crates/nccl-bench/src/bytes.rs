//! Runs in which NCCL moves real bytes: one process per rank, kernels played on the CPU, every byte checked at its receiver.
//!
//! The hosts are simulated as in [`crate::BenchSpec`], but the network is real: NCCL's own sockets, or a net plugin, on the interfaces of this
//! machine. A host's processes may start through a prefix command (`ip netns exec NS`), so that every host has its own network.

mod run;

use crate::spec::{OWN_VARIABLES, RANKS_MAX, SimulatedNode};
use crate::{BenchError, TreePlace, layout, library};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use topology::Cluster;
use topology::nccl::Version;

/// Maximum number of calls of one run.
pub const BYTES_CALLS_MAX: usize = 4096;
/// Maximum number of repetitions of one call.
pub const REPETITIONS_MAX: u32 = 100_000;
/// Maximum number of calls of one step.
pub const STEP_CALLS_MAX: u32 = 1024;
/// Maximum size of a buffer of one rank, bytes. It takes real memory.
pub const BUFFER_BYTES_MAX: u64 = 4 << 30;

/// A collective or a group of sends and receives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traffic {
    /// All-reduce of this many bytes per rank.
    AllReduce(u64),
    /// All-gather of this many bytes in all.
    AllGather(u64),
    /// Reduce-scatter of this many bytes per rank.
    ReduceScatter(u64),
    /// Broadcast of this many bytes from the root.
    Broadcast(u64),
    /// Reduce of this many bytes to the root.
    Reduce(u64),
    /// One group of sends and receives: bytes from rank (row) to rank (column). A pair with 0 bytes makes no call.
    SendRecv(Vec<Vec<u64>>),
}

/// Element type of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are NCCL's
pub enum Element {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bf16,
}

impl Element {
    /// Size in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Element::I8 | Element::U8 => 1,
            Element::F16 | Element::Bf16 => 2,
            Element::I32 | Element::U32 | Element::F32 => 4,
            Element::I64 | Element::U64 | Element::F64 => 8,
        }
    }

    fn word(self) -> &'static str {
        ["i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16"][self as usize]
    }
}

/// Operation of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are NCCL's
pub enum Reduction {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
}

impl Reduction {
    fn word(self) -> &'static str {
        ["sum", "prod", "max", "min", "avg"][self as usize]
    }
}

/// A call of all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesCall {
    /// The collective with its size.
    pub traffic: Traffic,
    /// Element type.
    pub element: Element,
    /// Operation of reductions.
    pub reduction: Reduction,
    /// Root of broadcast and reduce.
    pub root: u32,
    /// Number of calls with the same buffers and other data.
    pub repetitions: u32,
    /// 0: a repetition is one call. Otherwise each repetition is a training step of this many such calls, whose begin and end are reported to
    /// linkwise's tuner (`linkwise_step_begin`); its time is that of the step.
    #[serde(default)]
    pub step_calls: u32,
    /// True to capture the call into a CUDA graph, which is launched `repetitions` times.
    pub captured: bool,
    /// True if input and output share a buffer, as NCCL defines it per collective.
    pub in_place: bool,
    /// True to register the buffers with the communicator (`ncclCommRegister`).
    pub registered: bool,
    /// True to fill the input with floats for which every order of additions gives other bits, and to return the output
    /// ([`BytesReport::outputs`]) instead of a check. [`crate::order`] computes what a ring or a tree must give.
    pub keep_output: bool,
}

impl BytesCall {
    /// One call on 32-bit floats, a sum with root 0.
    pub fn new(traffic: Traffic) -> Self {
        BytesCall {
            traffic,
            element: Element::F32,
            reduction: Reduction::Sum,
            root: 0,
            repetitions: 1,
            step_calls: 0,
            captured: false,
            in_place: false,
            registered: false,
            keep_output: false,
        }
    }
}

/// What a launched kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Player {
    /// Moves bytes as NCCL's kernel does.
    #[default]
    Plays,
    /// Negative control: kernels do nothing, so every byte that another rank sends is missing.
    Nothing,
    /// Negative control: parts of a message between two ranks go to channels in the order of another release.
    WrongParts,
}

/// Where and how a host's processes run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostPlace {
    /// Words before the command of every process, for example `ip netns exec NS`. The command must replace itself by the process (`exec`).
    pub prefix: Vec<String>,
    /// Variables of this host, which override [`BytesSpec::env`].
    pub env: Vec<(String, String)>,
    /// Rates between GPUs of this host: from, to, Mbit/s. NCCL's copies inside the host (P2P, shared memory) then take the time of such links;
    /// other pairs are as fast as this machine's memory. A burst of 1 ms passes at once.
    pub pair_mbit_per_s: Vec<(u8, u8, u32)>,
    /// A library that the dynamic linker loads after the emulation.
    pub preload: Option<PathBuf>,
    /// What kernels do on this host, if it differs from [`BytesSpec::player`].
    pub player: Option<Player>,
}

/// The specification of a run.
#[derive(Debug, Clone)]
pub struct BytesSpec {
    /// The cluster with the hardware.
    pub cluster: Cluster,
    /// The job's hosts in rank order.
    pub nodes: Vec<SimulatedNode>,
    /// Where each host runs, by index of `nodes`. Missing entries: on this machine's own network.
    pub places: Vec<HostPlace>,
    /// The NCCL release, one of [`layout::RELEASES`].
    pub version: Version,
    /// Interfaces of NCCL's sockets (`NCCL_SOCKET_IFNAME`).
    pub interfaces: String,
    /// Variables for NCCL (`NCCL_...`) and for plugins (`LINKWISE_...`). They override the bench's defaults.
    pub env: Vec<(String, String)>,
    /// A net plugin (`NCCL_NET_PLUGIN`); otherwise NCCL's sockets.
    pub net_plugin: Option<PathBuf>,
    /// A tuner plugin (`NCCL_TUNER_PLUGIN`).
    pub tuner_plugin: Option<PathBuf>,
    /// A profiler plugin (`NCCL_PROFILER_PLUGIN`).
    pub profiler_plugin: Option<PathBuf>,
    /// The calls, in order.
    pub calls: Vec<BytesCall>,
    /// What kernels do.
    pub player: Player,
    /// A file of offsets in place of the library's own ([`layout::Layout`]).
    pub layout: Option<PathBuf>,
    /// A kernel in which nothing moves for so long ends the run.
    pub stall: Duration,
    /// Time limit of the run.
    pub deadline: Duration,
}

impl BytesSpec {
    /// A run without calls, over NCCL's sockets on the loopback interface.
    pub fn new(cluster: Cluster, nodes: Vec<SimulatedNode>, version: Version) -> Self {
        BytesSpec {
            cluster,
            nodes,
            places: Vec::new(),
            version,
            interfaces: "lo".into(),
            env: Vec::new(),
            net_plugin: None,
            tuner_plugin: None,
            profiler_plugin: None,
            calls: Vec::new(),
            player: Player::default(),
            layout: None,
            stall: Duration::from_secs(30),
            deadline: Duration::from_secs(180),
        }
    }

    /// Number of ranks.
    pub fn rank_count(&self) -> usize {
        self.nodes.iter().map(|n| n.gpus.len()).sum()
    }

    /// Checks the specification. Fails with the first broken rule. O(nodes² + calls · ranks²).
    pub fn check(&self) -> Result<(), BenchError> {
        let version = library::with_patch(self.version)?;
        if !layout::RELEASES.contains(&version) {
            return Err(layout::unsupported(version));
        }
        crate::spec::check_cluster(&self.cluster, &self.nodes)
            .and_then(|()| self.check_calls())
            .and_then(|()| self.check_settings())
            .map_err(BenchError::Spec)
    }

    fn check_calls(&self) -> Result<(), String> {
        let ranks = self.rank_count();
        if !(1..=RANKS_MAX).contains(&ranks) {
            return Err(format!("{ranks} ranks; 1 to {RANKS_MAX} are supported"));
        }
        if self.calls.len() > BYTES_CALLS_MAX {
            return Err(format!("{} calls; at most {BYTES_CALLS_MAX} in one run", self.calls.len()));
        }
        for (i, c) in self.calls.iter().enumerate() {
            if c.root as usize >= ranks {
                return Err(format!("call {i}: root {} of {ranks} ranks", c.root));
            }
            if !(1..=REPETITIONS_MAX).contains(&c.repetitions) {
                return Err(format!("call {i}: {} repetitions; 1 to {REPETITIONS_MAX}", c.repetitions));
            }
            if c.step_calls > STEP_CALLS_MAX {
                return Err(format!("call {i}: {} calls per step; at most {STEP_CALLS_MAX}", c.step_calls));
            }
            let bytes = match &c.traffic {
                Traffic::AllReduce(n)
                | Traffic::AllGather(n)
                | Traffic::ReduceScatter(n)
                | Traffic::Broadcast(n)
                | Traffic::Reduce(n) => *n,
                Traffic::SendRecv(rows) => {
                    if rows.len() != ranks || rows.iter().any(|r| r.len() != ranks) {
                        return Err(format!("call {i}: the matrix has {} rows for {ranks} ranks", rows.len()));
                    }
                    let columns = (0..ranks).map(|k| rows.iter().map(|r| r[k]).fold(0, u64::saturating_add));
                    let rows = rows.iter().map(|r| r.iter().copied().fold(0, u64::saturating_add));
                    rows.chain(columns).max().unwrap_or(0)
                }
            };
            if bytes > BUFFER_BYTES_MAX {
                return Err(format!("call {i}: {bytes} bytes for one rank; at most {BUFFER_BYTES_MAX}"));
            }
        }
        Ok(())
    }

    fn check_settings(&self) -> Result<(), String> {
        // The network is the caller's here; the rest of the simulated host is not.
        const OF_THE_CALLER: [&str; 5] =
            ["NCCL_NET", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"];
        if self.places.len() > self.nodes.len() {
            return Err(format!("{} places for {} hosts", self.places.len(), self.nodes.len()));
        }
        for (name, value) in self.env.iter().chain(self.places.iter().flat_map(|p| &p.env)) {
            let word = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            let plain = name.len() <= 64 && name.chars().all(word) && !value.contains('\0');
            if !plain || !(name.starts_with("NCCL_") || name.starts_with("LINKWISE_")) {
                return Err(format!(
                    "`{name}` is not a setting of NCCL or of a plugin; the name must begin with NCCL_ or LINKWISE_"
                ));
            }
            let own = OWN_VARIABLES.contains(&name.as_str()) && !OF_THE_CALLER.contains(&name.as_str());
            // The emulated libibverbs is a device of the caller's network.
            let of_rdma = name.starts_with("LINKWISE_EMU_IBVERBS");
            if own || name.starts_with("LINKWISE_EMU_") && !of_rdma {
                return Err(format!("{name} belongs to the bench, which simulates the hosts with it"));
            }
        }
        Ok(())
    }
}

/// The first wrong byte of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongByte {
    /// Offset in the output buffer.
    pub offset: u64,
    /// Channel whose step wrote the byte last; `None` if no step wrote it.
    #[serde(default)]
    pub channel: Option<u32>,
    /// Rank that the step received from; -1 if it copied the rank's own data.
    #[serde(default)]
    pub peer: Option<i32>,
    /// Number of the step on the connection.
    #[serde(default)]
    pub step: Option<u64>,
}

/// Result of one repetition of a call on one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BytesResult {
    /// Index of the call.
    pub call: u32,
    /// Repetition of the call.
    pub repetition: u32,
    /// The rank.
    pub rank: u32,
    /// Size of the rank's output buffer, bytes.
    pub bytes: u64,
    /// Bytes that differ from what the senders sent, with the guard behind the buffer.
    pub wrong_bytes: u64,
    /// Time from the call to the end of the rank's stream, seconds. All ranks start together.
    pub seconds: f64,
    /// Time of day at that end, seconds since 1970.
    #[serde(default)]
    pub ended: f64,
    /// The first wrong byte, if any.
    #[serde(default)]
    pub first_wrong: Option<WrongByte>,
}

/// The report of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BytesReport {
    /// The release that ran.
    pub version: Version,
    /// Number of ranks.
    pub ranks: u32,
    /// One entry per call, repetition and rank, in this order.
    pub results: Vec<BytesResult>,
    /// Outputs of the calls with `keep_output`: call, rank and bytes.
    #[serde(skip)]
    pub outputs: Vec<(u32, u32, Vec<u8>)>,
    /// Ranks in ring order, one ring per channel, each starting at rank 0.
    pub rings: Vec<Vec<u32>>,
    /// Parents and children, one list per channel, by rank.
    pub trees: Vec<Vec<TreePlace>>,
    /// NCCL's log of rank 0.
    #[serde(skip)]
    pub log: String,
}

impl BytesReport {
    /// Wrong bytes of all ranks and calls.
    pub fn wrong_bytes(&self) -> u64 {
        self.results.iter().map(|r| r.wrong_bytes).sum()
    }

    /// Bytes of all outputs of all ranks and calls.
    pub fn bytes(&self) -> u64 {
        self.results.iter().map(|r| r.bytes).sum()
    }

    /// Time of one repetition of a call: that of its slowest rank, seconds.
    pub fn seconds(&self, call: u32, repetition: u32) -> Option<f64> {
        let of = |r: &&BytesResult| (r.call, r.repetition) == (call, repetition);
        self.results.iter().filter(of).map(|r| r.seconds).reduce(f64::max)
    }
}
