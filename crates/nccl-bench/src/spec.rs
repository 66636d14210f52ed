//! What to run.

use crate::BenchError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use topology::nccl::Version;
use topology::{Cluster, Collective, GpuMask, HostId};

/// Most ranks of one run: 128 take some 11 GiB of shared memory and a minute on two cores.
pub const RANKS_MAX: usize = 256;
/// Most simulated nodes of one run: one process each.
pub const NODES_MAX: usize = 64;
/// Most calls of one run.
pub const CALLS_MAX: usize = 4096;
/// Largest call: 64 GiB.
pub const CALL_BYTES_MAX: u64 = 64 << 30;

/// One simulated host with the GPUs that the job sees there, in the order of its ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulatedNode {
    /// Which host of the cluster.
    pub host: HostId,
    /// GPU indices as `nvidia-smi` counts, in the order of the ranks.
    pub gpus: Vec<u8>,
    /// The NVLink domain that the host's GPUs share with other hosts (NVL72); `None`: the host is its own.
    #[serde(default)]
    pub nvlink_domain: Option<u32>,
}

impl SimulatedNode {
    /// The GPUs of a mask, ascending, without an NVLink domain over hosts.
    pub fn new(host: HostId, mask: GpuMask) -> Self {
        SimulatedNode { host, gpus: mask.iter().map(|g| g as u8).collect(), nvlink_domain: None }
    }
}

/// One call of a collective by all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedCall {
    /// Which collective.
    pub collective: Collective,
    /// Bytes as NCCL counts them: the whole buffer of all ranks for all-gather, reduce-scatter and alltoall. Rounded down to whole elements
    /// of 4 bytes and equal shares of the ranks, but to one element at least; the report says what was run.
    pub size_bytes: u64,
    /// Captured into a CUDA graph, which is launched twice; never simulated.
    #[serde(default)]
    pub captured: bool,
}

/// How much of a call happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallMode {
    /// `ncclGroupSimulateEnd`: NCCL's estimate of the time, no launch. Fast; from 2.24 on NCCL does not say which algorithm it took.
    Simulate,
    /// The call up to the launch of a kernel that does nothing: the decision.
    Launch,
    /// Both, one after the other: decision and estimate.
    #[default]
    Both,
}

/// Everything about one run. The same specification gives the same report, up to the seconds it took.
#[derive(Debug, Clone)]
pub struct BenchSpec {
    /// The hardware.
    pub cluster: Cluster,
    /// The job's hosts in the order of its ranks.
    pub nodes: Vec<SimulatedNode>,
    /// Which NCCL; without a patch the newest known one of the minor release.
    pub version: Version,
    /// Variables for NCCL (`NCCL_ALGO`, ...), the same on every node. They win over those of the bench, except where it could not work.
    pub env: Vec<(String, String)>,
    /// The calls, in order.
    pub calls: Vec<PlannedCall>,
    /// Simulate, launch or both.
    pub mode: CallMode,
    /// A tuner plugin (`NCCL_TUNER_PLUGIN`).
    pub tuner_plugin: Option<PathBuf>,
    /// A profiler plugin (`NCCL_PROFILER_PLUGIN`).
    pub profiler_plugin: Option<PathBuf>,
    /// Variables for the plugins (`LINKWISE_...`), on every node.
    pub plugin_env: Vec<(String, String)>,
    /// With one process per rank: variables of one rank's plugin, which win over those of all.
    pub plugin_env_of_rank: Vec<(u32, String, String)>,
    /// One process per rank instead of one per host, each with `RANK`, `WORLD_SIZE` and `LOCAL_RANK`, as launchers set them.
    pub process_per_rank: bool,
    /// This rank makes its calls only after so long, with one process per rank.
    pub late: Option<(u32, Duration)>,
    /// With one process per rank: all processes begin a call together again after so many calls, as kernels that wait for one another would
    /// make them. 0: never.
    pub in_step_every: u32,
    /// Every rank waits so long before each call, as computation and kernels would make it: here nothing else takes time.
    pub pause: Duration,
    /// Every call is made so many times, in one group. The report knows only one of them.
    pub in_group: u32,
    /// When to give up.
    pub deadline: Duration,
}

impl BenchSpec {
    /// A run over whole hosts and GPU lists, without calls: graphs, channels and the table only.
    pub fn new(cluster: Cluster, nodes: Vec<SimulatedNode>, version: Version) -> Self {
        BenchSpec {
            cluster,
            nodes,
            version,
            env: Vec::new(),
            calls: Vec::new(),
            mode: CallMode::default(),
            tuner_plugin: None,
            profiler_plugin: None,
            plugin_env: Vec::new(),
            plugin_env_of_rank: Vec::new(),
            process_per_rank: false,
            late: None,
            in_step_every: 0,
            pause: Duration::ZERO,
            in_group: 1,
            deadline: Duration::from_secs(180),
        }
    }

