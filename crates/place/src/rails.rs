//! The same rails on every host, in fabrics where rails have switches of their own.
//!
//! There, hosts reach each other over the rails that all of them use: over others they pass the layer above, or nothing at all. Searches take
//! GPUs host by host; this moves a candidate's GPUs to common rails where free ones are at hand.

use topology::{Allocation, Cluster, GpuMask, HostId};

/// The counts of a candidate on the GPUs whose rails most of its hosts can use; None where nothing moves, or where no rail has a switch of its
/// own. O(hosts x GPUs).
pub(crate) fn aligned(cluster: &Cluster, free: &Allocation, a: &Allocation) -> Option<Allocation> {
    cluster.network.rails?;
    if a.host_count() < 2 {
        return None;
    }
    // A rail is worth the hosts that have a free GPU next to it.
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
