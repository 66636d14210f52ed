//! Random routing problems, and the check that a plan carries every byte. The tests of `papers` include this file.

use proptest::prelude::*;
use route::traffic::TrafficShape;
use route::{Demand, RoutePlan, RoutingNetwork, RoutingOptions, builtin};

/// The built-in network with this name, with changed rates for some links.
pub fn network(name: &str, overrides: &[String]) -> RoutingNetwork {
    let overrides = overrides.iter().map(|o| o.parse().unwrap()).collect();
    RoutingNetwork::of(&builtin::cluster(name).unwrap(), &RoutingOptions { overrides, ..RoutingOptions::default() })
        .unwrap()
}

/// A network of the named clusters with up to three slower links, and a skewed demand.
pub fn cases(names: &'static [&'static str]) -> impl Strategy<Value = (RoutingNetwork, Demand)> {
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

/// Asserts that the plan carries every byte of every pair from its sender to its receiver, and no other byte.
pub fn assert_bytes_are_conserved(net: &RoutingNetwork, demand: &Demand, plan: &RoutePlan) {
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