    /// With one call of every collective in every size, sizes in the inner loop.
    pub fn with_calls(mut self, collectives: &[Collective], sizes: &[u64]) -> Self {
        for &collective in collectives {
            self.calls.extend(sizes.iter().map(|&size_bytes| PlannedCall { collective, size_bytes, captured: false }));
        }
        self
    }

    /// How many ranks.
    pub fn rank_count(&self) -> usize {
        self.nodes.iter().map(|n| n.gpus.len()).sum()
    }

    /// Can it be run at all? The first broken rule in one sentence.
    pub fn check(&self) -> Result<(), BenchError> {
        let bad = |text: String| Err(BenchError::Spec(text));
        self.cluster.check().map_err(BenchError::Spec)?;
        if self.nodes.is_empty() || self.nodes.len() > NODES_MAX {
            return bad(format!("a run has 1 to {NODES_MAX} hosts, not {}", self.nodes.len()));
        }
        for (i, node) in self.nodes.iter().enumerate() {
            if node.host.index() >= self.cluster.hosts.len() {
                return bad(format!("host {} is not in cluster `{}`", node.host.0, self.cluster.name));
            }
            let (name, gpus) = (&self.cluster.host(node.host).name, self.cluster.type_of(node.host).gpu_count());
            if self.nodes[..i].iter().any(|n| n.host == node.host) {
                return bad(format!("host `{name}` is named twice; its ranks follow one another"));
            }
            if node.gpus.is_empty() {
                return bad(format!("host `{name}` has no GPU in this run"));
            }
            for (k, &g) in node.gpus.iter().enumerate() {
                if usize::from(g) >= gpus {
                    return bad(format!("host `{name}` has GPUs 0 to {}, not {g}", gpus - 1));
                }
                if node.gpus[..k].contains(&g) {
                    return bad(format!("GPU {g} of host `{name}` is named twice; one rank per GPU"));
                }
            }
        }
        let domain = self.nodes[0].nvlink_domain;
        let one_domain = domain.is_some() && self.nodes.iter().all(|n| n.nvlink_domain == domain);
        let without = self.nodes.iter().find(|n| self.cluster.type_of(n.host).nics.is_empty());
        if let Some(node) = without.filter(|_| self.nodes.len() > 1 && !one_domain) {
            return bad(format!(
                "host `{}` has no NIC, and several hosts need a network; name its NICs in the cluster file",
                self.cluster.host(node.host).name
            ));
        }
        let ranks = self.rank_count();
        if !(2..=RANKS_MAX).contains(&ranks) {
            return bad(format!("{ranks} ranks; NCCL decides something from 2 on, and {RANKS_MAX} are supported"));
        }
        if !(1..=64).contains(&self.in_group) {
            return bad(format!("{} calls in one group; 1 to 64 are supported", self.in_group));
        }
        if self.calls.len() > CALLS_MAX {
            return bad(format!("{} calls; at most {CALLS_MAX} in one run", self.calls.len()));
        }
        if let Some(c) = self.calls.iter().find(|c| c.size_bytes > CALL_BYTES_MAX) {
            return bad(format!("{} of {} bytes; at most {CALL_BYTES_MAX}", c.collective, c.size_bytes));
        }
        for (name, value) in &self.env {
            let word = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            if !name.starts_with("NCCL_") || name.len() > 64 || !name.chars().all(word) || value.contains('\0') {
                return bad(format!("`{name}` is not a setting of NCCL; they are named NCCL_..."));
            }
            if OWN_VARIABLES.contains(&name.as_str()) {
                return bad(format!("{name} belongs to the bench: the hosts are simulated through it"));
            }
        }
        let of_ranks = self.plugin_env_of_rank.iter().map(|(_, name, value)| (name, value));
        for (name, value) in self.plugin_env.iter().map(|(name, value)| (name, value)).chain(of_ranks) {
            let own = name.starts_with("LINKWISE_EMU_") || name == "LINKWISE_CUDART" || name == "LINKWISE_DEVICES";
            if !name.starts_with("LINKWISE_") || own || value.contains('\0') {
                return bad(format!("`{name}` is not a setting of the plugin; they are named LINKWISE_..."));
            }
        }
        Ok(())
    }
}

/// What the bench sets itself and nobody else may.
pub(crate) const OWN_VARIABLES: [&str; 13] = [
    "NCCL_TOPO_FILE",
    "NCCL_HOSTID",
    "NCCL_NET_PLUGIN",
    "NCCL_NET",
    "NCCL_SOCKET_IFNAME",
    "NCCL_GRAPH_DUMP_FILE",
    "NCCL_GRAPH_DUMP_FILE_RANK",
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_RAS_ENABLE",
    "NCCL_TUNER_PLUGIN",
    "NCCL_CONF_FILE",
];
