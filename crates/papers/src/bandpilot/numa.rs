//! A scheduler that ignores links and packs GPUs by NUMA node and host.

use place::search::hosts::{fill, freest_first, singles};
use topology::{Allocation, Cluster, GpuMask, HostId};

/// The NUMA proximity heuristic: arXiv 2506.15595, algorithm 4 (Default), which the paper calls the default dispatcher of Slurm and others.
///
/// Takes one host if one can hold the job; otherwise adds the hosts with the most free GPUs until they can. The paper
/// does not specify the host and the GPUs ("any"). Like its public code (`algorithms/baseline.py`), this search fills
/// NUMA nodes. First choice: the NUMA node with the most free GPUs that can hold the job alone. Second choice: the host
/// with the most free GPUs that can hold it. Otherwise host by host; the hosts, and the NUMA nodes inside them, with
/// the most free GPUs come first. No evaluations; O(hosts log hosts).
pub fn choose(cluster: &Cluster, free: &Allocation, k: usize) -> Option<Allocation> {
    if k == 0 || free.gpu_count() < k {
        return None;
    }
    let freest = |a: &&(HostId, GpuMask)| (std::cmp::Reverse(a.1.count()), a.0);
    let mut nodes: Vec<(HostId, GpuMask)> = Vec::new();
    for (h, m) in singles(free, k) {
        nodes.extend(numa_nodes(cluster, h, m).into_iter().filter(|n| n.count() >= k).map(|n| (h, n)));
    }
    if let Some(&(h, node)) = nodes.iter().min_by_key(freest) {
        return Some(Allocation::new([(h, lowest(node, k))]));
    }
    fill(freest_first(free), k, |h, m, take| {
        let mut taken = GpuMask::EMPTY;
        for node in numa_nodes(cluster, h, m) {
            taken = taken.union(lowest(node, take - taken.count()));
        }
        taken
    })
}

/// The free GPUs of every NUMA node of a host, largest set first.
fn numa_nodes(cluster: &Cluster, host: HostId, free: GpuMask) -> Vec<GpuMask> {
    let gpus = &cluster.type_of(host).gpus;
    let mut sockets: Vec<u8> = free.iter().map(|g| gpus[g].socket).collect();
    sockets.sort_unstable();
    sockets.dedup();
    let of = |s: u8| GpuMask::from_indices(free.iter().filter(|g| gpus[*g].socket == s));
    let mut nodes: Vec<GpuMask> = sockets.into_iter().map(of).collect();
    nodes.sort_by_key(|n| std::cmp::Reverse(n.count()));
    nodes
}

/// The lowest `k` GPUs of a set, or all if it has fewer.
fn lowest(mask: GpuMask, k: usize) -> GpuMask {
    GpuMask::from_indices(mask.iter().take(k))
}
