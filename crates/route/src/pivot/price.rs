//! Prices of paths under the multipliers, the choice of the entering path, and the lower bound.

use super::{CANDIDATES_MAX, COMPOSITE, DemandPair, PRICE_ALL_MAX, PivotOutcome, Pivots};
use crate::demand::Demand;
use crate::network::{Leg, RoutingNetwork};
use crate::rules::PATHS_MAX;

impl Pivots {
    /// Computes the prices of legs from the multipliers.
    fn price_legs(&mut self, net: &RoutingNetwork) {
        self.price.fill(0.0);
        for (r, &e) in self.rows.iter().enumerate() {
            self.price[e as usize] = (-self.inverse[r * self.stride]).max(0.0) * net.inverse[e as usize];
        }
        if self.between == 0 {
            return;
        }
        let price = &self.price;
        let sum = |leg: &Leg| leg.links().iter().map(|&l| price[l as usize]).sum::<f64>();
        self.out_price.clear();
        self.out_price.extend(net.out_legs.iter().map(sum));
        self.in_price.clear();
        self.in_price.extend(net.in_legs.iter().map(sum));
    }

    /// (cheapest path of a demand, price of the key minus that path's price, that path's price), per byte.
    #[inline]
    fn cheapest(&self, net: &RoutingNetwork, pair: &DemandPair) -> (u16, f64, f64) {
        let (src, dst) = (usize::from(pair.src), usize::from(pair.dst));
        let mut best = (0u16, f64::INFINITY);
        let mut key_price = 0.0;
        if pair.hosts {
            let prices = self.host_prices(net, src, dst);
            let mask = net.slots_between(src, dst);
            for (k, &price) in prices[..net.slots].iter().enumerate() {
                if price < best.1 && mask >> k & 1 == 1 {
                    best = (k as u16, price);
                }
            }
            key_price = match pair.key {
                COMPOSITE => self.composite_shares(net, pair).iter().zip(&prices).map(|(w, p)| w * p).sum(),
                k => prices[usize::from(k)],
            };
            return (best.0, key_price - best.1, best.1);
        }
        let (a, b) = (net.host(src), net.host(dst));
        if a == b {
            let paths = net.intra_paths(src, dst);
            let shares = self.composite_shares(net, pair);
            for (p, leg) in paths.iter().enumerate() {
                let price: f64 = leg.links().iter().map(|&l| self.price[l as usize]).sum();
                if price < best.1 {
                    best = (p as u16, price);
                }
                if pair.key == COMPOSITE {
                    key_price += shares[p] * price;
                } else if usize::from(pair.key) == p {
                    key_price = price;
                }
            }
        } else {
            let slots = net.slots;
            let out = &self.out_price[src * slots..(src + 1) * slots];
            let back = &self.in_price[dst * slots..(dst + 1) * slots];
            let mask = net.slots_between(a, b);
            for (k, (o, i)) in out.iter().zip(back).enumerate() {
                if o + i < best.1 && mask >> k & 1 == 1 {
                    best = (k as u16, o + i);
                }
            }
            key_price = match pair.key {
                COMPOSITE => {
                    let shares = self.composite_shares(net, pair);
                    shares.iter().zip(out.iter().zip(back)).map(|(w, (o, i))| w * (o + i)).sum()
                }
                k => out[usize::from(k)] + back[usize::from(k)],
            };
        }
        (best.0, key_price - best.1, best.1)
    }

    /// Price of moving all bytes between two hosts to each slot.
    fn host_prices(&self, net: &RoutingNetwork, a: usize, b: usize) -> [f64; PATHS_MAX] {
        let (n, hosts, slots) = (net.rank_count(), net.host_count(), net.slots);
        let mut prices = [0.0; PATHS_MAX];
        let mut add = |bytes: f64, list: &[f64]| {
            if bytes > 0.0 {
                prices.iter_mut().zip(list).for_each(|(p, l)| *p += bytes * l);
            }
        };
        net.ranks_of(a).for_each(|i| add(self.row_host[i * hosts + b], &self.out_price[i * slots..(i + 1) * slots]));
        net.ranks_of(b).for_each(|j| add(self.host_col[a * n + j], &self.in_price[j * slots..(j + 1) * slots]));
        prices
    }

