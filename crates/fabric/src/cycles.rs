//! Packs rings into the NVLinks of a host without switches.
//!
//! A ring over a set of GPUs is a directed Hamiltonian cycle. Every link carries at most as many rings as it has lanes
//! in that direction. The bus bandwidth of a ring collective is the number of rings that fit, times the rate of one
//! link. NCCL's search reaches the fractional optimum for up to 4 GPUs and the integer optimum for more GPUs (measured
//! on a DGX-1 P100: `facts/measurements.md` section 2). If no direct cycle exists, a hop may pass through one GPU of
//! the set (NCCL's NVB paths).

/// Maximum number of GPUs of a set that is searched. Larger sets get no ring.
const GPUS_MAX: usize = 8;
/// Maximum number of cycles that the search lists.
const CYCLES_MAX: usize = 20_000;
/// Maximum number of steps of the packing search. At this number the search returns the best packing so far.
const STEPS_MAX: usize = 100_000;
/// Maximum number of relayed hops of one ring.
const RELAYS_MAX: usize = 2;

/// The number of rings that fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RingPacking {
    /// Number of rings, each at the rate of one link; 0 if there is no ring.
    pub rings: f64,
    /// True if the rings need a relayed hop.
    pub relayed: bool,
}

/// The directed links of one ring: `(link, times used)`, link = from * n + to.
type RingLinks = Vec<(u8, u8)>;

/// Packs rings over GPUs `0..n` with `lanes[from * n + to]` links in each direction. Exponential in `n`, limited by constants.
pub fn pack_rings(n: usize, lanes: &[u8]) -> RingPacking {
    let none = RingPacking { rings: 0.0, relayed: false };
    if !(2..=GPUS_MAX).contains(&n) || lanes.len() != n * n {
        return none;
    }
    let direct = list_rings(n, lanes, 0);
    let relayed = direct.is_empty();
    let found = if relayed { list_rings(n, lanes, RELAYS_MAX) } else { direct };
    if found.is_empty() {
        return none;
    }
    // The fractional optimum of a small set has a small denominator, so multiply the lanes and pack an integer number
    // of rings.
    let multiples: &[u8] = if n <= 4 && !relayed { &[1, 2, 3] } else { &[1] };
    let best = multiples
        .iter()
        .map(|&k| {
            let wide: Vec<u8> = lanes.iter().map(|&l| l.saturating_mul(k)).collect();
            f64::from(count_rings_that_fit(n, &found, wide)) / f64::from(k)
        })
        .fold(0.0, f64::max);
    RingPacking { rings: best, relayed }
}

/// All directed rings from GPU 0 with at most `relays` relayed hops, shortest first.
fn list_rings(n: usize, lanes: &[u8], relays: usize) -> Vec<RingLinks> {
    let mut search = RingSearch { n, lanes, used: vec![0u8; n * n], found: Vec::new() };
    search.extend(0, 1, 1, relays);
    let mut rings = search.found;
    rings.sort();
    rings.dedup();
    rings.sort_by_key(|r| r.iter().map(|u| usize::from(u.1)).sum::<usize>());
    rings
}

/// A depth-first search for rings.
struct RingSearch<'a> {
    n: usize,
    lanes: &'a [u8],
    /// Number of times that the path uses each link.
    used: Vec<u8>,
    found: Vec<RingLinks>,
}

