//! GPU sets of single hosts, and sets of hosts, as the published searches enumerate them.

use place::search::hosts::FreeHost;
use predict::HostShareTable;
use topology::GpuMask;

/// For every free host and count up to `gpus_max`, the GPUs with the best intra bandwidth (the papers' dictionary of
/// subsets); ties go to the first. `[host][count - 1]`. O(hosts x 2^GPUs).
pub(crate) fn best_masks(table: &HostShareTable, hosts: &[FreeHost], gpus_max: usize) -> Vec<Vec<GpuMask>> {
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

/// Maximum number of host sets visited for one size; covers all sets of 16 hosts or fewer.
pub(crate) const SETS_LOOKED_AT_MAX: usize = 100_000;

/// Visits every set of `size` hosts that holds `k` GPUs, as positions in `hosts`, in lexicographic order, until `visit`
/// returns `false` or [`SETS_LOOKED_AT_MAX`] sets were visited.
pub(crate) fn host_sets(hosts: &[FreeHost], size: usize, k: usize, visit: &mut dyn FnMut(&[usize]) -> bool) {
    struct Walk<'w> {
        counts: Vec<usize>,
        /// Largest number of free GPUs on any host from this position on.
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
