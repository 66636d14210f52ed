//! [`Fabric`]: bandwidth and time of a collective on an allocation, from the topology.

use crate::constants::{Constants, GpuClass, NetworkConstants};
use crate::crossing::Crossings;
use crate::intra::{self, IntraEntry, IntraTable, RunOptions};
use crate::job_hosts::JobHosts;
use crate::network;
use crate::tree;
use std::sync::{Arc, OnceLock};
use topology::nccl::Algorithm;
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, Rails, Seconds};

/// Below this size an all-reduce between hosts may use a tree of LL packets.
const SMALL_BYTES: f64 = (8 << 20) as f64;

/// The part of the hardware that limits an allocation.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Bottleneck {
    /// GPU links inside one host.
    Host {
        /// The host.
        host: HostId,
    },
    /// A NIC of a host.
    Nic {
        /// The host.
        host: HostId,
        /// Index of the busiest NIC.
        nic: usize,
    },
    /// A link between two hosts or a switch tier.
    Network {
        /// `n0-n1`, or the tier's name.
        name: String,
    },
    /// Latency: the message is too small to fill the links.
    Latency,
}

/// Expected performance of a collective on an allocation.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// Bus bandwidth.
    pub busbw: Bandwidth,
    /// Time of one operation.
    pub time: Seconds,
    /// The assumed algorithm; `None` for sends from rank to rank, for which NCCL has no algorithm.
    pub algorithm: Option<Algorithm>,
    /// The part of the hardware that limits the allocation.
    pub bottleneck: Bottleneck,
}

/// The two bandwidth limits of an allocation, without latency: the links inside hosts and the network between hosts.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct BandwidthLimits {
    /// Smallest bus bandwidth, GB/s, that a host with at least two GPUs of the allocation reaches alone at this size.
    /// Infinite if every host has one GPU of the allocation.
    pub intra_min_gb_per_s: f64,
    /// The host with that minimum.
    pub intra_host: Option<HostId>,
    /// The network's limit on bus bandwidth without latency, GB/s; infinite on one host.
    pub network_gb_per_s: f64,
    /// Host and NIC index of the network's limit, if it is a NIC.
    pub nic: Option<(HostId, usize)>,
    /// The assumed algorithm: between hosts, or inside the only host.
    pub algorithm: Option<Algorithm>,
}

/// Expected bandwidths of one cluster. The tables are computed once per host type and shared by clones.
#[derive(Clone, Debug)]
pub struct Fabric<'c> {
    cluster: &'c Cluster,
    constants: Arc<Constants>,
    tables: Arc<Vec<IntraTable>>,
    /// Rates of the uplinks by tier and switch, GB/s; filled on first use.
    uplinks: Arc<OnceLock<Vec<Vec<f64>>>>,
    crossings: Option<Arc<Crossings>>,
    /// Sum of the line rates of a host's NICs by host type, GB/s; filled on first use.
    lines: Arc<OnceLock<Vec<f64>>>,
}

/// The tables of a [`Fabric`] without a reference to its cluster.
#[derive(Clone, Debug)]
pub struct FabricTables {
    constants: Arc<Constants>,
    tables: Arc<Vec<IntraTable>>,
}

impl FabricTables {
    /// The fabric of the cluster that these tables were computed for, or of a cluster with the same host types in the
    /// same order. O(1).
    pub fn on<'c>(&self, cluster: &'c Cluster) -> Fabric<'c> {
        Fabric {
            cluster,
            constants: Arc::clone(&self.constants),
            tables: Arc::clone(&self.tables),
            uplinks: Arc::default(),
            crossings: None,
            lines: Arc::default(),
        }
    }
}

/// The part of the network that limits a job.
#[derive(Clone, Debug)]
enum NetworkLimiter {
    /// Position of a host in the ring, and the index of its NIC.
    Nic(usize, u8),
    /// A link between two hosts or a switch tier.
    Named(String),
}

/// The network's limit on a job.
struct NetworkBound {
    busbw_gb_per_s: f64,
    limiter: NetworkLimiter,
    algorithm: Option<Algorithm>,
    /// True if the algorithm uses the LL128 protocol.
    ll128: bool,
}

