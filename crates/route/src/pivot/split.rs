//! The pivots' result as shares: weights of rails per pair of hosts, and shares of paths of single demands.

use super::{BasicColumn, COMPOSITE, DemandPair, NONE, Pivots};
use crate::network::RoutingNetwork;
use crate::rules::{PATHS_MAX, Rule, Shares};

/// Iterates over the basic columns pair by pair, in the order of pairs and paths.
struct ByPair {
    order: Vec<usize>,
    next: usize,
}

impl ByPair {
    /// The columns of a pair. Pairs must come in ascending order.
    fn of(&mut self, columns: &[BasicColumn], pair: usize) -> &[usize] {
        let from = self.next;
        while self.next < self.order.len() && columns[self.order[self.next]].pair as usize == pair {
            self.next += 1;
        }
        &self.order[from..self.next]
    }
}

/// (share of the pair's key, sum of all its shares). The sum is 1 up to rounding.
fn kept_of_total(columns: &[BasicColumn], own: &[usize]) -> (f64, f64) {
    let moved: f64 = own.iter().map(|&c| columns[c].share.max(0.0)).sum();
    let kept = (1.0 - moved).max(0.0);
    (kept, moved + kept)
}

impl Pivots {
    /// Writes the shares of the coarse stage into the weights. Calls `each` for every pair of hosts whose weights changed.
    pub fn absorb_host_weights(&mut self, net: &RoutingNetwork, mut each: impl FnMut(usize, usize, &[f64])) {
        let slots = net.slots;
        let mut by_pair = self.by_pair();
        for (p, pair) in self.pairs.iter().enumerate() {
            let own = by_pair.of(&self.columns, p);
            let (a, b) = (usize::from(pair.src), usize::from(pair.dst));
            let at = (a * net.host_count() + b) * slots;
            let unchanged = |w: &[f64]| own.is_empty() && pair.key == COMPOSITE && w == net.weights_between(a, b);
            if !pair.hosts || unchanged(&self.weights[at..at + slots]) {
                continue;
            }
            let weights = &mut self.weights[at..at + slots];
            let (kept, total) = kept_of_total(&self.columns, own);
            match pair.key {
                COMPOSITE => weights.iter_mut().for_each(|w| *w *= kept / total),
                k => {
                    weights.fill(0.0);
                    weights[usize::from(k)] = kept / total;
                }
            }
            own.iter()
                .for_each(|&c| weights[usize::from(self.columns[c].path)] += self.columns[c].share.max(0.0) / total);
            each(a, b, weights);
        }
    }

    fn by_pair(&self) -> ByPair {
        let mut order: Vec<usize> = (1..self.columns.len().min(self.rows.len())).collect();
        order.sort_unstable_by_key(|&c| (self.columns[c].pair, self.columns[c].path));
        ByPair { order, next: 0 }
    }

    /// Calls `each` for every demand whose split differs from the rule's, ordered by source and destination.
    pub fn for_each_exception(
        &mut self,
        net: &RoutingNetwork,
        rule: Rule,
        mut each: impl FnMut(usize, usize, &[(u16, f64)]),
    ) {
        let mut list = Shares::default();
        let mut by_pair = self.by_pair();
        for (p, pair) in self.pairs.iter().enumerate() {
            let own = by_pair.of(&self.columns, p);
            let (src, dst) = (usize::from(pair.src), usize::from(pair.dst));
            if pair.hosts {
                continue;
            }
            // The largest demands are always exceptions: they keep their split while the weights of their hosts change.
            let apart = pair.own != NONE || (self.coarse && net.host(src) != net.host(dst));
            if own.is_empty() && !apart && pair.key == self.first_key(net, rule, src, dst) {
                continue;
            }
            let (kept, total) = kept_of_total(&self.columns, own);
            let mut by_path = [0.0; PATHS_MAX];
            if pair.key == COMPOSITE {
                self.composite_shares(net, pair).iter().enumerate().for_each(|(k, s)| by_path[k] += s * kept);
            } else {
                by_path[usize::from(pair.key)] += kept;
            }
            own.iter().for_each(|&c| by_path[usize::from(self.columns[c].path)] += self.columns[c].share.max(0.0));
            list.clear();
            by_path.iter().enumerate().filter(|(_, s)| **s > 0.0).for_each(|(k, s)| list.push(k, s / total));
            each(src, dst, list.as_slice());
        }
    }

    /// The split that the key stands for.
    #[inline]
    pub(super) fn composite_shares<'a>(&'a self, net: &'a RoutingNetwork, pair: &DemandPair) -> &'a [f64] {
        let (src, dst) = (usize::from(pair.src), usize::from(pair.dst));
        if pair.own != NONE {
            return &self.own_shares[pair.own as usize..pair.own as usize + PATHS_MAX];
        }
        let (a, b) = if pair.hosts { (src, dst) } else { (net.host(src), net.host(dst)) };
        if a == b {
            return net.intra_shares(src, dst);
        }
        let at = (a * net.host_count() + b) * net.slots;
        &self.weights[at..at + net.slots]
    }
}
