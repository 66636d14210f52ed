//! Sums of a demand. The loads of every static rule and the closed-form bounds follow from them.
//!
//! One pass over the matrix takes O(ranks²). The loads of a rule then take O(ranks x (hosts + slots)) instead of O(ranks² x slots).

use crate::demand::Demand;
use crate::network::RoutingNetwork;
use crate::rules::{Rule, Shares, nearest_alive_slot, own_and_next_slot};

/// Bytes by row, column, host and slot. `f64` holds every sum exactly, because a demand has at most 2^52 bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct DemandSums {
    /// Bytes from a rank to each host, `[rank * hosts + host]`. For the own host: to its other ranks.
    pub row_host: Vec<f64>,
    /// Bytes from each host to a rank, `[host * ranks + rank]`.
    pub host_col: Vec<f64>,
    /// Bytes to a rank from ranks with this own slot (`source_in`) or this next slot (`second_in`), `[rank * slots + slot]`.
    source_in: Vec<f64>,
    second_in: Vec<f64>,
    /// Bytes from a rank to ranks with this slot, `[rank * slots + slot]`.
    destination_out: Vec<f64>,
    out_leg: Vec<f64>,
    in_leg: Vec<f64>,
    shares: Shares,
}

fn zeroed(v: &mut Vec<f64>, len: usize) {
    v.clear();
    v.resize(len, 0.0);
}

impl DemandSums {
    /// Sums a demand. Fails with the first pair that has bytes but no path. O(ranks²).
    pub fn read(&mut self, net: &RoutingNetwork, demand: &Demand) -> Result<(), (usize, usize)> {
        let (n, hosts, slots) = (net.rank_count(), net.host_count(), net.slots);
        zeroed(&mut self.row_host, n * hosts);
        zeroed(&mut self.host_col, n * hosts);
        for v in [&mut self.source_in, &mut self.second_in, &mut self.destination_out] {
            zeroed(v, n * slots);
        }
        for i in 0..n {
            let a = net.host(i);
            let row = demand.row(i);
            for b in 0..hosts {
                let ranks = net.ranks_of(b);
                if a == b {
                    let mut inside = 0.0;
                    for j in ranks {
                        if row[j] > 0 && j != i {
                            inside += row[j] as f64;
                            self.host_col[b * n + j] += row[j] as f64;
                            if net.intra_paths(i, j).is_empty() {
                                return Err((i, j));
                            }
                        }
                    }
                    self.row_host[i * hosts + b] = inside;
                    continue;
                }
                let mask = net.slots_between(a, b);
                if mask == 0 {
                    match ranks.into_iter().find(|&j| row[j] > 0) {
                        Some(j) => return Err((i, j)),
                        None => continue,
                    }
                }
                let (s, s2) = own_and_next_slot(mask, net.home[i]);
                let mut sum = 0.0;
                for j in ranks {
                    let d = row[j] as f64;
                    sum += d;
                    self.host_col[a * n + j] += d;
                    self.source_in[j * slots + s] += d;
                    self.second_in[j * slots + s2] += d;
                    self.destination_out[i * slots + nearest_alive_slot(mask, net.home[j])] += d;
                }
                self.row_host[i * hosts + b] = sum;
            }
        }
        Ok(())
    }

    /// Computes the bytes that a rule puts on every link. `weights` are the weights of [`Rule::Weighted`], shaped as
    /// [`RoutingNetwork::weights`].
    pub fn loads(&mut self, net: &RoutingNetwork, demand: &Demand, rule: Rule, weights: &[f64], loads: &mut Vec<f64>) {
        zeroed(loads, net.links.len());
        self.load_inside_hosts(net, demand, rule, loads);
        if net.slots == 0 {
            return;
        }
        zeroed(&mut self.out_leg, net.rank_count() * net.slots);
        zeroed(&mut self.in_leg, net.rank_count() * net.slots);
        self.choose_own_legs(net, rule, weights);
        self.follow_other_legs(rule);
        for (legs, bytes) in [(&net.out_legs, &self.out_leg), (&net.in_legs, &self.in_leg)] {
            for (leg, &b) in legs.iter().zip(bytes) {
                if b > 0.0 {
                    leg.links().iter().for_each(|&l| loads[l as usize] += b);
                }
            }
        }
    }

