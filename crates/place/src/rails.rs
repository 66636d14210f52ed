//! Moves GPUs to the same rails on every host, in fabrics where rails have their own switches.
//!
//! In such fabrics, hosts communicate directly only over the rails that all of them use. Traffic between different
//! rails passes the layer above, or has no path. Searches take GPUs host by host; this module moves a candidate's GPUs
//! to common rails if free ones exist.

use std::collections::BTreeMap;
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

/// Number of windows that are tried.
const WINDOWS_MAX: usize = 6;
/// Number of different sets of free rails whose intersections are formed.
const SETS_MAX: usize = 16;

/// Free GPUs on common rails: each window is a set of rails with the hosts on which all of them are free; if their GPUs on these rails are
/// fewer than `gpus`, all of their free GPUs. The widest windows first. Empty if no rail has its own switch, or if every host has the same rails free. O(hosts x windows).
pub(crate) fn windows(cluster: &Cluster, free: &Allocation, gpus: usize) -> Vec<Allocation> {
    if cluster.network.rails.is_none() {
        return Vec::new();
    }
    let free_rails: Vec<u32> = free.parts().iter().map(|&(h, m)| cluster.type_of(h).nics_touched(m)).collect();
    let mut sets: BTreeMap<u32, usize> = BTreeMap::new();
    free_rails.iter().filter(|rails| **rails != 0).for_each(|rails| *sets.entry(*rails).or_default() += 1);
    if sets.len() < 2 {
        return Vec::new();
    }
    let mut common: Vec<(u32, usize)> = sets.into_iter().collect();
    common.sort_by_key(|(rails, hosts)| std::cmp::Reverse(rails.count_ones() as usize * hosts));
    common.truncate(SETS_MAX);
    let mut found: Vec<u32> =
        common.iter().flat_map(|a| common.iter().map(|b| a.0 & b.0)).filter(|r| *r != 0).collect();
    found.sort_by_key(|rails| (std::cmp::Reverse(rails.count_ones()), *rails));
    found.dedup();
    let window = |rails: u32| {
        let on = |h: HostId, m: GpuMask| {
            GpuMask::from_indices(m.iter().filter(|g| cluster.type_of(h).nearest_nics(*g) & rails != 0))
        };
        let hosts = || free.parts().iter().zip(&free_rails).filter(|(_, have)| **have & rails == rails).map(|x| *x.0);
        let narrow = Allocation::new(hosts().map(|(h, m)| (h, on(h, m))));
        if narrow.gpu_count() >= gpus { narrow } else { Allocation::new(hosts()) }
    };
    let mut windows: Vec<Allocation> = Vec::new();
    for w in found.into_iter().map(window).filter(|w| w.gpu_count() >= gpus) {
        if windows.len() < WINDOWS_MAX && !windows.contains(&w) {
            windows.push(w);
        }
    }
    windows
}
