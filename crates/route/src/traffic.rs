//! Synthetic traffic: shapes of skew, from a seed. The same seed gives the same bytes for ever.

use crate::demand::Demand;
use crate::network::{Network, Override, Rate};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A shape of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Every pair the same.
    Balanced,
    /// Every pair evenly random.
    Random,
    /// Pareto with exponent 1.2: few pairs carry most.
    HeavyTailed,
    /// One rank sends most.
    HotRow,
    /// One rank receives most.
    HotColumn,
    /// One pair carries most.
    HotPair,
    /// Most pairs carry nothing.
    Sparse,
}

impl Shape {
    /// All but the balanced one.
    pub const SKEWED: [Shape; 6] =
        [Shape::Random, Shape::HeavyTailed, Shape::HotRow, Shape::HotColumn, Shape::HotPair, Shape::Sparse];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Balanced => "balanced",
            Shape::Random => "random",
            Shape::HeavyTailed => "heavy-tailed",
            Shape::HotRow => "hot row",
            Shape::HotColumn => "hot column",
            Shape::HotPair => "hot pair",
            Shape::Sparse => "sparse",
        }
    }

    /// A demand of this shape with about `bytes_per_rank` from each rank. O(ranks²).
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
                Shape::Balanced => 1.0,
                Shape::Random => u,
                Shape::HeavyTailed => (1.0 - u).powf(-1.0 / 1.2),
                Shape::HotRow if i == hot => factor * (0.5 + u),
                Shape::HotColumn if j == hot => factor * (0.5 + u),
                Shape::HotPair if (i, j) == (hot, other) => factor * ranks as f64,
                Shape::HotRow | Shape::HotColumn | Shape::HotPair => 0.5 + u,
                Shape::Sparse => {
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

/// Weights as bytes, so that all together are `ranks x bytes_per_rank`.
fn scaled(ranks: usize, weights: &[f64], bytes_per_rank: u64) -> Demand {
    let total: f64 = weights.iter().sum();
    let all = bytes_per_rank as f64 * ranks as f64;
    let bytes = weights.iter().map(|w| if total > 0.0 { (w / total * all) as u64 } else { 0 }).collect();
    Demand::from_rows(ranks, bytes)
        .unwrap_or_else(|_| Demand::new(1).unwrap_or_else(|_| unreachable!("one rank is allowed")))
}

/// NIMBLE's skew: every rank sends this share of its bytes to one hot rank and the rest evenly to the others.
pub fn hotspot(ranks: usize, bytes_per_rank: u64, ratio: f64, hot: usize) -> Demand {
    let weight = |i: usize, j: usize| match (i == j, j == hot) {
        (true, _) => 0.0,
        // The hot rank itself spreads its rest over the others.
        _ if i == hot => (1.0 - ratio) / (ranks - 1) as f64,
        (_, true) => ratio,
        _ => (1.0 - ratio) / (ranks.max(3) - 2) as f64,
    };
    let bytes = (0..ranks * ranks).map(|p| (weight(p / ranks, p % ranks) * bytes_per_rank as f64) as u64).collect();
    Demand::from_rows(ranks, bytes).unwrap_or_else(|_| unreachable!("a demand of this size is allowed"))
}

/// How links differ from what the cluster says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wear {
    /// Not at all.
    Whole,
    /// Every link has lost up to half of its rate, each its own share.
    Unequal,
    /// Three links have 10 to 60 % of their rate left.
    Degraded,
}

impl Wear {
    /// All of them.
    pub const ALL: [Wear; 3] = [Wear::Whole, Wear::Unequal, Wear::Degraded];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Wear::Whole => "whole",
            Wear::Unequal => "unequal",
            Wear::Degraded => "degraded",
        }
    }

    /// The links that run at another rate, from a seed. O(links).
    pub fn overrides(self, net: &Network, seed: u64) -> Vec<Override> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ (self as u64 + 1) << 40);
        let links = net.links.len();
        let slow: Vec<(usize, f64)> = match self {
            Wear::Whole => Vec::new(),
            Wear::Unequal => (0..links).map(|l| (l, rng.random_range(0.5..1.0))).collect(),
            Wear::Degraded => {
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
        let of = |(l, share): (usize, f64)| Override {
            from: name(net.links[l].from),
            to: name(net.links[l].to),
            rate: Rate::Share(share),
        };
        slow.into_iter().map(of).collect()
    }
}
