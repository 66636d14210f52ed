//! Exact optimum of the truth: bandwidth = min(rows of the hosts, rates of the pairs of hosts).
//!
//! For a set of hosts that all take part, the search raises a threshold and tests whether `k` can be composed of counts
//! whose best row reaches it. Sums of counts are bits of one word, so a test takes a few shifts. Sets of hosts are
//! visited depth first; a set whose slowest pair is not better than the best result so far is skipped. O(2^hosts x
//! hosts x counts x log thresholds); with equal pairs one pass over all hosts is enough.
//!
//! [`truths::enumerate`] is too slow here: it would visit up to 9^8 splits of 64 GPUs, 43 million.

use super::tables::IntraRows;
use topology::{Allocation, GpuMask, HostId};
use truths::{Irregularity, Optimum, Truth};

/// A host's best mask per count.
struct Choices {
    host: HostId,
    /// By count: GB/s and GPUs; a single GPU sets no limit. `None`: no subset of this count has a row.
    best: Vec<Option<(f64, GpuMask)>>,
    /// By count: true if a subset has no row.
    hole: Vec<bool>,
}

impl Choices {
    fn of(host: HostId, free: GpuMask, rows: &IntraRows) -> Self {
        let n = free.count();
        let (mut best, mut hole) = (vec![None::<(f64, GpuMask)>; n + 1], vec![false; n + 1]);
        for m in free.subsets() {
            let c = m.count();
            match if c == 1 { Some(f64::INFINITY) } else { rows.get(m) } {
                Some(v) if best[c].is_none_or(|b| v > b.0) => best[c] = Some((v, m)),
                Some(_) => {}
                None => hole[c] = true,
            }
        }
        Choices { host, best, hole }
    }
    /// Counts whose best row reaches a threshold.
    fn reaching(&self, threshold: f64) -> impl Iterator<Item = usize> + '_ {
        (1..self.best.len()).filter(move |c| self.best[*c].is_some_and(|b| b.0 >= threshold))
    }
}

/// Numbers of GPUs that the hosts can provide with at least one GPU each, as bits.
fn sums(hosts: &[&Choices], threshold: f64) -> u128 {
    hosts.iter().fold(1u128, |sums, h| h.reaching(threshold).fold(0, |new, c| new | sums << c))
}

/// Counts that add up to `k`, one per host.
fn compose(hosts: &[&Choices], threshold: f64, k: usize) -> Option<Vec<usize>> {
    let Some((first, rest)) = hosts.split_first() else { return (k == 0).then(Vec::new) };
    let others = sums(rest, threshold);
    let count = first.reaching(threshold).filter(|c| *c <= k).find(|c| others >> (k - c) & 1 == 1)?;
    let mut counts = compose(rest, threshold, k - count)?;
    counts.insert(0, count);
    Some(counts)
}

/// The optimum for `k` of the free GPUs; `pairs` in GB/s, infinite on the diagonal.
pub fn optimum(truth: &dyn Truth, intra: &[IntraRows], pairs: &[Vec<f64>], free: &Allocation, k: usize) -> Optimum {
    let mut found = Optimum::default();
    if k == 0 || free.gpu_count() < k {
        return found;
    }
    for &(host, mask) in free.parts() {
        for m in truth.masks_that_matter(host, mask, k, true, Irregularity::With) {
            found.see(truth.of_parts(&[(host, m)], Irregularity::With), || Allocation::new([(host, m)]));
        }
    }
    if k < 2 {
        return found;
    }
    let hosts: Vec<Choices> = free.parts().iter().map(|&(h, m)| Choices::of(h, m, &intra[h.index()])).collect();
    let all = free.gpu_count();
    // Every count that leaves enough GPUs to the other hosts is part of a candidate.
    found.missing |= hosts.iter().any(|h| {
        let others = all - (h.best.len() - 1);
        (2..h.hole.len()).any(|c| h.hole[c] && c < k && k - c <= others)
    });
    let mut thresholds: Vec<f64> = hosts.iter().flat_map(|h| h.best.iter().flatten().map(|b| b.0)).collect();
    thresholds.sort_by(f64::total_cmp);
    thresholds.dedup();
    let mut walk =
        Walk { hosts: &hosts, pairs, k, thresholds, best: found.best.unwrap_or(0.0), set: Vec::new(), winner: None };
    walk.go(0, f64::INFINITY, 0);
    if let Some((set, threshold)) = walk.winner {
        let members: Vec<&Choices> = set.iter().map(|i| &hosts[*i]).collect();
        let counts = compose(&members, threshold, k).expect("the threshold was feasible");
        let parts = members.iter().zip(counts).filter_map(|(h, c)| Some((h.host, h.best[c]?.1)));
        let a = Allocation::new(parts);
        found.see(truth.of_parts(a.parts(), Irregularity::With), || a.clone());
    }
    found
}

struct Walk<'a> {
    hosts: &'a [Choices],
    pairs: &'a [Vec<f64>],
    k: usize,
    /// Ascending.
    thresholds: Vec<f64>,
    best: f64,
    set: Vec<usize>,
    winner: Option<(Vec<usize>, f64)>,
}

impl Walk<'_> {
    /// Adds hosts from `from` on to the set. `slowest` is the rate of its slowest pair, `gpus` its number of GPUs.
    fn go(&mut self, from: usize, slowest: f64, gpus: usize) {
        if self.set.len() > 1 && gpus >= self.k && self.set.len() <= self.k {
            self.judge(slowest);
        }
        if self.set.len() == self.k {
            return;
        }
        for i in from..self.hosts.len() {
            let rate = |j: &usize| self.pairs[self.hosts[*j].host.index()][self.hosts[i].host.index()];
            let slowest = self.set.iter().map(rate).fold(slowest, f64::min);
            if slowest <= self.best {
                continue;
            }
            self.set.push(i);
            self.go(i + 1, slowest, gpus + self.hosts[i].best.len() - 1);
            self.set.pop();
        }
    }

    /// The best bandwidth of exactly this set of hosts.
    fn judge(&mut self, slowest: f64) {
        let members: Vec<&Choices> = self.set.iter().map(|i| &self.hosts[*i]).collect();
        let feasible = |t: f64| sums(&members, t) >> self.k & 1 == 1;
        // Thresholds above the slowest pair have no effect, because the pair limits the bandwidth.
        let first = self.thresholds.partition_point(|t| *t <= self.best);
        let last = (self.thresholds.partition_point(|t| *t < slowest) + 1).min(self.thresholds.len());
        if first >= last || !feasible(self.thresholds[first]) {
            return;
        }
        let (mut low, mut high) = (first, last);
        while high - low > 1 {
            let middle = (low + high) / 2;
            if feasible(self.thresholds[middle]) { low = middle } else { high = middle }
        }
        let threshold = self.thresholds[low];
        let value = threshold.min(slowest);
        if value > self.best {
            self.best = value;
            self.winner = Some((self.set.clone(), threshold));
        }
    }
}
