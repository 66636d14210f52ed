//! What an allocation costs the cluster besides its bandwidth.

use std::collections::HashSet;
use topology::{Allocation, Cluster, GpuMask};

/// The costs of an allocation, in the order in which they decide between allocations of about equal bandwidth: smaller is better.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Hosts.
    pub hosts: usize,
    /// Switches spanned, by tier, nearest to the hosts first.
    pub switches: Vec<usize>,
    /// Largest count of GPUs on a host less the smallest.
    pub unevenness: usize,
    /// Hosts that were wholly free and become part-used.
    pub hosts_broken: usize,
}

impl Cost {
    /// Of an allocation out of these free GPUs. O(tiers x hosts).
    pub fn of(cluster: &Cluster, free: &Allocation, a: &Allocation) -> Cost {
        let counts = || a.parts().iter().map(|p| p.1.count());
        let broken = |&&(h, m): &&(topology::HostId, GpuMask)| {
            let all = cluster.type_of(h).all_gpus();
            m != all && free.mask(h) == all
        };
        Cost {
            hosts: a.host_count(),
            switches: (0..cluster.network.tiers.len()).map(|t| cluster.switches_spanned(t, a)).collect(),
            unevenness: counts().max().unwrap_or(0) - counts().min().unwrap_or(0),
            hosts_broken: a.parts().iter().filter(broken).count(),
        }
    }
}

/// Decides between allocations of equal cost and equal score: GPUs that stay free on the hosts that it touches, then different sets of
/// GPU indices of one size (equal sets meet on one rail).
pub(crate) fn tidiness(free: &Allocation, a: &Allocation) -> (usize, usize) {
    let stranded = a.parts().iter().map(|&(h, m)| free.mask(h).minus(m).count()).sum();
    let sets: HashSet<GpuMask> = a.parts().iter().map(|p| p.1).collect();
    let sizes: HashSet<usize> = sets.iter().map(|m| m.count()).collect();
    (stranded, sets.len() - sizes.len())
}
