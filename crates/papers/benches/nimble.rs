//! Cost of one plan of NIMBLE's planner.

use divan::{Bencher, black_box};
use papers::nimble as mwu;
use route::traffic::TrafficShape;
use route::{RoutingNetwork, RoutingOptions, builtin};

fn main() {
    divan::main();
}

#[divan::bench]
fn ranks_8_rails_mwu_64_rounds(bencher: Bencher) {
    let net =
        RoutingNetwork::of(&builtin::cluster("rails2x4").expect("built in"), &RoutingOptions::default()).expect("fine");
    let demand = TrafficShape::HeavyTailed.demand(8, 512 << 20, 1);
    bencher.bench_local(|| mwu::plan(&net, black_box(&demand), &mwu::MwuSettings::default()).expect("a plan"));
}
