//! Orders the traffic between hosts in time, so that no host receives from two hosts at once (no incast).
//!
//! The schedule cuts the bytes between hosts into *waves*. In a wave every host sends to at most one host and receives
//! from at most one. A pair of hosts needs the time of its busiest rail. The matrix of these times is padded until all
//! rows and columns have the same sum. Such a matrix is a sum of permutations (Birkhoff); each permutation is a wave.
//! All waves together take exactly the largest row or column sum, so the order adds no time.

use crate::demand::Demand;
use crate::network::RoutingNetwork;
use crate::plan::RoutePlan;

/// Ticks of the longest row or column. Times are rounded up to whole ticks, about one part in a million.
const TICKS: f64 = 1_048_576.0;

/// Pairs of hosts that send at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct Wave {
    /// Length of the wave, seconds.
    pub duration_s: f64,
    /// (sending host, receiving host, first tick, end tick): the ticks of the pair's traffic in this wave, out of [`WaveSchedule::ticks`].
    pub peers: Vec<(u16, u16, u64, u64)>,
}

/// The waves of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct WaveSchedule {
    /// The waves in time order.
    pub waves: Vec<Wave>,
    /// Ticks that every pair of hosts needs, `[from * hosts + to]`.
    pub ticks: Vec<u64>,
    hosts: usize,
    tick_s: f64,
}

impl WaveSchedule {
    /// Length of all waves, seconds.
    pub fn duration_s(&self) -> f64 {
        self.waves.iter().map(|w| w.duration_s).sum()
    }

    /// Time that the traffic from one host to another needs, seconds.
    pub fn pair_s(&self, from: usize, to: usize) -> f64 {
        self.ticks[from * self.hosts + to] as f64 * self.tick_s
    }

    /// The bytes of a flow of `bytes` from one host to another that a wave carries. The ranges of all waves are whole bytes and make up the
    /// flow. O(hosts).
    pub fn byte_range(&self, wave: &Wave, from: usize, to: usize, bytes: u64) -> std::ops::Range<u64> {
        let all = u128::from(self.ticks[from * self.hosts + to].max(1));
        let place = |t: u64| (u128::from(bytes) * u128::from(t) / all) as u64;
        match wave.peers.iter().find(|p| (usize::from(p.0), usize::from(p.1)) == (from, to)) {
            Some(p) => place(p.2)..place(p.3),
            None => 0..0,
        }
    }
}

/// Schedules a plan's traffic between hosts. O(ranks² x rails) to read the plan, then at most `hosts²` waves of O(hosts²) each.
pub fn schedule_waves(net: &RoutingNetwork, demand: &Demand, plan: &RoutePlan) -> WaveSchedule {
    let (hosts, slots) = (net.host_count(), net.slot_count());
    let mut bytes = vec![0u64; hosts * hosts * slots];
    for f in plan.flows(net, demand) {
        let (a, b) = (net.host(f.src), net.host(f.dst));
        if a != b {
            bytes[(a * hosts + b) * slots + f.path] += f.bytes;
        }
    }
    let seconds: Vec<f64> = (0..hosts * hosts)
        .map(|p| {
            (0..slots)
                .map(|k| bytes[p * slots + k] as f64 * net.rail_inverse(p / hosts, p % hosts, k))
                .fold(0.0, f64::max)
        })
        .collect();
    let row = |a: usize| (0..hosts).map(|b| seconds[a * hosts + b]).sum::<f64>();
    let column = |b: usize| (0..hosts).map(|a| seconds[a * hosts + b]).sum::<f64>();
    let longest = (0..hosts).map(|h| row(h).max(column(h))).fold(0.0, f64::max);
    let ticks: Vec<u64> =
        seconds.iter().map(|s| if longest > 0.0 { (s / longest * TICKS).ceil() as u64 } else { 0 }).collect();
    let tick_s = longest / TICKS;
    WaveSchedule { waves: birkhoff(&ticks, hosts, tick_s), ticks, hosts, tick_s }
}

/// Permutations whose sum is the padded matrix.
fn birkhoff(ticks: &[u64], n: usize, tick_s: f64) -> Vec<Wave> {
    let mut rest = ticks.to_vec();
    let sum = |rest: &[u64], h: usize| {
        let row: u64 = rest[h * n..(h + 1) * n].iter().sum();
        (row, (0..n).map(|a| rest[a * n + h]).sum::<u64>())
    };
    let top = (0..n).map(|h| sum(&rest, h)).fold(0, |m, (r, c)| m.max(r).max(c));
    // Padding: the idle time of hosts, by the north-west corner rule.
    let mut filling = vec![0u64; n * n];
    let mut rows: Vec<u64> = (0..n).map(|h| top - sum(&rest, h).0).collect();
    let mut columns: Vec<u64> = (0..n).map(|h| top - sum(&rest, h).1).collect();
    let (mut a, mut b) = (0, 0);
    while a < n && b < n {
        let f = rows[a].min(columns[b]);
        filling[a * n + b] += f;
        rows[a] -= f;
        columns[b] -= f;
        if rows[a] == 0 { a += 1 } else { b += 1 }
    }
    let mut sent = vec![0u64; n * n];
    let mut to = vec![usize::MAX; n]; // the matching by sender
    let mut from = vec![usize::MAX; n]; // the matching by receiver
    let mut waves = Vec::new();
    let mut left = top;
    while left > 0 {
        for a in 0..n {
            if to[a] == usize::MAX {
                let mut seen = vec![false; n];
                if !augment(a, n, &rest, &filling, &mut to, &mut from, &mut seen) {
                    return waves; // unreachable: rows and columns have equal sums (Hall's theorem)
                }
            }
        }
        let length = (0..n).map(|a| rest[a * n + to[a]] + filling[a * n + to[a]]).min().unwrap_or(0).min(left);
        if length == 0 {
            return waves;
        }
        let mut peers = Vec::new();
        for a in 0..n {
            let p = a * n + to[a];
            let real = rest[p].min(length);
            if real > 0 {
                peers.push((a as u16, to[a] as u16, sent[p], sent[p] + real));
                sent[p] += real;
                rest[p] -= real;
            }
            filling[p] -= length - real;
            if rest[p] + filling[p] == 0 {
                from[to[a]] = usize::MAX;
                to[a] = usize::MAX;
            }
        }
        left -= length;
        if !peers.is_empty() {
            waves.push(Wave { duration_s: length as f64 * tick_s, peers });
        }
    }
    waves
}

/// Finds a receiver for a sender, and moves other senders if necessary. Prefers real bytes to padding.
fn augment(
    a: usize,
    n: usize,
    rest: &[u64],
    filling: &[u64],
    to: &mut [usize],
    from: &mut [usize],
    seen: &mut [bool],
) -> bool {
    for real in [true, false] {
        for b in 0..n {
            let p = a * n + b;
            let here = if real { rest[p] > 0 } else { rest[p] == 0 && filling[p] > 0 };
            if !here || seen[b] {
                continue;
            }
            seen[b] = true;
            if from[b] == usize::MAX || augment(from[b], n, rest, filling, to, from, seen) {
                (to[a], from[b]) = (b, a);
                return true;
            }
        }
    }
    false
}
