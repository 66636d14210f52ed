//! Links given on the command line: no panic, and a network that they make plans or says that there is no path.
#![no_main]

use libfuzzer_sys::fuzz_target;
use route::network::Override;
use route::traffic::Shape;
use route::{Network, NetworkOptions, PlanError, Planner, builtin};

fuzz_target!(|text: &str| {
    let overrides: Vec<Override> = text.lines().filter_map(|l| l.parse().ok()).collect();
    for name in ["mesh4", "cube8", "rails2x4"] {
        let options = NetworkOptions { overrides: overrides.clone(), ..NetworkOptions::default() };
        let Ok(net) = Network::of(&builtin::cluster(name).unwrap(), &options) else { continue };
        match Planner::default().plan(&net, &Shape::Random.demand(net.rank_count(), 1 << 26, 1)) {
            Ok(plan) => assert!(plan.congestion_s.is_finite() && plan.lower_bound_s <= plan.congestion_s),
            Err(PlanError::NoPath { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
});