    /// The path with the largest gain. Improves the bound whenever it prices all demands. `None` if the gap is reached or no path gains.
    pub(super) fn choose_entering_path(
        &mut self,
        net: &RoutingNetwork,
        outcome: &mut PivotOutcome,
        gap: f64,
        threshold: &mut f64,
    ) -> Option<(u32, u16)> {
        self.price_legs(net);
        let per_pair = if self.pairs.last().is_some_and(|p| p.hosts) { 16 } else { 1 } * net.slots.max(4) as u64;
        outcome.work += 8 * net.out_legs.len() as u64 + (self.candidates.len() as u64) * per_pair;
        if self.pairs.len() > PRICE_ALL_MAX && !self.candidates.is_empty() {
            let mut best = (0, 0u16, *threshold);
            for &p in &self.candidates {
                let pair = &self.pairs[p as usize];
                let (path, gain, _) = self.cheapest(net, pair);
                if gain * pair.bytes > best.2 {
                    best = (p, path, gain * pair.bytes);
                }
            }
            if best.2 > *threshold {
                return Some((best.0, best.1));
            }
        }
        let mut total: f64 =
            self.rows.iter().enumerate().map(|(r, &e)| -self.inverse[r * self.stride] * self.fixed[e as usize]).sum();
        let mut best = (0, 0u16, 0.0);
        self.candidates.clear();
        let mut limit = 0.0;
        for (p, pair) in self.pairs.iter().enumerate() {
            let (path, gain, price) = self.cheapest(net, pair);
            total += price * pair.bytes;
            let gain = gain * pair.bytes;
            if gain > best.2 {
                best = (p as u32, path, gain);
                limit = 0.3 * gain;
            }
            if gain > limit && self.candidates.len() < 8 * CANDIDATES_MAX {
                self.candidates.push(p as u32);
            }
        }
        *threshold = 0.3 * best.2;
        // Rounding makes the multipliers' sum differ from one; the bound needs the true sum.
        let sum: f64 = (0..self.rows.len()).map(|r| (-self.inverse[r * self.stride]).max(0.0)).sum();
        outcome.bound = outcome.bound.max(total / sum * (1.0 - 1e-12));
        if self.candidates.len() > CANDIDATES_MAX {
            let len = self.candidates.len();
            self.candidates.drain(..len - CANDIDATES_MAX);
        }
        if self.congestion <= outcome.bound * (1.0 + gap) || best.2 <= 1e-9 * self.congestion {
            return None;
        }
        Some((best.0, best.1))
    }

    /// The lower bound in seconds that the multipliers prove for demands that split independently. The coarse stage's own bound holds only for
    /// traffic that moves together. O(ranks² x slots).
    pub fn lower_bound(&mut self, net: &RoutingNetwork, demand: &Demand) -> f64 {
        self.price_legs(net);
        let slots = net.slots;
        let mut total = 0.0;
        for i in 0..net.rank_count() {
            let a = net.host(i);
            let row = demand.row(i);
            for b in 0..net.host_count() {
                if a == b {
                    for j in net.ranks_of(b).filter(|&j| row[j] > 0 && j != i) {
                        let price = |leg: &Leg| leg.links().iter().map(|&l| self.price[l as usize]).sum::<f64>();
                        total += row[j] as f64 * net.intra_paths(i, j).iter().map(price).fold(f64::INFINITY, f64::min);
                    }
                    continue;
                }
                let mask = net.slots_between(a, b);
                let out = &self.out_price[i * slots..(i + 1) * slots];
                for j in net.ranks_of(b).filter(|&j| row[j] > 0) {
                    let back = &self.in_price[j * slots..(j + 1) * slots];
                    let mut least = f64::INFINITY;
                    for (k, (o, i)) in out.iter().zip(back).enumerate() {
                        if o + i < least && mask >> k & 1 == 1 {
                            least = o + i;
                        }
                    }
                    total += row[j] as f64 * least;
                }
            }
        }
        let sum: f64 = (0..self.rows.len()).map(|r| (-self.inverse[r * self.stride]).max(0.0)).sum();
        total / sum * (1.0 - 1e-12)
    }
}
