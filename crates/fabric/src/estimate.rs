//! [`Fabric`]: bandwidth and time of a collective on an allocation, from topology alone.

use crate::constants::{Constants, GpuClass, NetworkConstants};
use crate::intra::{self, Intra, IntraTable, Run};
use crate::network;
use crate::sides::Sides;
use crate::tree;
use std::sync::Arc;
use topology::nccl::Algorithm;
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, Seconds};

/// Below this size an all-reduce between hosts may go over a tree of LL packets whatever the cost model says of larger ones.
const SMALL_BYTES: f64 = (8 << 20) as f64;

/// What limits an allocation.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Bottleneck {
    /// GPU links inside one host.
    Host {
        /// The host.
        host: HostId,
    },
    /// One NIC (or the NICs that the chosen GPUs touch) of a host.
    Nic {
        /// The host.
        host: HostId,
        /// Index of the busiest NIC.
        nic: usize,
    },
    /// A link between two hosts or a switch tier.
    Network {
        /// `n0-n1` or the tier's name.
        name: String,
    },
    /// Latency, not bandwidth.
    Latency,
}

/// What an allocation should get.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// Bus bandwidth.
    pub busbw: Bandwidth,
    /// Time of one operation.
    pub time: Seconds,
    /// The algorithm assumed; `None`: sends from rank to rank, for which NCCL has no algorithm.
    pub algorithm: Option<Algorithm>,
    /// What limits it.
    pub bottleneck: Bottleneck,
}

/// The two limits of an allocation, before latency: what its hosts carry inside and what the network carries between them.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Parts {
    /// Smallest bus bandwidth of any host of the allocation that gives two GPUs or more, at the size asked for, as if it worked
    /// alone; infinite if every host gives one GPU.
    pub intra_min_gb_per_s: f64,
    /// The host of that minimum.
    pub intra_host: Option<HostId>,
    /// The network's limit on bus bandwidth, without any host's inside and without latency; infinite on one host.
    pub network_gb_per_s: f64,
    /// Host and NIC index behind the network's limit, if a NIC is what limits.
    pub nic: Option<(HostId, usize)>,
    /// The algorithm assumed between hosts (or inside, on one host).
    pub algorithm: Option<Algorithm>,
}

/// The physics of one cluster: cheap to clone, tables are computed once per host type.
#[derive(Clone, Debug)]
pub struct Fabric<'c> {
    cluster: &'c Cluster,
    constants: Arc<Constants>,
    tables: Arc<Vec<IntraTable>>,
}

/// What a [`Fabric`] computed of its cluster's host types, without the cluster: for owners of a cluster who ask often.
#[derive(Clone, Debug)]
pub struct Tables {
    constants: Arc<Constants>,
    tables: Arc<Vec<IntraTable>>,
}

impl Tables {
    /// The fabric of the cluster that these tables were computed of (or of one with the same types in the same order). O(1).
    pub fn on<'c>(&self, cluster: &'c Cluster) -> Fabric<'c> {
        Fabric { cluster, constants: Arc::clone(&self.constants), tables: Arc::clone(&self.tables) }
    }
}

/// What limits the network.
#[derive(Clone, Debug)]
enum Limiter {
    Nic(usize, u8),
    Named(String),
}

