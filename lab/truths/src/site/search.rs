//! The best allocations that a search with the truth finds. Choices are compared with them.
//!
//! The search starts from every switch of every level and the whole site, with every number of GPUs per host and
//! several orders of hosts and GPUs, and from the choices of all methods. From the best starts it climbs: it exchanges
//! a host or a leaf, moves a GPU, empties a host, exchanges a rail; first by the smooth bandwidth, then by the real
//! one. It is deterministic. Its result is not proven to be the optimum.

use super::Site;
use crate::truth::{Irregularity, Parts};
use std::collections::HashSet;
use topology::{Allocation, GpuMask, HostId};

/// Number of starts from which the search climbs.
const CLIMBS: usize = 12;
/// Number of starts with the same number of hosts.
const ALIKE_MAX: usize = 3;
/// Number of moves without a gain after which a climb ends, and the maximum number of moves of one climb.
const FRUITLESS_MAX: usize = 400;
const MOVES_MAX: usize = 4_000;

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Found {
    /// The largest bandwidth found, GB/s.
    pub best_gb_per_s: f64,
    /// The GPUs with this bandwidth.
    pub best: Allocation,
    /// The best choice of a method that knows everything except the irregularity of single splits.
    pub smooth: Allocation,
    /// Number of allocations evaluated.
    pub looked_at: usize,
}

type Hosts = Vec<(HostId, GpuMask)>;

struct Climber<'a> {
    site: &'a Site,
    free: &'a Allocation,
    /// Free GPUs by host.
    free_of: Vec<GpuMask>,
    random: u64,
    best: (f64, Hosts),
    smooth: (f64, Hosts),
    looked_at: usize,
}

/// Searches for `k` of the free GPUs; `choices` are additional starts. Takes milliseconds for 16 hosts, some tenths of
/// a second for 128.
pub fn search(site: &Site, free: &Allocation, k: usize, choices: &[Allocation], seed: u64) -> Option<Found> {
    if k < 2 || free.gpu_count() < k {
        return None;
    }
    let mut free_of = vec![GpuMask::EMPTY; site.about.cluster.hosts.len()];
    free.parts().iter().for_each(|(h, m)| free_of[h.index()] = *m);
    let none = (f64::NEG_INFINITY, Vec::new());
    let mut c = Climber {
        site,
        free,
        free_of,
        random: seed ^ (k as u64) << 32 ^ 0x5eed,
        best: none.clone(),
        smooth: none,
        looked_at: 0,
    };
    let mut starts = c.starts(k);
    starts.extend(choices.iter().map(|a| a.parts().to_vec()));
    let mut known = HashSet::new();
    starts.retain(|s| known.insert(s.clone()));
    let mut judged: Vec<(f64, Hosts)> = starts.into_iter().map(|s| (c.look(&s).0, s)).collect();
    judged.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    // For every number of hosts only the best few starts are used: starts with the same hosts reach the same result.
    let mut of_size = vec![0; site.about.cluster.hosts.len() + 1];
    let mut few = |s: &Hosts| {
        of_size[s.len()] += 1;
        of_size[s.len()] <= ALIKE_MAX
    };
    let tops: Vec<Hosts> = judged.into_iter().map(|j| j.1).filter(|s| few(s)).take(CLIMBS).collect();
    for top in &tops {
        let summit = c.climb(top.clone(), Irregularity::Without);
        c.climb(summit, Irregularity::With);
        c.climb(top.clone(), Irregularity::With);
    }
    let (smooth, best) = (c.smooth.1.clone(), c.best.1.clone());
    c.climb(smooth, Irregularity::Without);
    c.climb(best, Irregularity::With);
    Some(Found {
        best_gb_per_s: c.best.0,
        best: Allocation::new(c.best.1),
        smooth: Allocation::new(c.smooth.1),
        looked_at: c.looked_at,
    })
}

