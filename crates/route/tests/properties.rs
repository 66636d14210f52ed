//! Properties that hold for every demand on every network. `papers/tests/nimble.rs` has its own copy of the cases: a
//! crate of test helpers for two files would cost more than the copy.

mod common;

use common::{assert_bytes_are_conserved, cases, network};
use proptest::prelude::*;
use route::model::RelayCosts;
use route::traffic::TrafficShape;
use route::{Demand, Planner, PlannerSettings, RoutePlan, RoutingNetwork, Rule};

/// Congestion of whole bytes, seconds.
fn congestion(net: &RoutingNetwork, demand: &Demand, plan: &RoutePlan) -> f64 {
    let bytes = plan.link_bytes(net, demand);
    let seconds =
        bytes.iter().zip(&net.links).map(|(&b, l)| if b > 0 { b as f64 / (l.capacity_gb_per_s * 1e9) } else { 0.0 });
    seconds.fold(0.0, f64::max)
}

const SMALL: &[&str] = &["mesh4", "cube8", "rails2x4"];
const ALL: &[&str] = &["mesh4", "cube8", "rails2x4", "rails4x8"];

/// Forwarding and pieces cost nothing: the completion time is the congestion.
const FREE: RelayCosts = RelayCosts { chunk_bytes: 0, forward_s: 0.0, piece_s: 0.0, margin: 1.0 };

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whole_bytes_are_conserved_by_every_planner((net, demand) in cases(ALL)) {
        let mut planner = Planner::default();
        assert_bytes_are_conserved(&net, &demand, &planner.plan(&net, &demand).unwrap());
        for rule in Rule::ALL {
            assert_bytes_are_conserved(&net, &demand, &planner.plan_rule(&net, &demand, rule).unwrap());
        }
    }

    #[test]
    fn no_static_rule_beats_linkwise_and_nothing_beats_the_bound((net, demand) in cases(ALL)) {
        let mut planner = Planner::new(PlannerSettings { costs: FREE, ..PlannerSettings::default() });
        let plan = planner.plan(&net, &demand).unwrap();
        let sums = planner.plan_rule(&net, &demand, Rule::Weighted).unwrap().lower_bound_s;
        prop_assert!(sums <= plan.congestion_s * (1.0 + 1e-9));
        for rule in Rule::ALL {
            let r = planner.plan_rule(&net, &demand, rule).unwrap();
            prop_assert!(plan.congestion_s <= r.congestion_s * (1.0 + 1e-9), "{rule}: {} and {}", plan.congestion_s, r.congestion_s);
            prop_assert!(plan.lower_bound_s <= r.congestion_s * (1.0 + 1e-9));
        }
    }

    #[test]
    fn the_loads_of_a_rule_are_those_of_its_flows((net, demand) in cases(ALL)) {
        let mut planner = Planner::default();
        for rule in Rule::ALL {
            let plan = planner.plan_rule(&net, &demand, rule).unwrap();
            let exact = congestion(&net, &demand, &plan);
            // Rounding moves less than a quantum of each pair on a link.
            let slowest = net.links.iter().map(|l| l.capacity_gb_per_s).fold(f64::INFINITY, f64::min);
            let slack = (demand.ranks() * demand.ranks()) as f64 * plan.quantum_bytes as f64 / (slowest * 1e9);
            prop_assert!((exact - plan.congestion_s).abs() <= slack + 1e-12, "{rule}: {exact} and {}", plan.congestion_s);
        }
    }

    #[test]
    fn large_demands_lose_next_to_nothing_to_rounding(seed in any::<u32>(), name in prop::sample::select(ALL)) {
        let net = network(name, &[]);
        let demand = TrafficShape::HeavyTailed.demand(net.rank_count(), 500_000_000, u64::from(seed));
        let plan = Planner::default().plan(&net, &demand).unwrap();
        let exact = congestion(&net, &demand, &plan);
        prop_assert!(exact <= plan.congestion_s * 1.0002, "{exact} and {}", plan.congestion_s);
    }

    #[test]
    fn a_used_planner_plans_as_a_fresh_one((net, demand) in cases(SMALL), (other_net, other) in cases(ALL)) {
        let mut used = Planner::default();
        used.plan(&other_net, &other).unwrap();
        let again = used.plan(&net, &demand).unwrap();
        prop_assert_eq!(again, Planner::default().plan(&net, &demand).unwrap());
    }
}

#[test]
fn the_numbering_of_ranks_changes_no_bound() {
    let net = network("mesh4", &[]);
    let d = TrafficShape::HeavyTailed.demand(4, 100_000_000, 3);
    let turned = |k: usize| {
        let mut t = Demand::new(4).unwrap();
        d.pairs().for_each(|(i, j, b)| t.set((i + k) % 4, (j + k) % 4, b).unwrap());
        Planner::default().plan(&net, &t).unwrap()
    };
    let first = turned(0);
    for k in 1..4 {
        let other = turned(k);
        assert!((other.congestion_s / first.congestion_s - 1.0).abs() < 0.01 && other.gap() < 0.01);
    }
}
