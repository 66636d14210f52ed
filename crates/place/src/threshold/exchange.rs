//! Local improvement: the best candidates give and take single GPUs and hosts.

use crate::objective::Objective;
use crate::options::HostOptions;
use predict::{Candidates, HostShare};
use topology::{Allocation, GpuMask, HostId};

/// Number of best candidates that are improved in a round.
const BEST: usize = 3;
/// Maximum number of parts of a round's candidates together.
const PARTS_MAX: usize = 20_000;
/// Maximum number of rounds; a round without improvement is the last.
const ROUNDS_MAX: usize = 3;
/// Maximum number of hosts of a candidate that give GPUs or leave, and maximum number that take GPUs.
const HOSTS_MAX: usize = 8;
/// Number of hosts that are tried in place of one that leaves.
const SUBSTITUTES: usize = 2;

/// Adds the scores of the best candidates' neighbours, in up to [`ROUNDS_MAX`] batches.
pub fn improve(
    objective: &Objective,
    free: &Allocation,
    options: &[HostOptions],
    candidates: &mut Candidates,
    scores: &mut Vec<f64>,
) {
    let shaped = objective.request.asks_shape();
    let counts = objective.request.counts_allowed();
    let mut best = top(scores, 0, BEST);
    for _ in 0..ROUNDS_MAX {
        let Some(&first) = best.first() else { return };
        let mut next = Candidates::new();
        let mut budget = PARTS_MAX;
        for &i in &best {
            let hosts = Exchange { objective, free: free.parts(), options, counts, shaped, parts: candidates.parts(i) };
            hosts.neighbours(&mut budget, &mut next);
        }
        if next.is_empty() {
            return;
        }
        let mut values = Vec::new();
        let floor = scores[first];
        objective.promising_scores(&next, floor, &mut values);
        let from = scores.len();
        for (parts, v) in next.iter().zip(&values) {
            candidates.push(parts);
            scores.push(*v);
        }
        best = top(scores, from, BEST);
        best.retain(|i| scores[*i] > floor);
    }
}

/// Positions of the best values from `from` on, best first.
fn top(scores: &[f64], from: usize, n: usize) -> Vec<usize> {
    let mut best: Vec<usize> = Vec::with_capacity(n + 1);
    for (i, v) in scores.iter().enumerate().skip(from) {
        let at = best.iter().position(|b| *v > scores[*b]).unwrap_or(best.len());
        if at < n {
            best.insert(at, i);
            best.truncate(n);
        }
    }
    best
}

/// One candidate and its surroundings.
struct Exchange<'a, 'o> {
    objective: &'a Objective<'o>,
    options: &'a [HostOptions],
    /// Free GPUs, in the order of the options.
    free: &'a [(HostId, GpuMask)],
    /// Bit `n`: a host may give `n` GPUs.
    counts: u32,
    /// True if the request constrains the counts beyond their sum.
    shaped: bool,
    parts: &'a [HostShare],
}

impl Exchange<'_, '_> {
    /// The bandwidth that a part would allow if it were the only limit.
    fn worth(&self, p: &HostShare) -> f64 {
        let effect = self.objective.model.host_effect(p.host);
        p.intra_gb_per_s.min(p.nic_gb_per_s) * if effect == 0.0 { 1.0 } else { effect.exp() }
    }

    /// The parts of a host with `count` GPUs.
    fn all(&self, row: usize, count: u8) -> &[HostShare] {
        if count == 0 || self.counts >> count & 1 == 0 {
            return &[];
        }
        self.options[row].by_count.get(usize::from(count) - 1).map_or(&[], Vec::as_slice)
    }

    /// The part of a host with `count` GPUs and the highest worth.
    fn option(&self, row: usize, count: u8) -> Option<HostShare> {
        let least = |p: &HostShare| p.intra_gb_per_s.min(p.nic_gb_per_s);
        let better = |a: &&HostShare, b: &&HostShare| {
            least(a).total_cmp(&least(b)).then(a.nic_gb_per_s.total_cmp(&b.nic_gb_per_s))
        };
        self.all(row, count).iter().max_by(better).copied()
    }

