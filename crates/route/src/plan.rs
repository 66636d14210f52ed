//! A plan: a rule for every pair of ranks, exceptions to the rule, and a proven lower bound.

use crate::bound::Evidence;
use crate::demand::Demand;
use crate::network::RoutingNetwork;
use crate::rules::{Rule, Shares};

/// Bytes of one pair of ranks over one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathFlow {
    /// Sender.
    pub src: usize,
    /// Receiver.
    pub dst: usize,
    /// The path: inside a host its index in [`RoutingNetwork::intra_paths`], between hosts its slot.
    pub path: usize,
    /// Bytes on this path.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exception {
    pub src: u16,
    pub dst: u16,
    from: u32,
}

/// Why the planner returned this plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanReason {
    /// A static rule is within the requested gap of the optimum.
    RuleIsEnough,
    /// Pivots corrected a rule.
    Corrected,
    /// Splitting has less congestion, but its overhead takes longer for messages this small.
    SmallMessages,
    /// The caller named the rule or planner.
    AsAsked,
}

/// The path of every byte, stored as a rule and its exceptions. [`RoutePlan::flows`] expands it.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutePlan {
    /// The rule of every pair without an exception.
    pub rule: Rule,
    /// Seconds that the busiest link needs, before rounding to whole bytes.
    pub congestion_s: f64,
    /// Proven lower bound on the congestion of any plan, seconds.
    pub lower_bound_s: f64,
    /// The proof of the bound.
    pub evidence: Evidence,
    /// Index of the busiest link in [`RoutingNetwork::links`].
    pub bottleneck: usize,
    /// All pieces of a pair but one are multiples of this many bytes.
    pub quantum_bytes: u64,
    /// Number of pivots of the correction.
    pub pivots: u32,
    /// Why the planner returned this plan.
    pub reason: PlanReason,
    /// Modelled completion time, seconds.
    pub completion_s: f64,
    pub(crate) exceptions: Vec<Exception>,
    pub(crate) shares: Vec<(u16, f64)>,
    /// Pairs of hosts, ascending, whose [`Rule::Weighted`] uses the weights in `host_weights` (one per slot) instead of the network's.
    pub(crate) host_pairs: Vec<(u16, u16)>,
    pub(crate) host_weights: Vec<f64>,
}

impl RoutePlan {
    /// A rule without exceptions. The caller sets congestion and bound.
    pub(crate) fn of_rule(rule: Rule) -> Self {
        RoutePlan {
            rule,
            congestion_s: 0.0,
            lower_bound_s: 0.0,
            evidence: Evidence::Nothing,
            bottleneck: 0,
            quantum_bytes: 1,
            pivots: 0,
            reason: PlanReason::AsAsked,
            completion_s: 0.0,
            exceptions: Vec::new(),
            shares: Vec::new(),
            host_pairs: Vec::new(),
            host_weights: Vec::new(),
        }
    }

    /// Adds the shares of one pair. Pairs must come in ascending order.
    pub(crate) fn add_exception(&mut self, src: usize, dst: usize, shares: &[(u16, f64)]) {
        self.exceptions.push(Exception { src: src as u16, dst: dst as u16, from: self.shares.len() as u32 });
        self.shares.extend_from_slice(shares);
    }

    pub(crate) fn clear_exceptions(&mut self) {
        self.exceptions.clear();
        self.shares.clear();
    }

    /// Number of pairs with separate shares.
    pub fn exception_count(&self) -> usize {
        self.exceptions.len()
    }

    /// Congestion over the lower bound, minus one; 0 if nothing is sent.
    pub fn gap(&self) -> f64 {
        if self.lower_bound_s > 0.0 { (self.congestion_s / self.lower_bound_s - 1.0).max(0.0) } else { 0.0 }
    }

    /// Sets the slot weights of all bytes from one host to another. Pairs must come in ascending order.
    pub(crate) fn add_host_exception(&mut self, a: usize, b: usize, weights: &[f64]) {
        self.host_pairs.push((a as u16, b as u16));
        self.host_weights.extend_from_slice(weights);
    }

    /// Shares of the paths between two different ranks, without the exceptions of single pairs.
    pub(crate) fn base_shares(&self, net: &RoutingNetwork, src: usize, dst: usize, out: &mut Shares) {
        let hosts = (net.host(src) as u16, net.host(dst) as u16);
        match self.host_pairs.binary_search(&hosts) {
            Ok(at) if !self.host_pairs.is_empty() => {
                out.clear();
                let weights = &self.host_weights[at * net.slot_count()..(at + 1) * net.slot_count()];
                weights.iter().enumerate().filter(|(_, w)| **w > 0.0).for_each(|(k, &w)| out.push(k, w));
            }
            _ => self.rule.shares(net, src, dst, out),
        }
    }

