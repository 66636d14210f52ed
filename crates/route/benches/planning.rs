//! Planning time on one core with a warm workspace. The demand is already in memory: the time excludes the exchange of
//! the demand between ranks.
//!
//! NIMBLE reports 30 to 50 us for its planner on 4 and 8 GPUs. Run `cargo bench --profile dev -p route`.

use divan::{Bencher, black_box};
use route::traffic::{TrafficShape, hotspot};
use route::{Demand, Planner, RoutingNetwork, RoutingOptions, Rule, builtin};

fn main() {
    divan::main();
}

/// A cluster's network, with these links slowed down.
fn network(name: &str, slow: &[&str]) -> RoutingNetwork {
    let overrides = slow.iter().map(|o| o.parse().expect("an override")).collect();
    let options = RoutingOptions { overrides, ..RoutingOptions::default() };
    RoutingNetwork::of(
        &builtin::cluster(name).or_else(|| topology::catalog::cluster(name)).expect("a cluster"),
        &options,
    )
    .expect("a network")
}

fn plans(bencher: Bencher, net: &RoutingNetwork, demands: &[Demand]) {
    let mut planner = Planner::default();
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 1) % demands.len();
        planner.plan(net, black_box(&demands[next])).expect("a plan")
    });
}

fn shapes(net: &RoutingNetwork, shape: TrafficShape) -> Vec<Demand> {
    let n = net.rank_count();
    (0..20).map(|seed| shape.demand(n, n as u64 * (64 << 20), seed)).collect()
}

const SHAPES: [TrafficShape; 4] =
    [TrafficShape::Balanced, TrafficShape::HotColumn, TrafficShape::HeavyTailed, TrafficShape::HotPair];

#[divan::bench(args = SHAPES)]
fn ranks_4_mesh(bencher: Bencher, shape: TrafficShape) {
    let net = network("mesh4", &[]);
    plans(bencher, &net, &shapes(&net, shape));
}

#[divan::bench(args = SHAPES)]
fn ranks_8_cube(bencher: Bencher, shape: TrafficShape) {
    let net = network("cube8", &[]);
    plans(bencher, &net, &shapes(&net, shape));
}

#[divan::bench(args = SHAPES)]
fn ranks_8_rails(bencher: Bencher, shape: TrafficShape) {
    let net = network("rails2x4", &[]);
    plans(bencher, &net, &shapes(&net, shape));
}

#[divan::bench]
fn ranks_8_rails_hotspot_09(bencher: Bencher) {
    let net = network("rails2x4", &[]);
    plans(bencher, &net, &[hotspot(8, 256 << 20, 0.9, 0)]);
}

#[divan::bench(args = SHAPES)]
fn ranks_32(bencher: Bencher, shape: TrafficShape) {
    let net = network("rails4x8", &[]);
    plans(bencher, &net, &shapes(&net, shape));
}

#[divan::bench(args = SHAPES)]
fn ranks_64(bencher: Bencher, shape: TrafficShape) {
    let net = network("8xhgx-h100", &[]);
    plans(bencher, &net, &shapes(&net, shape));
}

#[divan::bench(args = SHAPES)]
fn ranks_64_degraded(bencher: Bencher, shape: TrafficShape) {
    let net = network("8xhgx-h100", &["n0:2>rail2=x0.5", "rail5>n3:5=x0.25", "n6:1>n6:switch=x0.5"]);
    plans(bencher, &net, &shapes(&net, shape));
}

#[divan::bench(args = SHAPES)]
fn ranks_512(bencher: Bencher, shape: TrafficShape) {
    let net = network("rails64x8", &[]);
    plans(bencher, &net, &shapes(&net, shape)[..4]);
}

#[divan::bench(args = SHAPES)]
fn ranks_512_degraded(bencher: Bencher, shape: TrafficShape) {
    let net = network("rails64x8", &["n0:2>rail2=x0.5", "rail5>n3:5=x0.25", "n6:1>n6:switch=x0.5"]);
    plans(bencher, &net, &shapes(&net, shape)[..4]);
}

#[divan::bench]
fn ranks_8_rails_reference(bencher: Bencher) {
    let net = network("rails2x4", &[]);
    let demand = TrafficShape::HeavyTailed.demand(8, 512 << 20, 1);
    bencher.bench_local(|| route::exact::plan(&net, black_box(&demand)).expect("a plan"));
}

/// A rank splits its own row of the demand by a plan.
#[divan::bench]
fn ranks_512_split_of_one_row(bencher: Bencher) {
    let net = network("rails64x8", &[]);
    let demand = TrafficShape::HeavyTailed.demand(512, 32 << 30, 1);
    let mut planner = Planner::default();
    let plan = planner.plan(&net, &demand).expect("a plan");
    assert!(plan.rule != Rule::TwoRails);
    bencher.bench_local(|| {
        let mut sum = 0;
        for dst in 1..512 {
            plan.split(&net, 0, dst, demand.get(0, dst), |path, bytes| sum += bytes ^ path as u64);
        }
        black_box(sum)
    });
}
