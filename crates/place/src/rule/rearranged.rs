//! The same counts on other hosts: a choice that spans several switches, improved at the same cost.
//!
//! Flows between switches lose bandwidth on some fabrics. Two changes keep the number of hosts, switches and GPUs per host: the hosts below one switch move to another switch, and hosts with
//! fewer GPUs change places with hosts whose neighbours on the ring are below the same switch, where a loaded NIC does
//! no harm. The model judges each change.

use super::{Counts, Order, Rule};
use crate::cost::Cost;
use predict::Candidates;
use topology::Allocation;

/// Maximum number of rounds; a round without improvement is the last.
const ROUNDS_MAX: usize = 4;
/// Number of switches that are tried in place of one, the best by the model's effect of their hosts.
const SWITCHES_MAX: usize = 6;
/// Maximum number of hosts of all candidates together, so that large jobs are decided in time.
const HOSTS_MAX: usize = 4_000;
/// Relative gain of a round that counts as improvement.
const GAIN: f64 = 1e-4;

impl Rule<'_> {
    /// The best choice of the cost of `from` that a few rounds of changes reach, and the number of candidates judged;
    /// None if `from` is below one switch or no change improves it. O(rounds x candidates x hosts).
    pub fn rearranged(&mut self, from: &Allocation) -> (Option<Allocation>, u64) {
        let (cluster, request) = (self.objective.cluster, self.objective.request);
        let spans = |t: usize| cluster.switches_spanned(t, from) > 1;
        if !(0..cluster.tiers().len()).any(spans) || !request.pods.is_empty() || !request.groups.is_empty() {
            return (None, 0);
        }
        let slot_of = |h| self.slots.binary_search_by_key(&h, |s| s.host).ok().map(|i| i as u32);
        let counts: Option<Counts> = from.parts().iter().map(|p| Some((slot_of(p.0)?, p.1.count()))).collect();
        let Some(mut counts) = counts else { return (None, 0) };
        let cost = Cost::of(cluster, &request.free, from);
        let table = self.objective.table();
        let mut values = Vec::new();
        self.objective.scores(&Candidates::of(table, std::slice::from_ref(from)), &mut values);
        let (mut best, mut judged, mut found) = (values[0], 1, None);
        let mut budget = HOSTS_MAX / counts.len();
        for _ in 0..ROUNDS_MAX {
            let mut next = vec![counts.clone()];
            next.extend(self.elsewhere(&counts, budget.saturating_sub(1)));
            next.truncate(budget);
            next.iter_mut().for_each(|c| self.thin_hosts_inside(c));
            budget -= next.len();
            if next.is_empty() {
                break;
            }
            let mut with: Vec<(Allocation, Counts)> = next.into_iter().map(|c| (self.gpus(&c), c)).collect();
            with.retain(|(a, _)| request.accepts(cluster, a) && Cost::of(cluster, &request.free, a) <= cost);
            let list: Vec<Allocation> = with.iter().map(|w| w.0.clone()).collect();
            if list.is_empty() {
                break;
            }
            self.objective.scores(&Candidates::of(table, &list), &mut values);
            judged += list.len() as u64;
            let top = (0..values.len()).fold(0, |top, i| if values[i] > values[top] { i } else { top });
            if values[top] <= best * (1.0 + GAIN) {
                break;
            }
            best = values[top];
            (found, counts) = (Some(with[top].0.clone()), with[top].1.clone());
        }
        (found, judged)
    }

    /// The counts with the hosts below one switch replaced by hosts below another one that the job does not use; at most
    /// `most` such changes.
    fn elsewhere(&self, counts: &Counts, most: usize) -> Vec<Counts> {
        let mut out = Vec::new();
        let every: Vec<u32> = (0..self.slots.len() as u32).collect();
        let used: Vec<u32> = counts.iter().map(|c| c.0).collect();
        let mut is_used = vec![false; self.slots.len()];
        used.iter().for_each(|i| is_used[*i as usize] = true);
        for level in 1..=self.objective.cluster.tiers().len() {
            let mine = self.below(&used, level);
            if mine.len() < 2 {
                break;
            }
            let free_of_me = |s: &Vec<u32>| !s.iter().any(|i| is_used[*i as usize]);
            let effect = |s: &Vec<u32>| s.iter().map(|i| self.slots[*i as usize].effect).sum::<f64>() / s.len() as f64;
            let mut others: Vec<(f64, Vec<u32>)> =
                self.below(&every, level).into_iter().filter(free_of_me).map(|s| (effect(&s), s)).collect();
            others.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
            for group in &mine {
                if out.len() >= most {
                    return out;
                }
                let moved: Vec<usize> = counts.iter().filter(|c| group.contains(&c.0)).map(|c| c.1).collect();
                let stay: Counts = counts.iter().filter(|c| !group.contains(&c.0)).copied().collect();
                let fits = others.iter().filter_map(|(_, s)| self.fitted(s, &moved)).take(SWITCHES_MAX);
                out.extend(fits.map(|there| {
                    let mut all: Counts = stay.iter().copied().chain(there).collect();
                    all.sort_unstable();
                    all
                }));
            }
        }
        out
    }

    /// Hosts below a switch that give these counts, the largest count first and on the tidiest host.
    fn fitted(&self, switch: &[u32], moved: &[usize]) -> Option<Counts> {
        let mut moved = moved.to_vec();
        moved.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = switch.to_vec();
        let mut out = Counts::new();
        for n in moved {
            let can = (0..left.len()).filter(|i| self.gives(left[*i], n));
            let at = can.min_by(|a, b| self.by_order(Order::Tidy, n, left[*a], left[*b]))?;
            out.push((left.swap_remove(at), n));
        }
        Some(out)
    }

    /// Gives the smallest counts to hosts whose neighbours in the order of ranks are below the same switch, where the
    /// hosts have enough free GPUs. Of equal places the hosts that are not entirely free come first.
    fn thin_hosts_inside(&self, counts: &mut Counts) {
        let most = counts.iter().map(|c| c.1).max().unwrap_or(0);
        if counts.iter().all(|c| c.1 == most) {
            return;
        }
        let cluster = self.objective.cluster;
        let leaf = |c: &(u32, usize)| cluster.switch_of(0, self.slots[c.0 as usize].host);
        let mut order: Vec<usize> = (0..counts.len()).collect();
        let key = |i: &usize| {
            let h = self.slots[counts[*i].0 as usize].host;
            (cluster.switches_above(h), h)
        };
        order.sort_by_cached_key(key);
        let n = order.len();
        let edge = |at: usize| {
            let of = |i: usize| leaf(&counts[order[i % n]]);
            usize::from(of(at) != of(at + n - 1)) + usize::from(of(at) != of(at + 1))
        };
        // Thick hosts take the edges: the hosts with the most free GPUs among those at the edges stay or become thick.
        let edges: Vec<usize> = (0..n).map(edge).collect();
        for at in 0..n {
            let thin = order[at];
            if edges[at] == 0 || counts[thin].1 == most {
                continue;
            }
            let swaps = |b: &usize| {
                let thick = order[*b];
                edges[*b] < edges[at]
                    && counts[thick].1 > counts[thin].1
                    && self.gives(counts[thin].0, counts[thick].1)
                    && self.gives(counts[thick].0, counts[thin].1)
            };
            let whole = |b: &usize| self.slots[counts[order[*b]].0 as usize].whole;
            if let Some(b) = (0..n).filter(swaps).min_by_key(|b| (edges[*b], whole(b))) {
                let thick = order[b];
                (counts[thin].1, counts[thick].1) = (counts[thick].1, counts[thin].1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;
    use crate::objective::Objective;
    use predict::{BandwidthModel, FitOptions, HostShare, Kind, Oracle, fit};
    use topology::{Bytes, GpuMask, Host, HostId, Tier, catalog};

    /// Bandwidth of a ring over the hosts in order: a host's GPUs bound it; flows between leaves of eight hosts keep
    /// half, those of the last leaf a third.
    fn ring_over_lossy_leaves(parts: &[HostShare]) -> f64 {
        let leaf = |p: &HostShare| p.host.index() / 8;
        let n = parts.len();
        let at = |i: usize| {
            let here = leaf(&parts[i]);
            let edge = here != leaf(&parts[(i + n - 1) % n]) || here != leaf(&parts[(i + 1) % n]);
            let kept = if !edge {
                1.0
            } else if here == 4 {
                0.34
            } else {
                0.5
            };
            f64::from(parts[i].count) * kept
        };
        (0..n).map(at).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn thin_hosts_go_where_no_flow_crosses_and_slow_switches_are_left_at_the_same_cost() {
        let mut cluster = catalog::cluster("h100").unwrap();
        cluster.hosts = (0..40).map(|i| Host { name: format!("n{i}"), ..Host::default() }).collect();
        cluster.network.tiers = vec![Tier::regular("leaf", 8, 1.0)];
        let size = Bytes::mib(256);
        let table = fit(&cluster, &[], &FitOptions::of(Kind::Nccl)).unwrap().0.share_table(size).clone();
        let model = Oracle { table, truth: ring_over_lossy_leaves };
        let free = Allocation::new((0..40).map(|h| (HostId(h), GpuMask(0xff))));
        // Six hosts of leaf 0 and six of the slow leaf 4; those at the edges give four GPUs.
        let thin = |h: u32| if [0, 5, 32, 37].contains(&h) { GpuMask(0x0f) } else { GpuMask(0xff) };
        let from = Allocation::new((0..6).chain(32..38).map(|h| (HostId(h), thin(h))));
        let request = Request::new(from.gpu_count(), free, size);
        let objective = Objective::new(&cluster, &model, &request);
        let (better, judged) = Rule::new(&objective).rearranged(&from);
        let better = better.expect("an improvement");
        let of = |a: &Allocation| {
            ring_over_lossy_leaves(&a.parts().iter().map(|p| objective.part(p.0, p.1)).collect::<Vec<_>>())
        };
        assert!(of(&from) < 1.5 && of(&better) == 4.0, "{} to {}: {better:?}", of(&from), of(&better));
        assert_eq!(Cost::of(&cluster, &request.free, &better), Cost::of(&cluster, &request.free, &from));
        assert!(better.parts().iter().all(|p| p.0.index() < 32) && judged < 200, "{judged} candidates: {better:?}");
    }
}
