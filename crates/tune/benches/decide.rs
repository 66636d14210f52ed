//! Cost of one call: `decide` and `learn` of every registered policy after 2,000 calls, with four arms.

use tune::registry::{self, POLICIES};
use tune::{Arm, Context, Policy, PolicyOptions, Reading};

fn main() {
    divan::main();
}

fn names() -> Vec<&'static str> {
    POLICIES.iter().map(|p| p.name).collect()
}

/// A policy after 2,000 calls, and the number of the next call.
fn settled(name: &str) -> (Box<dyn Policy>, u64) {
    let arms: Vec<Arm> =
        ["TREE/SIMPLE", "TREE/LL128", "RING/SIMPLE", "AUTO"].iter().map(|a| a.parse().expect("an arm")).collect();
    let mut policy = registry::build(name, &arms, &PolicyOptions::default()).expect("registered");
    for call in 0..2_000 {
        step(policy.as_mut(), call);
    }
    (policy, 2_000)
}

fn step(policy: &mut dyn Policy, call: u64) {
    let arm = policy.decide(Context::default()).arm;
    let wobble = (call.wrapping_mul(2_654_435_761) % 97) as f64 * 0.2;
    let time_us = Some([70.0, 110.0, 130.0, 100.0][arm] + wobble);
    policy.learn(Reading { call, arm, time_us, channels: None });
}

#[divan::bench(args = names())]
fn one_call(bencher: divan::Bencher, name: &str) {
    let (mut policy, mut call) = settled(name);
    bencher.bench_local(|| {
        step(policy.as_mut(), call);
        call += 1;
    });
}
