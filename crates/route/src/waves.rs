//! Time as well as space: in which order hosts talk, so that no host is sent to by two others at once.
//!
//! The bytes between hosts are cut into *waves*. In a wave every host sends to at most one host and receives from at most one (no incast).
//! How long a pair of hosts needs is that of its busiest rail; a matrix of such times, filled up until all rows and columns have the largest
//! sum, is a sum of permutations (Birkhoff), and each permutation is a wave. All waves together take exactly the largest row or column sum:
//! the order costs nothing beyond what a host's own total needs.

use crate::demand::Demand;
use crate::network::Network;
use crate::plan::Plan;

/// Ticks of the longest row or column: times are rounded up to whole ones, one part in a million.
const TICKS: f64 = 1_048_576.0;

/// A turn: who sends to whom, for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Wave {
    /// Seconds.
    pub duration_s: f64,
    /// (sending host, receiving host, first tick, last tick) of what this pair sends in this wave, of [`Waves::ticks`] in all.
    pub peers: Vec<(u16, u16, u64, u64)>,
}

/// All waves of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Waves {
    /// In order.
    pub waves: Vec<Wave>,
    /// Ticks of every pair of hosts, `[from * hosts + to]`.
    pub ticks: Vec<u64>,
    hosts: usize,
    tick_s: f64,
}

impl Waves {
    /// Seconds of all waves.
    pub fn duration_s(&self) -> f64 {
        self.waves.iter().map(|w| w.duration_s).sum()
    }

    /// Seconds that a pair of hosts needs for what it sends.
    pub fn pair_s(&self, from: usize, to: usize) -> f64 {
        self.ticks[from * self.hosts + to] as f64 * self.tick_s
    }

    /// Which of `bytes` (of any flow from one host to the other) go in a wave: from the first to before the last. Parts of all waves
    /// are whole bytes and make up the flow.
    pub fn part(&self, wave: &Wave, from: usize, to: usize, bytes: u64) -> std::ops::Range<u64> {
        let all = u128::from(self.ticks[from * self.hosts + to].max(1));
        let place = |t: u64| (u128::from(bytes) * u128::from(t) / all) as u64;
        match wave.peers.iter().find(|p| (usize::from(p.0), usize::from(p.1)) == (from, to)) {
            Some(p) => place(p.2)..place(p.3),
            None => 0..0,
        }
    }
}

/// Orders a plan's traffic between hosts. O(ranks² x rails) to read the plan, then at most `hosts²` waves of O(hosts²).
pub fn order(net: &Network, demand: &Demand, plan: &Plan) -> Waves {
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
    Waves { waves: birkhoff(&ticks, hosts, tick_s), ticks, hosts, tick_s }
}

/// Permutations whose sum is the matrix, filled up.
fn birkhoff(ticks: &[u64], n: usize, tick_s: f64) -> Vec<Wave> {
    let mut rest = ticks.to_vec();
    let sum = |rest: &[u64], h: usize| {
        let row: u64 = rest[h * n..(h + 1) * n].iter().sum();
        (row, (0..n).map(|a| rest[a * n + h]).sum::<u64>())
    };
    let top = (0..n).map(|h| sum(&rest, h)).fold(0, |m, (r, c)| m.max(r).max(c));
    // Filling: idle time of a host, as bytes of nobody. North-west corner.
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
    let mut to = vec![usize::MAX; n]; // the matching, by sender
    let mut from = vec![usize::MAX; n]; // and by receiver
    let mut waves = Vec::new();
    let mut left = top;
    while left > 0 {
        for a in 0..n {
            if to[a] == usize::MAX {
                let mut seen = vec![false; n];
                if !augment(a, n, &rest, &filling, &mut to, &mut from, &mut seen) {
                    return waves; // cannot be: rows and columns have equal sums (Hall)
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

/// Finds a receiver for a sender, moving others if need be. Real bytes are preferred to filling.
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