    /// [`RoutingNetwork::weights`] with this plan's host exceptions.
    pub(crate) fn weights(&self, net: &RoutingNetwork, out: &mut Vec<f64>) {
        out.clone_from(&net.weights);
        for (&(a, b), w) in self.host_pairs.iter().zip(self.host_weights.chunks(net.slot_count().max(1))) {
            let at = (usize::from(a) * net.host_count() + usize::from(b)) * net.slot_count();
            out[at..at + w.len()].copy_from_slice(w);
        }
    }

    /// Shares of the paths between two different ranks. O(log exceptions + paths).
    pub fn shares(&self, net: &RoutingNetwork, src: usize, dst: usize, out: &mut Shares) {
        match self.exceptions.binary_search_by_key(&(src as u16, dst as u16), |e| (e.src, e.dst)) {
            Ok(at) => self.exception_shares(at, out),
            Err(_) => self.base_shares(net, src, dst, out),
        }
    }

    pub(crate) fn exception_shares(&self, at: usize, out: &mut Shares) {
        out.clear();
        let from = self.exceptions[at].from as usize;
        let to = self.exceptions.get(at + 1).map_or(self.shares.len(), |e| e.from as usize);
        self.shares[from..to].iter().for_each(|&(p, s)| out.push(usize::from(p), s));
    }

    /// Calls `each` with every pair that has separate shares.
    pub(crate) fn for_each_exception(&self, mut each: impl FnMut(usize, usize, &Shares)) {
        let mut shares = Shares::default();
        for (at, e) in self.exceptions.iter().enumerate() {
            self.exception_shares(at, &mut shares);
            each(usize::from(e.src), usize::from(e.dst), &shares);
        }
    }

    /// Calls `each` with path and whole bytes of one pair. The bytes sum to `bytes` and are the same on every rank. O(log exceptions + paths).
    pub fn split(&self, net: &RoutingNetwork, src: usize, dst: usize, bytes: u64, mut each: impl FnMut(usize, u64)) {
        let mut shares = Shares::default();
        self.shares(net, src, dst, &mut shares);
        apportion(bytes, shares.as_slice(), self.quantum_bytes, src + dst, &mut each);
    }

    /// Every flow of a demand, ordered by source and destination. Stores nothing. O(ranks² x paths) for the whole iteration.
    pub fn flows<'a>(&'a self, net: &'a RoutingNetwork, demand: &'a Demand) -> impl Iterator<Item = PathFlow> + 'a {
        demand.pairs().flat_map(move |(src, dst, bytes)| {
            let mut list = [(0, 0); crate::rules::PATHS_MAX];
            let mut len = 0;
            self.split(net, src, dst, bytes, |path, bytes| {
                list[len] = (path, bytes);
                len += 1;
            });
            list.into_iter().take(len).map(move |(path, bytes)| PathFlow { src, dst, path, bytes })
        })
    }

    /// Whole bytes on every link. O(ranks² x paths x links of a path).
    pub fn link_bytes(&self, net: &RoutingNetwork, demand: &Demand) -> Vec<u64> {
        let mut loads = vec![0; net.links.len()];
        for f in self.flows(net, demand) {
            net.path(f.src, f.dst, f.path).for_each(|l| loads[l as usize] += f.bytes);
        }
        loads
    }
}

/// Splits bytes by shares. All pieces but one are multiples of `quantum`. The path that rounding starts at depends on `turn`, so that the
/// remainders of many small messages spread over the paths.
pub fn apportion(bytes: u64, shares: &[(u16, f64)], quantum: u64, turn: usize, each: &mut impl FnMut(usize, u64)) {
    if shares.is_empty() || bytes == 0 {
        return;
    }
    let n = shares.len();
    let quanta = bytes / quantum;
    let mut sum = 0.0;
    let mut given = 0;
    for i in 0..n {
        let (path, share) = shares[(turn + i) % n];
        sum += share;
        let until = if i + 1 == n { bytes } else { (((quanta as f64) * sum + 0.5) as u64).min(quanta) * quantum };
        let piece = until.saturating_sub(given);
        given = given.max(until);
        if piece > 0 {
            each(usize::from(path), piece);
        }
    }
}
