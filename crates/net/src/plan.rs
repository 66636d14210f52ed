//! Shares of the ways between hosts without a switch: which part of the bytes of every pair of hosts goes over which rail. Pure.
//!
//! A path over relays uses links that other pairs need. A host that chooses alone sees only the queues of its own rails and, late, those of others; it
//! takes detours that cost the whole more than they gain. Here every host tells all others how much it sends to whom, and each computes the same split:
//! the one whose busiest link has the least to do. The split begins with the shortest ways and moves parts of a pair's bytes to the way with the lowest
//! price. The price of a link is its share of the sum of all loads to the power of p; p grows, so that in the end the busiest links alone have a price.
//!
//! A [`Table`] fixes the shares instead; [`routes`] makes one from a plan of `linkwise route plan`.

mod json;
pub mod routes;

use crate::limits::{RAILS_MAX, RELAYS_MAX};
use std::net::IpAddr;

/// Hosts that a plan is computed for; with more, every host chooses alone.
pub const HOSTS_MAX: usize = 8;
/// Shares are multiples of one part in this many.
pub const PARTS: u32 = 64;
/// Powers of the loads whose sum is made small, one after the other, and the parts that one step moves.
const STAGES: [(i32, u32); 5] = [(4, 8), (8, 4), (16, 2), (32, 1), (64, 1)];
/// Passes over all pairs in each stage, at most: bounds the work on the I/O thread.
const PASSES_MAX: usize = 32;

/// The bytes of one host for another, and the ways that they can take.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    pub bytes: f64,
    /// Links of every way, the shortest way first; as indices into the rates.
    pub ways: Vec<Vec<usize>>,
}

/// The parts (of [`PARTS`]) of every pair's bytes on each of its ways, so that the busiest link is done as early as possible. `rates`: bytes per second of
/// every link. O(stages · passes · pairs · ways · links of a way).
pub fn split(rates: &[f64], pairs: &[Pair]) -> Vec<Vec<u32>> {
    let mut parts: Vec<Vec<u32>> = pairs.iter().map(|p| vec![0; p.ways.len()]).collect();
    let mut loads = vec![0.0; rates.len()];
    let cost = |l: usize| 1.0 / rates.get(l).copied().unwrap_or(1.0).max(1.0);
    let add = |loads: &mut [f64], way: &[usize], bytes: f64| {
        for l in way {
            if let Some(load) = loads.get_mut(*l) {
                *load += bytes * cost(*l);
            }
        }
    };
    for (pair, parts) in pairs.iter().zip(&mut parts) {
        if let (Some(way), Some(first)) = (pair.ways.first(), parts.first_mut()) {
            *first = PARTS;
            add(&mut loads, way, pair.bytes);
        }
    }
    for (power, step) in STAGES {
        for _ in 0..PASSES_MAX {
            let top = loads.iter().fold(0.0f64, |a, b| a.max(*b)).max(f64::MIN_POSITIVE);
            let price = |loads: &[f64], way: &[usize]| -> f64 {
                way.iter().map(|l| loads.get(*l).map_or(0.0, |u| (u / top).powi(power - 1)) * cost(*l)).sum()
            };
            let mut moved = false;
            for (pair, parts) in pairs.iter().zip(&mut parts) {
                let prices: Vec<f64> = pair.ways.iter().map(|w| price(&loads, w)).collect();
                let used = prices.iter().zip(parts.iter()).enumerate().filter(|(_, (_, n))| **n > 0);
                let Some((from, _)) = used.max_by(|a, b| a.1.0.total_cmp(b.1.0)) else { continue };
                let Some((to, _)) = prices.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)) else { continue };
                let (Some(w), Some(v)) = (pair.ways.get(from), pair.ways.get(to)) else { continue };
                let n = step.min(parts.get(from).copied().unwrap_or(0));
                let bytes = pair.bytes * f64::from(n) / f64::from(PARTS);
                // The step pays if half of it does not make the new way the dearer one.
                add(&mut loads, w, -bytes / 2.0);
                add(&mut loads, v, bytes / 2.0);
                if from != to && price(&loads, v) < price(&loads, w) {
                    add(&mut loads, w, -bytes / 2.0);
                    add(&mut loads, v, bytes / 2.0);
                    if let Some(p) = parts.get_mut(from) {
                        *p -= n;
                    }
                    if let Some(p) = parts.get_mut(to) {
                        *p += n;
                    }
                    moved = true;
                } else {
                    add(&mut loads, w, bytes / 2.0);
                    add(&mut loads, v, -bytes / 2.0);
                }
            }
            if !moved {
                break;
            }
        }
    }
    parts
}