impl<'c> Fabric<'c> {
    /// The fabric of a cluster that passed [`Cluster::check`]. Computes the intra tables of its host types: milliseconds for a type with direct
    /// NVLinks, microseconds for others.
    pub fn new(cluster: &'c Cluster) -> Self {
        Self::with_constants(cluster, Constants::default())
    }
    /// As [`Fabric::new`], with other constants.
    pub fn with_constants(cluster: &'c Cluster, constants: Constants) -> Self {
        let tables = cluster.types.iter().map(|t| IntraTable::new(t, &constants)).collect();
        let (constants, tables) = (Arc::new(constants), Arc::new(tables));
        Fabric { cluster, constants, tables, uplinks: Arc::default(), lines: Arc::default(), crossings: None }
    }
    /// The same fabric with other latencies and ramps. Keeps the intra tables, so that plateau rates do not change.
    /// O(1).
    pub fn retuned(&self, constants: Constants) -> Self {
        Fabric { constants: Arc::new(constants), ..self.clone() }
    }
    /// The same fabric whose flows lose bandwidth above switches. O(1).
    pub fn with_crossings(self, crossings: Option<Arc<Crossings>>) -> Self {
        Fabric { crossings, ..self }
    }
    /// What flows lose above switches; None if nothing.
    pub(crate) fn crossings(&self) -> Option<&Crossings> {
        self.crossings.as_deref()
    }
    /// The constants in use.
    pub fn constants(&self) -> &Constants {
        &self.constants
    }
    /// The tables without the cluster. O(1).
    pub fn tables(&self) -> FabricTables {
        FabricTables { constants: Arc::clone(&self.constants), tables: Arc::clone(&self.tables) }
    }
    /// The cluster.
    pub fn cluster(&self) -> &'c Cluster {
        self.cluster
    }
    /// The intra table's entry of a set of GPUs of one host. O(1).
    pub fn intra(&self, host: HostId, mask: GpuMask) -> &IntraEntry {
        self.tables[self.cluster.host(host).host_type].get(mask)
    }
    /// Bus bandwidth of a set of GPUs of one host; zero below two GPUs. O(1).
    pub fn intra_busbw(&self, host: HostId, mask: GpuMask, collective: Collective, size: Bytes) -> Bandwidth {
        let n = mask.count();
        if n < 2 {
            return Bandwidth::ZERO;
        }
        let (us, _) = self.intra_us(host, mask, collective, size, RunOptions::default());
        Bandwidth::from_gb_per_s(collective.busbw_gb_per_s(n, size.as_f64(), us * 1e-6))
    }

    fn intra_us(
        &self,
        host: HostId,
        mask: GpuMask,
        collective: Collective,
        size: Bytes,
        run: RunOptions,
    ) -> (f64, Option<Algorithm>) {
        let class = self.constants.class(self.class_of(host));
        let set = self.intra(host, mask);
        intra::time_us(set, class, &self.constants, mask.count(), collective, size, run)
    }

    /// Expected performance of an in-place `collective` over `size` on `allocation`, on an otherwise idle cluster, with the algorithm that
    /// NCCL's cost model chooses. Zero bandwidth and time for fewer than two GPUs. About a microsecond for four hosts.
    pub fn estimate(&self, allocation: &Allocation, collective: Collective, size: Bytes) -> Estimate {
        self.estimate_run(allocation, collective, size, RunOptions::default())
    }

    /// As [`Fabric::estimate`], with a given algorithm or out-of-place buffers.
    pub fn estimate_run(
        &self,
        allocation: &Allocation,
        collective: Collective,
        size: Bytes,
        run: RunOptions,
    ) -> Estimate {
        let ranks = allocation.gpu_count();
        if ranks < 2 {
            let algorithm = None;
            return Estimate { busbw: Bandwidth::ZERO, time: Seconds(0.0), algorithm, bottleneck: Bottleneck::Latency };
        }
        if let [(host, mask)] = *allocation.parts() {
            let (us, algorithm) = self.intra_us(host, mask, collective, size, run);
            let set = self.intra(host, mask);
            let best = collective.busbw_gb_per_s(ranks, size.as_f64(), us * 1e-6);
            let latent = best < 0.5 * set.ring_gb_per_s;
            let bottleneck = if latent { Bottleneck::Latency } else { Bottleneck::Host { host } };
            return Estimate {
                busbw: Bandwidth::from_gb_per_s(best),
                time: Seconds::from_us(us),
                algorithm,
                bottleneck,
            };
        }
        self.estimate_across(allocation, collective, size, run, true)
    }

    /// The limits inside hosts and of the network, separately.
    pub fn bandwidth_limits(&self, allocation: &Allocation, collective: Collective, size: Bytes) -> BandwidthLimits {
        let mut intra_min = (f64::INFINITY, None);
        for &(host, mask) in allocation.parts() {
            if mask.count() >= 2 {
                let b = self.intra_busbw(host, mask, collective, size).gb_per_s();
                if b < intra_min.0 {
                    intra_min = (b, Some(host));
                }
            }
        }
        let (network, nic, algorithm) = if allocation.host_count() < 2 {
            let run = RunOptions::default();
            let algorithm = allocation.parts().first().and_then(|&(h, m)| self.intra_us(h, m, collective, size, run).1);
            (f64::INFINITY, None, algorithm)
        } else {
            let job = self.job_hosts(allocation);
            let bound = self.network_bound(allocation, &job, collective, size, None);
            let nic = match bound.limiter {
                NetworkLimiter::Nic(h, n) => Some((allocation.parts()[job.place(h)].0, usize::from(n))),
                NetworkLimiter::Named(_) => None,
            };
            (bound.busbw_gb_per_s, nic, bound.algorithm)
        };
        BandwidthLimits {
            intra_min_gb_per_s: intra_min.0,
            intra_host: intra_min.1,
            network_gb_per_s: network,
            nic,
            algorithm,
        }
    }

    /// Rate of a switch's uplinks, GB/s in one direction: the sum of the line rates of the NICs of its hosts, divided
    /// by the oversubscriptions of its tier and of the tiers below. O(1), but O(hosts x tiers) for the first call on a
    /// cluster with several host types.
    pub fn uplink_gb_per_s(&self, tier: usize, switch: usize) -> f64 {
        if self.cluster.types.len() > 1 && self.uplinks.get().is_none() {
            let tiers = 0..self.cluster.tiers().len();
            let of = |t: usize| (0..self.cluster.switch_count(t)).map(|s| self.lines_below(t, s)).collect();
            let _ = self.uplinks.set(tiers.map(of).collect());
        }
        self.uplink_once_gb_per_s(tier, switch)
    }

    /// The same for a few switches of a cluster: O(hosts below the switch) if the rates of all switches are not known.
    fn uplink_once_gb_per_s(&self, tier: usize, switch: usize) -> f64 {
        let below = self.cluster.oversubscription_up_to(tier).max(1e-6);
        match self.uplinks.get() {
            Some(rates) => rates[tier][switch] / below,
            None => self.lines_below(tier, switch) / below,
        }
    }

    /// Sum of the line rates of the NICs of the hosts below a switch, GB/s. O(hosts below the switch), O(1) with one
    /// host type.
    fn lines_below(&self, tier: usize, switch: usize) -> f64 {
        let line = |t: &topology::HostType| t.nics.iter().map(|n| n.line_rate.gb_per_s()).sum();
        let lines = self.lines.get_or_init(|| self.cluster.types.iter().map(line).collect());
        let hosts = self.cluster.hosts_below(tier, switch);
        match lines[..] {
            [only] => only * hosts.len() as f64,
            _ => hosts.map(|h| lines[self.cluster.host(h).host_type]).sum(),
        }
    }

    /// Upper bound on the bus bandwidth of an allocation for any algorithm and size, from line rates and even loads,
    /// without latency. Every estimate is at or below it. Infinite on one host without GPU links. O(hosts).
    ///
    /// In an all-reduce each host sends at least the buffer, and all `N` hosts together send the buffer `2(N-1)` times.
    /// In an all-gather a host receives the shares of all other hosts.
    pub fn links_alone(&self, allocation: &Allocation, collective: Collective) -> Bandwidth {
        let ranks = allocation.gpu_count() as f64;
        if ranks < 2.0 {
            return Bandwidth::ZERO;
        }
        let job = self.job_hosts(allocation);
        // Bytes that leave or enter a set of `gpus` GPUs, as a multiple of the buffer, divided by the bytes that bus
        // bandwidth counts.
        let bus = collective.bus_factor(job.ranks);
        let least = |gpus: f64| match collective {
            Collective::AllToAll => gpus * (ranks - gpus) / (ranks * bus),
            Collective::AllGather | Collective::ReduceScatter => (ranks - gpus) / (ranks * bus),
            _ => 1.0 / bus,
        };
        let inside = |ring_gb_per_s: f64, gpus: f64| match collective {
            Collective::AllToAll => ring_gb_per_s * (ranks - 1.0) / (gpus - 1.0),
            _ => ring_gb_per_s * bus.max(1.0) * gpus / (gpus - 1.0),
        };
        let mut most = f64::INFINITY;
        for host in job.kinds.iter().filter(|h| h.gpus >= 2) {
            most = most.min(inside(host.ring_gb_per_s, host.gpus as f64));
        }
        if job.hosts() > 1 {
            let rate = |kind: &crate::job_hosts::JobHost| kind.nics.iter().map(|n| n.1).sum::<f64>();
            for kind in &job.kinds {
                most = most.min(rate(kind) / least(kind.gpus as f64));
            }
            if collective == Collective::AllReduce {
                let all: f64 = job.order.iter().map(|k| rate(&job.kinds[*k as usize])).sum();
                most = most.min(all / (2.0 * (job.hosts() as f64 - 1.0)) * bus);
            }
            for t in 0..self.cluster.tiers().len() {
                let below = self.cluster.gpus_below(t, allocation);
                if below.len() < 2 {
                    break;
                }
                for (switch, gpus) in below {
                    most = most.min(self.uplink_gb_per_s(t, switch) / least(gpus as f64));
                }
            }
        }
        Bandwidth::from_gb_per_s(most)
    }

    /// The generation of a host's GPUs. O(1).
    pub(crate) fn class_of(&self, host: HostId) -> GpuClass {
        self.tables[self.cluster.host(host).host_type].class()
    }

    fn network_constants(&self, job: &JobHosts) -> &NetworkConstants {
        let oldest = job.kinds.iter().map(|k| k.class).min().unwrap_or(GpuClass::Ampere);
        self.constants.network(self.cluster.network.class, oldest)
    }

    /// Share of the NICs' line rate that a job's payload reaches.
    pub(crate) fn efficiency(&self, job: &JobHosts) -> f64 {
        self.network_constants(job).efficiency
    }

    /// The algorithm that carries a collective of several hosts. O(kinds of hosts).
    pub(crate) fn algorithm_between(&self, job: &JobHosts, collective: Collective, size: Bytes) -> Option<Algorithm> {
        match collective {
            Collective::AllToAll | Collective::SendRecv => None,
            Collective::AllReduce => Some(network::predict_nccl_choice(job, size.as_f64()).algorithm),
            _ => Some(Algorithm::Ring),
        }
    }

    /// The network's limit on an allocation, without latency and without the links inside hosts.
    fn network_bound(
        &self,
        allocation: &Allocation,
        job: &JobHosts,
        collective: Collective,
        size: Bytes,
        forced: Option<Algorithm>,
    ) -> NetworkBound {
        let efficiency = self.efficiency(job);
        let mut choice = network::predict_nccl_choice(job, size.as_f64());
        let algorithm = match (collective, forced) {
            (Collective::AllToAll | Collective::SendRecv, _) => None,
            (Collective::AllReduce, Some(Algorithm::Nvls)) => Some(Algorithm::NvlsTree),
            (Collective::AllReduce, Some(a)) => Some(a),
            (Collective::AllReduce, None) => Some(choice.algorithm),
            _ => Some(Algorithm::Ring),
        };
        if algorithm != Some(choice.algorithm) {
            choice.ll128 = false;
        }
        let (busbw_gb_per_s, limiter) = match collective {
            Collective::AllToAll | Collective::SendRecv => {
                let limit = if collective == Collective::AllToAll { all_to_all_limit } else { send_recv_limit };
                let (rate, limiter) = limit(job, efficiency);
                (rate * self.crossings().map_or(1.0, |c| c.worst(self.cluster, allocation.parts())), limiter)
            }
            _ => {
                let limit = network::limit(job, &choice, algorithm, efficiency, &self.constants);
                (limit.busbw_gb_per_s, NetworkLimiter::Nic(limit.nic.0, limit.nic.1))
            }
        };
        let ll128 = choice.ll128;
        match self.shared_links(allocation, collective, algorithm, efficiency) {
            Some((rate, name)) if rate < busbw_gb_per_s => {
                NetworkBound { busbw_gb_per_s: rate, limiter: NetworkLimiter::Named(name), algorithm, ll128 }
            }
            _ => NetworkBound { busbw_gb_per_s, limiter, algorithm, ll128 },
        }
    }

    /// The lowest limit from pairs of hosts with a given rate and from oversubscribed tiers: `(bus bandwidth in GB/s,
    /// name)`.
    fn shared_links(
        &self,
        allocation: &Allocation,
        collective: Collective,
        algorithm: Option<Algorithm>,
        efficiency: f64,
    ) -> Option<(f64, String)> {
        let network = &self.cluster.network;
        if network.tiers.is_empty() && network.host_links.is_empty() && network.rails.is_none() {
            return None;
        }
        let hosts = allocation.parts();
        let ranks = allocation.gpu_count() as f64;
        let mut worst: Option<(f64, String)> = None;
        let mut offer = |rate: f64, name: String| {
            if worst.as_ref().is_none_or(|w| rate < w.0) {
                worst = Some((rate, name));
            }
        };
        // Ratio of the bytes between neighbouring hosts to bus bandwidth: a ring sends all bytes once, a tree of two
        // hosts sends them both ways.
        let tree =
            collective == Collective::AllReduce && matches!(algorithm, Some(Algorithm::Tree | Algorithm::NvlsTree));
        let per_bus = if tree { ranks / (2.0 * (ranks - 1.0)) } else { 1.0 };
        for link in &network.host_links {
            let both = [link.a, link.b].iter().all(|h| !allocation.mask(*h).is_empty());
            if both {
                let (a, b) = (allocation.mask(link.a).count() as f64, allocation.mask(link.b).count() as f64);
                let cross = if collective == Collective::AllToAll { a * b / (ranks - 1.0) } else { per_bus };
                let name = |h: HostId| self.cluster.host(h).name.clone();
                offer(link.rate.gb_per_s() * efficiency / cross, format!("{}-{}", name(link.a), name(link.b)));
            }
        }
        for (t, switch, cross) in self.uplink_crossings(allocation, collective, per_bus, tree) {
            let up = self.uplink_once_gb_per_s(t, switch) * efficiency;
            offer(up / cross.max(1e-12), network.tiers[t].name.clone());
        }
        if network.rails == Some(Rails::Separate) {
            let common = self.common_nics(allocation);
            let nics = |h: HostId| {
                (0..32).filter(|n| common >> n & 1 == 1).map(move |n| self.cluster.nic_rate(h, n).gb_per_s())
            };
            let least = hosts.iter().map(|p| nics(p.0).sum::<f64>()).fold(f64::INFINITY, f64::min);
            offer(least * efficiency / per_bus, "rails".into());
        }
        worst
    }

    /// Indices of the NICs that all hosts of an allocation use. O(hosts).
    fn common_nics(&self, allocation: &Allocation) -> u32 {
        allocation.parts().iter().map(|p| self.nics_touched(p.0, p.1)).fold(u32::MAX, |a, b| a & b)
    }

    /// The NICs nearest to GPUs of a host, as bits. O(GPUs).
    pub(crate) fn nics_touched(&self, host: HostId, mask: GpuMask) -> u32 {
        self.tables[self.cluster.host(host).host_type].nics_touched(mask)
    }

    /// The uplinks that an allocation uses: tier, switch, and GB/s in one direction per GB/s of bus bandwidth.
    /// `per_bus` is the share of bus bandwidth that neighbours on a ring or tree exchange. O(hosts x tiers).
    ///
    /// A ring enters and leaves a switch once, for any number of hosts below it. The two trees carry half of the bytes
    /// each; every tree link between hosts of different switches uses the uplinks. All-to-all sends all bytes for hosts
    /// of other switches over the uplinks. In a rail-optimised fabric with joined rails, NICs that only some hosts of
    /// the job use also reach the other hosts over the uplinks.
    pub(crate) fn uplink_crossings(
        &self,
        allocation: &Allocation,
        collective: Collective,
        per_bus: f64,
        tree: bool,
    ) -> Vec<(usize, usize, f64)> {
        let ranks = allocation.gpu_count() as f64;
        let order = if tree { Crossings::grouped(self.cluster, allocation.parts()) } else { Vec::new() };
        let order: Vec<HostId> = order.into_iter().map(|i| allocation.parts()[i as usize].0).collect();
        let mut out = Vec::new();
        for t in 0..self.cluster.tiers().len() {
            let below = self.cluster.gpus_below(t, allocation);
            if below.len() < 2 {
                break; // the whole job is below one switch of this tier and therefore of every higher tier
            }
            let links = if tree { self.tree_links(t, &order, &below) } else { Vec::new() };
            out.extend(below.into_iter().enumerate().map(|(i, (switch, gpus))| {
                let g = gpus as f64;
                let cross = match collective {
                    Collective::AllToAll => g * (ranks - g) / (ranks - 1.0),
                    _ if tree => per_bus * f64::from(links[i]) / 2.0,
                    _ => per_bus,
                };
                (t, switch, cross)
            }));
        }
        if self.cluster.network.rails == Some(Rails::Joined) && !self.cluster.tiers().is_empty() {
            let common = self.common_nics(allocation);
            // The switches of the lowest tier come first, in order.
            let lowest = out.partition_point(|o| o.0 == 0);
            let mut last = 0;
            for &(h, m) in allocation.parts() {
                let touched = self.nics_touched(h, m);
                let away = (touched & !common).count_ones();
                if away == 0 {
                    continue;
                }
                let share = per_bus * f64::from(away) / f64::from(touched.count_ones());
                let switch = self.cluster.switch_of(0, h);
                if out.is_empty() {
                    out.push((0, switch, share)); // the whole job is below this switch
                    continue;
                }
                if out[last].1 != switch {
                    last = out[..lowest].partition_point(|o| o.1 < switch);
                }
                out[last].2 += share;
            }
        }
        out
    }

    /// For every switch in `below`, the number of links of both trees that leave its hosts.
    fn tree_links(&self, tier: usize, order: &[HostId], below: &[(usize, usize)]) -> Vec<u32> {
        let mut last = 0;
        let place = |h: &HostId| {
            let switch = self.cluster.switch_of(tier, *h);
            if below[last].0 != switch {
                last = below.partition_point(|b| b.0 < switch);
            }
            last as u32
        };
        tree::links_that_leave(&order.iter().map(place).collect::<Vec<_>>(), below.len())
    }

    /// As [`Fabric::estimate`], but without the limit of links inside hosts, for callers that measured these links.
    /// Same as [`Fabric::estimate`] for one host.
    pub fn estimate_between_hosts(&self, allocation: &Allocation, collective: Collective, size: Bytes) -> Estimate {
        if allocation.host_count() < 2 {
            return self.estimate(allocation, collective, size);
        }
        self.estimate_across(allocation, collective, size, RunOptions::default(), false)
    }

    /// The estimate of an allocation of two hosts or more. `limit_by_hosts`: true if the links inside hosts count as
    /// limits.
    ///
    /// On whole hosts with NVLink SHARP, NCCL's estimates of NVLSTree, trees and rings are nearly equal over a wide
    /// range of sizes, and releases choose differently. The estimate on such hosts therefore uses the fastest of the
    /// three algorithms, and a larger message is never slower per byte.
    fn estimate_across(
        &self,
        allocation: &Allocation,
        collective: Collective,
        size: Bytes,
        run: RunOptions,
        limit_by_hosts: bool,
    ) -> Estimate {
        let job = self.job_hosts(allocation);
        let chosen = self.estimate_algorithm(allocation, &job, collective, size, run, limit_by_hosts);
        let whole = || job.kinds.iter().all(|k| k.whole_rail && k.multicast);
        if collective != Collective::AllReduce || run.algorithm.is_some() || !whole() {
            return chosen;
        }
        let first = chosen.algorithm;
        let others = [Algorithm::Ring, Algorithm::Tree, Algorithm::NvlsTree].into_iter().filter(|a| Some(*a) != first);
        let estimate = |a| {
            let run = RunOptions { algorithm: Some(a), ..run };
            self.estimate_algorithm(allocation, &job, collective, size, run, limit_by_hosts)
        };
        others.map(estimate).fold(chosen, |best, e| if e.time.0 < best.time.0 { e } else { best })
    }

    fn estimate_algorithm(
        &self,
        allocation: &Allocation,
        job: &JobHosts,
        collective: Collective,
        size: Bytes,
        run: RunOptions,
        limit_by_hosts: bool,
    ) -> Estimate {
        let network = self.network_bound(allocation, job, collective, size, run.algorithm);
        let constants = self.network_constants(job);
        let size_bytes = size.as_f64().max(1.0);
        let intra_min = match limit_by_hosts {
            true => tightest_host(job, network.algorithm),
            false => None,
        };
        let plateau = intra_min.map_or(network.busbw_gb_per_s, |(rate, _)| network.busbw_gb_per_s.min(rate));
        let wire_us = size_bytes * collective.bus_factor(job.ranks) / 1e3;
        let flow_us = if plateau > 0.0 { wire_us / plateau } else { f64::INFINITY };
        let ll128_factor = self.constants.share.tree_ll128;
        let slower = if network.algorithm == Some(Algorithm::Tree) && network.ll128 { ll128_factor } else { 1.0 };
        let mut us = between_hosts_us(constants, network.algorithm, collective, job, size_bytes, flow_us, slower);
        let mut algorithm = network.algorithm;
        // A tree of LL packets may carry a small all-reduce, whatever algorithm carries large ones.
        let may_use_ll_tree =
            size_bytes < SMALL_BYTES && collective == Collective::AllReduce && run.algorithm.is_none();
        if may_use_ll_tree && algorithm != Some(Algorithm::Tree) {
            let flow_us = flow_us * tree::busiest_host_load(allocation.host_count());
            let tree = Some(Algorithm::Tree);
            let ll_tree_us = between_hosts_us(constants, tree, collective, job, size_bytes, flow_us, ll128_factor);
            if ll_tree_us < us {
                us = ll_tree_us;
                algorithm = tree;
            }
        }
        let busbw = if us.is_finite() { collective.busbw_gb_per_s(job.ranks, size.as_f64(), us * 1e-6) } else { 0.0 };
        let bottleneck = match (intra_min, network.limiter) {
            _ if flow_us < us * 0.5 => Bottleneck::Latency,
            (Some((rate, host)), _) if rate < network.busbw_gb_per_s => Bottleneck::Host { host },
            (_, NetworkLimiter::Nic(h, nic)) => {
                Bottleneck::Nic { host: allocation.parts()[job.place(h)].0, nic: usize::from(nic) }
            }
            (_, NetworkLimiter::Named(name)) => Bottleneck::Network { name },
        };
        Estimate { busbw: Bandwidth::from_gb_per_s(busbw), time: Seconds::from_us(us), algorithm, bottleneck }
    }
}

