//! What people get today.

use rand::Rng;
use topology::{Allocation, Cluster, GpuMask, HostId};

/// The packed choice: as few hosts as possible, on each the most compact GPUs by topology labels.
///
/// As topology-aware schedulers do: one host if one can hold the job (the one with the least free GPUs left over), else hosts
/// by most free GPUs first; inside a host, GPUs are added greedily by nearest path to those already taken. O(hosts log hosts).
/// Source: BandPilot, algorithm 5 (Topo); Slurm's select/cons_tres packs in the same way.
pub fn packed(cluster: &Cluster, free: &Allocation, k: usize) -> Option<Allocation> {
    if k == 0 || free.gpu_count() < k {
        return None;
    }
    let single = free.parts().iter().filter(|(_, m)| m.count() >= k).min_by_key(|(h, m)| (m.count(), h.0));
    if let Some(&(h, m)) = single {
        return Some(Allocation::new([(h, compact(cluster, h, m, k))]));
    }
    let mut hosts: Vec<(HostId, GpuMask)> = free.parts().to_vec();
    hosts.sort_by_key(|(h, m)| (usize::MAX - m.count(), h.0));
    let mut left = k;
    let mut parts = Vec::new();
    for (h, m) in hosts {
        if left == 0 {
            break;
        }
        let take = left.min(m.count());
        parts.push((h, compact(cluster, h, m, take)));
        left -= take;
    }
    Some(Allocation::new(parts))
}

/// The `k` most compact GPUs of `free` on one host: the best over all starting GPUs of a greedy growth by path labels.
fn compact(cluster: &Cluster, host: HostId, free: GpuMask, k: usize) -> GpuMask {
    let paths = &cluster.type_of(host).gpu_paths;
    let rank = |a: usize, b: usize| -> u32 {
        match paths[a][b] {
            topology::PathKind::Same => 0,
            topology::PathKind::NvLink(n) => 100 - u32::from(n.min(64)),
            topology::PathKind::Pix => 200,
            topology::PathKind::Pxb => 300,
            topology::PathKind::Phb => 400,
            topology::PathKind::Node => 500,
            topology::PathKind::Sys => 600,
        }
    };
    free.iter()
        .map(|start| {
            let mut taken = GpuMask(1 << start);
            let mut cost = 0;
            while taken.count() < k {
                let (c, g) = free
                    .minus(taken)
                    .iter()
                    .map(|g| (taken.iter().map(|t| rank(t, g)).sum::<u32>(), g))
                    .min()
                    .expect("the caller asks for no more than is free");
                cost += c;
                taken = taken.union(GpuMask(1 << g));
            }
            (cost, taken)
        })
        .min()
        .map_or(GpuMask::EMPTY, |b| b.1)
}

/// The first `k` free GPUs in order of host and index: what a scheduler without topology gives.
///
/// Source: BandPilot, algorithm 4 (Default), whose NUMA order is that of the indices.
pub fn default_order(free: &Allocation, k: usize) -> Option<Allocation> {
    (k > 0 && free.gpu_count() >= k).then(|| Allocation::from_gpus(free.gpus().take(k)))
}

/// `k` free GPUs drawn evenly. Source: BandPilot, algorithm 3.
pub fn random(free: &Allocation, k: usize, rng: &mut impl Rng) -> Option<Allocation> {
    if k == 0 || free.gpu_count() < k {
        return None;
    }
    let mut gpus: Vec<_> = free.gpus().collect();
    for i in 0..k {
        let j = i + below(rng, gpus.len() - i);
        gpus.swap(i, j);
    }
    Some(Allocation::from_gpus(gpus[..k].iter().copied()))
}

/// A whole number below `n`, evenly, from the top bits (bias below 2^-32 for the small `n` here).
pub fn below(rng: &mut impl Rng, n: usize) -> usize {
    ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize
}