impl<'c> Fabric<'c> {
    /// Of a cluster that passed [`Cluster::check`]. Computes the intra tables of its host types: milliseconds for a type with direct
    /// NVLinks, microseconds for others.
    pub fn new(cluster: &'c Cluster) -> Self {
        Self::with_constants(cluster, Constants::default())
    }
    /// As [`Fabric::new`], with constants of one's own.
    pub fn with_constants(cluster: &'c Cluster, constants: Constants) -> Self {
        let tables = cluster.types.iter().map(|t| IntraTable::new(t, &constants)).collect();
        Fabric { cluster, constants: Arc::new(constants), tables: Arc::new(tables) }
    }
    /// The same fabric with other latencies and ramps; its intra tables are kept, so plateau rates do not change.
    pub fn retuned(&self, constants: Constants) -> Self {
        Fabric { cluster: self.cluster, constants: Arc::new(constants), tables: Arc::clone(&self.tables) }
    }
    /// Its constants.
    pub fn constants(&self) -> &Constants {
        &self.constants
    }
    /// Its tables, to keep without the cluster.
    pub fn tables(&self) -> Tables {
        Tables { constants: Arc::clone(&self.constants), tables: Arc::clone(&self.tables) }
    }
    /// The cluster.
    pub fn cluster(&self) -> &'c Cluster {
        self.cluster
    }
    /// The plateau of a set of GPUs of one host; O(1).
    pub fn intra(&self, host: HostId, mask: GpuMask) -> &Intra {
        self.tables[self.cluster.host(host).host_type].get(mask)
    }
    /// Bus bandwidth of a set of GPUs of one host; zero below two GPUs.
    pub fn intra_busbw(&self, host: HostId, mask: GpuMask, collective: Collective, size: Bytes) -> Bandwidth {
        let n = mask.count();
        if n < 2 {
            return Bandwidth::ZERO;
        }
        let (us, _) = self.intra_us(host, mask, collective, size, Run::default());
        Bandwidth::from_gb_per_s(collective.busbw_gb_per_s(n, size.as_f64(), us * 1e-6))
    }

    fn intra_us(
        &self,
        host: HostId,
        mask: GpuMask,
        collective: Collective,
        size: Bytes,
        run: Run,
    ) -> (f64, Option<Algorithm>) {
        let class = self.constants.class(self.class_of(host));
        let set = self.intra(host, mask);
        intra::time_us(set, class, &self.constants, mask.count(), collective, size, run)
    }

    /// What `collective` over `size` should get on `allocation` of an otherwise idle cluster. In place, with the algorithm that NCCL
    /// would take by itself. Fewer than two GPUs move nothing: zero bandwidth, zero time. About a microsecond for four hosts.
    pub fn estimate(&self, allocation: &Allocation, collective: Collective, size: Bytes) -> Estimate {
        self.estimate_run(allocation, collective, size, Run::default())
    }

    /// As [`Fabric::estimate`], with the algorithm or the buffers given.
    pub fn estimate_run(&self, allocation: &Allocation, collective: Collective, size: Bytes, run: Run) -> Estimate {
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
        self.across(allocation, collective, size, run, true)
    }

    /// The intra-host and the network limit of an allocation, apart.
    pub fn parts(&self, allocation: &Allocation, collective: Collective, size: Bytes) -> Parts {
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
            let run = Run::default();
            let algorithm = allocation.parts().first().and_then(|&(h, m)| self.intra_us(h, m, collective, size, run).1);
            (f64::INFINITY, None, algorithm)
        } else {
            let (limit, limiter, algorithm, _) =
                self.network_limit(allocation, &self.sides(allocation), collective, size, None);
            let nic = match limiter {
                Limiter::Nic(h, n) => Some((allocation.parts()[h].0, usize::from(n))),
                Limiter::Named(_) => None,
            };
            (limit, nic, algorithm)
        };
        Parts { intra_min_gb_per_s: intra_min.0, intra_host: intra_min.1, network_gb_per_s: network, nic, algorithm }
    }

    /// The generation of a host's GPUs; O(1).
    pub(crate) fn class_of(&self, host: HostId) -> GpuClass {
        self.tables[self.cluster.host(host).host_type].class()
    }

    fn network_constants(&self, allocation: &Allocation) -> &NetworkConstants {
        let classes = allocation.parts().iter().map(|p| self.class_of(p.0));
        self.constants.network(self.cluster.network.class, classes.min().unwrap_or(GpuClass::Ampere))
    }

    /// Share of the NICs' line rate that reaches the bytes of a job.
    pub(crate) fn efficiency(&self, allocation: &Allocation) -> f64 {
        self.network_constants(allocation).efficiency
    }

    /// Bus bandwidth that the network alone would allow, what limits it, the algorithm, and whether it runs over LL128.
    fn network_limit(
        &self,
        allocation: &Allocation,
        sides: &Sides,
        collective: Collective,
        size: Bytes,
        forced: Option<Algorithm>,
    ) -> (f64, Limiter, Option<Algorithm>, bool) {
        let net = self.network_constants(allocation);
        let ranks = sides.ranks as f64;
        let mut agreement = network::agree(sides, size.as_f64());
        let algorithm = match (collective, forced) {
            (Collective::AllToAll | Collective::SendRecv, _) => None,
            (Collective::AllReduce, Some(Algorithm::Nvls)) => Some(Algorithm::NvlsTree),
            (Collective::AllReduce, Some(a)) => Some(a),
            (Collective::AllReduce, None) => Some(agreement.algorithm),
            _ => Some(Algorithm::Ring),
        };
        if algorithm != Some(agreement.algorithm) {
            agreement.ll128 = false;
        }
        let (mut limit, mut limiter) = match collective {
            Collective::AllToAll => {
                // Every host sends to the GPUs of the others: gpus x (ranks - gpus) shares of size / ranks.
                let mut worst = (f64::INFINITY, (0, 0));
                for (h, s) in sides.kinds.iter().enumerate() {
                    let rate: f64 = s.nics.iter().map(|n| n.1).sum::<f64>() * net.efficiency;
                    let g = s.gpus as f64;
                    let busbw = rate * (ranks - 1.0) / (g * (ranks - g));
                    if busbw < worst.0 {
                        worst = (busbw, (h, s.nics[0].0));
                    }
                }
                (worst.0, Limiter::Nic(sides.first_of(worst.1.0), worst.1.1))
            }
            Collective::SendRecv => {
                // Each rank sends to the next: one GPU of every host crosses, over the NICs beside it.
                let mut worst = (f64::INFINITY, (0, 0));
                for (h, s) in sides.kinds.iter().enumerate() {
                    let beside = (s.nics.len() / s.gpus).max(1);
                    let rate = s.nics.iter().rev().take(beside).map(|n| n.1).sum::<f64>() * net.efficiency;
                    if rate < worst.0 {
                        worst = (rate, (h, s.nics[0].0));
                    }
                }
                (worst.0, Limiter::Nic(sides.first_of(worst.1.0), worst.1.1))
            }
            _ => {
                let l = network::limit(sides, &agreement, algorithm, net.efficiency, &self.constants);
                (l.busbw_gb_per_s, Limiter::Nic(l.nic.0, l.nic.1))
            }
        };
        if let Some((rate, name)) = self.shared_links(allocation, collective, algorithm, net.efficiency)
            && rate < limit
        {
            limit = rate;
            limiter = Limiter::Named(name);
        }
        (limit, limiter, algorithm, agreement.ll128)
    }

    /// Limits of pairs with a rate of their own and of oversubscribed tiers: `(bus bandwidth, name)` of the tightest.
    fn shared_links(
        &self,
        allocation: &Allocation,
        collective: Collective,
        algorithm: Option<Algorithm>,
        efficiency: f64,
    ) -> Option<(f64, String)> {
        let network = &self.cluster.network;
        if network.tiers.is_empty() && network.host_links.is_empty() {
            return None;
        }
        let sides = allocation.parts();
        let ranks = allocation.gpu_count() as f64;
        let mut worst: Option<(f64, String)> = None;
        let mut offer = |rate: f64, name: String| {
            if worst.as_ref().is_none_or(|w| rate < w.0) {
                worst = Some((rate, name));
            }
        };
        // Bytes over the link between neighbouring hosts, over bus bandwidth: a ring carries all of it once, a tree of two both ways.
        let per_bus = match (collective, algorithm) {
            (Collective::AllReduce, Some(Algorithm::Tree | Algorithm::NvlsTree)) => ranks / (2.0 * (ranks - 1.0)),
            _ => 1.0,
        };
        for link in &network.host_links {
            let both = [link.a, link.b].iter().all(|h| !allocation.mask(*h).is_empty());
            if both {
                let (a, b) = (allocation.mask(link.a).count() as f64, allocation.mask(link.b).count() as f64);
                let cross = if collective == Collective::AllToAll { a * b / (ranks - 1.0) } else { per_bus };
                let name = |h: HostId| self.cluster.host(h).name.clone();
                offer(link.rate.gb_per_s() * efficiency / cross, format!("{}-{}", name(link.a), name(link.b)));
            }
        }
        for tier in &network.tiers {
            let below = tier.hosts_per_switch.max(1);
            let switch_of = |h: HostId| h.index() / below;
            let first = sides.first().map(|s| switch_of(s.0));
            if sides.iter().all(|s| Some(switch_of(s.0)) == first) {
                break; // the job stays below one switch of this tier, and of every higher one
            }
            // A switch's uplinks carry its hosts' line rate over the oversubscription; a ring enters and leaves it once, whatever the
            // number of hosts below, all-to-all sends everything that is not for its own hosts.
            let mut at = 0;
            while at < sides.len() {
                let switch = switch_of(sides[at].0);
                let end = at + sides[at..].iter().take_while(|s| switch_of(s.0) == switch).count();
                let t = self.cluster.type_of(sides[at].0);
                let host_line: f64 = t.nics.iter().map(|n| n.line_rate.gb_per_s()).sum();
                let up = host_line * below as f64 / tier.oversubscription.max(1e-6) * efficiency;
                let g = sides[at..end].iter().map(|s| s.1.count()).sum::<usize>() as f64;
                let cross = if collective == Collective::AllToAll { g * (ranks - g) / (ranks - 1.0) } else { per_bus };
                offer(up / cross.max(1e-12), tier.name.clone());
                at = end;
            }
        }
        worst
    }

    /// The same for several hosts as if the links inside hosts never limited: for callers that know better what those carry, since they
    /// have measured it. One host: as [`Fabric::estimate`].
    pub fn estimate_between_hosts(&self, allocation: &Allocation, collective: Collective, size: Bytes) -> Estimate {
        if allocation.host_count() < 2 {
            return self.estimate(allocation, collective, size);
        }
        self.across(allocation, collective, size, Run::default(), false)
    }

    fn across(&self, allocation: &Allocation, collective: Collective, size: Bytes, run: Run, inside: bool) -> Estimate {
        let sides = self.sides(allocation);
        let (limit, limiter, algorithm, ll128) =
            self.network_limit(allocation, &sides, collective, size, run.algorithm);
        let net = self.network_constants(allocation);
        let ranks = sides.ranks;
        let hosts = sides.hosts() as f64;
        let (r, s) = (ranks as f64, size.as_f64().max(1.0));
        // The tightest host's ring.
        let mut intra_min = (f64::INFINITY, allocation.parts()[0].0);
        for side in &sides.kinds {
            if side.gpus >= 2 && inside {
                let rate = match algorithm {
                    // A chain inside the host sends every byte up and down through the same ports.
                    Some(Algorithm::Tree) => side.ring_gb_per_s * (r - 1.0) / r,
                    Some(Algorithm::NvlsTree) => side.ring_gb_per_s * 2.0 * (r - 1.0) / r,
                    None => {
                        let share = (side.gpus - 1) as f64 / (r - 1.0);
                        side.ring_gb_per_s / share.max(1e-9)
                    }
                    _ => side.ring_gb_per_s,
                };
                if rate < intra_min.0 {
                    intra_min = (rate, side.host);
                }
            }
        }
        let plateau = limit.min(intra_min.0);
        let wire_us = s * collective.bus_factor(ranks) / 1e3;
        let ramp = net.ramp_us * (s / net.ramp_at).ln_1p();
        let overhead = match algorithm {
            Some(Algorithm::Tree) => {
                net.tree_base_us + net.tree_level_us * hosts.log2() + net.tree_fill_us * (s / net.tree_fill_at).ln_1p()
            }
            Some(Algorithm::NvlsTree | Algorithm::Nvls) => {
                net.nvls_tree_base_us + net.nvls_tree_host_us * hosts + net.nvls_tree_rank_us * r
            }
            Some(_) => {
                let halves = if collective == Collective::AllReduce { 1.0 } else { 0.5 };
                net.ring_base_us + net.ring_rank_us * r * halves
            }
            None => net.tree_base_us + net.tree_level_us,
        };
        let slower = if algorithm == Some(Algorithm::Tree) && ll128 { self.constants.share.tree_ll128 } else { 1.0 };
        let flow = if plateau > 0.0 { wire_us / plateau } else { f64::INFINITY };
        let mut us = overhead + ramp + flow * slower;
        let mut used = algorithm;
        // Small messages go over a tree of LL packets, whatever carries the large ones.
        let small = s < SMALL_BYTES;
        if small && collective == Collective::AllReduce && run.algorithm.is_none() && algorithm != Some(Algorithm::Tree)
        {
            let small = net.tree_base_us
                + net.tree_level_us * hosts.log2()
                + net.tree_fill_us * (s / net.tree_fill_at).ln_1p()
                + flow * self.constants.share.tree_ll128 * tree::load(allocation.host_count());
            if small < us {
                us = small;
                used = Some(Algorithm::Tree);
            }
        }
        let busbw = if us.is_finite() { collective.busbw_gb_per_s(ranks, size.as_f64(), us * 1e-6) } else { 0.0 };
        let bottleneck = if flow < us * 0.5 {
            Bottleneck::Latency
        } else if intra_min.0 < limit {
            Bottleneck::Host { host: intra_min.1 }
        } else {
            match limiter {
                Limiter::Nic(h, nic) => Bottleneck::Nic { host: allocation.parts()[h].0, nic: usize::from(nic) },
                Limiter::Named(name) => Bottleneck::Network { name },
            }
        };
        Estimate { busbw: Bandwidth::from_gb_per_s(busbw), time: Seconds::from_us(us), algorithm: used, bottleneck }
    }
}
