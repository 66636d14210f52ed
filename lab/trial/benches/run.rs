//! Throughput of the trial: one run of a policy through one simulated environment.

use trial::{Curve, Noise, Spec, run};
use tune::{PolicyOptions, build};

fn main() {
    divan::main();
}

#[divan::bench]
fn one_run_of_the_trial(bencher: divan::Bencher) {
    let spec = Spec::new("x", 1_000.0, &[0.7, 1.1, 1.3], Noise::LogNormal { cv: 0.1 });
    let make = |spec: &Spec, _: u64, _: u32| build("round-robin", &spec.arms, &PolicyOptions::default());
    bencher.bench_local(|| run(&spec, &make, 1, 1, &mut Curve::default()).expect("registered"));
}
