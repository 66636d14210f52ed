//! What the papers' searches know of single hosts: the best GPUs for a count, and who has how many.

use predict::PartTable;
use topology::{Allocation, GpuMask, HostId};

/// Free GPUs of one host.
pub(super) type FreeHost = (HostId, GpuMask);

/// For every free host and count up to `gpus_max`, the GPUs with the best intra bandwidth (the papers' dictionary of subsets), the first
/// of equals. `[host][count - 1]`. O(hosts x 2^GPUs).
pub(super) fn best_masks(table: &PartTable, hosts: &[FreeHost], gpus_max: usize) -> Vec<Vec<GpuMask>> {
    hosts
        .iter()
        .map(|&(host, free)| {
            let mut best = vec![(f64::NEG_INFINITY, GpuMask::EMPTY); free.count().min(gpus_max)];
            for m in free.subsets() {
                if let Some(b) = best.get_mut(m.count() - 1) {
                    let v = table.intra_gb_per_s(host, m);
                    if v > b.0 {
                        *b = (v, m);
                    }
                }
            }
            best.into_iter().map(|b| b.1).collect()
        })
        .collect()
}

/// Hosts by free GPUs, most first, then by id.
pub(super) fn freest_first(free: &Allocation) -> Vec<FreeHost> {
    let mut hosts = free.parts().to_vec();
    hosts.sort_by_key(|(h, m)| (std::cmp::Reverse(m.count()), *h));
    hosts
}

/// Hosts that can hold the whole job.
pub(super) fn singles(free: &Allocation, k: usize) -> impl Iterator<Item = FreeHost> + '_ {
    free.parts().iter().copied().filter(move |(_, m)| m.count() >= k)
}

/// The subsets of `mask` with `k` GPUs, ascending.
pub(super) fn subsets_of(mask: GpuMask, k: usize) -> impl Iterator<Item = GpuMask> {
    mask.subsets().filter(move |m| m.count() == k)
}

/// n over k, capped at 2^127.
pub(super) fn choose(n: usize, k: usize) -> u128 {
    let mut c: u128 = 1;
    for i in 0..k.min(n.saturating_sub(k)) {
        match c.checked_mul((n - i) as u128) {
            Some(v) => c = v / (i as u128 + 1),
            None => return 1 << 127,
        }
    }
    if k > n { 0 } else { c }
}

/// Takes `k` GPUs host by host in the given order, on each those that `pick` names.
pub(super) fn fill(
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

/// Host sets looked at for one size; with 16 hosts or fewer that is all of them.
pub(super) const SETS_LOOKED_AT_MAX: usize = 100_000;

/// Every set of `size` hosts that holds `k` GPUs, as places in `hosts`, in lexicographic order, until `visit` says stop or
/// [`SETS_LOOKED_AT_MAX`] were looked at.
pub(super) fn host_sets(hosts: &[FreeHost], size: usize, k: usize, visit: &mut dyn FnMut(&[usize]) -> bool) {
    struct Walk<'w> {
        counts: Vec<usize>,
        /// Most free GPUs on any host from here on.
        most_after: Vec<usize>,
        looks: usize,
        visit: &'w mut dyn FnMut(&[usize]) -> bool,
    }
    impl Walk<'_> {
        fn go(&mut self, from: usize, size: usize, left: usize, chosen: &mut Vec<usize>) -> bool {
            self.looks += 1;
            if size == 0 {
                return left > 0 || (self.visit)(chosen);
            }
            for i in from..(self.counts.len() + 1).saturating_sub(size) {
                if size * self.most_after[i] < left {
                    return true;
                }
                chosen.push(i);
                let more = self.go(i + 1, size - 1, left.saturating_sub(self.counts[i]), chosen);
                chosen.pop();
                if !more || self.looks >= SETS_LOOKED_AT_MAX {
                    return false;
                }
            }
            true
        }
    }
    let counts: Vec<usize> = hosts.iter().map(|h| h.1.count()).collect();
    let mut most_after = counts.clone();
    for i in (1..counts.len()).rev() {
        most_after[i - 1] = most_after[i - 1].max(most_after[i]);
    }
    Walk { counts, most_after, looks: 0, visit }.go(0, size, k, &mut Vec::new());
}
