//! The specification of a run.

use crate::BenchError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use topology::nccl::Version;
use topology::{Cluster, Collective, GpuMask, HostId};

/// Maximum number of ranks of one run. 128 ranks take 11 GiB of shared memory and one minute on two cores.
pub const RANKS_MAX: usize = 256;
/// Maximum number of simulated hosts of one run.
pub const NODES_MAX: usize = 64;
/// Maximum number of calls of one run.
pub const CALLS_MAX: usize = 4096;
/// Maximum size of a call, bytes.
pub const CALL_BYTES_MAX: u64 = 64 << 30;

/// A simulated host and its GPUs in the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulatedNode {
    /// The host in the cluster.
    pub host: HostId,
    /// GPU indices as in `nvidia-smi`, in rank order.
    pub gpus: Vec<u8>,
    /// The NVLink domain that the host shares with other hosts (NVL72); `None` without a shared domain.
    #[serde(default)]
    pub nvlink_domain: Option<u32>,
}

impl SimulatedNode {
    /// A host with the GPUs of a mask, in ascending order, without a shared NVLink domain.
    pub fn new(host: HostId, mask: GpuMask) -> Self {
        SimulatedNode { host, gpus: mask.iter().map(|g| g as u8).collect(), nvlink_domain: None }
    }
}

/// One call of a collective by all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedCall {
    /// The collective.
    pub collective: Collective,
    /// Bytes as NCCL counts them: the whole buffer of all ranks for all-gather, reduce-scatter and alltoall. The bench rounds down to whole
    /// elements of 4 bytes and equal shares of the ranks, at least one element. The report gives the rounded size.
    pub size_bytes: u64,
    /// True to capture the call into a CUDA graph and launch the graph twice. Captured calls are not simulated.
    #[serde(default)]
    pub captured: bool,
}

/// The parts of a call that the bench runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallMode {
    /// `ncclGroupSimulateEnd`: NCCL's time estimate without a launch. Fast, but from 2.24 on NCCL does not print the algorithm.
    Simulate,
    /// The call up to the launch of an empty kernel: NCCL's decision.
    Launch,
    /// `Simulate`, then `Launch`: decision and estimate.
    #[default]
    Both,
}

/// The specification of a run. The same specification gives the same report, except for the times of the run.
#[derive(Debug, Clone)]
pub struct BenchSpec {
    /// The cluster with the hardware.
    pub cluster: Cluster,
    /// The job's hosts in rank order.
    pub nodes: Vec<SimulatedNode>,
    /// The NCCL release. Without a patch number: the newest known patch of the minor release.
    pub version: Version,
    /// Variables for NCCL (`NCCL_ALGO`, ...) on every node. They override the bench's own variables, except the
    /// variables that the bench needs.
    pub env: Vec<(String, String)>,
    /// With one process per rank: variables for NCCL of one rank, which override `env`, as a host's own `/etc/nccl.conf` does.
    pub env_of_rank: Vec<(u32, String, String)>,
    /// The calls, in order.
    pub calls: Vec<PlannedCall>,
    /// The parts of a call to run.
    pub mode: CallMode,
    /// A tuner plugin (`NCCL_TUNER_PLUGIN`).
    pub tuner_plugin: Option<PathBuf>,
    /// A profiler plugin (`NCCL_PROFILER_PLUGIN`).
    pub profiler_plugin: Option<PathBuf>,
    /// Variables for the plugins (`LINKWISE_...`), on every node.
    pub plugin_env: Vec<(String, String)>,
    /// With one process per rank: variables of one rank's plugin, which override `plugin_env`.
    pub plugin_env_of_rank: Vec<(u32, String, String)>,
    /// One process per rank instead of one per host, each with `RANK`, `WORLD_SIZE` and `LOCAL_RANK`, as launchers set them.
    pub process_per_rank: bool,
    /// With one process per rank: the rank that delays its calls, and the delay.
    pub late: Option<(u32, Duration)>,
    /// With one process per rank: a rank, the index of a call, and how often the rank simulates that call (`ncclGroupSimulateEnd`) before it makes
    /// the call. The other ranks only make the call.
    pub simulates: Option<(u32, usize, u32)>,
    /// With one process per rank: number of calls after which all processes synchronise, like kernels that wait for
    /// each other. 0: never.
    pub in_step_every: u32,
    /// Time that every rank waits before each call. It stands for computation and kernels.
    pub pause: Duration,
    /// Number of repetitions of each call in one group. The report contains only one of them.
    pub in_group: u32,
    /// Time limit of the run.
    pub deadline: Duration,
}

impl BenchSpec {
    /// A run without calls. It reports only graphs, channels and the table.
    pub fn new(cluster: Cluster, nodes: Vec<SimulatedNode>, version: Version) -> Self {
        BenchSpec {
            cluster,
            nodes,
            version,
            env: Vec::new(),
            env_of_rank: Vec::new(),
            calls: Vec::new(),
            mode: CallMode::default(),
            tuner_plugin: None,
            profiler_plugin: None,
            plugin_env: Vec::new(),
            plugin_env_of_rank: Vec::new(),
            process_per_rank: false,
            late: None,
            simulates: None,
            in_step_every: 0,
            pause: Duration::ZERO,
            in_group: 1,
            deadline: Duration::from_secs(180),
        }
    }

