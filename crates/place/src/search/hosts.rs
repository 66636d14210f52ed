//! Free GPUs by host: hosts with the most free GPUs, hosts that hold a job, filling hosts in order.

use topology::{Allocation, GpuMask, HostId};

/// Free GPUs of one host.
pub type FreeHost = (HostId, GpuMask);

/// Hosts by free GPUs, most first, then by id.
pub fn freest_first(free: &Allocation) -> Vec<FreeHost> {
    let mut hosts = free.parts().to_vec();
    hosts.sort_by_key(|(h, m)| (std::cmp::Reverse(m.count()), *h));
    hosts
}

/// Hosts that each can hold the whole job.
pub fn singles(free: &Allocation, k: usize) -> impl Iterator<Item = FreeHost> + '_ {
    free.parts().iter().copied().filter(move |(_, m)| m.count() >= k)
}

/// The subsets of `mask` with `k` GPUs, ascending.
pub fn subsets_of(mask: GpuMask, k: usize) -> impl Iterator<Item = GpuMask> {
    mask.subsets().filter(move |m| m.count() == k)
}

/// The binomial coefficient n over k, capped at 2^127.
pub fn choose(n: usize, k: usize) -> u128 {
    let mut c: u128 = 1;
    for i in 0..k.min(n.saturating_sub(k)) {
        match c.checked_mul((n - i) as u128) {
            Some(v) => c = v / (i as u128 + 1),
            None => return 1 << 127,
        }
    }
    if k > n { 0 } else { c }
}

/// Takes `k` GPUs host by host in the given order; `pick` selects the GPUs of each host.
pub fn fill(
    hosts: impl IntoIterator<Item = FreeHost>,
    k: usize,
    mut pick: impl FnMut(HostId, GpuMask, usize) -> GpuMask,
) -> Option<Allocation> {
    let mut left = k;
    let mut parts = Vec::new();
    for (h, m) in hosts {
        if left == 0 {
            break;
        }
        let take = left.min(m.count());
        parts.push((h, pick(h, m, take)));
        left -= take;
    }
    (left == 0).then(|| Allocation::new(parts))
}
