//! Synthetic traffic of several shapes from a seed. A seed gives the same bytes in every release.

use crate::demand::Demand;
use crate::network::{LinkOverride, LinkRate, RoutingNetwork};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How the bytes spread over pairs of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrafficShape {
    /// Every pair sends the same bytes.
    Balanced,
    /// Every pair draws from a uniform distribution.
    Random,
    /// Every pair draws from a Pareto distribution with exponent 1.2: few pairs send most bytes.
    HeavyTailed,
    /// One rank sends most.
    HotRow,
    /// One rank receives most.
    HotColumn,
    /// One pair sends most.
    HotPair,
    /// Most pairs send nothing.
    Sparse,
}

impl TrafficShape {
    /// All shapes but the balanced one.
    pub const SKEWED: [TrafficShape; 6] = [
        TrafficShape::Random,
        TrafficShape::HeavyTailed,
        TrafficShape::HotRow,
        TrafficShape::HotColumn,
        TrafficShape::HotPair,
        TrafficShape::Sparse,
    ];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            TrafficShape::Balanced => "balanced",
            TrafficShape::Random => "random",
            TrafficShape::HeavyTailed => "heavy-tailed",
            TrafficShape::HotRow => "hot row",
            TrafficShape::HotColumn => "hot column",
            TrafficShape::HotPair => "hot pair",
            TrafficShape::Sparse => "sparse",
        }
    }

    /// A demand of this shape with `bytes_per_rank` bytes per rank on average. O(ranks²).
    pub fn demand(self, ranks: usize, bytes_per_rank: u64, seed: u64) -> Demand {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ (ranks as u64) << 32 ^ (self as u64) << 48);
        let hot = rng.random_range(0..ranks);
        let other = (hot + rng.random_range(1..ranks.max(2))) % ranks;
        let factor = rng.random_range(2.0..20.0);
        let mut weights = vec![0.0f64; ranks * ranks];
        for (p, w) in weights.iter_mut().enumerate() {
            let (i, j) = (p / ranks, p % ranks);
            let u: f64 = rng.random_range(0.0..1.0);
            if i == j {
                continue;
            }
            *w = match self {
                TrafficShape::Balanced => 1.0,
                TrafficShape::Random => u,
                TrafficShape::HeavyTailed => (1.0 - u).powf(-1.0 / 1.2),
                TrafficShape::HotRow if i == hot => factor * (0.5 + u),
                TrafficShape::HotColumn if j == hot => factor * (0.5 + u),
                TrafficShape::HotPair if (i, j) == (hot, other) => factor * ranks as f64,
                TrafficShape::HotRow | TrafficShape::HotColumn | TrafficShape::HotPair => 0.5 + u,
                TrafficShape::Sparse => {
                    if u < 0.2 {
                        0.1 + u * 45.0
                    } else {
                        0.0
                    }
                }
            };
        }
        scaled(ranks, &weights, bytes_per_rank)
    }
}

/// Scales weights to bytes that sum to `ranks x bytes_per_rank`.
fn scaled(ranks: usize, weights: &[f64], bytes_per_rank: u64) -> Demand {
    let total: f64 = weights.iter().sum();
    let all = bytes_per_rank as f64 * ranks as f64;
    let bytes = weights.iter().map(|w| if total > 0.0 { (w / total * all) as u64 } else { 0 }).collect();
    Demand::from_rows(ranks, bytes)
        .unwrap_or_else(|_| Demand::new(1).unwrap_or_else(|_| unreachable!("one rank is allowed")))
}

/// NIMBLE's skew: every rank sends the share `ratio` of its bytes to the hot rank and the rest evenly to the others.
pub fn hotspot(ranks: usize, bytes_per_rank: u64, ratio: f64, hot: usize) -> Demand {
    let weight = |i: usize, j: usize| match (i == j, j == hot) {
        (true, _) => 0.0,
        // The hot rank spreads its bytes over the others.
        _ if i == hot => (1.0 - ratio) / (ranks - 1) as f64,
        (_, true) => ratio,
        _ => (1.0 - ratio) / (ranks.max(3) - 2) as f64,
    };
    let bytes = (0..ranks * ranks).map(|p| (weight(p / ranks, p % ranks) * bytes_per_rank as f64) as u64).collect();
    Demand::from_rows(ranks, bytes).unwrap_or_else(|_| unreachable!("a demand of this size is allowed"))
}

/// How link rates differ from the cluster file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkCondition {
    /// Every link has its nominal rate.
    Nominal,
    /// Every link has a random 50 to 100 % of its rate.
    Unequal,
    /// Three links have 10 to 60 % of their rate.
    Degraded,
}

impl LinkCondition {
    /// All conditions.
    pub const ALL: [LinkCondition; 3] = [LinkCondition::Nominal, LinkCondition::Unequal, LinkCondition::Degraded];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            LinkCondition::Nominal => "whole",
            LinkCondition::Unequal => "unequal",
            LinkCondition::Degraded => "degraded",
        }
    }

    /// The links whose rate differs, drawn from a seed. O(links).
    pub fn overrides(self, net: &RoutingNetwork, seed: u64) -> Vec<LinkOverride> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ (self as u64 + 1) << 40);
        let links = net.links.len();
        let slow: Vec<(usize, f64)> = match self {
            LinkCondition::Nominal => Vec::new(),
            LinkCondition::Unequal => (0..links).map(|l| (l, rng.random_range(0.5..1.0))).collect(),
            LinkCondition::Degraded => {
                let mut three: Vec<usize> = Vec::new();
                while three.len() < links.min(3) {
                    let l = rng.random_range(0..links);
                    if !three.contains(&l) {
                        three.push(l);
                    }
                }
                three.into_iter().map(|l| (l, rng.random_range(0.1..0.6))).collect()
            }
        };
        let name = |node: u32| net.nodes[node as usize].clone();
        let of = |(l, share): (usize, f64)| LinkOverride {
            from: name(net.links[l].from),
            to: name(net.links[l].to),
            rate: LinkRate::Share(share),
        };
        slow.into_iter().map(of).collect()
    }
}