/// All-to-all: a host with g GPUs sends g x (ranks - g) shares of size / ranks over all its NICs.
fn all_to_all_limit(job: &JobHosts, efficiency: f64) -> (f64, NetworkLimiter) {
    let ranks = job.ranks as f64;
    let mut worst = (f64::INFINITY, (0, 0));
    for (kind, host) in job.kinds.iter().enumerate() {
        let rate: f64 = host.nics.iter().map(|n| n.1).sum::<f64>() * efficiency;
        let g = host.gpus as f64;
        let busbw = rate * (ranks - 1.0) / (g * (ranks - g));
        if busbw < worst.0 {
            worst = (busbw, (kind, host.nics[0].0));
        }
    }
    (worst.0, NetworkLimiter::Nic(job.first_of(worst.1.0), worst.1.1))
}

/// Send and receive: each rank sends to the next rank. One GPU of every host therefore sends to another host, over the
/// NICs next to this GPU.
fn send_recv_limit(job: &JobHosts, efficiency: f64) -> (f64, NetworkLimiter) {
    let mut worst = (f64::INFINITY, (0, 0));
    for (kind, host) in job.kinds.iter().enumerate() {
        let nics_of_gpu = (host.nics.len() / host.gpus).max(1);
        let rate = host.nics.iter().rev().take(nics_of_gpu).map(|n| n.1).sum::<f64>() * efficiency;
        if rate < worst.0 {
            worst = (rate, (kind, host.nics[0].0));
        }
    }
    (worst.0, NetworkLimiter::Nic(job.first_of(worst.1.0), worst.1.1))
}

