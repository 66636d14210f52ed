//! The recommended rank order of a job's GPUs.
//!
//! NCCL numbers hosts in the order of the ranks, and its rings visit the hosts in that order. Rules for a good order:
//!
//! 1. Hosts below one switch are consecutive: a ring then enters and leaves every switch once. `fabric` assumes this
//!    order when it counts the bytes over oversubscribed uplinks.
//! 2. Among these, hosts with the most GPUs come first, as in the measured tables on which predictions are based. If the
//!    job spans several switches, the hosts with the most GPUs are first and last below each switch, and those with the
//!    fewest in the middle: flows between switches lose bandwidth on many fabrics, and a host with fewer NICs loads each
//!    of them more. `fabric::crossing` and the choice of GPUs (`crate::rule`) assume the same.
//! 3. Hosts of 3, then 4, then 2 GPUs take even positions where possible; their losses at odd positions are 25 to 30 %,
//!    3 to 15 % and up to 5 %. Reason: a host that gives all of its eight or more GPUs, each next to its own NIC, lets
//!    NCCL's ring search return crossNic 2. If the hosts then agree on an even number of search channels, NCCL exchanges
//!    channel pairs on odd-numbered hosts. On a host with two to four GPUs, this makes GPUs receive from another GPU's
//!    NIC. Readings: 128 GB/s on three hosts 8+8+3, where the host of 3 GPUs is number 2; 90 GB/s on 8+8+8+3, where it
//!    is number 3 (`facts/nccl-graph-search.md`, the steps, 4, and "Use"). On two hosts NCCL uses trees, and the order
//!    stays.
//!
//! Rule 3 is inferred from one table, in which the hosts were not permuted. A test covers all 450 count vectors of
//! three and four H100 hosts with `fabric` at 2 GiB: this order is never slower than that of rule 2, and no other order
//! is more than 3 % faster. Inside a host, ranks follow the GPU indices, pod by pod, so that equal local ranks meet on
//! one rail where hosts give the same GPUs.

use topology::{Cluster, GpuId, GpuMask, HostId};

/// Minimum number of GPUs, each with its own NIC, of a host whose rings cross NICs.
const CROSSING_GPUS_MIN: usize = 8;
/// Counts of GPUs per host that lose bandwidth at an odd position, largest loss first.
const SENSITIVE_COUNTS: [usize; 3] = [3, 4, 2];

/// The hosts of a choice in rank order. O(hosts log hosts + small hosts x hosts).
pub fn host_order(cluster: &Cluster, parts: &[(HostId, GpuMask)]) -> Vec<(HostId, GpuMask)> {
    let mut order = parts.to_vec();
    // Switches of every tier, highest first, ordered by their largest share of the job, so that the hosts of every
    // switch are consecutive.
    let tiers = cluster.tiers().len();
    let weight = |tier: usize, h: HostId| -> (std::cmp::Reverse<usize>, usize) {
        let switch = cluster.switch_of(tier, h);
        let on_it = parts.iter().filter(|p| cluster.switch_of(tier, p.0) == switch).map(|p| p.1.count());
        (std::cmp::Reverse(on_it.sum()), switch)
    };
    order.sort_by_cached_key(|&(h, m)| {
        let switches: Vec<_> = (0..tiers).rev().map(|tier| weight(tier, h)).collect();
        (switches, std::cmp::Reverse(m.count()), h)
    });
    let leaf = |p: &(HostId, GpuMask)| if tiers == 0 { 0 } else { cluster.switch_of(0, p.0) };
    if order.iter().any(|p| leaf(p) != leaf(&order[0])) {
        order.chunk_by_mut(|a, b| leaf(a) == leaf(b)).for_each(thin_inside);
    }
    if order.len() > 2 && crosses_nics(cluster, &order) {
        spare_small_hosts(cluster, &mut order);
    }
    order
}

