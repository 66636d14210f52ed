//! Links given on the command line: no panic, and a network that they make plans or says that there is no path.
#![no_main]

use libfuzzer_sys::fuzz_target;
use route::network::LinkOverride;
use route::traffic::TrafficShape;
use route::{RoutingNetwork, RoutingOptions, PlanError, Planner, builtin};

fuzz_target!(|text: &str| {
    let overrides: Vec<LinkOverride> = text.lines().filter_map(|l| l.parse().ok()).collect();
    for name in ["mesh4", "cube8", "rails2x4"] {
        let options = RoutingOptions { overrides: overrides.clone(), ..RoutingOptions::default() };
        let Ok(net) = RoutingNetwork::of(&builtin::cluster(name).unwrap(), &options) else { continue };
        match Planner::default().plan(&net, &TrafficShape::Random.demand(net.rank_count(), 1 << 26, 1)) {
            Ok(plan) => assert!(plan.congestion_s.is_finite() && plan.lower_bound_s <= plan.congestion_s),
            Err(PlanError::NoPath { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
});
