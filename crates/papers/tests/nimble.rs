//! NIMBLE's planner: bytes are conserved, no bound is beaten, and more rounds come nearer to the optimum.

use papers::nimble as mwu;
use proptest::prelude::*;
use route::traffic::TrafficShape;
use route::{Demand, Planner, Planners, RoutePlan, RoutingNetwork, RoutingOptions, builtin, exact};

fn network(name: &str, overrides: &[String]) -> RoutingNetwork {
    let overrides = overrides.iter().map(|o| o.parse().unwrap()).collect();
    RoutingNetwork::of(&builtin::cluster(name).unwrap(), &RoutingOptions { overrides, ..RoutingOptions::default() })
        .unwrap()
}

/// A network of the names, some of whose links run at another rate (never all dead), and the demand of a shape.
fn cases(names: &'static [&'static str]) -> impl Strategy<Value = (RoutingNetwork, Demand)> {
    let shapes = prop::sample::select(TrafficShape::SKEWED.to_vec());
    let links = prop::collection::vec((0usize..10_000, 0.05f64..1.0), 0..4);
    let sizes = prop::sample::select(vec![1_000u64, 1_000_000, 500_000_000]);
    (prop::sample::select(names), shapes, links, sizes, any::<u32>()).prop_map(|(name, shape, slow, size, seed)| {
        let whole = network(name, &[]);
        let over: std::collections::BTreeMap<usize, f64> =
            slow.into_iter().map(|(l, s)| (l % whole.links.len(), s)).collect();
        let over: Vec<String> =
            over.iter().map(|(&l, s)| format!("{}=x{s}", whole.link_name(l).replace(' ', ""))).collect();
        let net = network(name, &over);
        let demand = shape.demand(net.rank_count(), size, u64::from(seed));
        (net, demand)
    })
}

/// Every byte of every pair on paths from its sender to its receiver, and nothing else.
fn conserves(net: &RoutingNetwork, demand: &Demand, plan: &RoutePlan) {
    let mut left = vec![0u64; demand.ranks() * demand.ranks()];
    for (i, j, b) in demand.pairs() {
        left[i * demand.ranks() + j] = b;
    }
    for f in plan.flows(net, demand) {
        assert!(f.bytes > 0);
        left[f.src * demand.ranks() + f.dst] -= f.bytes;
        let hops: Vec<u32> = net.path(f.src, f.dst, f.path).collect();
        let ends = |l: u32| (net.links[l as usize].from as usize, net.links[l as usize].to as usize);
        assert_eq!((ends(hops[0]).0, ends(hops[hops.len() - 1]).1), (f.src, f.dst));
        assert!(hops.windows(2).all(|w| ends(w[0]).1 == ends(w[1]).0), "a path is broken");
        assert!(hops.iter().all(|&l| net.links[l as usize].capacity_gb_per_s > 0.0), "a path crosses a dead link");
    }
    assert!(left.iter().all(|&b| b == 0), "bytes are lost");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whole_bytes_are_conserved_and_no_bound_is_beaten(
        (net, demand) in cases(&["mesh4", "cube8", "rails2x4", "rails4x8"]),
    ) {
        conserves(&net, &demand, &mwu::plan(&net, &demand, &mwu::MwuSettings::default()).unwrap());
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