/// Seconds that every link needs for a split.
pub fn loads(rates: &[f64], pairs: &[Pair], parts: &[Vec<u32>]) -> Vec<f64> {
    let mut loads = vec![0.0; rates.len()];
    for (pair, parts) in pairs.iter().zip(parts) {
        for (way, n) in pair.ways.iter().zip(parts) {
            for l in way {
                if let (Some(load), Some(rate)) = (loads.get_mut(*l), rates.get(*l)) {
                    *load += pair.bytes * f64::from(*n) / f64::from(PARTS) / rate.max(1.0);
                }
            }
        }
    }
    loads
}

/// Where the shares of the rails come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Source {
    /// Connections over relays follow the common plan of the hosts; all others choose alone.
    #[default]
    Common,
    /// Every connection chooses alone: the path that would be done first.
    Alone,
    Fixed(Table),
}

/// Rows of a table.
const ROWS_MAX: usize = 4096;

/// Which of a connection's paths a row means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    Home,
    Rail(usize),
}

/// Fixed shares, from a text of rows `SENDER PEER RAIL SHARE`: two addresses of the hosts or `*`, the number of the sender's rail, `home` (that of the
/// device that NCCL chose) or `*`, and a number. `#` begins a comment. The first row that fits a path counts; a path without a row carries nothing while
/// another one is up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    rows: Vec<(Option<IpAddr>, Option<IpAddr>, Which, u32)>,
}

impl Table {
    /// # Errors
    /// The first line that is no row, and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut rows = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.split_once('#').map_or(line, |(l, _)| l).trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |what: String| format!("line {}: {what}", i + 1);
            let words: Vec<&str> = line.split_whitespace().collect();
            let [from, to, rail, share] = words[..] else {
                return Err(wrong(format!("`{line}` is not SENDER PEER RAIL SHARE")));
            };
            let address = |w: &str| match w {
                "*" => Ok(None),
                _ => w.parse().map(Some).map_err(|_| wrong(format!("`{w}` is no address, and not *"))),
            };
            let which = match rail {
                "*" => Which::All,
                "home" => Which::Home,
                _ => match rail.parse() {
                    Ok(r) if r < RAILS_MAX => Which::Rail(r),
                    _ => return Err(wrong(format!("`{rail}` is none of a rail's number, home, *"))),
                },
            };
            let share = share.parse::<f64>().ok().filter(|s| (0.0..=1e6).contains(s));
            let share = share.ok_or_else(|| wrong("the share is no number from 0 to 1000000".into()))?;
            if rows.len() == ROWS_MAX {
                return Err(wrong(format!("more than {ROWS_MAX} rows")));
            }
            rows.push((address(from)?, address(to)?, which, (share * 1024.0) as u32));
        }
        match rows.is_empty() {
            true => Err("no row".into()),
            false => Ok(Table { rows }),
        }
    }

    /// The rows of a host with these addresses.
    #[must_use]
    pub fn of(&self, own: &[IpAddr]) -> Self {
        let is_own = |row: &&(Option<IpAddr>, Option<IpAddr>, Which, u32)| row.0.is_none_or(|a| own.contains(&a));
        Table { rows: self.rows.iter().filter(is_own).copied().collect() }
    }

    /// The share of a path; 0 without a row.
    pub fn share(&self, own: &[IpAddr], peer: &[IpAddr], rail: usize, is_home: bool) -> u32 {
        let fits = |(from, to, which, _): &&(Option<IpAddr>, Option<IpAddr>, Which, u32)| {
            from.is_none_or(|a| own.contains(&a))
                && to.is_none_or(|a| peer.contains(&a))
                && match which {
                    Which::All => true,
                    Which::Home => is_home,
                    Which::Rail(r) => *r == rail,
                }
        };
        self.rows.iter().find(fits).map_or(0, |r| r.3)
    }
}

