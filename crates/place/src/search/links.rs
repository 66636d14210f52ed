//! Scores of GPU sets of one host by their link labels.

use std::collections::HashMap;
use topology::{Cluster, GpuMask, HostId, PathKind};

/// BandPilot's weights of link labels, 𝒯 of algorithm 5. The paper does not give them; these are the weights of its
/// public code (`core/topology.py`). That code does not have NODE and PHB; their weights are our choice, in steps
/// between SYS and PIX.
pub fn weight(path: PathKind) -> f64 {
    match path {
        PathKind::Same => 0.0,
        PathKind::NvLink(16..) => 6.0,
        PathKind::NvLink(8..) => 5.0,
        PathKind::NvLink(4..) => 4.0,
        PathKind::NvLink(_) => 3.0,
        PathKind::Pxb => 2.0,
        PathKind::Pix => 1.5,
        PathKind::Phb => 1.25,
        PathKind::Node => 1.125,
        PathKind::Sys => 1.0,
    }
}

/// NVLinks between two GPUs, 0 over PCIe.
pub fn nvlinks(path: PathKind) -> f64 {
    if let PathKind::NvLink(n) = path { f64::from(n) } else { 0.0 }
}

/// Sums of link weights over all pairs of a GPU set, looked up by mask: O(2^GPUs x GPUs) for each host type on first use.
pub struct PairSums<'a> {
    cluster: &'a Cluster,
    weight: fn(PathKind) -> f64,
    by_type: Vec<Vec<f64>>,
    best: HashMap<(usize, GpuMask, usize), GpuMask>,
}

impl<'a> PairSums<'a> {
    /// Sums of `weight`, computed on first use.
    pub fn new(cluster: &'a Cluster, weight: fn(PathKind) -> f64) -> Self {
        PairSums { cluster, weight, by_type: vec![Vec::new(); cluster.types.len()], best: HashMap::new() }
    }

    fn table(&mut self, host_type: usize) -> &[f64] {
        let sums = &mut self.by_type[host_type];
        if sums.is_empty() {
            let paths = &self.cluster.types[host_type].gpu_paths;
            sums.resize(1 << paths.len(), 0.0);
            for m in 1..1u32 << paths.len() {
                let (low, rest) = (m.trailing_zeros() as usize, m & (m - 1));
                let links: f64 = GpuMask(rest).iter().map(|g| (self.weight)(paths[low][g])).sum();
                sums[m as usize] = sums[rest as usize] + links;
            }
        }
        sums
    }

    /// Score of a set.
    pub fn score(&mut self, host: HostId, mask: GpuMask) -> f64 {
        self.table(self.cluster.host(host).host_type)[mask.0 as usize]
    }

    /// The `k` GPUs of `free` with the largest sum; ties go to the first. Exhaustive: O(2^GPUs), once per type and free
    /// set.
    pub fn best(&mut self, host: HostId, free: GpuMask, k: usize) -> GpuMask {
        let key = (self.cluster.host(host).host_type, free, k);
        if let Some(m) = self.best.get(&key) {
            return *m;
        }
        let sums = self.table(key.0);
        let mut best = (f64::NEG_INFINITY, GpuMask::EMPTY);
        for m in super::hosts::subsets_of(free, k) {
            if sums[m.0 as usize] > best.0 {
                best = (sums[m.0 as usize], m);
            }
        }
        self.best.insert(key, best.1);
        best.1
    }
}
