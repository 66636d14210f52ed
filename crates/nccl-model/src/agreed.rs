//! The values that all ranks of a communicator exchange before the cost model runs: minima over the graphs of all
//! hosts.

use crate::machines::AgreedMachines;
use crate::releases::ReleaseRules;
use serde::{Deserialize, Serialize};
use topology::nccl::{Graph, GraphKind, PathType, Version};

/// Maximum number of channels of a communicator up to 2.24.
const CHANNELS_MAX_OLD: u32 = 32;
/// Maximum number of channels of a communicator from 2.25 on.
const CHANNELS_MAX: u32 = 64;

/// One graph after the exchange: the smallest bandwidths and channel counts and the farthest paths of all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgreedGraph {
    /// NCCL's pattern number, the largest of any host.
    pub pattern: u8,
    /// NCCL's crossNic, the largest of any host.
    pub cross_nic: u8,
    /// Number of search channels.
    pub channels: u32,
    /// Bandwidth of a channel inside a host, GB/s.
    pub bw_intra_gb_per_s: f32,
    /// Bandwidth of a channel between hosts, GB/s.
    pub bw_inter_gb_per_s: f32,
    /// Latency of the slowest NIC, microseconds.
    pub latency_inter_us: f32,
    /// The farthest path inside a host.
    pub type_intra: PathType,
    /// The farthest path to a NIC.
    pub type_inter: PathType,
    /// True if every host repeats one channel.
    pub same_channels: bool,
}

impl AgreedGraph {
    fn of(graphs: &[&Graph]) -> Option<AgreedGraph> {
        let least = |f: fn(&Graph) -> f64| graphs.iter().map(|g| f(g) as f32).fold(f32::INFINITY, f32::min);
        Some(AgreedGraph {
            pattern: graphs.iter().map(|g| g.pattern).max()?,
            cross_nic: graphs.iter().map(|g| g.cross_nic).max()?,
            channels: graphs.iter().map(|g| g.channel_count as u32).min()?,
            bw_intra_gb_per_s: least(|g| g.bw_intra_gb_per_s),
            bw_inter_gb_per_s: least(|g| g.bw_inter_gb_per_s),
            latency_inter_us: graphs.iter().map(|g| g.latency_inter_us as f32).fold(0.0, f32::max),
            type_intra: graphs.iter().map(|g| g.type_intra).max()?,
            type_inter: graphs.iter().map(|g| g.type_inter).max()?,
            same_channels: graphs.iter().all(|g| g.same_channels),
        })
    }
}

/// The input of NCCL's cost model for one communicator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostModelInput {
    /// The release.
    pub version: Version,
    /// The hosts' GPUs and processors.
    pub machines: AgreedMachines,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of hosts (NCCL's nodes).
    pub hosts: u32,
    /// Smallest number of ranks of a host.
    pub local_ranks_min: u32,
    /// Largest number of ranks of a host.
    pub local_ranks_max: u32,
    /// The ring graph.
    pub ring: AgreedGraph,
    /// The tree graph, which PAT also uses.
    pub tree: AgreedGraph,
    /// The NVLS graph, if every host has one and the GPUs support NVLS.
    pub nvls: Option<AgreedGraph>,
    /// Channels of the communicator after copying.
    pub channels: u32,
    /// Channels for NVLS; 0 without NVLS.
    pub nvls_channels: u32,
}

/// Reason why graphs do not form a communicator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AgreeError {
    /// The list of hosts is empty, or a host has no rank.
    #[error("a communicator needs at least one host and one GPU on every host")]
    NoRanks,
    /// A host has no graph of a required kind.
    #[error("host {host} of the communicator has no {kind} graph")]
    NoGraph {
        /// Index of the host.
        host: usize,
        /// Kind of the graph.
        kind: GraphKind,
    },
    /// A graph has no channel or a bandwidth that is not positive.
    #[error(
        "host {host} of the communicator has a {kind} graph without channels or with a bandwidth that is not positive"
    )]
    EmptyGraph {
        /// Index of the host.
        host: usize,
        /// Kind of the graph.
        kind: GraphKind,
    },
}