/// The host whose internal links give the lowest limit, and that limit in GB/s of bus bandwidth. `None` if no host has
/// two GPUs of the allocation.
fn tightest_host(job: &JobHosts, algorithm: Option<Algorithm>) -> Option<(f64, HostId)> {
    let r = job.ranks as f64;
    let mut tightest: Option<(f64, HostId)> = None;
    for host in job.kinds.iter().filter(|h| h.gpus >= 2) {
        let rate = match algorithm {
            // The chain inside the host sends every byte up and down through the same ports.
            Some(Algorithm::Tree) => host.ring_gb_per_s * (r - 1.0) / r,
            Some(Algorithm::NvlsTree) => host.ring_gb_per_s * 2.0 * (r - 1.0) / r,
            None => {
                let share = (host.gpus - 1) as f64 / (r - 1.0);
                host.ring_gb_per_s / share.max(1e-9)
            }
            _ => host.ring_gb_per_s,
        };
        if tightest.is_none_or(|t| rate < t.0) {
            tightest = Some((rate, host.host));
        }
    }
    tightest
}

/// Time of a collective between hosts, microseconds. `flow_us` is the time of its bytes at the rate of the links;
/// `packets` is the factor by which the protocol's packets lengthen it.
fn between_hosts_us(
    net: &NetworkConstants,
    algorithm: Option<Algorithm>,
    collective: Collective,
    job: &JobHosts,
    size_bytes: f64,
    flow_us: f64,
    packets: f64,
) -> f64 {
    let ramp_us = net.ramp_us * (size_bytes / net.ramp_at).ln_1p();
    let levels = |level_us: f64, chunk: f64| net.levels_us(job.hosts(), level_us, chunk, flow_us);
    match algorithm {
        Some(Algorithm::Tree) => net.tree_base_us + levels(net.tree_level_us, net.tree_chunk) + flow_us * packets,
        Some(Algorithm::NvlsTree | Algorithm::Nvls) => {
            net.nvls_tree_base_us + levels(net.nvls_tree_level_us, net.nvls_tree_chunk) + flow_us * packets
        }
        Some(_) => {
            let rounds = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
            net.ring_us(rounds * (job.ranks as f64 - 1.0), ramp_us + flow_us * packets)
        }
        None => net.tree_base_us + levels(net.tree_level_us, 0.0) + ramp_us + flow_us * packets,
    }
}
