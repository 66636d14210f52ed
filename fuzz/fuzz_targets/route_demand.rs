//! Demands in every form: no panic; what is read keeps its limits, and a small one is planned with every byte kept and the bound below.
#![no_main]

use libfuzzer_sys::fuzz_target;
use route::read::{self, DispatchLayout};
use route::{Demand, RoutingNetwork, RoutingOptions, Planner, builtin};

fn plan(demand: &Demand) {
    let name = match demand.ranks() {
        4 => "mesh4",
        8 => "rails2x4",
        _ => return,
    };
    let net = RoutingNetwork::of(&builtin::cluster(name).unwrap(), &RoutingOptions::default()).unwrap();
    let plan = Planner::default().plan(&net, demand).unwrap();
    let kept: u64 = plan.flows(&net, demand).map(|f| f.bytes).sum();
    assert_eq!(kept, demand.pairs().map(|p| p.2).sum::<u64>());
    assert!(plan.lower_bound_s <= plan.congestion_s && plan.congestion_s.is_finite());
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    read::detect_format(text);
    for read in [read::csv(text, "fuzz"), read::json(text, "fuzz"), read::param(&[("fuzz".into(), text.into())], 0)] {
        match read {
            Ok(demand) => plan(&demand),
            Err(e) => assert!(e.line() >= 1 && e.column() >= 1 && !e.message().is_empty()),
        }
    }
    match read::esft(text, "fuzz", 64, 6) {
        Ok(routing) => plan(&routing.demand(&DispatchLayout { ranks: 8, bytes_per_token: 4096, tokens: Some(1000) }).unwrap()),
        Err(e) => assert!(e.line() >= 1 && e.column() >= 1 && !e.message().is_empty()),
    }
});