/// Puts hosts that are sorted by falling count alternately at the front and at the back.
fn thin_inside(run: &mut [(HostId, GpuMask)]) {
    if run.first().map(|p| p.1.count()) == run.last().map(|p| p.1.count()) {
        return;
    }
    let sorted = run.to_vec();
    let (front, back) = (sorted.iter().step_by(2), sorted.iter().skip(1).step_by(2).rev());
    run.iter_mut().zip(front.chain(back)).for_each(|(to, from)| *to = *from);
}

/// True if NCCL exchanges channel pairs on odd-numbered hosts.
fn crosses_nics(cluster: &Cluster, parts: &[(HostId, GpuMask)]) -> bool {
    let crossing = parts.iter().any(|&(h, m)| {
        let ty = cluster.type_of(h);
        let n = ty.gpu_count();
        let own = (0..n).all(|g| ty.nearest_nics(g).count_ones() == 1);
        n >= CROSSING_GPUS_MIN
            && m == ty.all_gpus()
            && own
            && ty.nics_touched(m).count_ones() as usize == n
            && n.is_multiple_of(2)
    });
    // Search channels of a host: two per NIC up to four NICs, one per NIC beyond. The minimum over all hosts counts.
    let channels = |&(h, m): &(HostId, GpuMask)| {
        let nics = cluster.type_of(h).nics_touched(m).count_ones();
        if nics <= 4 { 2 * nics } else { nics }
    };
    crossing && parts.iter().map(channels).min().is_some_and(|n| n.is_multiple_of(2))
}

/// Moves sensitive hosts to even positions by swapping them with less sensitive hosts below the same switch. Hosts
/// inside their switch's run stay inside, and hosts at its ends stay at the ends.
fn spare_small_hosts(cluster: &Cluster, order: &mut [(HostId, GpuMask)]) {
    let loss = |p: &(HostId, GpuMask)| match SENSITIVE_COUNTS.iter().position(|c| *c == p.1.count()) {
        Some(i) => SENSITIVE_COUNTS.len() - i,
        None => 0,
    };
    let leaves = !cluster.tiers().is_empty();
    let together = |a: HostId, b: HostId| !leaves || cluster.switch_of(0, a) == cluster.switch_of(0, b);
    let n = order.len();
    let ends: Vec<bool> =
        (0..n).map(|i| [(i + n - 1) % n, (i + 1) % n].into_iter().any(|j| !together(order[i].0, order[j].0))).collect();
    for size in SENSITIVE_COUNTS {
        for at in (1..order.len()).step_by(2) {
            if order[at].1.count() != size {
                continue;
            }
            let here = (order[at].0, loss(&order[at]));
            let even = (0..order.len()).step_by(2);
            let same_place = |e: &usize| together(order[*e].0, here.0) && ends[at] == ends[*e];
            let better = even.filter(|e| same_place(e) && loss(&order[*e]) < here.1);
            if let Some(e) = better.min_by_key(|e| (loss(&order[*e]), e.abs_diff(at))) {
                order.swap(at, e);
            }
        }
    }
}

/// Every GPU in rank order: host by host, on each host pod by pod (by lowest GPU), in each pod by index. `pods` may be
/// empty.
pub fn rank_order(hosts: &[(HostId, GpuMask)], pods: &[(HostId, GpuMask)]) -> Vec<GpuId> {
    let mut of_host: std::collections::HashMap<HostId, Vec<GpuMask>> = std::collections::HashMap::new();
    for &(h, m) in pods {
        of_host.entry(h).or_default().push(m);
    }
    let gpus = |host: HostId, m: GpuMask| m.iter().map(move |g| GpuId { host, gpu: g as u8 });
    hosts
        .iter()
        .flat_map(|&(h, m)| {
            let mut masks = of_host.remove(&h).unwrap_or_else(|| vec![m]);
            masks.sort_by_key(|m| m.0.trailing_zeros());
            masks.into_iter().flat_map(move |m| gpus(h, m)).collect::<Vec<_>>()
        })
        .collect()
}
