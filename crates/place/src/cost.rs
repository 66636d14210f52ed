//! Cost of an allocation to the cluster, apart from its bandwidth.

use topology::{Allocation, Cluster, GpuMask};

/// The costs of an allocation, in order of priority; smaller is better. They decide between allocations of nearly equal
/// bandwidth.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Number of hosts.
    pub hosts: usize,
    /// Number of switches spanned, by tier, nearest to the hosts first.
    pub switches: Vec<usize>,
    /// Difference between the largest and the smallest number of GPUs on a host.
    pub unevenness: usize,
    /// Number of hosts that were entirely free and become partly used.
    pub hosts_broken: usize,
}

impl Cost {
    /// The costs of an allocation taken from these free GPUs. O(tiers x hosts).
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

/// Breaks ties of equal cost and equal score: first the number of GPUs that stay free on the touched hosts, then the
/// number of different sets of GPU indices of the same size (equal sets are on the same rails).
pub(crate) fn tidiness(free: &Allocation, a: &Allocation) -> (usize, usize) {
    let stranded = a.parts().iter().map(|&(h, m)| free.mask(h).minus(m).count()).sum();
    let mut sets: Vec<GpuMask> = a.parts().iter().map(|p| p.1).collect();
    sets.sort_unstable_by_key(|m| (m.count(), m.0));
    sets.dedup();
    let sizes = 1 + sets.windows(2).filter(|w| w[0].count() != w[1].count()).count();
    (stranded, sets.len() - sizes.min(sets.len()))
}
