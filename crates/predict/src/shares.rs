//! Allocations in the form for models: one [`HostShare`] per host, and many allocations in one flat [`Candidates`].

use crate::intra::IntraTables;
use topology::{Allocation, Cluster, GpuMask, HostId, HostType};

/// The GPUs that a candidate uses on one host, with all values that a model may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostShare {
    /// The host.
    pub host: HostId,
    /// The GPUs.
    pub mask: GpuMask,
    /// Number of GPUs.
    pub count: u8,
    /// True if the candidate uses the whole host.
    pub whole: bool,
    /// Bandwidth inside the host (from its intra table), GB/s busbw; infinite for one GPU, which needs no link inside
    /// the host.
    pub intra_gb_per_s: f64,
    /// Sum of the rates of the NICs that the GPUs use, one direction, GB/s; infinite if the host lists no NIC.
    pub nic_gb_per_s: f64,
    /// Best intra bandwidth of any `count` GPUs of this host type; infinite for one GPU.
    pub class_intra_gb_per_s: f64,
    /// The host's type, an index into `Cluster::types`. If several types are the same hardware, the index of the first.
    pub host_type: u16,
    /// The GPUs of this host that represent all sets of the same count and NIC rate in network estimates: those with
    /// the best links inside the host by topology. If rails have their own switches, every set represents itself.
    pub representative: GpuMask,
}

/// Host shares by host and GPUs: built once per cluster and size, then O(1) per look-up.
#[derive(Clone, Debug)]
pub struct HostShareTable {
    hosts: Vec<HostParts>,
}

#[derive(Clone, Debug)]
struct HostParts {
    host_type: u16,
    all: GpuMask,
    /// By mask: intra bandwidth.
    intra: std::sync::Arc<[f64]>,
    /// By mask: NIC rate.
    nic: std::sync::Arc<[f64]>,
    /// By count: best intra bandwidth of the type.
    class: std::sync::Arc<[f64]>,
    /// By mask: its representative.
    representative: std::sync::Arc<[u32]>,
}

/// True if two types are the same hardware, regardless of their names.
pub(crate) fn alike(a: &HostType, b: &HostType) -> bool {
    HostType { name: a.name.clone(), ..b.clone() } == *a
}

impl HostShareTable {
    /// Builds the table for a cluster and the intra tables of one size. O(types x 2^GPUs + hosts); equal hosts share
    /// memory.
    pub fn new(cluster: &Cluster, intra: &IntraTables, fabric: &fabric::FabricTables) -> Self {
        use std::collections::HashMap;
        use std::sync::Arc;
        type Sides = (Arc<[f64]>, Arc<[u32]>);
        let mut nic_cache: HashMap<(usize, Vec<u64>), Sides> = HashMap::new();
        let fabric = fabric.on(cluster);
        let class: Vec<Arc<[f64]>> = (0..cluster.types.len()).map(|t| intra.best_by_count(cluster, t).into()).collect();
        let same: Vec<u16> = (0..cluster.types.len())
            .map(|t| cluster.types[..t].iter().position(|o| alike(o, &cluster.types[t])).unwrap_or(t) as u16)
            .collect();
        let hosts = cluster
            .host_ids()
            .map(|h| {
                let host = cluster.host(h);
                let ty = cluster.type_of(h);
                let key = (host.host_type, host.nic_health.iter().map(|f| f.to_bits()).collect());
                let (nic, representative) = nic_cache.entry(key).or_insert_with(|| {
                    let rates: Vec<f64> = (0..ty.nics.len()).map(|i| cluster.nic_rate(h, i).gb_per_s()).collect();
                    let touched: Vec<u32> = (0..ty.gpu_count()).map(|g| ty.nearest_nics(g)).collect();
                    let nic: Arc<[f64]> = (0..1u32 << ty.gpu_count())
                        .map(|m| {
                            if rates.is_empty() {
                                return f64::INFINITY;
                            }
                            let nics = GpuMask(m).iter().fold(0u32, |s, g| s | touched[g]);
                            (0..rates.len()).filter(|i| nics >> i & 1 == 1).map(|i| rates[i]).sum()
                        })
                        .collect();
                    let mut best: HashMap<(u32, u64, u32), (f64, u32)> = HashMap::new();
                    // If rails have their own switches, the rails decide which hosts reach each other: GPUs represent
                    // themselves.
                    let own = |m: u32| if cluster.network.rails.is_some() { m } else { 0 };
                    let class = |m: u32| (m.count_ones(), nic[m as usize].to_bits(), own(m));
                    for m in 1..1u32 << ty.gpu_count() {
                        let ring = fabric.intra(h, GpuMask(m)).ring_gb_per_s;
                        let b = best.entry(class(m)).or_insert((ring, m));
                        if ring > b.0 {
                            *b = (ring, m);
                        }
                    }
                    let representative =
                        (0..1u32 << ty.gpu_count()).map(|m| if m == 0 { 0 } else { best[&class(m)].1 }).collect();
                    (nic, representative)
                });
                HostParts {
                    host_type: same[host.host_type],
                    all: ty.all_gpus(),
                    intra: intra.of_host(h),
                    nic: nic.clone(),
                    representative: representative.clone(),
                    class: class[host.host_type].clone(),
                }
            })
            .collect();
        HostShareTable { hosts }
    }