    fn load_inside_hosts(&mut self, net: &RoutingNetwork, demand: &Demand, rule: Rule, loads: &mut [f64]) {
        let hosts = net.host_count();
        for h in 0..hosts {
            for i in net.ranks_of(h) {
                if self.row_host[i * hosts + h] == 0.0 {
                    continue;
                }
                for j in net.ranks_of(h) {
                    let d = demand.get(i, j) as f64;
                    if d > 0.0 && i != j {
                        rule.shares(net, i, j, &mut self.shares);
                        for &(p, share) in self.shares.as_slice() {
                            net.intra_paths(i, j)[usize::from(p)]
                                .links()
                                .iter()
                                .for_each(|&l| loads[l as usize] += d * share);
                        }
                    }
                }
            }
        }
    }

    /// Adds the bytes between hosts to the slots of their sender or receiver, if the rule derives the slot from that rank.
    fn choose_own_legs(&mut self, net: &RoutingNetwork, rule: Rule, weights: &[f64]) {
        let (n, hosts, slots) = (net.rank_count(), net.host_count(), net.slots);
        for i in 0..n {
            let h = net.host(i);
            for other in (0..hosts).filter(|&o| o != h) {
                let (out, back) = (self.row_host[i * hosts + other], self.host_col[other * n + i]);
                let own_out = &mut self.out_leg[i * slots..(i + 1) * slots];
                let own_in = &mut self.in_leg[i * slots..(i + 1) * slots];
                let (to, from) = (net.slots_between(h, other), net.slots_between(other, h));
                match rule {
                    Rule::Direct | Rule::DestinationRail if from != 0 => {
                        own_in[nearest_alive_slot(from, net.home[i])] += back
                    }
                    Rule::SourceRail if to != 0 => own_out[nearest_alive_slot(to, net.home[i])] += out,
                    Rule::TwoRails if to != 0 => {
                        let (s, s2) = own_and_next_slot(to, net.home[i]);
                        own_out[s] += 0.5 * out;
                        own_out[s2] += 0.5 * out;
                    }
                    Rule::Stripe => {
                        stripe(own_out, to, out);
                        stripe(own_in, from, back);
                    }
                    Rule::Weighted => {
                        let between =
                            |a: usize, b: usize| &weights[(a * hosts + b) * slots..(a * hosts + b + 1) * slots];
                        own_out.iter_mut().zip(between(h, other)).for_each(|(v, w)| *v += out * w);
                        own_in.iter_mut().zip(between(other, h)).for_each(|(v, w)| *v += back * w);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Sets the bytes of the other end, if the slot follows from the rank at this end.
    fn follow_other_legs(&mut self, rule: Rule) {
        match rule {
            Rule::Direct | Rule::DestinationRail => self.out_leg.copy_from_slice(&self.destination_out),
            Rule::SourceRail => self.in_leg.copy_from_slice(&self.source_in),
            Rule::TwoRails => {
                let both = self.source_in.iter().zip(&self.second_in);
                self.in_leg.iter_mut().zip(both).for_each(|(v, (a, b))| *v = 0.5 * a + 0.5 * b);
            }
            Rule::Stripe | Rule::Weighted => {}
        }
    }
}

/// Adds equal parts of the bytes to the alive slots.
fn stripe(slots: &mut [f64], alive: u32, bytes: f64) {
    let share = 1.0 / f64::from(alive.count_ones());
    for (k, slot) in slots.iter_mut().enumerate() {
        if alive >> k & 1 == 1 {
            *slot += bytes * share;
        }
    }
}

/// The busiest link and its seconds; link 0 and 0 s if no link carries bytes. O(links).
pub(crate) fn busiest_link(net: &RoutingNetwork, loads: &[f64]) -> (usize, f64) {
    let mut best = (0, 0.0);
    for (l, (&bytes, &inverse)) in loads.iter().zip(&net.inverse).enumerate() {
        if bytes > 0.0 && bytes * inverse > best.1 {
            best = (l, bytes * inverse);
        }
    }
    best
}
