//! Moves GPUs to the same rails on every host, in fabrics where rails have their own switches.
//!
//! In such fabrics, hosts communicate directly only over the rails that all of them use. Traffic between different
//! rails passes the layer above, or has no path. Searches take GPUs host by host; this module moves a candidate's GPUs
//! to common rails if free ones exist.

use topology::{Allocation, Cluster, GpuMask, HostId};

/// The counts of a candidate on the GPUs whose rails most of its hosts can use; None if no GPU moves, or if no rail has
/// its own switch. O(hosts x GPUs).
pub(crate) fn aligned(cluster: &Cluster, free: &Allocation, a: &Allocation) -> Option<Allocation> {
    cluster.network.rails?;
    if a.host_count() < 2 {
        return None;
    }
    // The value of a rail is the number of hosts that have a free GPU next to it.
    let mut hosts_of_rail = [0u32; 32];
    for &(h, _) in a.parts() {
        let nics = cluster.type_of(h).nics_touched(free.mask(h));
        (0..32).filter(|n| nics >> n & 1 == 1).for_each(|n| hosts_of_rail[n] += 1);
    }
    let worth = |h: HostId, gpu: usize| {
        let nics = cluster.type_of(h).nearest_nics(gpu);
        let rail = (0..32usize).filter(|n| nics >> n & 1 == 1).max_by_key(|n| (hosts_of_rail[*n], 32 - n));
        rail.map_or((0, 0), |n| (hosts_of_rail[n], 32 - n))
    };
    let moved = Allocation::new(a.parts().iter().map(|&(h, mask)| {
        let mut gpus: Vec<usize> = free.mask(h).iter().collect();
        gpus.sort_by_key(|g| (std::cmp::Reverse(worth(h, *g)), *g));
        (h, GpuMask::from_indices(gpus.into_iter().take(mask.count())))
    }));
    (moved != *a).then_some(moved)
}
