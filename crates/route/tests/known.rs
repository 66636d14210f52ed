//! Demands whose optimum has a closed form.

use route::{Demand, Planner, RoutePlan, RoutingNetwork, RoutingOptions, Rule, builtin};

fn network(name: &str) -> RoutingNetwork {
    RoutingNetwork::of(&builtin::cluster(name).unwrap(), &Default::default()).unwrap()
}

fn planned(net: &RoutingNetwork, demand: &Demand) -> (RoutePlan, Planner) {
    let mut planner = Planner::default();
    (planner.plan(net, demand).unwrap(), planner)
}

#[test]
fn one_hot_pair_on_a_mesh_is_three_times_faster_than_direct() {
    let net = network("mesh4");
    let mut d = Demand::new(4).unwrap();
    d.set(0, 1, 360_000_000).unwrap();
    let (plan, mut planner) = planned(&net, &d);
    let direct = planner.plan_rule(&net, &d, Rule::Direct).unwrap();
    assert!((direct.congestion_s / plan.lower_bound_s - 3.0).abs() < 1e-9, "{plan:?}");
    assert!(plan.gap() < 1e-6, "{plan:?}");
}

#[test]
fn a_hot_rank_on_two_hosts_costs_the_destinations_rail_four_times_the_optimum() {
    let net = network("rails2x4");
    let mut d = Demand::new(8).unwrap();
    (1..8).for_each(|i| d.set(i, 0, 64 << 20).unwrap());
    let (plan, mut planner) = planned(&net, &d);
    let rail = planner.plan_rule(&net, &d, Rule::DestinationRail).unwrap();
    assert!((rail.congestion_s / plan.lower_bound_s - 4.0).abs() < 1e-9, "{plan:?}");
    assert!(plan.gap() < 1e-6, "{plan:?}");
}

#[test]
fn balanced_traffic_takes_the_direct_path() {
    for name in ["mesh4", "rails2x4", "rails4x8"] {
        let net = network(name);
        let n = net.rank_count();
        let mut d = Demand::new(n).unwrap();
        (0..n * n).filter(|p| p / n != p % n).for_each(|p| d.set(p / n, p % n, 32 << 20).unwrap());
        let (plan, _) = planned(&net, &d);
        assert_eq!((plan.rule, plan.exception_count()), (Rule::Direct, 0), "{name}: {plan:?}");
        assert!(plan.gap() < 1e-9, "{name}: {plan:?}");
    }
}

#[test]
fn without_relays_every_pair_of_hosts_keeps_a_path_and_no_gpu_forwards() {
    let options = RoutingOptions { relay_read_gb_per_s: Some(0.0), ..Default::default() };
    for name in ["rails2x4", "rails4x8"] {
        let net = RoutingNetwork::of(&builtin::cluster(name).unwrap(), &options).unwrap();
        let n = net.rank_count();
        let mut d = Demand::new(n).unwrap();
        (0..n * n).filter(|p| p / n != p % n).for_each(|p| d.set(p / n, p % n, 9 << 20).unwrap());
        let (plan, _) = planned(&net, &d);
        assert!(plan.gap() < 0.05, "{name}: {plan:?}");
        for (src, dst) in (0..n * n).map(|p| (p / n, p % n)).filter(|(i, j)| i != j) {
            for path in 0..net.path_count(src, dst) {
                let forwards = net.path(src, dst, path).any(|l| {
                    let name = net.link_name(l as usize);
                    name.split_once(" > ").is_some_and(|(from, to)| from == to)
                });
                assert!(!forwards, "{name}: {src} to {dst}, path {path}");
            }
        }
    }
}