impl CostModelInput {
    /// Merges the hosts' graphs. `hosts` gives (number of ranks, graphs of all kinds) in host order. O(hosts).
    pub fn of(
        version: Version,
        machines: AgreedMachines,
        hosts: &[(u32, &[Graph])],
    ) -> Result<CostModelInput, AgreeError> {
        let local = || hosts.iter().map(|h| h.0);
        let (Some(local_ranks_min), Some(local_ranks_max)) = (local().min(), local().max()) else {
            return Err(AgreeError::NoRanks);
        };
        if local_ranks_min == 0 {
            return Err(AgreeError::NoRanks);
        }
        let graphs =
            |kind| -> Vec<Option<&Graph>> { hosts.iter().map(|h| h.1.iter().find(|g| g.kind == kind)).collect() };
        let needed = |kind| -> Result<AgreedGraph, AgreeError> {
            let mut found = Vec::with_capacity(hosts.len());
            for (host, graph) in graphs(kind).into_iter().enumerate() {
                let graph = graph.ok_or(AgreeError::NoGraph { host, kind })?;
                let positive = graph.bw_intra_gb_per_s > 0.0 && graph.bw_inter_gb_per_s > 0.0;
                if graph.channel_count == 0 || !positive {
                    return Err(AgreeError::EmptyGraph { host, kind });
                }
                found.push(graph);
            }
            AgreedGraph::of(&found).ok_or(AgreeError::NoRanks)
        };
        let (mut ring, mut tree) = (needed(GraphKind::Ring)?, needed(GraphKind::Tree)?);
        let search = ring.channels.min(tree.channels);
        (ring.channels, tree.channels) = (search, search);
        let rules = ReleaseRules::of(version);
        if !rules.agrees_on_pattern {
            tree.pattern = graphs(GraphKind::Tree)[0].map_or(tree.pattern, |g| g.pattern);
        }
        let nvls: Option<Vec<&Graph>> = graphs(GraphKind::Nvls).into_iter().collect();
        let nvls = nvls
            .and_then(|g| AgreedGraph::of(&g))
            .filter(|g| g.channels > 0 && machines.capability_min >= 90 && local_ranks_min > 1);
        let mut agreed = CostModelInput {
            version,
            machines,
            ranks: local().sum(),
            hosts: hosts.len() as u32,
            local_ranks_min,
            local_ranks_max,
            ring,
            tree,
            nvls,
            channels: 0,
            nvls_channels: 0,
        };
        agreed.nvls_channels = agreed.count_nvls_channels();
        agreed.channels = agreed.count_channels(&rules);
        Ok(agreed)
    }

    fn limit(&self) -> u32 {
        if self.version.at_least(2, 25, 0) { CHANNELS_MAX } else { CHANNELS_MAX_OLD }
    }

    /// Number of channels after copying: two per search channel, or four for few channels on fast NICs.
    fn count_channels(&self, rules: &ReleaseRules) -> u32 {
        let mut n = (2 * self.ring.channels).min(self.limit());
        let copies_again = if rules.doubles_hopper_only {
            (90..100).contains(&self.machines.capability_min)
        } else {
            self.machines.capability_min >= 90
        };
        if copies_again && self.hosts > 1 && self.ring.bw_intra_gb_per_s > 45.0 && n < 16 {
            n = (2 * n).min(self.limit());
        }
        if rules.nvls_raises_channels && self.nvls_channels > 0 && self.local_ranks_min > 2 {
            n = n.max(self.nvls_channels);
        }
        n.min(CHANNELS_MAX_OLD)
    }

    fn count_nvls_channels(&self) -> u32 {
        match self.nvls {
            None => 0,
            Some(_) if self.machines.capability_min < 100 || !self.version.at_least(2, 25, 0) => 16,
            Some(_) if self.hosts == 1 && self.version.at_least(2, 27, 0) => 24,
            // Observed in the real library on more than two Blackwell hosts.
            Some(_) if self.hosts > 2 && self.version.at_least(2, 30, 0) => 24,
            Some(_) => 32,
        }
    }

    /// Average number of ranks per host.
    pub fn ranks_per_host(&self) -> f32 {
        self.ranks as f32 / self.hosts as f32
    }
}
