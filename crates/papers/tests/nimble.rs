//! NIMBLE's planner: bytes are conserved, no bound is beaten, and more rounds come nearer to the optimum.

#[path = "../../route/tests/common/mod.rs"]
mod routing_cases;

use papers::nimble as mwu;
use proptest::prelude::*;
use route::traffic::TrafficShape;
use route::{Planner, Planners, RoutingNetwork, RoutingOptions, builtin, exact};
use routing_cases::{assert_bytes_are_conserved, cases};

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whole_bytes_are_conserved_and_no_bound_is_beaten(
        (net, demand) in cases(&["mesh4", "cube8", "rails2x4", "rails4x8"]),
    ) {
        assert_bytes_are_conserved(&net, &demand, &mwu::plan(&net, &demand, &mwu::MwuSettings::default()).unwrap());
        let plan = Planner::default().plan(&net, &demand).unwrap();
        for price in [mwu::PathPrice::MaxOfLinks, mwu::PathPrice::SumOfLinks] {
            let m = mwu::plan(&net, &demand, &mwu::MwuSettings { price, rounds: 40, single_path_max_bytes: 0 }).unwrap();
            prop_assert!(plan.lower_bound_s <= m.congestion_s * (1.0 + 1e-9));
        }
    }
}

#[test]
fn both_prices_are_registered_by_name() {
    let mut planners = Planners::shipped();
    papers::register_planners(&mut planners).unwrap();
    let net = RoutingNetwork::of(&builtin::cluster("rails2x4").unwrap(), &RoutingOptions::default()).unwrap();
    let demand = TrafficShape::HeavyTailed.demand(net.rank_count(), 512 << 20, 1);
    for (name, price) in [("mwu", mwu::PathPrice::MaxOfLinks), ("mwu-sum", mwu::PathPrice::SumOfLinks)] {
        let named = (planners.by_name(name).unwrap().plan)(&mut Planner::default(), &net, &demand).unwrap();
        let settings = mwu::MwuSettings { price, ..mwu::MwuSettings::default() };
        assert_eq!(named, mwu::plan(&net, &demand, &settings).unwrap(), "{name}");
    }
}

#[test]
fn multiplicative_weights_come_nearer_the_more_rounds_they_have() {
    let net = RoutingNetwork::of(&builtin::cluster("cube8").unwrap(), &RoutingOptions::default()).unwrap();
    let mean = |rounds: u32, price: mwu::PathPrice| {
        let gaps = (0..12).map(|seed| {
            let d = TrafficShape::HeavyTailed.demand(8, 256 << 20, seed);
            let settings = mwu::MwuSettings { rounds, price, single_path_max_bytes: 0 };
            mwu::plan(&net, &d, &settings).unwrap().congestion_s / exact::plan(&net, &d).unwrap().congestion_s - 1.0
        });
        gaps.sum::<f64>() / 12.0
    };
    for price in [mwu::PathPrice::MaxOfLinks, mwu::PathPrice::SumOfLinks] {
        let (few, many) = (mean(4, price), mean(256, price));
        assert!(many < few && many < 0.1, "{price:?}: {few} with 4 rounds, {many} with 256");
    }
}
