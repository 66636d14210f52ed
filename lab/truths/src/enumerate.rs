//! The exact optimum of any truth: enumerates every combination of the masks that matter, except those that a bound
//! excludes.
//!
//! Hosts with a high bound come first, and large counts first: a good candidate is then known early and the bound
//! excludes many combinations.

use crate::truth::{Irregularity, Optimum, Truth};
use topology::{Allocation, GpuMask, HostId};

/// Default limit of visited nodes, a few seconds. Beyond it the optimum is unknown. A truth may set a lower limit.
pub const NODES_MAX: u64 = 30_000_000;

/// The optimum by enumeration, for truths without a faster method. Single hosts come first, then all splits over two or
/// more hosts.
pub fn enumerate<T: Truth + ?Sized>(truth: &T, free: &Allocation, k: usize, irregularity: Irregularity) -> Optimum {
    let mut found = Optimum::default();
    if k == 0 || free.gpu_count() < k {
        return found;
    }
    for &(host, mask) in free.parts() {
        if mask.count() >= k {
            for m in truth.masks_that_matter(host, mask, k, true, irregularity) {
                let parts = [(host, m)];
                found.see(truth.of_parts(&parts, irregularity), || Allocation::new(parts));
            }
        }
    }
    if k < 2 {
        return found;
    }
    // At least one GPU is on another host, so no host gives more than k - 1.
    let mut hosts: Vec<HostChoices> = free
        .parts()
        .iter()
        .map(|&(host, mask)| {
            let most = mask.count().min(k - 1);
            let by_count: Vec<Vec<GpuMask>> =
                (1..=most).map(|c| truth.masks_that_matter(host, mask, c, false, irregularity)).collect();
            let bound = |m: &GpuMask| truth.at_most(&[(host, *m)], k, irregularity);
            let promise = by_count.iter().flatten().map(bound).fold(0.0, f64::max);
            HostChoices { host, by_count, promise }
        })
        .collect();
    hosts.sort_by(|a, b| b.promise.total_cmp(&a.promise).then(a.host.cmp(&b.host)));
    let mut rest = vec![0; hosts.len() + 1];
    for i in (0..hosts.len()).rev() {
        rest[i] = rest[i + 1] + hosts[i].by_count.len();
    }
    let mut walk =
        Walk { truth, irregularity, k, hosts: &hosts, rest, found, chosen: Vec::new(), left: truth.nodes_max() };
    let complete = walk.go(0, k);
    let mut found = walk.found;
    if !complete {
        found = Optimum { best: None, allocation: None, missing: true };
    }
    found
}

struct HostChoices {
    host: HostId,
    /// `by_count[c - 1]`: masks of `c` GPUs.
    by_count: Vec<Vec<GpuMask>>,
    /// Upper bound of all allocations with GPUs of this host.
    promise: f64,
}

struct Walk<'a, T: ?Sized> {
    truth: &'a T,
    irregularity: Irregularity,
    k: usize,
    hosts: &'a [HostChoices],
    /// GPUs that hosts `i..` can give.
    rest: Vec<usize>,
    found: Optimum,
    /// Ascending by host, as truths require.
    chosen: Vec<(HostId, GpuMask)>,
    /// Nodes that may still be visited.
    left: u64,
}

impl<T: Truth + ?Sized> Walk<'_, T> {
    /// Host `i` and those after it give `left` GPUs. False if the limit was reached.
    fn go(&mut self, i: usize, left: usize) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        if left == 0 {
            if self.chosen.len() > 1 {
                let value = self.truth.of_parts(&self.chosen, self.irregularity);
                let chosen = &self.chosen;
                self.found.see(value, || Allocation::new(chosen.iter().copied()));
            }
            return true;
        }
        if self.rest[i] < left {
            return true;
        }
        if !self.chosen.is_empty()
            && let Some(best) = self.found.best
            && self.truth.at_most(&self.chosen, self.k, self.irregularity) <= best
        {
            return true;
        }
        let host = &self.hosts[i];
        let at = self.chosen.partition_point(|c| c.0 < host.host);
        for masks in host.by_count.iter().take(left).rev() {
            for &m in masks {
                self.chosen.insert(at, (host.host, m));
                let more = self.go(i + 1, left - m.count());
                self.chosen.remove(at);
                if !more {
                    return false;
                }
            }
        }
        self.go(i + 1, left)
    }
}