    fn row_of(&self, p: &HostShare) -> Option<usize> {
        self.free.binary_search_by_key(&p.host, |f| f.0).ok()
    }

    /// The neighbours: other GPUs of the same host; one GPU moved between hosts; another host for one of the weakest.
    fn neighbours(&self, budget: &mut usize, out: &mut Candidates) {
        let parts = self.parts;
        if parts.len() < 2 {
            return;
        }
        let mut order: Vec<(f64, usize)> = parts.iter().enumerate().map(|(i, p)| (self.worth(p), i)).collect();
        let by_worth = |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        order.sort_unstable_by(by_worth);
        let weak = &order[..order.len().min(HOSTS_MAX)];
        let strong = &order[order.len().saturating_sub(HOSTS_MAX)..];
        let mut list: Vec<HostShare> = Vec::with_capacity(parts.len());
        let mut push = |changes: &[(usize, HostShare)]| {
            if *budget < parts.len() {
                return;
            }
            *budget -= parts.len();
            list.clear();
            list.extend_from_slice(parts);
            for (i, p) in changes {
                list[*i] = *p;
            }
            list.sort_unstable_by_key(|p| p.host);
            if !self.shaped || super::candidates::accepts(self.objective.request, &list) {
                out.push(&list);
            }
        };
        self.other_gpus(weak.iter().chain(strong), &mut push);
        self.one_gpu_moved(weak, strong, &mut push);
        self.other_hosts(weak, &mut push);
    }

    /// Other GPUs of the same host.
    fn other_gpus<'w>(&self, of: impl Iterator<Item = &'w (f64, usize)>, push: &mut impl FnMut(&[(usize, HostShare)])) {
        for &(_, i) in of {
            let part = &self.parts[i];
            let Some(row) = self.row_of(part) else { continue };
            for p in self.all(row, part.count).iter().filter(|p| p.mask != part.mask) {
                push(&[(i, *p)]);
            }
        }
    }

    /// One GPU less on a weak host and one more on a strong host, and the reverse.
    fn one_gpu_moved(
        &self,
        weak: &[(f64, usize)],
        strong: &[(f64, usize)],
        push: &mut impl FnMut(&[(usize, HostShare)]),
    ) {
        let parts = self.parts;
        for &(_, w) in weak {
            for &(_, s) in strong.iter().rev() {
                for (from, to) in [(w, s), (s, w)] {
                    if from == to || parts[from].count < 2 {
                        continue;
                    }
                    let (Some(f), Some(t)) = (self.row_of(&parts[from]), self.row_of(&parts[to])) else { continue };
                    for a in self.all(f, parts[from].count - 1) {
                        for b in self.all(t, parts[to].count + 1) {
                            push(&[(from, *a), (to, *b)]);
                        }
                    }
                }
            }
        }
    }

    /// A host outside of the candidate in place of a weak host, if it has the higher worth or the faster NICs.
    fn other_hosts(&self, weak: &[(f64, usize)], push: &mut impl FnMut(&[(usize, HostShare)])) {
        let (parts, free) = (self.parts, self.free);
        let mut inside = vec![false; free.len()];
        parts.iter().filter_map(|p| self.row_of(p)).for_each(|i| inside[i] = true);
        let mut outside: Vec<(u8, Vec<(f64, HostShare)>)> = Vec::new();
        for &(worth, w) in weak {
            let count = parts[w].count;
            let known = outside.iter().position(|o| o.0 == count).unwrap_or_else(|| {
                let all = (0..free.len()).filter(|i| !inside[*i]).filter_map(|i| self.option(i, count));
                let mut all: Vec<(f64, HostShare)> = all.map(|p| (self.worth(&p), p)).collect();
                all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.host.cmp(&b.1.host)));
                all.truncate(HOSTS_MAX);
                outside.push((count, all));
                outside.len() - 1
            });
            for (v, p) in outside[known].1.iter().take(SUBSTITUTES) {
                if *v > worth || p.nic_gb_per_s > parts[w].nic_gb_per_s {
                    push(&[(w, *p)]);
                }
            }
        }
    }
}
