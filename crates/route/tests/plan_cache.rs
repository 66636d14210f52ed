//! Tests of keeping plans and of detecting slow and dead links.

use route::plan_cache::{CacheDecision, Hysteresis, LinkChange, PlanCache};
use route::traffic::TrafficShape;
use route::{Demand, Planner, RoutingNetwork, RoutingOptions, builtin};

fn cache(name: &str) -> PlanCache {
    let cluster = builtin::cluster(name).unwrap();
    PlanCache::new(cluster, RoutingOptions::default(), Planner::default(), Hysteresis::default()).unwrap()
}

fn link(net: &RoutingNetwork, name: &str) -> usize {
    (0..net.links.len()).find(|&l| net.link_name(l) == name).unwrap_or_else(|| panic!("no link {name}"))
}

fn hot_pair(bytes: u64) -> Demand {
    let mut d = Demand::new(4).unwrap();
    d.set(0, 1, bytes).unwrap();
    d
}

#[test]
fn a_plan_is_kept_while_traffic_changes_little_and_replaced_when_it_matters() {
    let mut s = cache("mesh4");
    assert_eq!(s.update(&hot_pair(100_000_000)).unwrap(), CacheDecision::First);
    assert_eq!(s.update(&hot_pair(104_000_000)).unwrap(), CacheDecision::Kept);
    assert_eq!(s.epoch(), 1);
    let mut other = Demand::new(4).unwrap();
    other.set(2, 3, 100_000_000).unwrap();
    assert_eq!(s.update(&other).unwrap(), CacheDecision::Replanned);
    assert_eq!(s.epoch(), 2);
    // Noise of a few percent around one demand never makes plans alternate.
    for seed in 0..20 {
        let mut noisy = other.clone();
        TrafficShape::Random.demand(4, 1_000_000, seed).pairs().for_each(|(i, j, b)| noisy.add(i, j, b).unwrap());
        assert_eq!(s.update(&noisy).unwrap(), CacheDecision::Kept, "{seed}");
    }
    assert_eq!(s.epoch(), 2);
}

#[test]
fn a_single_slow_reading_changes_nothing_and_three_change_the_plan() {
    let mut s = cache("mesh4");
    s.update(&hot_pair(300_000_000)).unwrap();
    let l = link(s.network(), "n0:0 > n0:1");
    let full = |s: &mut PlanCache| s.record_reading(l, 120_000_000, 1e-3).unwrap();
    let half = |s: &mut PlanCache| s.record_reading(l, 60_000_000, 1e-3).unwrap();
    assert_eq!((half(&mut s), full(&mut s), half(&mut s), full(&mut s)), (None, None, None, None));
    let changes: Vec<Option<LinkChange>> = (0..6).map(|_| half(&mut s)).collect();
    assert!(
        changes.iter().flatten().any(|c| matches!(c, LinkChange::Rate(x, r) if *x == l && *r < 90.0)),
        "{changes:?}"
    );
    assert_eq!(s.update(&hot_pair(300_000_000)).unwrap(), CacheDecision::LinksChanged);
    let (net, plan) = (s.network(), s.plan().unwrap());
    assert!(plan.gap() < 0.01 && net.links[l].capacity_gb_per_s < 90.0);
    // The link recovers.
    (0..12).for_each(|_| _ = full(&mut s));
    assert!(s.network().links[l].capacity_gb_per_s > 100.0);
}

#[test]
fn a_link_that_dies_is_routed_around_and_its_return_is_noticed() {
    let mut s = cache("rails2x4");
    let d = TrafficShape::Random.demand(8, 100_000_000, 1);
    s.update(&d).unwrap();
    let name = "n0:2 > rail2";
    let dead = link(s.network(), name);
    let died =
        (0..30).find_map(|_| s.record_reading(dead, 0, 1e-3).unwrap().filter(|c| matches!(c, LinkChange::Died(_))));
    assert_eq!(died, Some(LinkChange::Died(dead)));
    assert_eq!(s.update(&d).unwrap(), CacheDecision::LinksChanged);
    let l = link(s.network(), name);
    assert_eq!(s.plan().unwrap().link_bytes(s.network(), &d)[l], 0, "bytes over a dead NIC");
    assert!(s.plan().unwrap().gap() < 0.03);
    // A probe gets through again.
    let back = (0..10).find_map(|_| s.record_reading(l, 45_100_000, 1e-3).unwrap());
    assert!(matches!(back, Some(LinkChange::Rate(x, r)) if x == l && r > 20.0), "{back:?}");
    assert_eq!(s.update(&d).unwrap(), CacheDecision::LinksChanged);
}

#[test]
fn two_ranks_with_the_same_readings_are_in_the_same_state() {
    let (mut a, mut b) = (cache("rails2x4"), cache("rails2x4"));
    for step in 0..60u64 {
        let d = TrafficShape::HeavyTailed.demand(8, 50_000_000, step / 5);
        for s in [&mut a, &mut b] {
            s.record_reading((step % 40) as usize, 20_000_000 + step * 100_000, 1e-3).unwrap();
        }
        assert_eq!(a.update(&d).unwrap(), b.update(&d).unwrap());
        assert_eq!((a.plan(), a.epoch()), (b.plan(), b.epoch()));
    }
}

#[test]
fn readings_without_a_finite_duration_change_nothing() {
    let mut s = cache("mesh4");
    for (link, bytes, busy) in [(0, 5, 0.0), (0, 5, f64::NAN), (0, 5, -1.0), (99_999, 5, 1.0), (0, 5, f64::INFINITY)] {
        assert_eq!(s.record_reading(link, bytes, busy).unwrap(), None);
    }
}
