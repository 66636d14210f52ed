//! The analytic bound of an allocation: the smaller of its weakest host's bandwidth and the network's.

use crate::nccl::NcclNetwork;
use crate::rates::RatedCluster;
use crate::shares::HostShare;
use fabric::{Bottleneck, FabricTables};
use rustc_hash::FxBuildHasher;
use std::collections::HashMap;
use topology::{Allocation, Bytes, Collective, GpuMask, HostId};

/// The part that limits an allocation.
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// The links inside a host.
    Intra {
        /// The host.
        host: HostId,
    },
    /// A NIC of a host.
    Nic {
        /// The host.
        host: HostId,
    },
    /// A link between hosts or a tier of switches.
    Network {
        /// Name of the link or tier.
        name: String,
    },
    /// Latency: the message is too small to fill any link.
    Latency,
}

/// The analytic quantities of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Analytic {
    /// The bound, GB/s busbw.
    pub bound_gb_per_s: f64,
    /// `ln(physics / NICs)`: the log ratio of the network's physics to the plain NIC rule; 0 on one host.
    pub ln_physics_over_nics: f64,
    /// `ln(rule / bound)`; 0 on one host. The rule is the soft minimum of the weakest host's intra bandwidth and the
    /// plain NIC rule.
    pub ln_nics_over_bound: f64,
}

/// Computes the bounds of one cluster, collective and size.
///
/// The bound is the minimum of the weakest host's measured intra bandwidth and of the estimate of `fabric` between the
/// hosts. The estimate uses representatives (see [`HostShare::representative`]), so that it depends only on counts and
/// NIC rates. Searches rely on this property: for given counts and NIC rates, a bound never falls when a host's intra
/// bandwidth rises.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'m> {
    /// The cluster at its learned rates.
    pub site: &'m RatedCluster,
    /// The physics.
    pub tables: &'m FabricTables,
    /// The collective.
    pub collective: Collective,
    /// The message size.
    pub size: Bytes,
    /// NCCL's own decisions, which replace the physics between hosts where they are known.
    pub nccl: Option<&'m NcclNetwork>,
}

/// Cache of network estimates within one batch.
#[derive(Clone, Debug, Default)]
pub struct Memo {
    known: HashMap<Box<[u64]>, f64, FxBuildHasher>,
    parts: Vec<(HostId, GpuMask)>,
    key: Vec<u64>,
    /// Results of NCCL's search on each host.
    hosts: nccl_model::HostCache,
}

/// The bandwidth if the topology contains no limit, GB/s.
const UNKNOWN_GB_PER_S: f64 = 1.0;

/// Exponent of the soft minimum in the plain rule. Two limits that are close to each other slow each other down:
/// exponents of 8 to 10 describe the measured tables (facts: nccl-graph-search, "Formula").
const SOFT_POWER: f64 = 8.0;

/// The soft minimum: slightly below the smaller value if the two are close; increases with both.
fn softly(a: f64, b: f64) -> f64 {
    let (low, high) = (a.min(b), a.max(b));
    low * (1.0 + (low / high).powf(SOFT_POWER)).powf(-1.0 / SOFT_POWER)
}

