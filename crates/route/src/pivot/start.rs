//! The start of the pivots: the demands that may be split, and the link loads of a static rule.

use super::{
    BasicColumn, COMPOSITE, DemandPair, LARGE_PARTS, LARGE_SHARE, NONE, PERTURBATION, PivotProblem, Pivots, TIGHT_MAX,
};
use crate::network::RoutingNetwork;
use crate::rules::{PATHS_MAX, Rule, Shares, nearest_alive_slot};

impl Pivots {
    /// The first key of a demand under a rule: a path, or [`COMPOSITE`] if the rule splits the demand.
    pub(super) fn first_key(&self, net: &RoutingNetwork, rule: Rule, src: usize, dst: usize) -> u16 {
        let (a, b) = (net.host(src), net.host(dst));
        if a == b {
            let spread = rule == Rule::Weighted && !net.is_direct(src, dst);
            return if spread { COMPOSITE } else { 0 };
        }
        match rule {
            Rule::Direct | Rule::DestinationRail => nearest_alive_slot(net.slots_between(a, b), net.home[dst]) as u16,
            Rule::SourceRail => nearest_alive_slot(net.slots_between(a, b), net.home[src]) as u16,
            Rule::Stripe | Rule::Weighted | Rule::TwoRails => COMPOSITE,
        }
    }

    pub(super) fn start(&mut self, net: &RoutingNetwork, start: &PivotProblem) {
        let PivotProblem { sums, loads, coarse, .. } = *start;
        let links = net.links.len();
        self.pairs.clear();
        self.between = 0;
        self.fixed.clear();
        self.fixed.resize(links, 0.0);
        self.row_host.clone_from(&sums.row_host);
        self.host_col.clone_from(&sums.host_col);
        self.load.clear();
        self.load.extend(loads.iter().zip(&net.inverse).map(|(&b, &i)| if b > 0.0 { b * i } else { 0.0 }));
        let top = self.load.iter().copied().fold(0.0, f64::max);
        self.coarse = coarse;
        self.own_shares.clear();
        self.list_demands(net, start, top);
        if coarse {
            self.list_hosts(net);
        }
        for v in [&mut self.delta, &mut self.price, &mut self.scratch] {
            v.clear();
            v.resize(links, 0.0);
        }
        for v in [&mut self.pair_rate, &mut self.pair_share] {
            v.clear();
            v.resize(self.pairs.len(), 0.0);
        }
        self.first_basis(links, top);
    }

    /// Lists the demands that move alone. A demand with one path is fixed. In the coarse stage, small demands between hosts move together in
    /// `list_hosts`.
    fn list_demands(&mut self, net: &RoutingNetwork, start: &PivotProblem, top: f64) {
        let PivotProblem { demand, sums, rule, coarse, .. } = *start;
        let hosts = net.host_count();
        let mut from = start.from.map(|p| p.exceptions.iter().enumerate().peekable());
        let mut shares = Shares::default();
        let n = net.rank_count();
        let together: Vec<f64> = match coarse {
            true => (0..hosts * hosts)
                .map(|p| net.ranks_of(p / hosts).map(|i| sums.row_host[i * hosts + p % hosts]).sum())
                .collect(),
            false => Vec::new(),
        };
        for src in 0..n {
            let a = net.host(src);
            for dst in 0..n {
                let bytes = demand.get(src, dst) as f64;
                if bytes == 0.0 || src == dst {
                    continue;
                }
                let b = net.host(dst);
                let inside = a == b;
                if net.path_count(src, dst) < 2 {
                    if coarse && !inside {
                        continue; // moves with the traffic of its hosts, see `list_hosts`
                    }
                    let only = if inside { 0 } else { net.slots_between(a, b).trailing_zeros() as usize };
                    net.path(src, dst, only).for_each(|l| self.fixed[l as usize] += bytes * net.inverse[l as usize]);
                    continue;
                }
                let (mut key, mut own) = (self.first_key(net, rule, src, dst), NONE);
                if let Some(list) = &mut from {
                    while list.next_if(|(_, e)| (e.src, e.dst) < (src as u16, dst as u16)).is_some() {}
                    if let Some((at, _)) = list.next_if(|(_, e)| (e.src, e.dst) == (src as u16, dst as u16)) {
                        start.from.into_iter().for_each(|p| p.exception_shares(at, &mut shares));
                        (key, own) = (COMPOSITE, self.own_shares.len() as u32);
                        self.own_shares.resize(own as usize + PATHS_MAX, 0.0);
                        let list = &mut self.own_shares[own as usize..];
                        shares.as_slice().iter().for_each(|&(p, s)| list[usize::from(p)] = s);
                    }
                }
                if coarse && !inside {
                    let large = bytes * LARGE_PARTS >= together[a * hosts + b]
                        && bytes >= LARGE_SHARE * top * net.host_rates[a].0;
                    if own == NONE && !large {
                        continue;
                    }
                    self.row_host[src * hosts + b] -= bytes;
                    self.host_col[a * n + dst] -= bytes;
                }
                self.between += usize::from(!inside);
                self.pairs.push(DemandPair { src: src as u16, dst: dst as u16, bytes, key, hosts: false, own });
            }
        }
    }

    /// Lists the remaining traffic of every pair of hosts as one pair.
    fn list_hosts(&mut self, net: &RoutingNetwork) {
        let hosts = net.host_count();
        for p in (0..hosts * hosts).filter(|p| p / hosts != p % hosts) {
            let (a, b) = (p / hosts, p % hosts);
            if net.ranks_of(a).all(|i| self.row_host[i * hosts + b] == 0.0) {
                continue;
            }
            self.between += 1;
            self.pairs.push(DemandPair {
                src: a as u16,
                dst: b as u16,
                bytes: 1.0,
                key: COMPOSITE,
                hosts: true,
                own: NONE,
            });
        }
    }

    /// Starts the basis with the most loaded link, after breaking ties.
    fn first_basis(&mut self, links: usize, top: f64) {
        // Fixed numbers spread over 0 to 1: multiples of the golden ratio.
        let scatter = |e: usize| (e as f64 * 0.618_033_988_749_895).fract();
        self.load.iter_mut().enumerate().for_each(|(e, l)| *l += top * PERTURBATION * scatter(e + 1));
        let mut tightest = 0;
        for e in 1..links {
            if self.load[e] > self.load[tightest] {
                tightest = e;
            }
        }
        self.congestion = self.load[tightest];
        self.row_of.clear();
        self.row_of.resize(links, NONE);
        self.row_of[tightest] = 0;
        self.rows.clear();
        self.rows.push(tightest as u32);
        self.stride = (links + 1).min(TIGHT_MAX);
        self.inverse.resize(self.stride * self.stride, 0.0);
        self.inverse[0] = -1.0;
        for v in [&mut self.step, &mut self.dots, &mut self.coefficients] {
            v.resize(self.stride, 0.0);
        }
        if self.columns.is_empty() {
            self.columns.push(BasicColumn::default());
        }
        self.columns[0].entries.clear();
        self.columns[0].pair = NONE;
        self.candidates.clear();
    }
}
