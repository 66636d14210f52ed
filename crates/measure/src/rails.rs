//! Rails: which allocations can communicate, and the GPUs on the same rails of every host.
//!
//! On a rail-optimised network, NIC i of every host is on the leaf switch of rail i. Jobs get the same rails on every
//! host. If rails have no path between them ([`topology::Rails::Separate`]), hosts communicate over the rails that all
//! of them use, and without such a rail not at all.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use topology::{Allocation, Cluster, GpuMask, HostId, NICS_PER_HOST_MAX, Rails};

/// True if the hosts of an allocation can reach each other. False only on separate rails, for hosts without a common
/// rail of any rate. O(parts x GPUs x NICs).
pub fn communicates(cluster: &Cluster, a: &Allocation) -> bool {
    if cluster.network.rails != Some(Rails::Separate) || a.host_count() < 2 {
        return true;
    }
    let touched = |&(h, m): &(HostId, GpuMask)| cluster.type_of(h).nics_touched(m);
    let common = a.parts().iter().map(touched).fold(u32::MAX, |c, t| c & t);
    let has_rate = |h: HostId| rails_of(common).any(|n| cluster.nic_rate(h, n).gb_per_s() > 0.0);
    common != 0 && a.parts().iter().all(|p| has_rate(p.0))
}

/// The GPUs whose hosts can communicate with others: those of hosts with a NIC that has a rate. All GPUs if the cluster
/// file names no such NIC at all, for then the network is unknown. O(GPUs x NICs).
pub fn networked(cluster: &Cluster, idle: &Allocation) -> Allocation {
    let has_nic = |h: HostId, gpus: GpuMask| {
        rails_of(cluster.type_of(h).nics_touched(gpus)).any(|n| cluster.nic_rate(h, n).gb_per_s() > 0.0)
    };
    let known = cluster.host_ids().any(|h| has_nic(h, cluster.type_of(h).all_gpus()));
    Allocation::new(idle.parts().iter().copied().filter(|&(h, m)| !known || has_nic(h, m)))
}

/// True if the rails of each host are among those of every host with as many rails or more. O(parts x GPUs x NICs).
pub fn is_aligned(cluster: &Cluster, a: &Allocation) -> bool {
    let mut touched: Vec<u32> = a.parts().iter().map(|&(h, m)| cluster.type_of(h).nics_touched(m)).collect();
    touched.sort_unstable_by_key(|t| t.count_ones());
    touched.windows(2).all(|w| w[0] & !w[1] == 0)
}

/// The counts of an allocation on idle GPUs next to common rails; `None` for fewer than two hosts. The GPUs of the host with the
/// most GPUs decide which rails are preferred; among these and among the others, rails that more hosts can use come
/// first, then random ones. O(parts x GPUs x (NICs + log GPUs)).
pub(crate) fn aligned(
    cluster: &Cluster,
    idle: &Allocation,
    a: &Allocation,
    rng: &mut ChaCha8Rng,
) -> Option<Allocation> {
    if a.host_count() < 2 {
        return None;
    }
    let &(lead, of_lead) = a.parts().iter().max_by_key(|p| p.1.count())?;
    let preferred = cluster.type_of(lead).nics_touched(of_lead);
    let mut hosts_of_rail = [0u32; NICS_PER_HOST_MAX];
    for &(h, _) in a.parts() {
        rails_of(cluster.type_of(h).nics_touched(idle.mask(h))).for_each(|n| hosts_of_rail[n] += 1);
    }
    let chance: [u32; NICS_PER_HOST_MAX] = std::array::from_fn(|_| rng.random());
    let lead_type = cluster.host(lead).host_type;
    Some(Allocation::new(a.parts().iter().map(|&(h, mask)| {
        let t = cluster.type_of(h);
        let worth = |gpu: usize| {
            let rail = rails_of(t.nearest_nics(gpu)).map(|n| (hosts_of_rail[n], preferred >> n & 1, chance[n])).max();
            let (hosts, preferred, chance) = rail.unwrap_or_default();
            // GPUs that share a NIC differ by their links inside the host, by which those of the lead were chosen.
            let of_lead = cluster.host(h).host_type == lead_type && of_lead.contains(gpu);
            (hosts, preferred, of_lead, chance)
        };
        let mut gpus: Vec<usize> = idle.mask(h).iter().collect();
        gpus.sort_by_cached_key(|g| (std::cmp::Reverse(worth(*g)), *g));
        (h, GpuMask::from_indices(gpus.into_iter().take(mask.count())))
    })))
}

fn rails_of(nics: u32) -> impl Iterator<Item = usize> {
    (0..NICS_PER_HOST_MAX).filter(move |n| nics >> n & 1 == 1)
}
