//! What one plan of NIMBLE's planner costs.

use divan::{Bencher, black_box};
use papers::nimble as mwu;
use route::traffic::Shape;
use route::{Network, NetworkOptions, builtin};

fn main() {
    divan::main();
}

#[divan::bench]
fn ranks_8_rails_mwu_64_rounds(bencher: Bencher) {
    let net = Network::of(&builtin::cluster("rails2x4").expect("built in"), &NetworkOptions::default()).expect("fine");
    let demand = Shape::HeavyTailed.demand(8, 512 << 20, 1);
    bencher.bench_local(|| mwu::plan(&net, black_box(&demand), &mwu::Settings::default()).expect("a plan"));
}
