//! Properties that hold for every demand on every network. `papers/tests/nimble.rs` has its own copy of the cases: a
//! crate of test helpers for two files would cost more than the copy.

mod common;

use common::{assert_bytes_are_conserved, cases, network};
use proptest::prelude::*;
use route::traffic::TrafficShape;
use route::{Demand, LinkKind, Planner, PlannerSettings, RoutePlan, RoutingNetwork, Rule, chunks, waves};

/// Congestion of whole bytes, seconds.
fn congestion(net: &RoutingNetwork, demand: &Demand, plan: &RoutePlan) -> f64 {
    let bytes = plan.link_bytes(net, demand);
    let seconds =
        bytes.iter().zip(&net.links).map(|(&b, l)| if b > 0 { b as f64 / (l.capacity_gb_per_s * 1e9) } else { 0.0 });
    seconds.fold(0.0, f64::max)
}

const SMALL: &[&str] = &["mesh4", "cube8", "rails2x4"];
const ALL: &[&str] = &["mesh4", "cube8", "rails2x4", "rails4x8"];

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
        let mut planner = Planner::new(PlannerSettings { costs: route::model::RelayCosts::FREE, ..PlannerSettings::default() });
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

    #[test]
    fn sender_relay_and_receiver_derive_the_same_chunks((net, demand) in cases(ALL), chunk in 1u64..3_000_000) {
        let plan = Planner::default().plan(&net, &demand).unwrap();
        let chunk = chunk.max(demand.total() / 4_000); // keeps the test small
        let ranks = demand.ranks();
        let mut sent = Vec::new();
        let mut received = Vec::new();
        for r in 0..ranks {
            sent.extend(chunks::sent_by(&net, &plan, &demand, r, chunk));
            received.extend(chunks::received_by(&net, &plan, &demand, r, chunk));
            // A relay forwards exactly the chunks that senders send through it.
            let mut through: Vec<_> = (0..ranks).flat_map(|s| chunks::sent_by(&net, &plan, &demand, s, chunk)).collect();
            if ranks > 8 && r > 2 {
                continue;
            }
            through.retain(|c| chunks::forwarders(&net, c.src, c.dst, c.path).contains(&r));
            prop_assert_eq!(through, chunks::forwarded_by(&net, &plan, &demand, r, chunk));
        }
        sent.sort_unstable();
        received.sort_unstable();
        prop_assert_eq!(&sent, &received);
        // The chunks of a message hold each byte once.
        for (i, j, bytes) in demand.pairs() {
            let mut own: Vec<_> = chunks::message_chunks(&net, &plan, i, j, bytes, chunk).collect();
            own.sort_unstable_by_key(|c| c.offset);
            let end = own.iter().try_fold(0, |at, c| (c.offset == at && c.bytes <= chunk).then_some(at + c.bytes));
            prop_assert_eq!(end, Some(bytes));
        }
    }

    #[test]
    fn waves_send_each_byte_once_and_no_host_has_two_peers(seed in any::<u32>(), shape in prop::sample::select(TrafficShape::SKEWED.to_vec())) {
        let net = network("rails4x8", &[]);
        let demand = shape.demand(32, 100_000_000, u64::from(seed));
        let plan = Planner::default().plan(&net, &demand).unwrap();
        let order = waves::schedule_waves(&net, &demand, &plan);
        for w in &order.waves {
            for side in [|p: &(u16, u16, u64, u64)| p.0, |p: &(u16, u16, u64, u64)| p.1] {
                let mut hosts: Vec<u16> = w.peers.iter().map(side).collect();
                hosts.sort_unstable();
                prop_assert!(hosts.windows(2).all(|h| h[0] != h[1]), "a host has two peers at once");
            }
        }
        for f in plan.flows(&net, &demand).step_by(7) {
            let (a, b) = (net.host(f.src), net.host(f.dst));
            if a != b {
                let parts = order.waves.iter().map(|w| order.byte_range(w, a, b, f.bytes)).filter(|p| !p.is_empty());
                let end = parts.fold(0, |at, p| { assert_eq!(p.start, at); p.end });
                prop_assert_eq!(end, f.bytes);
            }
        }
        // All waves together take the time that the busiest host needs for its peers one after the other.
        let pair = |a: usize, b: usize| order.pair_s(a, b);
        let busiest = (0..4).map(|h| {
            let (out, back): (f64, f64) = ((0..4).map(|o| pair(h, o)).sum(), (0..4).map(|o| pair(o, h)).sum());
            out.max(back)
        });
        let busiest = busiest.fold(0.0, f64::max);
        prop_assert!((order.duration_s() / busiest - 1.0).abs() < 1e-5, "{} and {busiest}", order.duration_s());
        // If every pair of hosts uses all rails evenly, that is the load of the busiest NIC.
        let stripe = Planner::default().plan_rule(&net, &demand, Rule::Stripe).unwrap();
        let order = waves::schedule_waves(&net, &demand, &stripe);
        let nic = stripe.link_bytes(&net, &demand).iter().zip(&net.links).filter(|(_, l)| matches!(l.kind, LinkKind::NicSend | LinkKind::NicReceive))
            .map(|(&b, l)| b as f64 / (l.capacity_gb_per_s * 1e9)).fold(0.0, f64::max);
        prop_assert!(order.duration_s() / nic < 1.001, "{} and {nic}", order.duration_s());
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
