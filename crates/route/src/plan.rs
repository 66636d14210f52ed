//! A plan: a rule for every pair of ranks, exceptions to it, and the proof of how good that is.

use crate::bound::Evidence;
use crate::demand::Demand;
use crate::network::Network;
use crate::rules::{Rule, Shares};

/// Bytes of one pair of ranks over one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Sender.
    pub src: usize,
    /// Receiver.
    pub dst: usize,
    /// The path: its place among [`Network::intra_paths`] in a host, its slot between hosts.
    pub path: usize,
    /// How much.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exception {
    pub src: u16,
    pub dst: u16,
    from: u32,
}

/// How a plan came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A static rule, and nothing beats it by more than the wanted gap.
    RuleIsEnough,
    /// A rule and corrections to it.
    Corrected,
    /// Splitting would carry more, but takes longer for messages this small.
    SmallMessages,
    /// The planner that was asked for knows no reasons.
    AsAsked,
}

/// Which bytes take which path. Small: a rule, and exceptions that expand when asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What holds for every pair without an exception.
    pub rule: Rule,
    /// Seconds that the busiest link needs, before bytes are rounded to whole ones.
    pub congestion_s: f64,
    /// No plan needs less.
    pub lower_bound_s: f64,
    /// What proves the bound.
    pub evidence: Evidence,
    /// The busiest link.
    pub bottleneck: usize,
    /// Pieces are multiples of so many bytes, except one of each pair.
    pub quantum_bytes: u64,
    /// Pivots of the correction.
    pub pivots: u32,
    /// Why this plan.
    pub reason: Reason,
    /// Modelled completion, seconds.
    pub completion_s: f64,
    pub(crate) exceptions: Vec<Exception>,
    pub(crate) shares: Vec<(u16, f64)>,
    /// Pairs of hosts, ascending, between which the rule is [`Rule::Weighted`] with other weights; and these, one after the other.
    pub(crate) host_pairs: Vec<(u16, u16)>,
    pub(crate) host_weights: Vec<f64>,
}

impl Plan {
    /// A rule without exceptions; congestion and bound are the caller's to fill in.
    pub(crate) fn of_rule(rule: Rule) -> Self {
        Plan {
            rule,
            congestion_s: 0.0,
            lower_bound_s: 0.0,
            evidence: Evidence::Nothing,
            bottleneck: 0,
            quantum_bytes: 1,
            pivots: 0,
            reason: Reason::AsAsked,
            completion_s: 0.0,
            exceptions: Vec::new(),
            shares: Vec::new(),
            host_pairs: Vec::new(),
            host_weights: Vec::new(),
        }
    }

    /// Splits one pair otherwise than the rule does. Pairs come in ascending order.
    pub(crate) fn except(&mut self, src: usize, dst: usize, shares: &[(u16, f64)]) {
        self.exceptions.push(Exception { src: src as u16, dst: dst as u16, from: self.shares.len() as u32 });
        self.shares.extend_from_slice(shares);
    }

    pub(crate) fn clear_exceptions(&mut self) {
        self.exceptions.clear();
        self.shares.clear();
    }

    /// How many pairs are split otherwise than the rule says.
    pub fn exception_count(&self) -> usize {
        self.exceptions.len()
    }

    /// Congestion over the lower bound, minus one. 0 where nothing is sent.
    pub fn gap(&self) -> f64 {
        if self.lower_bound_s > 0.0 { (self.congestion_s / self.lower_bound_s - 1.0).max(0.0) } else { 0.0 }
    }

    /// Gives all that one host sends to another other weights. Pairs come in ascending order.
    pub(crate) fn except_hosts(&mut self, a: usize, b: usize, weights: &[f64]) {
        self.host_pairs.push((a as u16, b as u16));
        self.host_weights.extend_from_slice(weights);
    }

    /// How many pairs of hosts have weights of their own.
    pub fn host_exception_count(&self) -> usize {
        self.host_pairs.len()
    }

    /// Shares of two different ranks but for exceptions.
    pub(crate) fn base_shares(&self, net: &Network, src: usize, dst: usize, out: &mut Shares) {
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

    /// [`Network::weights`] with this plan's own.
    pub(crate) fn weights(&self, net: &Network, out: &mut Vec<f64>) {
        out.clone_from(&net.weights);
        for (&(a, b), w) in self.host_pairs.iter().zip(self.host_weights.chunks(net.slot_count().max(1))) {
            let at = (usize::from(a) * net.host_count() + usize::from(b)) * net.slot_count();
            out[at..at + w.len()].copy_from_slice(w);
        }
    }

    /// Shares of the paths of two different ranks. O(log exceptions + paths).
    pub fn shares(&self, net: &Network, src: usize, dst: usize, out: &mut Shares) {
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

    /// The pairs that are split otherwise than the rule says, with their shares.
    pub(crate) fn each_exception(&self, mut each: impl FnMut(usize, usize, &Shares)) {
        let mut shares = Shares::default();
        for (at, e) in self.exceptions.iter().enumerate() {
            self.exception_shares(at, &mut shares);
            each(usize::from(e.src), usize::from(e.dst), &shares);
        }
    }

    /// Whole bytes of one pair on each of its paths. They sum to `bytes`; every rank that asks gets the same.
    pub fn split(&self, net: &Network, src: usize, dst: usize, bytes: u64, mut each: impl FnMut(usize, u64)) {
        let mut shares = Shares::default();
        self.shares(net, src, dst, &mut shares);
        apportion(bytes, shares.as_slice(), self.quantum_bytes, src + dst, &mut each);
    }

    /// Every flow of a demand, by source and destination. Nothing is stored: O(ranks² x paths) over the whole iteration.
    pub fn flows<'a>(&'a self, net: &'a Network, demand: &'a Demand) -> impl Iterator<Item = Flow> + 'a {
        demand.pairs().flat_map(move |(src, dst, bytes)| {
            let mut list = [(0, 0); crate::rules::PATHS_MAX];
            let mut len = 0;
            self.split(net, src, dst, bytes, |path, bytes| {
                list[len] = (path, bytes);
                len += 1;
            });
            list.into_iter().take(len).map(move |(path, bytes)| Flow { src, dst, path, bytes })
        })
    }

    /// Bytes on every link, of whole bytes. O(ranks² x paths x links of a path).
    pub fn link_bytes(&self, net: &Network, demand: &Demand) -> Vec<u64> {
        let mut loads = vec![0; net.links.len()];
        for f in self.flows(net, demand) {
            net.path(f.src, f.dst, f.path).for_each(|l| loads[l as usize] += f.bytes);
        }
        loads
    }
}

/// Splits bytes by shares into multiples of `quantum`, all but one piece. Rounding starts at a different path for each `turn`, so that the
/// single bytes of many small messages do not meet on one path.
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