impl Climber<'_> {
    /// Bandwidth without and with irregularity.
    fn look(&mut self, parts: Parts) -> (f64, f64) {
        self.looked_at += 1;
        let smooth = self.site.smooth(parts);
        let real = if parts.len() > 1 { smooth * self.site.irregularity(parts) } else { smooth };
        if smooth > self.smooth.0 {
            self.smooth = (smooth, parts.to_vec());
        }
        if real > self.best.0 {
            self.best = (real, parts.to_vec());
        }
        (smooth, real)
    }

    fn below(&mut self, n: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(x ^ (x >> 31)) * n as u128) >> 64) as usize
    }

    /// `count` of a host's free GPUs, in the order of `order`.
    fn take(free: GpuMask, count: usize, order: &[usize]) -> GpuMask {
        GpuMask::from_indices(order.iter().copied().filter(|g| free.contains(*g)).take(count))
    }

    /// The `count` free GPUs of one host with the highest bandwidth inside; among equals the first.
    fn best_inside(&self, host: HostId, count: usize) -> GpuMask {
        let mut best = (f64::NEG_INFINITY, GpuMask::EMPTY);
        for m in self.free_of[host.index()].subsets().filter(|m| m.count() == count) {
            let v = self.site.intra.limit(host, m);
            if v > best.0 {
                best = (v, m);
            }
        }
        best.1
    }

    fn starts(&self, k: usize) -> Vec<Hosts> {
        let site = self.site;
        let mut out: Vec<Hosts> = Vec::new();
        for (h, m) in self.free.parts() {
            if m.count() >= k {
                out.push(vec![(*h, self.best_inside(*h, k))]);
            }
        }
        let gpus = site.network.nodes.iter().map(|n| n.port_of_gpu.len()).max().unwrap_or(1);
        // Orders of GPUs: ascending, descending, and by the rate of the site's rails, fastest first.
        let rate = |h: usize, g: usize| {
            let node = &site.network.nodes[h];
            node.port_of_gpu.get(g).map_or(0.0, |p| node.ports[*p as usize].gb_per_s)
        };
        let rail = |g: usize| self.free.parts().iter().map(|(h, _)| rate(h.index(), g)).sum::<f64>();
        let forward: Vec<usize> = (0..gpus).collect();
        let mut fast = forward.clone();
        fast.sort_by(|a, b| rail(*b).total_cmp(&rail(*a)));
        let orders = [forward.clone(), forward.iter().rev().copied().collect(), fast];
        // Domains: the whole site and every switch.
        let levels = site.switches.iter().flat_map(|level| {
            let switches: HashSet<u32> = level.iter().copied().collect();
            let mut switches: Vec<u32> = switches.into_iter().collect();
            switches.sort_unstable();
            switches.into_iter().map(move |s| (0..level.len()).filter(|h| level[*h] == s).collect::<Vec<usize>>())
        });
        let everything = (0..self.free_of.len()).collect();
        let makes = site.network.nodes.iter().map(|n| n.make).max().unwrap_or(0);
        for domain in std::iter::once(everything).chain(levels) {
            for make in 0..=makes {
                let of_make = |h: &&usize| makes == 0 || site.network.nodes[**h].make >= make;
                let hosts: Vec<usize> = domain.iter().filter(of_make).copied().collect();
                for most in 1..=gpus {
                    for order in &orders {
                        for by_leaf in [false, true] {
                            out.extend(self.even(&hosts, k, most, order, by_leaf));
                        }
                    }
                }
            }
        }
        out
    }

    /// At most `most` GPUs on each of the fewest hosts, evenly. The fastest hosts come first, or the hosts of the
    /// leaves with the most of them.
    fn even(&self, domain: &[usize], k: usize, most: usize, order: &[usize], by_leaf: bool) -> Option<Hosts> {
        let hosts = k.div_ceil(most);
        let (base, more) = (k / hosts, k % hosts);
        if hosts < 2 || base == 0 {
            return None;
        }
        let need = base + usize::from(more > 0);
        let mut fit: Vec<(usize, f64)> = Vec::new();
        for &h in domain.iter().filter(|h| self.free_of[**h].count() >= need) {
            let node = &self.site.network.nodes[h];
            let mask = Self::take(self.free_of[h], need, order);
            let slowest = mask.iter().map(|g| node.ports[node.port_of_gpu[g] as usize].gb_per_s);
            fit.push((h, slowest.fold(f64::INFINITY, f64::min) * 1e6 - self.free_of[h].count() as f64));
        }
        if fit.len() < hosts {
            return None;
        }
        fit.sort_by(|a, b| b.1.total_cmp(&a.1));
        if by_leaf {
            let leaf = |h: usize| self.leaf(HostId(h as u32));
            let mut of_leaf = vec![0usize; self.site.network.leaves.len()];
            fit.iter().for_each(|f| of_leaf[leaf(f.0) as usize] += 1);
            fit.sort_by_key(|f| (std::cmp::Reverse(of_leaf[leaf(f.0) as usize]), leaf(f.0)));
        }
        let part = |(i, (h, _)): (usize, (usize, f64))| {
            let count = base + usize::from(i < more);
            (HostId(h as u32), Self::take(self.free_of[h], count, order))
        };
        let mut parts: Hosts = fit.into_iter().take(hosts).enumerate().map(part).collect();
        parts.sort_unstable();
        Some(parts)
    }

    fn climb(&mut self, mut at: Hosts, by: Irregularity) -> Hosts {
        let pick = |v: (f64, f64)| if by == Irregularity::With { v.1 } else { v.0 };
        let mut value = pick(self.look(&at));
        let (mut fruitless, mut moves) = (0, 0);
        let patience = FRUITLESS_MAX.min(60 * at.len() + 100);
        while fruitless < patience && moves < MOVES_MAX {
            moves += 1;
            fruitless += 1;
            let Some(next) = self.neighbour(&at) else { continue };
            let v = pick(self.look(&next));
            if v > value * (1.0 + 1e-9) {
                (at, value, fruitless) = (next, v, 0);
            }
        }
        at
    }

    /// A random neighbour with the same number of GPUs; `None` if the drawn move does not fit.
    fn neighbour(&mut self, at: &Hosts) -> Option<Hosts> {
        let i = self.below(at.len());
        let mut next = match self.below(10) {
            0..=3 => self.on_another_host(at, i),
            4 => self.with_another_gpu(at, i),
            5 => self.on_another_rail(at, i),
            6 | 7 => self.with_a_gpu_moved(at, i),
            8 => self.without_a_host(at, i),
            _ => self.below_another_leaf(at, i),
        }?;
        next.retain(|p| !p.1.is_empty());
        next.sort_unstable();
        (next != *at).then_some(next)
    }

    /// The free GPUs of a host that `at` does not use.
    fn unused(&self, at: &Hosts, host: HostId) -> GpuMask {
        self.free_of[host.index()].minus(at.iter().find(|p| p.0 == host).map_or(GpuMask::EMPTY, |p| p.1))
    }

    fn free_host(&mut self) -> HostId {
        let i = self.below(self.free.host_count());
        self.free.parts()[i].0
    }

    fn leaf(&self, host: HostId) -> u16 {
        self.site.network.nodes[host.index()].ports.first().map_or(0, |p| p.leaf)
    }

    /// Replaces host `i` by another host, with the same GPUs if they are free.
    fn on_another_host(&mut self, at: &Hosts, i: usize) -> Option<Hosts> {
        let (mut next, mask) = (at.clone(), at[i].1);
        let other = self.free_host();
        if at.iter().any(|p| p.0 == other) {
            return None;
        }
        next[i] = (other, self.like(mask, mask.count(), self.free_of[other.index()])?);
        Some(next)
    }

    /// Replaces a GPU of host `i` by another one.
    fn with_another_gpu(&mut self, at: &Hosts, i: usize) -> Option<Hosts> {
        let (mut next, (host, mask)) = (at.clone(), at[i]);
        let left = self.unused(at, host);
        if left.is_empty() {
            return None;
        }
        let (a, b) = (self.below(mask.count()), self.below(left.count()));
        next[i].1 = GpuMask(mask.0 & !(1 << mask.iter().nth(a)?) | 1 << left.iter().nth(b)?);
        Some(next)
    }

    /// Replaces a rail of host `i` by another one, on all hosts where it is free.
    fn on_another_rail(&mut self, at: &Hosts, i: usize) -> Option<Hosts> {
        let (mut next, (host, mask)) = (at.clone(), at[i]);
        let a = mask.iter().nth(self.below(mask.count()))?;
        let b = self.below(self.site.network.nodes[host.index()].port_of_gpu.len());
        for p in &mut next {
            if p.1.contains(a) && !p.1.contains(b) && self.free_of[p.0.index()].contains(b) {
                p.1 = GpuMask(p.1.0 & !(1 << a) | 1 << b);
            }
        }
        Some(next)
    }

    /// Moves a GPU from host `i` to another host of the allocation or to a new host.
    fn with_a_gpu_moved(&mut self, at: &Hosts, i: usize) -> Option<Hosts> {
        let (mut next, (host, mask)) = (at.clone(), at[i]);
        let other = self.free_host();
        let left = self.unused(at, other);
        if other == host || left.is_empty() {
            return None;
        }
        let gpu = left.iter().nth(self.below(left.count()))?;
        let drop = mask.iter().nth(self.below(mask.count()))?;
        next[i].1 = GpuMask(mask.0 & !(1 << drop));
        match next.iter_mut().find(|p| p.0 == other) {
            Some(p) => p.1 = GpuMask(p.1.0 | 1 << gpu),
            None => next.push((other, GpuMask(1 << gpu))),
        }
        Some(next)
    }

    /// Moves all GPUs of host `i` to the other hosts.
    fn without_a_host(&self, at: &Hosts, i: usize) -> Option<Hosts> {
        if at.len() < 2 {
            return None;
        }
        let mut next = at.clone();
        let (_, mask) = next.remove(i);
        for _ in 0..mask.count() {
            let room = |p: &&mut (HostId, GpuMask)| !self.unused(at, p.0).minus(p.1).is_empty();
            let p = next.iter_mut().filter(room).min_by_key(|p| p.1.count())?;
            let free = self.free_of[p.0.index()].minus(p.1);
            p.1 = GpuMask(p.1.0 | 1 << free.iter().next()?);
        }
        Some(next)
    }

    /// Moves all hosts of the leaf of host `i` to another leaf.
    fn below_another_leaf(&mut self, at: &Hosts, i: usize) -> Option<Hosts> {
        let mut next = at.clone();
        let from = self.leaf(at[i].0);
        let other = self.free_host();
        let to = self.leaf(other);
        let mut candidates: Vec<HostId> = self.free.parts().iter().map(|p| p.0).collect();
        candidates.retain(|h| self.leaf(*h) == to && at.iter().all(|p| p.0 != *h));
        for p in next.iter_mut().filter(|p| from != to && self.leaf(p.0) == from) {
            let fits = candidates.iter().position(|h| self.free_of[h.index()].count() >= p.1.count())?;
            let other = candidates.swap_remove(fits);
            *p = (other, self.like(p.1, p.1.count(), self.free_of[other.index()])?);
        }
        Some(next)
    }

    /// `count` of `free`, first those of `mask`.
    fn like(&self, mask: GpuMask, count: usize, free: GpuMask) -> Option<GpuMask> {
        if free.count() < count {
            return None;
        }
        let both = GpuMask(mask.0 & free.0);
        let rest = free.minus(both).iter().take(count - both.count().min(count));
        Some(GpuMask::from_indices(both.iter().take(count).chain(rest)))
    }
}
