//! The planner beside the reference.

use route::traffic::Shape;
use route::{Network, NetworkOptions, Planner, Settings, builtin, exact};

#[test]
fn small_clusters_are_planned_within_three_percent() {
    for name in ["mesh4", "cube8", "rails2x4"] {
        for (label, overrides) in [("whole", &[][..]), ("degraded", &["n0:0>n0:1=x0.5", "n0:2>n0:3=x0.3"][..])] {
            let options = NetworkOptions {
                overrides: overrides.iter().map(|o| o.parse().unwrap()).collect(),
                ..Default::default()
            };
            let net = Network::of(&builtin::cluster(name).unwrap(), &options).unwrap();
            for shape in Shape::SKEWED {
                let mut worst: (f64, f64, u32) = (0.0, 0.0, 0);
                let seeds = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(5);
                for seed in 0..seeds {
                    let d = shape.demand(net.rank_count(), 256 << 20, seed);
                    let best = exact::plan(&net, &d).unwrap();
                    let plan = Planner::new(Settings::default()).plan(&net, &d).unwrap();
                    let gap = plan.congestion_s / best.congestion_s - 1.0;
                    assert!(gap > -1e-6, "{name} {label} {shape:?} {seed}: better than the optimum by {gap}");
                    assert!(
                        plan.lower_bound_s < best.congestion_s * (1.0 + 1e-6),
                        "{name} {label} {shape:?} {seed}: bound {} above {}",
                        plan.lower_bound_s,
                        best.congestion_s
                    );
                    worst = (worst.0.max(gap), worst.1.max(plan.gap()), worst.2.max(plan.pivots));
                }
                println!(
                    "{name} {label} {shape:?}: worst gap {:.4} reported {:.4} pivots {}",
                    worst.0, worst.1, worst.2
                );
                assert!(worst.0 <= 0.03);
            }
        }
    }
}