const _: () = assert!(RELAYS_MAX <= HOSTS_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A ring of `n` hosts: link 2h goes from host h to the next, 2h + 1 to the one before. Every way round of at most three relays.
    fn ring(n: usize, bytes: impl Fn(usize, usize) -> f64) -> Vec<Pair> {
        let all = (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).filter(|(a, b)| a != b);
        all.map(|(a, b)| {
            let up: Vec<usize> = (0..(b + n - a) % n).map(|k| 2 * ((a + k) % n)).collect();
            let down: Vec<usize> = (0..(a + n - b) % n).map(|k| 2 * ((a + n - k) % n) + 1).collect();
            let mut ways = vec![up, down];
            ways.sort_by_key(Vec::len);
            ways.retain(|w| w.len() <= RELAYS_MAX + 1);
            Pair { bytes: bytes(a, b), ways }
        })
        .collect()
    }

    fn busiest(rates: &[f64], pairs: &[Pair], parts: &[Vec<u32>]) -> f64 {
        loads(rates, pairs, parts).into_iter().fold(0.0, f64::max)
    }

    /// No split has less: all bytes on their cheapest ways, by any prices of links. The best of 600 prices, each dearer where the bytes of the one before
    /// would go.
    fn bound(rates: &[f64], pairs: &[Pair]) -> f64 {
        let (mut prices, mut best) = (vec![1.0; rates.len()], 0.0f64);
        for _ in 0..600 {
            let (mut sum, mut loads) = (0.0, vec![0.0; rates.len()]);
            for p in pairs {
                let cost = |w: &Vec<usize>| w.iter().map(|l| prices[*l] / rates[*l]).sum::<f64>();
                let way = p.ways.iter().min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap();
                sum += cost(way) * p.bytes;
                way.iter().for_each(|l| loads[*l] += p.bytes / rates[*l]);
            }
            best = best.max(sum / prices.iter().sum::<f64>());
            let top = loads.iter().fold(0.0f64, |a, b| a.max(*b));
            prices.iter_mut().zip(&loads).for_each(|(p, l)| *p *= 1.0 + 0.03 * l / top);
        }
        best
    }

    #[test]
    fn uniform_traffic_of_a_ring_takes_no_detour() {
        let pairs = ring(4, |_, _| 1e6);
        let parts = split(&[1e6; 8], &pairs);
        assert!((busiest(&[1e6; 8], &pairs, &parts) - 2.0).abs() < 0.04, "{parts:?}");
        for (pair, parts) in pairs.iter().zip(&parts).filter(|(p, _)| p.ways[0].len() == 1) {
            assert_eq!(parts[..], [PARTS, 0], "{pair:?}");
        }
    }

    #[test]
    fn a_hot_pair_of_a_ring_goes_both_ways_round() {
        let pairs = ring(4, |a, b| if (a, b) == (0, 1) { 1e6 } else { 1e3 });
        let parts = split(&[1e6; 8], &pairs);
        assert!((28..=36).contains(&parts[0][0]), "{:?}", parts[0]);
    }

    #[test]
    fn a_slow_link_gets_its_part() {
        let pairs = ring(4, |a, b| if (a, b) == (0, 1) { 1e6 } else { 0.0 });
        let mut rates = [1e6; 8];
        rates[0] = 0.25e6;
        let parts = split(&rates, &pairs);
        assert!((11..=15).contains(&parts[0][0]), "a fifth: {:?}", parts[0]);
    }

    proptest! {
        #[test]
        fn the_busiest_link_is_near_the_optimum_of_any_ring(n in 3usize..=8, bytes in proptest::collection::vec(0.0f64..1.0, 64), skew in 1i32..6) {
            let rates = vec![1.0; 2 * n];
            let pairs = ring(n, |a, b| 100.0 * (0.001 + bytes[a * 8 + b].powi(skew)));
            let parts = split(&rates, &pairs);
            prop_assert!(parts.iter().all(|p| p.iter().sum::<u32>() == PARTS));
            let (found, bound) = (busiest(&rates, &pairs, &parts), bound(&rates, &pairs));
            prop_assert!(found <= bound * 1.08, "{found} of {bound}");
        }
    }

    #[test]
    fn the_first_row_that_fits_counts_and_wrong_rows_are_named() {
        let ip = |t: &str| t.parse::<IpAddr>().unwrap();
        let t = Table::parse("# a comment\n10.0.0.1 10.0.0.2 1 0.5\n10.0.0.1 * 0 1 # rest\n* * home 2\n").unwrap();
        let (own, peer) = ([ip("10.0.0.1"), ip("10.1.0.1")], [ip("10.0.0.2")]);
        assert_eq!([0, 1, 2].map(|r| t.share(&own, &peer, r, r == 2)), [1024, 512, 2048]);
        assert_eq!(t.share(&own, &[ip("10.0.0.3")], 1, false), 0);
        for (text, what) in [
            ("", "no row"),
            ("* * *\n", "line 1: `* * *` is not SENDER PEER RAIL SHARE"),
            ("\n* x * 1\n", "line 2: `x` is no address"),
            ("* * 99 1\n", "none of a rail's number"),
            ("* * * -1\n", "the share"),
        ] {
            let e = Table::parse(text).unwrap_err();
            assert!(e.contains(what), "{text:?}: {e}");
        }
    }
}
