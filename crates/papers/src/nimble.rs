//! NIMBLE's planner: multiplicative weights.
//!
//! The paper's text is not public. The public sources (docs/research/papers.md) describe this method: in each round
//! every demand sends a part of its bytes over its cheapest path. The price of a path is the price of its most
//! expensive link, because hops are pipelined. Link prices grow with load over capacity. The sources do not give the
//! growth, the step or the number of rounds. In this planner the price of a link is its load in seconds including the
//! added part, ties go to the direct path, and the number of rounds is a setting. With [`PathPrice::SumOfLinks`] the
//! price of a path is a sum over its links: the eighth power of each link's load relative to the busiest link. That
//! approximates the exponential lengths of the theory of multiplicative weights without a transcendental function.

use route::rules::{PATHS_MAX, Shares};
use route::{Demand, NameTaken, PlanError, PlannerEntry, Planners, RoutePlan, RoutingNetwork, Rule, lower_bound};

/// The price of a path, from the prices of its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathPrice {
    /// The price of the most expensive link.
    MaxOfLinks,
    /// The sum of the eighth powers of the links' relative loads.
    SumOfLinks,
}

/// Settings of the planner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MwuSettings {
    /// Number of equal parts of each demand. Each part takes one path.
    pub rounds: u32,
    /// The price of a path, from the prices of its links.
    pub price: PathPrice,
    /// Messages of up to this number of bytes take only the direct path. NIMBLE's limit is 1 MB.
    pub single_path_max_bytes: u64,
}

impl Default for MwuSettings {
    fn default() -> Self {
        MwuSettings { rounds: 64, price: PathPrice::MaxOfLinks, single_path_max_bytes: 1 << 20 }
    }
}

/// Plans the routes. O(rounds x demands x paths).
pub fn plan(net: &RoutingNetwork, demand: &Demand, settings: &MwuSettings) -> Result<RoutePlan, PlanError> {
    let bound = lower_bound(net, demand)?;
    let inverse = net.seconds_per_byte();
    let mut pairs: Vec<(usize, usize, u64)> = demand.pairs().collect();
    pairs.sort_by_key(|&(i, j, b)| (std::cmp::Reverse(b), i, j)); // largest first
    let mut loads = vec![0.0f64; net.links.len()];
    let mut seconds = vec![0.0f64; net.links.len()];
    // All paths of all pairs in one list: (path, index of its first link in `links`). The direct path comes first.
    let mut links: Vec<u32> = Vec::new();
    let mut heads: Vec<(u16, u32)> = Vec::new();
    let mut first_of: Vec<u32> = Vec::with_capacity(pairs.len() + 1);
    let mut direct = Shares::default();
    for &(i, j, bytes) in &pairs {
        first_of.push(heads.len() as u32);
        Rule::Direct.shares(net, i, j, &mut direct);
        let first = usize::from(direct.as_slice()[0].0);
        let others = paths(net, i, j).filter(|&p| p != first && bytes > settings.single_path_max_bytes);
        for p in std::iter::once(first).chain(others) {
            heads.push((p as u16, links.len() as u32));
            links.extend(net.path(i, j, p));
        }
    }
    first_of.push(heads.len() as u32);
    heads.push((0, links.len() as u32));
    let mut parts = vec![0u32; heads.len()];
    let rounds = settings.rounds.max(1);
    let mut top = 0.0f64;
    for _ in 0..rounds {
        for (p, &(_, _, bytes)) in pairs.iter().enumerate() {
            let part = bytes as f64 / f64::from(rounds);
            let mut best = (0, f64::INFINITY);
            for h in first_of[p] as usize..first_of[p + 1] as usize {
                let path = &links[heads[h].1 as usize..heads[h + 1].1 as usize];
                let c = LinkSeconds { inverse, seconds: &seconds, top }.price(path, part, settings.price);
                if c < best.1 {
                    best = (h, c);
                }
            }
            parts[best.0] += 1;
            for &l in &links[heads[best.0].1 as usize..heads[best.0 + 1].1 as usize] {
                let l = l as usize;
                loads[l] += part;
                seconds[l] = loads[l] * inverse[l];
                top = top.max(seconds[l]);
            }
        }
    }
    let mut order: Vec<usize> = (0..pairs.len()).collect();
    order.sort_by_key(|&p| (pairs[p].0, pairs[p].1));
    let splits = order.into_iter().map(|p| {
        let mut used: Vec<usize> = (first_of[p] as usize..first_of[p + 1] as usize).filter(|&h| parts[h] > 0).collect();
        used.sort_by_key(|&h| heads[h].0);
        let mut shares = Shares::default();
        used.iter().for_each(|&h| shares.push(usize::from(heads[h].0), f64::from(parts[h]) / f64::from(rounds)));
        (pairs[p].0, pairs[p].1, shares)
    });
    Ok(RoutePlan::of_splits(net, splits, &loads, bound))
}

/// Adds `mwu` and `mwu-sum` to the planners that a program offers.
pub fn register(planners: &mut Planners) -> Result<(), NameTaken> {
    planners.add(PlannerEntry {
        name: "mwu",
        about: "NIMBLE's planner: multiplicative weights, a path costs its most expensive link",
        plan: |_, net, demand| plan(net, demand, &MwuSettings::default()),
    })?;
    planners.add(PlannerEntry {
        name: "mwu-sum",
        about: "multiplicative weights, a path costs the sum of its links",
        plan: |_, net, demand| {
            plan(net, demand, &MwuSettings { price: PathPrice::SumOfLinks, ..MwuSettings::default() })
        },
    })
}

/// The paths of a pair, numbered as in [`RoutingNetwork::path`].
fn paths(net: &RoutingNetwork, i: usize, j: usize) -> impl Iterator<Item = usize> {
    let mask = match net.host(i) == net.host(j) {
        true => ((1u64 << net.intra_paths(i, j).len()) - 1) as u32,
        false => net.slots_between(net.host(i), net.host(j)),
    };
    (0..PATHS_MAX).filter(move |k| mask >> k & 1 == 1)
}

/// The loads of links.
struct LinkSeconds<'a> {
    /// Seconds per byte.
    inverse: &'a [f64],
    /// Loads in seconds.
    seconds: &'a [f64],
    /// The largest of these loads.
    top: f64,
}

impl LinkSeconds<'_> {
    /// The price of a path after a part of this number of bytes is added.
    fn price(&self, path: &[u32], part: f64, price: PathPrice) -> f64 {
        let after = path.iter().map(|&l| self.seconds[l as usize] + part * self.inverse[l as usize]);
        match price {
            PathPrice::MaxOfLinks => after.fold(0.0, f64::max),
            PathPrice::SumOfLinks => after
                .map(|s| {
                    let x = if self.top > 0.0 { s / self.top } else { s };
                    let x4 = (x * x) * (x * x);
                    x4 * x4
                })
                .sum(),
        }
    }
}
