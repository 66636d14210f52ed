//! Packing rings into the NVLinks of a host without switches.
//!
//! A ring over a set of GPUs is a directed Hamiltonian cycle; every link carries as many rings as it has lanes in that direction.
//! The bus bandwidth of a ring collective is the number of rings that fit, times the rate of one link. NCCL's search reaches the
//! fractional optimum for up to 4 GPUs and the integer one beyond (measured on a DGX-1 P100: `facts/measurements.md` section 2).
//! Where no direct cycle exists, a hop may go through one GPU of the set (NCCL's NVB paths).

/// Largest set that is searched; bigger ones have no ring here.
const GPUS_MAX: usize = 8;
/// Cycles looked at before the search stops.
const CYCLES_MAX: usize = 20_000;
/// Steps of the packing search before it keeps what it has.
const STEPS_MAX: usize = 100_000;
/// Relayed hops that one ring may have.
const RELAYS_MAX: usize = 2;

/// How many rings fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packing {
    /// Rings at the rate of one link each; 0 if there is no ring.
    pub rings: f64,
    /// Does a ring need a relayed hop?
    pub relayed: bool,
}

/// Use of directed links by one ring: `(link, times)`, link = from * n + to.
type Ring = Vec<(u8, u8)>;

/// Packs rings over GPUs `0..n` with `lanes[from * n + to]` links in each direction. Exponential in `n`, limited by constants.
pub fn pack(n: usize, lanes: &[u8]) -> Packing {
    let none = Packing { rings: 0.0, relayed: false };
    if !(2..=GPUS_MAX).contains(&n) || lanes.len() != n * n {
        return none;
    }
    let direct = rings(n, lanes, 0);
    let relayed = direct.is_empty();
    let found = if relayed { rings(n, lanes, RELAYS_MAX) } else { direct };
    if found.is_empty() {
        return none;
    }
    // The fractional optimum of a small case has a small denominator: pack integers into multiplied lanes.
    let multiples: &[u8] = if n <= 4 && !relayed { &[1, 2, 3] } else { &[1] };
    let best = multiples
        .iter()
        .map(|&k| {
            let wide: Vec<u8> = lanes.iter().map(|&l| l.saturating_mul(k)).collect();
            f64::from(most(n, &found, wide)) / f64::from(k)
        })
        .fold(0.0, f64::max);
    Packing { rings: best, relayed }
}

/// All directed rings from GPU 0 with at most `relays` relayed hops.
fn rings(n: usize, lanes: &[u8], relays: usize) -> Vec<Ring> {
    let mut out = Vec::new();
    let mut used = vec![0u8; n * n];
    walk(n, lanes, relays, 0, 1, 1, &mut used, &mut out);
    out.sort();
    out.dedup();
    out.sort_by_key(|r| r.iter().map(|u| usize::from(u.1)).sum::<usize>());
    out
}

#[allow(clippy::too_many_arguments)]
fn walk(
    n: usize,
    lanes: &[u8],
    relays: usize,
    at: usize,
    seen: u32,
    count: usize,
    used: &mut [u8],
    out: &mut Vec<Ring>,
) {
    if out.len() >= CYCLES_MAX {
        return;
    }
    if count > n {
        out.push(used.iter().enumerate().filter(|(_, u)| **u > 0).map(|(i, u)| (i as u8, *u)).collect());
        return;
    }
    let last = count == n;
    for to in 0..n {
        if if last { to != 0 } else { seen >> to & 1 == 1 } {
            continue;
        }
        let mut go = |path: &[(usize, usize)], left: usize| {
            if path.iter().all(|&(a, b)| used[a * n + b] < lanes[a * n + b]) {
                path.iter().for_each(|&(a, b)| used[a * n + b] += 1);
                walk(n, lanes, left, to, seen | 1 << to, count + 1, used, out);
                path.iter().for_each(|&(a, b)| used[a * n + b] -= 1);
            }
        };
        if lanes[at * n + to] > 0 {
            go(&[(at, to)], relays);
        } else if relays > 0 {
            for via in (0..n).filter(|&v| v != at && v != to) {
                go(&[(at, via), (via, to)], relays - 1);
            }
        }
    }
}

/// Most rings (repeats allowed) that fit into the lanes; exact unless the step limit is met.
fn most(n: usize, rings: &[Ring], mut free: Vec<u8>) -> u32 {
    let mut best = 0;
    let mut steps = 0;
    dive(n, rings, 0, 0, &mut free, &mut best, &mut steps);
    best
}

fn dive(n: usize, rings: &[Ring], from: usize, have: u32, free: &mut [u8], best: &mut u32, steps: &mut usize) {
    *best = (*best).max(have);
    *steps += 1;
    // No more rings than the poorest GPU has lanes left, in or out.
    let more = (0..n)
        .map(|g| {
            let out: u32 = (0..n).map(|j| u32::from(free[g * n + j])).sum();
            let into: u32 = (0..n).map(|j| u32::from(free[j * n + g])).sum();
            out.min(into)
        })
        .min()
        .unwrap_or(0);
    if have + more <= *best || *steps > STEPS_MAX {
        return;
    }
    for i in from..rings.len() {
        if rings[i].iter().all(|&(l, u)| free[usize::from(l)] >= u) {
            rings[i].iter().for_each(|&(l, u)| free[usize::from(l)] -= u);
            dive(n, rings, i, have + 1, free, best, steps);
            rings[i].iter().for_each(|&(l, u)| free[usize::from(l)] += u);
            if have + more <= *best || *steps > STEPS_MAX {
                return;
            }
        }
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
        // Tartan, DGX-1 P100, GPUs 0 to 3: 52.09 GB/s = 3.0 links; integer rings alone would give 2.
        assert_eq!(pack(4, &mesh), Packing { rings: 3.0, relayed: false });
    }

    #[test]
    fn a_chain_needs_a_relay_and_a_split_set_has_no_ring() {
        assert_eq!(pack(3, &lanes(3, &[(0, 1, 2), (1, 2, 2)])), Packing { rings: 2.0, relayed: true });
        assert_eq!(pack(3, &lanes(3, &[(0, 1, 2)])).rings, 0.0);
        assert_eq!(pack(2, &lanes(2, &[(0, 1, 2)])).rings, 2.0);
    }
}
