//! Communicators as somebody else saw them: the library's own graphs and channel counts in place of recorded searches, and calls that do
//! not take AUTO's way.

use crate::choose::{Choice, on_channels, time_us};
use crate::communicator::{BuildError, Cache, Communicator, GraphSource};
use crate::machines::Machine;
use crate::table::Table;
use crate::templates::{Found, Places, positions};
use std::sync::Arc;
use topology::nccl::{Algorithm, Graph, Protocol, Version};
use topology::{Cluster, Collective, GpuMask, HostId};

impl Communicator {
    /// Hosts in rank order with these graphs (per host, GPUs and NICs by their index on the host) and channel counts, as the real library
    /// reports them, under some settings perhaps.
    pub fn of_graphs(
        version: Version,
        cluster: &Cluster,
        order: &[(HostId, GpuMask)],
        graphs: &[Vec<Graph>],
        channels: u32,
        nvls_channels: u32,
    ) -> Result<Communicator, BuildError> {
        let mut cache = Cache::of(version);
        for (&(host, mask), graphs) in order.iter().zip(graphs).filter(|h| h.0.0.index() < cluster.hosts.len()) {
            let of = cluster.type_of(host);
            let places = Places::of(of, mask);
            let graphs = positions(graphs, &places).ok_or_else(|| {
                let name = &cluster.host(host).name;
                BuildError::Order(format!("a graph of host {name} names a device that is not beside its GPUs"))
            })?;
            let machine = Machine::of(of).ok_or_else(|| BuildError::Gpu(of.gpu_model.clone()))?;
            let found = Arc::new(Found { graphs, checked: true });
            cache.know(cluster, host, mask, order.len() > 1, (machine, Arc::new(places), found, GraphSource::Given));
        }
        let mut out = Communicator::build_with(&mut cache, version, cluster, order)?;
        out.agreed.channels = channels.max(1);
        out.agreed.nvls_channels = nvls_channels;
        out.table = Table::of(&out.agreed);
        Ok(out)
    }

    /// A call as this algorithm and protocol would do it; `None` where NCCL has no such way here.
    pub fn way(&self, collective: Collective, size_bytes: u64, a: Algorithm, p: Protocol) -> Option<Choice> {
        let time_us = time_us(&self.agreed, &self.table, collective, a, p, size_bytes)?;
        let (channels, threads) = on_channels(&self.agreed, collective, a, p, size_bytes);
        Some(Choice { algorithm: a, protocol: p, time_us, channels, threads })
    }

    /// Every way that NCCL has for a call, the one with its own least estimate first.
    pub fn ways(&self, collective: Collective, size_bytes: u64) -> Vec<Choice> {
        let pairs = Algorithm::ALL.iter().flat_map(|a| Protocol::ALL.iter().map(move |p| (*a, *p)));
        let mut all: Vec<Choice> = pairs.filter_map(|(a, p)| self.way(collective, size_bytes, a, p)).collect();
        all.sort_by(|a, b| a.time_us.total_cmp(&b.time_us));
        all
    }
}

impl crate::communicator::Member {
    /// What the search found on this host; GPUs and NICs are positions among those that it saw.
    pub fn graph_of(&self, kind: topology::nccl::GraphKind) -> Option<&Graph> {
        self.graph(kind)
    }
}

impl Communicator {
    /// The same communicator copied to `channels` channels, as `NCCL_MIN_NCHANNELS` does.
    pub fn on(&self, channels: u32) -> Communicator {
        let mut out = self.clone();
        out.agreed.channels = channels.clamp(1, 64);
        out.table = Table::of(&out.agreed);
        out
    }
}

impl crate::load::LoadConstants {
    /// Nothing fitted on any measurement: NICs at line rate, channels and NVLinks without a ceiling of their own, NCCL's own latencies. For
    /// evaluations on the tables that the shipped constants were fitted on.
    pub fn unfitted() -> Self {
        let no_ceiling = 1e6;
        crate::load::LoadConstants {
            nic: 1.0,
            channel_gb_per_s: no_ceiling,
            holding: 0.0,
            tree: 1.0,
            nvls_tree_gb_per_s: no_ceiling,
            nvls_tree_many: 1.0,
            start_us: 0.0,
            start_over_latency: 1.0,
            // NCCL's own NVLink and network latencies of NVLSTree.
            nvls_tree_start_us: 25.0,
            nvls_tree_level_us: 2.0 * 20.9,
            tree_packets: 1.0,
        }
    }
}
