//! Closed-form lower bounds on the congestion of any plan: the bytes that must cross a cut, over the cut's capacity.
//!
//! Each bound holds for every split of the demand over any paths with any number of relays. Given the sums of the
//! demand, all bounds together take O(ranks + hosts). A bound often equals the optimum. Where it does not, the
//! multipliers of the correction give a higher bound.

use crate::demand::Demand;
use crate::network::{LinkKind, RoutingNetwork};
use crate::sums::DemandSums;
use std::ops::Range;

/// All cuts are evaluated in hosts with at most this many GPUs.
const CUT_GPUS_MAX: usize = 4;
/// Newton steps for the volume bound. It converges from below, so an early stop is safe.
const VOLUME_STEPS_MAX: usize = 12;

/// The argument that proves a lower bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Nothing is sent.
    Nothing,
    /// The bytes that a rank sends, over all its links.
    RankSends(usize),
    /// The bytes that a rank receives, over all its links.
    RankReceives(usize),
    /// The bytes that a host sends, over all its NICs.
    HostSends(usize),
    /// The bytes that a host receives, over all its NICs.
    HostReceives(usize),
    /// The demands inside a host fill its direct links; every further byte needs two links.
    Volume(usize),
    /// The bytes from a set of a host's GPUs (bit mask) to the host's other GPUs, over the links between them.
    Cut(usize, u32),
    /// The reference solver; its result is not verified.
    Solver,
    /// Link weights: no path of a demand is shorter than its shortest path.
    Weights,
}

impl Evidence {
    /// The argument as a phrase with the names of ranks and hosts.
    pub fn describe(self, net: &RoutingNetwork) -> String {
        let rank = |r: usize| net.nodes[r].clone();
        let host = |h: usize| net.nodes[net.ranks_of(h).start].split(':').next().unwrap_or("").to_string();
        match self {
            Evidence::Nothing => "nothing is sent".into(),
            Evidence::RankSends(r) => format!("all bytes that {} sends, over all its links", rank(r)),
            Evidence::RankReceives(r) => format!("all bytes that {} receives, over all its links", rank(r)),
            Evidence::HostSends(h) => format!("all bytes that {} sends to other hosts, over all its NICs", host(h)),
            Evidence::HostReceives(h) => {
                format!("all bytes that {} receives from other hosts, over all its NICs", host(h))
            }
            Evidence::Volume(h) => {
                format!("the traffic inside {}: each byte beyond the direct links' capacity needs two links", host(h))
            }
            Evidence::Cut(h, set) => {
                let gpus: Vec<String> =
                    net.ranks_of(h).enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, r)| rank(r)).collect();
                format!("all bytes from {} to the host's other GPUs, over the links between", gpus.join(" and "))
            }
            Evidence::Solver => "the reference solver".into(),
            Evidence::Weights => "link weights (dual of the path problem)".into(),
        }
    }
}

/// The highest closed-form bound in seconds, with its argument.
pub(crate) fn closed_form_bound(net: &RoutingNetwork, demand: &Demand, sums: &DemandSums) -> (f64, Evidence) {
    let (n, hosts) = (net.rank_count(), net.host_count());
    let mut best = (0.0, Evidence::Nothing);
    let mut offer = |bytes: f64, rate: f64, what: Evidence| {
        if bytes > 0.0 && rate > 0.0 && bytes / rate > best.0 {
            best = (bytes / rate, what);
        }
    };
    for h in 0..hosts {
        let (mut out, mut back) = (0.0, 0.0);
        for r in net.ranks_of(h) {
            let own = &sums.row_host[r * hosts..(r + 1) * hosts];
            let sends: f64 = own.iter().sum();
            let receives: f64 = (0..hosts).map(|a| sums.host_col[a * n + r]).sum();
            out += sends - own[h];
            back += receives - sums.host_col[h * n + r];
            offer(sends, net.rank_rates[r].0, Evidence::RankSends(r));
            offer(receives, net.rank_rates[r].1, Evidence::RankReceives(r));
        }
        offer(out, net.host_rates[h].0, Evidence::HostSends(h));
        offer(back, net.host_rates[h].1, Evidence::HostReceives(h));
        intra_host_bounds(net, demand, sums, h, &mut offer);
    }
    best
}

