//! Rails of a site: NIC i of every host of a type, with a GPU next to it.

use crate::{Allocation, Cluster, GpuMask, HostId};
use std::collections::HashMap;

/// A rail: the index of its NIC on every host, and of a GPU that uses this NIC.
pub type Rail = (u8, u8);

/// The hosts of the most frequent type among those whose GPUs are all free, and the rails of the type. O(hosts).
pub fn alike(cluster: &Cluster, free: &Allocation) -> (Vec<HostId>, Vec<Rail>) {
    let mut by_type: HashMap<usize, Vec<HostId>> = HashMap::new();
    for &(h, mask) in free.parts() {
        if mask == cluster.type_of(h).all_gpus() {
            by_type.entry(cluster.host(h).host_type).or_default().push(h);
        }
    }
    let most = by_type.into_iter().max_by_key(|(t, hosts)| (hosts.len(), std::cmp::Reverse(*t)));
    let Some((t, hosts)) = most else { return (Vec::new(), Vec::new()) };
    let ty = &cluster.types[t];
    let gpu_of = |i: usize| {
        let near = |g: &usize| ty.nearest_nics(*g).trailing_zeros() as usize == i;
        (0..ty.gpu_count()).find(near).map(|g| (i as u8, g as u8))
    };
    let rails = (0..ty.nics.len().min(32)).filter_map(gpu_of).collect();
    (hosts, rails)
}

/// Every rail over the [`alike`] hosts, one GPU on each, in jobs of at most `hosts_max` hosts. A reading of such a job
/// shows the slowest NIC of its rail. Empty for fewer than two hosts. O(rails x hosts).
pub fn sweep(cluster: &Cluster, free: &Allocation, hosts_max: usize) -> Vec<Allocation> {
    let (hosts, rails) = alike(cluster, free);
    if hosts.len() < 2 {
        return Vec::new();
    }
    let jobs = hosts.len().div_ceil(hosts_max.max(2));
    let job = |j: usize| &hosts[j * hosts.len() / jobs..(j + 1) * hosts.len() / jobs];
    let one = |(_, g): &Rail, j: usize| Allocation::new(job(j).iter().map(|h| (*h, GpuMask(1 << g))));
    rails.iter().flat_map(|rail| (0..jobs).map(move |j| one(rail, j))).collect()
}
