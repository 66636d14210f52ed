//! Communicators from graphs and channel counts of the real library instead of recorded searches; choices other than
//! AUTO's choice.

use crate::choose::{CallChoice, on_channels, time_us};
use crate::communicator::{BuildError, Communicator, GraphSource, HostCache};
use crate::machines::HostMachine;
use crate::table::CostTable;
use crate::templates::{HostGraphs, VisibleDevices, positions};
use std::sync::Arc;
use topology::nccl::{Algorithm, Graph, Protocol, Version};
use topology::{Cluster, Collective, GpuMask, HostId};

/// The real library's report on a communicator, possibly with NCCL settings.
#[derive(Clone, Copy, Debug)]
pub struct ReportedGraphs<'a> {
    /// Graphs by host in rank order. They name GPUs and NICs by index on the host.
    pub graphs: &'a [Vec<Graph>],
    /// Number of channels.
    pub channels: u32,
    /// Number of channels of NVLS.
    pub nvls_channels: u32,
}

impl Communicator {
    /// A communicator of hosts in rank order with the graphs and channel counts of the real library. O(hosts x channels).
    pub fn from_graphs(
        version: Version,
        cluster: &Cluster,
        order: &[(HostId, GpuMask)],
        reported: ReportedGraphs,
    ) -> Result<Communicator, BuildError> {
        let mut cache = HostCache::for_release(version);
        for (&(host, mask), graphs) in order.iter().zip(reported.graphs).filter(|h| h.0.0.index() < cluster.hosts.len())
        {
            let of = cluster.type_of(host);
            let places = VisibleDevices::of(of, mask);
            let graphs = positions(graphs, &places).ok_or_else(|| {
                let name = &cluster.host(host).name;
                BuildError::Order(format!("a graph of host {name} names a GPU that is not in the communicator, or a NIC that is not next to its GPUs"))
            })?;
            let machine = HostMachine::of(of).ok_or_else(|| BuildError::Gpu(of.gpu_model.clone()))?;
            let found = Arc::new(HostGraphs { graphs, checked: true });
            cache.insert(cluster, host, mask, order.len() > 1, (machine, Arc::new(places), found, GraphSource::Given));
        }
        let mut out = Communicator::build_with(&mut cache, version, cluster, order)?;
        out.agreed.channels = reported.channels.max(1);
        out.agreed.nvls_channels = reported.nvls_channels;
        out.table = CostTable::of(&out.agreed);
        Ok(out)
    }

    /// A call with this algorithm and protocol; `None` if NCCL does not offer the pair.
    pub fn choice_with(
        &self,
        collective: Collective,
        size_bytes: u64,
        a: Algorithm,
        p: Protocol,
    ) -> Option<CallChoice> {
        let time_us = time_us(&self.agreed, &self.table, collective, (a, p), size_bytes)?;
        let (channels, threads) = on_channels(&self.agreed, collective, a, p, size_bytes);
        Some(CallChoice { algorithm: a, protocol: p, time_us, channels, threads })
    }

    /// Every choice that NCCL offers for a call, ordered by NCCL's own time estimate, fastest first.
    pub fn all_choices(&self, collective: Collective, size_bytes: u64) -> Vec<CallChoice> {
        let pairs = Algorithm::ALL.iter().flat_map(|a| Protocol::ALL.iter().map(move |p| (*a, *p)));
        let mut all: Vec<CallChoice> =
            pairs.filter_map(|(a, p)| self.choice_with(collective, size_bytes, a, p)).collect();
        all.sort_by(|a, b| a.time_us.total_cmp(&b.time_us));
        all
    }
}

impl crate::communicator::MemberHost {
    /// The graph of a kind on this host. GPUs and NICs are positions among the devices that the search saw.
    pub fn graph_of(&self, kind: topology::nccl::GraphKind) -> Option<&Graph> {
        self.graph(kind)
    }
}

impl Communicator {
    /// The same communicator with `channels` channels, as with `NCCL_MIN_NCHANNELS`.
    pub fn with_channels(&self, channels: u32) -> Communicator {
        let mut out = self.clone();
        out.agreed.channels = channels.clamp(1, 64);
        out.table = CostTable::of(&out.agreed);
        out
    }
}

impl crate::load::LoadConstants {
    /// Constants without any fit: NICs at line rate, no limit of channels and NVLinks, NCCL's own latencies. For
    /// evaluations on the tables that the shipped constants were fitted to.
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