    /// Adds one call of every collective and size, with sizes in the inner loop.
    pub fn with_calls(mut self, collectives: &[Collective], sizes: &[u64]) -> Self {
        for &collective in collectives {
            self.calls.extend(sizes.iter().map(|&size_bytes| PlannedCall { collective, size_bytes, captured: false }));
        }
        self
    }

    /// Number of ranks.
    pub fn rank_count(&self) -> usize {
        self.nodes.iter().map(|n| n.gpus.len()).sum()
    }

    /// Checks the specification. Fails with the first broken rule. O(nodes² + calls).
    pub fn check(&self) -> Result<(), BenchError> {
        check_cluster(&self.cluster, &self.nodes)
            .and_then(|()| self.check_network())
            .and_then(|()| self.check_counts())
            .and_then(|()| self.check_settings())
            .map_err(BenchError::Spec)
    }

    /// Several hosts need NICs, unless all are in one NVLink domain.
    fn check_network(&self) -> Result<(), String> {
        let domain = self.nodes[0].nvlink_domain;
        let one_domain = domain.is_some() && self.nodes.iter().all(|n| n.nvlink_domain == domain);
        let without = self.nodes.iter().find(|n| self.cluster.type_of(n.host).nics.is_empty());
        if let Some(node) = without.filter(|_| self.nodes.len() > 1 && !one_domain) {
            return Err(format!(
                "host `{}` has no NIC, and several hosts need a network; add its NICs to the cluster file",
                self.cluster.host(node.host).name
            ));
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), String> {
        let ranks = self.rank_count();
        if !(2..=RANKS_MAX).contains(&ranks) {
            return Err(format!("{ranks} ranks; 2 to {RANKS_MAX} are supported"));
        }
        if !(1..=64).contains(&self.in_group) {
            return Err(format!("{} calls in one group; 1 to 64 are supported", self.in_group));
        }
        if self.calls.len() > CALLS_MAX {
            return Err(format!("{} calls; at most {CALLS_MAX} in one run", self.calls.len()));
        }
        if let Some(c) = self.calls.iter().find(|c| c.size_bytes > CALL_BYTES_MAX) {
            return Err(format!("{} of {} bytes; at most {CALL_BYTES_MAX}", c.collective, c.size_bytes));
        }
        Ok(())
    }

    /// The names of the settings for NCCL and for the plugins.
    fn check_settings(&self) -> Result<(), String> {
        let of_ranks = self.env_of_rank.iter().map(|(_, name, value)| (name, value));
        for (name, value) in self.env.iter().map(|(name, value)| (name, value)).chain(of_ranks) {
            let word = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            if !name.starts_with("NCCL_") || name.len() > 64 || !name.chars().all(word) || value.contains('\0') {
                return Err(format!("`{name}` is not a setting of NCCL; the name must begin with NCCL_"));
            }
            if OWN_VARIABLES.contains(&name.as_str()) {
                return Err(format!("{name} belongs to the bench, which simulates the hosts with it"));
            }
        }
        let of_ranks = self.plugin_env_of_rank.iter().map(|(_, name, value)| (name, value));
        for (name, value) in self.plugin_env.iter().map(|(name, value)| (name, value)).chain(of_ranks) {
            let own = name.starts_with("LINKWISE_EMU_") || name == "LINKWISE_CUDART" || name == "LINKWISE_DEVICES";
            if !name.starts_with("LINKWISE_") || own || value.contains('\0') {
                return Err(format!("`{name}` is not a setting of the plugin; the name must begin with LINKWISE_"));
            }
        }
        Ok(())
    }
}

/// Checks the cluster and the hosts of a run with their GPUs.
pub(crate) fn check_cluster(cluster: &Cluster, nodes: &[SimulatedNode]) -> Result<(), String> {
    cluster.check()?;
    if nodes.is_empty() || nodes.len() > NODES_MAX {
        return Err(format!("a run has 1 to {NODES_MAX} hosts, not {}", nodes.len()));
    }
    for (i, node) in nodes.iter().enumerate() {
        if node.host.index() >= cluster.hosts.len() {
            return Err(format!("host {} is not in cluster `{}`", node.host.0, cluster.name));
        }
        let (name, gpus) = (&cluster.host(node.host).name, cluster.type_of(node.host).gpu_count());
        if nodes[..i].iter().any(|n| n.host == node.host) {
            return Err(format!("host `{name}` is named twice; give all its GPUs in one entry"));
        }
        if node.gpus.is_empty() {
            return Err(format!("host `{name}` has no GPU in this run"));
        }
        for (k, &g) in node.gpus.iter().enumerate() {
            if usize::from(g) >= gpus {
                return Err(format!("host `{name}` has GPUs 0 to {}, not {g}", gpus - 1));
            }
            if node.gpus[..k].contains(&g) {
                return Err(format!("GPU {g} of host `{name}` is named twice; each GPU has one rank"));
            }
        }
    }
    Ok(())
}

/// Variables that only the bench may set.
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
