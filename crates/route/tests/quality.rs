//! Compares the planner with the reference planner, at the settings of all figures. `linkwise route evaluate quality` does the same on
//! thousands of matrices.

use route::traffic::{LinkCondition, TrafficShape};
use route::{Planner, RoutingNetwork, RoutingOptions, builtin, exact};

/// (true gap, reported gap) of one case.
fn judge(name: &str, shape: TrafficShape, wear: LinkCondition, seed: u64) -> (f64, f64) {
    let cluster = builtin::cluster(name).unwrap();
    let whole = RoutingNetwork::of(&cluster, &RoutingOptions::default()).unwrap();
    let options = RoutingOptions { overrides: wear.overrides(&whole, seed), ..RoutingOptions::default() };
    let net = RoutingNetwork::of(&cluster, &options).unwrap();
    let d = shape.demand(net.rank_count(), net.rank_count() as u64 * (32 << 20), seed);
    let best = exact::plan(&net, &d).unwrap();
    let plan = Planner::default().plan(&net, &d).unwrap();
    let gap = plan.congestion_s / best.congestion_s - 1.0;
    assert!(gap > -1e-6, "{name} {shape:?} {wear:?} {seed}: better than the optimum by {gap}");
    assert!(
        plan.lower_bound_s < best.congestion_s * (1.0 + 1e-6),
        "{name} {shape:?} {wear:?} {seed}: the bound is above the optimum"
    );
    (gap, plan.gap())
}

fn judge_all(name: &str, seeds: u64) {
    let mut all = Vec::new();
    for wear in LinkCondition::ALL {
        for shape in TrafficShape::SKEWED {
            all.extend((0..seeds).map(|seed| judge(name, shape, wear, seed)));
        }
    }
    let mut gaps: Vec<f64> = all.iter().map(|g| g.0).collect();
    let mut above: Vec<f64> = all.iter().map(|g| g.1 - g.0).collect();
    gaps.sort_by(f64::total_cmp);
    above.sort_by(f64::total_cmp);
    let (median, worst, p95) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1], above[above.len() * 95 / 100]);
    println!(
        "{name}: {} matrices, gap median {median:.5} worst {worst:.5}, reported above true p95 {p95:.5}",
        gaps.len()
    );
    assert!(median <= 0.01 && worst <= 0.03 && p95 <= 0.02, "{name}: median {median}, worst {worst}, p95 {p95}");
}

fn seeds(default: u64) -> u64 {
    std::env::var("ROUTE_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

#[test]
fn plans_on_a_mesh_are_near_the_optimum() {
    judge_all("mesh4", seeds(8));
}

#[test]
fn plans_on_a_cube_are_near_the_optimum() {
    judge_all("cube8", seeds(6));
}

#[test]
fn plans_on_two_hosts_are_near_the_optimum() {
    judge_all("rails2x4", seeds(6));
}

#[test]
fn plans_on_four_hosts_are_near_the_optimum() {
    judge_all("rails4x8", seeds(1));
}