/// Offers the bounds of the demands inside one host.
fn intra_host_bounds(
    net: &RoutingNetwork,
    demand: &Demand,
    sums: &DemandSums,
    h: usize,
    offer: &mut impl FnMut(f64, f64, Evidence),
) {
    let hosts = net.host_count();
    let ranks = net.ranks_of(h);
    if ranks.len() < 2 || ranks.clone().all(|r| sums.row_host[r * hosts + h] == 0.0) {
        return;
    }
    let first = net.intra_paths(ranks.start, ranks.start + 1).first();
    if first.is_some_and(|p| p.links().len() == 2) && net.is_direct(ranks.start, ranks.start + 1) {
        return switch_port_bounds(net, sums, h, offer);
    }
    let size = ranks.len();
    let mut pairs = [(0.0, 0.0); topology::GPUS_PER_HOST_MAX * topology::GPUS_PER_HOST_MAX];
    let pairs = &mut pairs[..size * size];
    let Some(capacity) = read_pairs(net, demand, ranks, pairs) else { return };
    offer(volume_s(pairs, capacity), 1.0, Evidence::Volume(h));
    if size <= CUT_GPUS_MAX {
        cut_bounds(pairs, size, |set, bytes, rate| offer(bytes, rate, Evidence::Cut(h, set)));
    }
}

/// All of a GPU's traffic inside the host crosses its port to the switch.
fn switch_port_bounds(net: &RoutingNetwork, sums: &DemandSums, h: usize, offer: &mut impl FnMut(f64, f64, Evidence)) {
    let (n, hosts, ranks) = (net.rank_count(), net.host_count(), net.ranks_of(h));
    for r in ranks.clone() {
        let other = if r == ranks.start { r + 1 } else { ranks.start };
        let ([out, _], [_, back]) = (ports(net, r, other), ports(net, other, r));
        offer(sums.row_host[r * hosts + h], 1.0 / net.inverse[out as usize], Evidence::RankSends(r));
        offer(sums.host_col[h * n + r], 1.0 / net.inverse[back as usize], Evidence::RankReceives(r));
    }
}

/// Rate of the NVLinks between two ranks of a host, bytes per second; 0 without NVLinks.
fn direct_rate(net: &RoutingNetwork, i: usize, j: usize) -> f64 {
    let Some(path) = net.intra_paths(i, j).first().filter(|_| net.is_direct(i, j)) else { return 0.0 };
    match *path.links() {
        [link] if net.links[link as usize].kind == LinkKind::NvLink => 1.0 / net.inverse[link as usize],
        _ => 0.0,
    }
}

/// Reads for every pair of a host's ranks its bytes and the rate of its direct link, bytes per second (0: no direct link).
/// Returns the sum of the rates, or `None` if a direct path is PCIe, which the bounds of volume and of cuts do not cover.
fn read_pairs(net: &RoutingNetwork, demand: &Demand, ranks: Range<usize>, pairs: &mut [(f64, f64)]) -> Option<f64> {
    let mut capacity = 0.0;
    for (i, src) in ranks.clone().enumerate() {
        for (j, dst) in ranks.clone().enumerate().filter(|(j, _)| *j != i) {
            let rate = direct_rate(net, src, dst);
            if rate == 0.0 && net.is_direct(src, dst) {
                return None;
            }
            pairs[i * ranks.len() + j] = (demand.get(src, dst) as f64, rate);
            capacity += rate;
        }
    }
    Some(capacity)
}

/// Time that all links together need, seconds. Bytes that the direct link of a pair cannot carry in that time use two links.
fn volume_s(pairs: &[(f64, f64)], capacity: f64) -> f64 {
    let mut seconds = 0.0;
    for _ in 0..VOLUME_STEPS_MAX {
        let (mut bytes, mut rate) = (0.0, capacity);
        for &(d, c) in pairs {
            bytes += d;
            if d > c * seconds {
                bytes += d;
                rate += c;
            }
        }
        if rate <= 0.0 || bytes / rate <= seconds {
            break;
        }
        seconds = bytes / rate;
    }
    seconds
}

/// Calls the function for every set of ranks, with the bytes that leave the set and the rate of the links out of it.
fn cut_bounds(pairs: &[(f64, f64)], size: usize, mut see: impl FnMut(u32, f64, f64)) {
    for set in 1..(1u32 << size) - 1 {
        let (mut bytes, mut rate) = (0.0, 0.0);
        for (i, row) in pairs.chunks(size).enumerate().filter(|(i, _)| set >> i & 1 == 1) {
            debug_assert_eq!(row.len(), size);
            for (_, &(d, c)) in row.iter().enumerate().filter(|(j, _)| *j != i && set >> j & 1 == 0) {
                bytes += d;
                rate += c;
            }
        }
        see(set, bytes, rate);
    }
}

fn ports(net: &RoutingNetwork, i: usize, j: usize) -> [u32; 2] {
    match net.intra_paths(i, j).first().map(|p| p.links()) {
        Some(&[a, b]) => [a, b],
        _ => [0, 0],
    }
}
