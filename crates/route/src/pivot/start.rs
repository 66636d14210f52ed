//! Where pivots begin: the demands that may be split, and the links as a static rule loads them.

use super::{COMPOSITE, Column, LARGE_PARTS, LARGE_SHARE, NONE, PERTURBATION, Pair, Pivots, Start, TIGHT_MAX};
use crate::network::Network;
use crate::rules::{PATHS_MAX, Rule, Shares, pick};

impl Pivots {
    /// The key that a rule gives a demand: a path, or [`COMPOSITE`] where it splits.
    pub(super) fn first_key(&self, net: &Network, rule: Rule, src: usize, dst: usize) -> u16 {
        let (a, b) = (net.host(src), net.host(dst));
        if a == b {
            let spread = rule == Rule::Weighted && !net.is_direct(src, dst);
            return if spread { COMPOSITE } else { 0 };
        }
        match rule {
            Rule::Direct | Rule::DestinationRail => pick(net.slots_between(a, b), net.home[dst]) as u16,
            Rule::SourceRail => pick(net.slots_between(a, b), net.home[src]) as u16,
            Rule::Stripe | Rule::Weighted | Rule::TwoRails => COMPOSITE,
        }
    }

    pub(super) fn start(&mut self, net: &Network, start: &Start) {
        let Start { sums, loads, coarse, .. } = *start;
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

    /// The demands that move by themselves; what has one path only is fixed. In the coarse stage the small ones between hosts stay with
    /// all that their host sends to the other.
    fn list_demands(&mut self, net: &Network, start: &Start, top: f64) {
        let Start { demand, sums, rule, coarse, .. } = *start;
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
                        continue; // with the traffic of its hosts, below
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
                self.pairs.push(Pair { src: src as u16, dst: dst as u16, bytes, key, hosts: false, own });
            }
        }
    }

    /// What is left between every two hosts, as one.
    fn list_hosts(&mut self, net: &Network) {
        let hosts = net.host_count();
        for p in (0..hosts * hosts).filter(|p| p / hosts != p % hosts) {
            let (a, b) = (p / hosts, p % hosts);
            if net.ranks_of(a).all(|i| self.row_host[i * hosts + b] == 0.0) {
                continue;
            }
            self.between += 1;
            self.pairs.push(Pair { src: a as u16, dst: b as u16, bytes: 1.0, key: COMPOSITE, hosts: true, own: NONE });
        }
    }

    /// The tightest link alone, after ties are broken.
    fn first_basis(&mut self, links: usize, top: f64) {
        // A fixed scatter of the numbers 0 to 1 (multiples of the golden ratio).
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
            self.columns.push(Column::default());
        }
        self.columns[0].entries.clear();
        self.columns[0].pair = NONE;
        self.candidates.clear();
    }
}