    /// The share of the GPUs `mask` on `host`. Panics if the host has no such GPU.
    #[inline]
    pub fn part(&self, host: HostId, mask: GpuMask) -> HostShare {
        let h = &self.hosts[host.index()];
        let count = mask.count();
        HostShare {
            host,
            mask,
            count: count as u8,
            whole: mask == h.all,
            intra_gb_per_s: if count < 2 { f64::INFINITY } else { h.intra[mask.0 as usize] },
            nic_gb_per_s: h.nic[mask.0 as usize],
            class_intra_gb_per_s: h.class[count],
            host_type: h.host_type,
            representative: GpuMask(h.representative[mask.0 as usize]),
        }
    }
    /// The intra bandwidth of the GPUs of `mask`; 0 for fewer than two.
    #[inline]
    pub fn intra_gb_per_s(&self, host: HostId, mask: GpuMask) -> f64 {
        if mask.count() < 2 { 0.0 } else { self.hosts[host.index()].intra[mask.0 as usize] }
    }
    /// Number of hosts in the table.
    pub fn host_count(&self) -> usize {
        self.hosts.len()
    }
    /// All GPUs of a host.
    #[inline]
    pub fn all_gpus(&self, host: HostId) -> GpuMask {
        self.hosts[host.index()].all
    }
}

/// Many candidate allocations in one contiguous buffer.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    parts: Vec<HostShare>,
    ends: Vec<u32>,
}

impl Candidates {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }
    /// The candidates of whole allocations.
    pub fn of<'a>(table: &HostShareTable, allocations: impl IntoIterator<Item = &'a Allocation>) -> Self {
        let mut c = Candidates::new();
        for a in allocations {
            c.parts.extend(a.parts().iter().map(|&(h, m)| table.part(h, m)));
            c.ends.push(c.parts.len() as u32);
        }
        c
    }
    /// Adds a candidate. Its parts may be in any order.
    pub fn push(&mut self, parts: &[HostShare]) {
        self.parts.extend_from_slice(parts);
        self.ends.push(self.parts.len() as u32);
    }
    /// Number of candidates.
    pub fn len(&self) -> usize {
        self.ends.len()
    }
    /// Number of parts of all candidates: what they need in memory.
    pub fn part_count(&self) -> usize {
        self.parts.len()
    }
    /// True without candidates.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
    /// The parts of candidate `i`.
    #[inline]
    pub fn parts(&self, i: usize) -> &[HostShare] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.parts[start..self.ends[i] as usize]
    }
    /// Iterates over the candidates.
    pub fn iter(&self) -> impl Iterator<Item = &[HostShare]> {
        (0..self.len()).map(|i| self.parts(i))
    }
    /// Candidate `i` as an allocation.
    pub fn allocation(&self, i: usize) -> Allocation {
        Allocation::new(self.parts(i).iter().map(|p| (p.host, p.mask)))
    }
    /// Removes all candidates and keeps the memory.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.ends.clear();
    }
}
