//! The hardest cases: 32 and 64 ranks with links that all differ.
use route::traffic::{Shape, Wear};
use route::{Network, NetworkOptions, Planner, builtin};
use std::time::Instant;

fn main() {
    for name in ["rails4x8", "rails8x8", "rails64x8"] {
        let cluster = builtin::cluster(name).expect("a cluster");
        let whole = Network::of(&cluster, &NetworkOptions::default()).expect("a network");
        let n = whole.rank_count();
        for shape in Shape::SKEWED {
            let (mut worst, mut us, mut pivots, mut sum) = (0.0f64, 0.0f64, 0, 0.0);
            let seeds = if n > 64 { 2 } else { 12 };
            for seed in 0..seeds {
                let options = NetworkOptions { overrides: Wear::Unequal.overrides(&whole, seed), ..Default::default() };
                let net = Network::of(&cluster, &options).expect("a network");
                let d = shape.demand(n, n as u64 * (32 << 20), seed);
                let mut p = Planner::default();
                p.plan(&net, &d).expect("a plan");
                let mut plan = p.plan(&net, &d).expect("a plan");
                let mut least = f64::INFINITY;
                for _ in 0..5 {
                    let t = Instant::now();
                    plan = p.plan(&net, &d).expect("a plan");
                    least = least.min(1e6 * t.elapsed().as_secs_f64());
                }
                us = us.max(least);
                worst = worst.max(plan.gap());
                sum += plan.gap() / seeds as f64;
                pivots = pivots.max(plan.pivots);
            }
            println!("{name:10} {:13} worst {:.4} mean {sum:.4} pivots {pivots} worst {us:.0} us", shape.name(), worst);
        }
    }
}