impl Bounds<'_> {
    /// Intra bandwidth and id of the weakest host; infinite if every host contributes one GPU.
    fn intra(parts: &[HostShare]) -> (f64, HostId) {
        parts.iter().fold((f64::INFINITY, HostId(0)), |w, p| {
            if p.intra_gb_per_s < w.0 { (p.intra_gb_per_s, p.host) } else { w }
        })
    }

    /// The allocation that replaces a candidate in the network estimate. Equal hosts are sorted by count, largest
    /// first: NCCL's rings depend on the order of hosts, and linkwise chooses that order.
    fn stand_in(&self, parts: &[HostShare], out: &mut Vec<(HostId, GpuMask)>) {
        out.clear();
        out.extend(parts.iter().map(|p| (p.host, p.representative)));
        out.sort_unstable_by_key(|p| p.0);
        let first = self.site.kind(parts[0].host);
        let alike = self.site.is_one_switch() && parts.iter().all(|p| self.site.kind(p.host) == first);
        if alike {
            let mut masks: Vec<GpuMask> = out.iter().map(|p| p.1).collect();
            masks.sort_unstable_by_key(|m| (std::cmp::Reverse(m.count()), m.0));
            for (p, m) in out.iter_mut().zip(masks) {
                p.1 = m;
            }
        }
    }

    /// The cache key: all inputs of the physics between the listed hosts. Hosts of one kind on one switch are
    /// interchangeable.
    fn key(&self, list: &[(HostId, GpuMask)], key: &mut Vec<u64>) {
        let one_switch = self.site.is_one_switch();
        key.clear();
        key.extend(list.iter().map(|&(id, mask)| {
            let place = if one_switch { self.site.kind(id) } else { id.0 };
            u64::from(place) << 32 | u64::from(mask.0)
        }));
    }

    /// The analytic quantities of one candidate; the bound is 0 for fewer than two GPUs. O(hosts) if the memo holds an
    /// equivalent candidate, otherwise about a microsecond.
    pub fn of(&self, parts: &[HostShare], memo: &mut Memo) -> Analytic {
        if parts.len() < 2 {
            let bound = match parts.first() {
                Some(p) if p.count >= 2 => p.intra_gb_per_s,
                _ => 0.0,
            };
            return Analytic { bound_gb_per_s: bound, ln_physics_over_nics: 0.0, ln_nics_over_bound: 0.0 };
        }
        let mut list = std::mem::take(&mut memo.parts);
        self.stand_in(parts, &mut list);
        self.key(&list, &mut memo.key);
        let physics = match memo.known.get(memo.key.as_slice()) {
            Some(v) => *v,
            None => {
                let v = self.between_hosts_gb_per_s(&mut memo.hosts, &list, parts);
                memo.known.insert(memo.key.as_slice().into(), v);
                v
            }
        };
        memo.parts = list;
        let gpus: usize = parts.iter().map(|p| p.count as usize).sum();
        let nics = parts.iter().map(|p| (p.host, p.nic_gb_per_s));
        let nic = match self.site.crossings_ref() {
            Some(c) => c.least_rate(&self.site.cluster, nics),
            None => nics.map(|n| n.1).fold(f64::INFINITY, f64::min),
        };
        let nics = nics_gb_per_s(nic, parts.len(), gpus);
        let intra = Self::intra(parts).0;
        let v = intra.min(physics);
        let bound = if v.is_finite() && v > 0.0 { v } else { UNKNOWN_GB_PER_S };
        let ln = |ratio: f64| if ratio.ln().is_finite() { ratio.ln().clamp(-3.0, 3.0) } else { 0.0 };
        Analytic {
            bound_gb_per_s: bound,
            ln_physics_over_nics: ln(physics / nics),
            ln_nics_over_bound: ln(softly(intra, nics) / bound),
        }
    }

    fn between_hosts_gb_per_s(
        &self,
        cache: &mut nccl_model::HostCache,
        list: &[(HostId, GpuMask)],
        parts: &[HostShare],
    ) -> f64 {
        let cluster = &self.site.cluster;
        let physics = || {
            let stand_in = Allocation::new(list.iter().copied());
            let fabric = self.tables.on(cluster).with_crossings(self.site.crossings());
            fabric.estimate_between_hosts(&stand_in, self.collective, self.size).busbw.gb_per_s()
        };
        let nccl = self.nccl.and_then(|n| n.busbw_gb_per_s(cache, cluster, list, self.collective, self.size));
        let Some(nccl) = nccl else { return physics() };
        let gpus = parts.iter().map(|p| p.count as usize).sum();
        let thinnest = parts.iter().map(|p| p.nic_gb_per_s).fold(f64::INFINITY, f64::min);
        // Searches prune by this upper bound.
        let most = network_at_most_gb_per_s(thinnest, parts.len(), gpus);
        let plain = self.site.is_one_switch();
        // NCCL's model includes the NICs but not the switches above them.
        if plain { nccl.min(most) } else { (self.site.kept(list) * nccl.min(most)).min(physics()) }
    }

    /// The component that limits the candidate.
    pub fn limit(&self, parts: &[HostShare]) -> Limit {
        let (intra, host) = Self::intra(parts);
        if parts.len() < 2 {
            return Limit::Intra { host };
        }
        let mut list = Vec::new();
        self.stand_in(parts, &mut list);
        if intra < self.between_hosts_gb_per_s(&mut nccl_model::HostCache::default(), &list, parts) {
            return Limit::Intra { host };
        }
        let nccl = self.nccl.and_then(|n| n.limit(&self.site.cluster, &list, self.collective, self.size));
        let e = self.tables.on(&self.site.cluster).with_crossings(self.site.crossings()).estimate_between_hosts(
            &Allocation::new(list),
            self.collective,
            self.size,
        );
        // The representative may have moved counts between equal hosts, so the result names the host of the request
        // that has the fewest NICs.
        let thinnest = parts.iter().min_by(|a, b| a.nic_gb_per_s.total_cmp(&b.nic_gb_per_s)).map_or(host, |p| p.host);
        match nccl {
            Some(Limit::Nic { .. }) => return Limit::Nic { host: thinnest },
            Some(limit) => return limit,
            None => {}
        }
        match e.bottleneck {
            Bottleneck::Host { host } => Limit::Intra { host },
            Bottleneck::Nic { .. } => Limit::Nic { host: thinnest },
            Bottleneck::Network { name } => Limit::Network { name },
            Bottleneck::Latency => Limit::Latency,
        }
    }
}

/// Upper bound of all bounds of `hosts` or more hosts with `gpus` GPUs in total, in any order. It is the line rate of
/// all the thinnest host's NICs times the gain of trees over rings: `2 (n - 1) / n` for two hosts, two thirds of that
/// for three, 1 for more; never below 1.
pub fn network_at_most_gb_per_s(nic_min_gb_per_s: f64, hosts: usize, gpus: usize) -> f64 {
    let bus = 2.0 * (gpus as f64 - 1.0) / gpus as f64;
    nic_min_gb_per_s
        * match hosts {
            0..=2 => bus.max(1.0),
            3 => (bus / 1.5).max(1.0),
            _ => 1.0,
        }
}

/// The thinnest host's NICs, after the loss of its flows above switches, GB/s busbw. Two hosts use a tree, whose bus
/// bandwidth is `2 (n - 1) / n` times the NICs' rate, because every byte crosses once per direction. More hosts behave
/// like a ring (facts: measurements, section 5).
fn nics_gb_per_s(nic_min_gb_per_s: f64, hosts: usize, gpus: usize) -> f64 {
    if hosts == 2 { nic_min_gb_per_s * 2.0 * (gpus as f64 - 1.0) / gpus as f64 } else { nic_min_gb_per_s }
}