impl RingSearch<'_> {
    /// Extends a path of `count` GPUs (`seen` is their bit mask) that ends at `at`, with at most `relays` more relayed
    /// hops.
    fn extend(&mut self, at: usize, seen: u32, count: usize, relays: usize) {
        let n = self.n;
        if self.found.len() >= CYCLES_MAX {
            return;
        }
        if count > n {
            let used = self.used.iter().enumerate().filter(|(_, u)| **u > 0);
            self.found.push(used.map(|(i, u)| (i as u8, *u)).collect());
            return;
        }
        let last = count == n;
        for to in 0..n {
            if if last { to != 0 } else { seen >> to & 1 == 1 } {
                continue;
            }
            if self.lanes[at * n + to] > 0 {
                self.take_hop(&[(at, to)], seen, count, relays);
            } else if relays > 0 {
                for via in (0..n).filter(|&v| v != at && v != to) {
                    self.take_hop(&[(at, via), (via, to)], seen, count, relays - 1);
                }
            }
        }
    }

    /// Extends the path by one hop over these links, if each has a free lane.
    fn take_hop(&mut self, links: &[(usize, usize)], seen: u32, count: usize, relays: usize) {
        let n = self.n;
        if links.iter().all(|&(a, b)| self.used[a * n + b] < self.lanes[a * n + b]) {
            let to = links[links.len() - 1].1;
            links.iter().for_each(|&(a, b)| self.used[a * n + b] += 1);
            self.extend(to, seen | 1 << to, count + 1, relays);
            links.iter().for_each(|&(a, b)| self.used[a * n + b] -= 1);
        }
    }
}

/// The largest number of rings (with repeats) that fit into the lanes. Exact unless it reaches the step limit.
fn count_rings_that_fit(n: usize, rings: &[RingLinks], free: Vec<u8>) -> u32 {
    let mut search = PackingSearch { n, rings, free, best: 0, steps: 0 };
    search.pack_more(0, 0);
    search.best
}

/// A branch-and-bound search for the largest packing.
struct PackingSearch<'a> {
    n: usize,
    rings: &'a [RingLinks],
    /// Free lanes of every link.
    free: Vec<u8>,
    best: u32,
    steps: usize,
}

impl PackingSearch<'_> {
    /// Extends a packing of `packed` rings by rings with index `from` or higher.
    fn pack_more(&mut self, from: usize, packed: u32) {
        self.best = self.best.max(packed);
        self.steps += 1;
        let more = self.rings_left_max();
        if packed + more <= self.best || self.steps > STEPS_MAX {
            return;
        }
        let rings = self.rings;
        for (i, ring) in rings.iter().enumerate().skip(from) {
            if ring.iter().all(|&(l, u)| self.free[usize::from(l)] >= u) {
                ring.iter().for_each(|&(l, u)| self.free[usize::from(l)] -= u);
                self.pack_more(i, packed + 1);
                ring.iter().for_each(|&(l, u)| self.free[usize::from(l)] += u);
                if packed + more <= self.best || self.steps > STEPS_MAX {
                    return;
                }
            }
        }
    }

    /// Upper bound on the number of rings that still fit: the smallest number of free lanes in or out of any GPU.
    fn rings_left_max(&self) -> u32 {
        let n = self.n;
        let lanes = |g: usize| {
            let out: u32 = (0..n).map(|j| u32::from(self.free[g * n + j])).sum();
            let into: u32 = (0..n).map(|j| u32::from(self.free[j * n + g])).sum();
            out.min(into)
        };
        (0..n).map(lanes).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(n: usize, edges: &[(usize, usize, u8)]) -> Vec<u8> {
        let mut l = vec![0; n * n];
        for &(a, b, k) in edges {
            l[a * n + b] = k;
            l[b * n + a] = k;
        }
        l
    }

    #[test]
    fn a_full_mesh_of_four_carries_three_rings_per_lane() {
        let mesh = lanes(4, &[(0, 1, 1), (0, 2, 1), (0, 3, 1), (1, 2, 1), (1, 3, 1), (2, 3, 1)]);
        // Tartan, DGX-1 P100, GPUs 0 to 3: 52.09 GB/s = 3.0 links. Integer rings would give 2.
        assert_eq!(pack_rings(4, &mesh), RingPacking { rings: 3.0, relayed: false });
    }

    #[test]
    fn a_chain_needs_a_relay_and_a_disconnected_set_has_no_ring() {
        assert_eq!(pack_rings(3, &lanes(3, &[(0, 1, 2), (1, 2, 2)])), RingPacking { rings: 2.0, relayed: true });
        assert_eq!(pack_rings(3, &lanes(3, &[(0, 1, 2)])).rings, 0.0);
        assert_eq!(pack_rings(2, &lanes(2, &[(0, 1, 2)])).rings, 2.0);
    }
}
