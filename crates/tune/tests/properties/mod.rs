//! Properties of every policy of `super::known()`: the shipped ones here, those of the trial in
//! `lab/trial/tests/policies.rs`.

use super::known;
use proptest::prelude::*;
use tune::registry::{self, POLICIES, PolicyEntry};
use tune::{Arm, Context, Policy, PolicyOptions, Reading};

fn build(name: &str, arms: &[Arm], options: &PolicyOptions) -> Result<Box<dyn Policy>, String> {
    registry::build_from(&known(), name, arms, options)
}

fn arms(n: usize) -> Vec<Arm> {
    let all = ["TREE/SIMPLE", "TREE/LL128", "AUTO", "RING/SIMPLE@8", "RING/LL", "NVLS/SIMPLE", "AUTO@4"];
    all[..n].iter().map(|a| a.parse().unwrap()).collect()
}

fn options(seed: u64) -> PolicyOptions {
    PolicyOptions { seed, objective: tune::Objective::with_price(0.01).unwrap(), ..PolicyOptions::default() }
}

/// An event in the life of a policy.
#[derive(Debug, Clone)]
enum Event {
    /// The policy decides a call.
    Decide { overlapped: Option<bool>, compute_intensity: Option<f64> },
    /// A reading of an earlier call (`back` calls before the last), valid or invalid.
    Learn { back: u64, arm_shift: usize, time_us: Option<f64>, channels: Option<u8> },
}

fn event() -> impl Strategy<Value = Event> {
    let overlapped = proptest::option::of(any::<bool>());
    let intensity = proptest::option::of(prop_oneof![0.0f64..1.0, Just(f64::NAN), Just(-3.0)]);
    let time = prop_oneof![
        8 => (50.0f64..500.0).prop_map(Some),
        1 => Just(None),
        1 => prop_oneof![Just(0.0), Just(-1.0), Just(f64::NAN), Just(f64::INFINITY), Just(1e-300), Just(1e300)].prop_map(Some),
    ];
    let back = prop_oneof![6 => Just(1u64), 3 => 1u64..6000, 1 => any::<u64>()];
    let shift = prop_oneof![8 => Just(0usize), 1 => 0usize..4, 1 => any::<usize>()];
    prop_oneof![
        (overlapped, intensity)
            .prop_map(|(overlapped, compute_intensity)| Event::Decide { overlapped, compute_intensity }),
        (back, shift, time, proptest::option::of(any::<u8>()))
            .prop_map(|(back, arm_shift, time_us, channels)| Event::Learn { back, arm_shift, time_us, channels }),
    ]
}

/// Plays events and returns everything that the policy shows.
fn play(policy: &mut dyn Policy, arms: usize, events: &[Event]) -> Vec<(usize, usize, String)> {
    let mut decided: Vec<usize> = Vec::new();
    let mut seen = Vec::new();
    for event in events {
        match event {
            Event::Decide { overlapped, compute_intensity } => {
                let context = Context { overlapped: *overlapped, compute_intensity: *compute_intensity };
                let arm = policy.decide(context).arm;
                assert!(arm < arms, "an arm that does not exist");
                decided.push(arm);
            }
            Event::Learn { back, arm_shift, time_us, channels } => {
                let call = (decided.len() as u64).wrapping_sub(*back);
                let arm = decided.get(call as usize).copied().unwrap_or(0).wrapping_add(*arm_shift);
                policy.learn(Reading { call, arm, time_us: *time_us, channels: *channels });
            }
        }
        assert!(policy.in_use() < arms);
        seen.push((decided.last().copied().unwrap_or(0), policy.in_use(), policy.because()));
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_readings_are_accepted_and_the_same_ones_give_the_same_decisions(
        n in 3usize..=7, seed: u64, events in proptest::collection::vec(event(), 0..400)
    ) {
        for PolicyEntry { name, .. } in known() {
            let arms = arms(n);
            let make = || build(name, &arms, &options(seed)).unwrap();
            let first = play(make().as_mut(), n, &events);
            prop_assert_eq!(&first, &play(make().as_mut(), n, &events), "{} is not deterministic", name);
            prop_assert_eq!(make().name(), name);
        }
    }

    #[test]
    fn without_a_valid_reading_no_policy_leaves_auto(n in 3usize..=7, seed: u64, calls in 1usize..300) {
        for entry in known() {
            let arms = arms(n);
            let mut policy = build(entry.name, &arms, &options(seed)).unwrap();
            for call in 0..calls as u64 {
                let arm = policy.decide(Context::default()).arm;
                policy.learn(Reading { call, arm, time_us: (call % 2 == 0).then_some(f64::NAN), channels: None });
                prop_assert!(arms[policy.in_use()].is_auto(), "{}", entry.name);
            }
        }
    }

    #[test]
    fn shipped_policies_stay_on_auto_if_all_arms_take_the_same_time(n in 3usize..=6, seed: u64, time_us in 1.0f64..1e6) {
        for entry in known().into_iter().filter(|e| POLICIES.iter().any(|p| p.name == e.name)) {
            let arms = arms(n);
            let mut policy = build(entry.name, &arms, &PolicyOptions { seed, ..PolicyOptions::default() }).unwrap();
            for call in 0..400u64 {
                let arm = policy.decide(Context::default()).arm;
                policy.learn(Reading { call, arm, time_us: Some(time_us), channels: None });
                prop_assert!(arms[policy.in_use()].is_auto(), "{}", entry.name);
            }
        }
    }
}

#[test]
fn every_policy_but_the_fixed_ones_finds_an_arm_twice_as_fast_when_nothing_is_noisy() {
    for entry in known().into_iter().filter(|e| !["profile", "auto"].contains(&e.name)) {
        let arms = arms(5);
        let mut policy = build(entry.name, &arms, &PolicyOptions::default()).unwrap();
        for call in 0..400u64 {
            let arm = policy.decide(Context::default()).arm;
            policy.learn(Reading { call, arm, time_us: Some([100.0, 120.0, 100.0, 50.0, 90.0][arm]), channels: None });
        }
        assert_eq!(policy.in_use(), 3, "{}: {}", entry.name, policy.because());
    }
}

#[test]
fn ranks_of_v1_differ_and_those_of_every_other_policy_never() {
    for entry in known() {
        let arms = arms(4);
        let make =
            |rank| build(entry.name, &arms, &PolicyOptions { rank, seed: 5, ..PolicyOptions::default() }).unwrap();
        let mut ranks: Vec<_> = (0..4).map(make).collect();
        let mut differing = 0;
        for call in 0..300u64 {
            let chosen: Vec<usize> = ranks.iter_mut().map(|p| p.decide(Context::default()).arm).collect();
            differing += u32::from(chosen.iter().any(|a| *a != chosen[0]));
            for (policy, arm) in ranks.iter_mut().zip(&chosen) {
                policy.learn(Reading { call, arm: *arm, time_us: Some(100.0 + *arm as f64), channels: None });
            }
        }
        assert_eq!(differing > 0, entry.name == "v1", "{}: {differing} calls", entry.name);
    }
}

#[test]
fn a_policy_that_cannot_be_built_is_refused_with_the_reason() {
    let error = |name: &str, arms: &[Arm]| build(name, arms, &PolicyOptions::default()).err().unwrap();
    assert!(error("hope", &arms(3)).contains("known are"));
    assert!(error("round-robin", &arms(2)).contains("AUTO"));
    assert!(error("round-robin", &[Arm::AUTO, Arm::AUTO]).contains("twice"));
    assert!(error("round-robin", &[]).contains("AUTO"));
}

#[test]
fn a_price_on_channels_favours_arms_with_fewer_channels() {
    let arms: Vec<Arm> = ["RING/SIMPLE@16", "RING/SIMPLE@4", "AUTO"].iter().map(|a| a.parse().unwrap()).collect();
    for entry in known().into_iter().filter(|e| !["profile", "auto"].contains(&e.name)) {
        for (price, expected) in [(0.0, 0), (0.02, 1)] {
            let objective = tune::Objective::with_price(price).unwrap();
            let options = PolicyOptions { objective, seed: 3, ..PolicyOptions::default() };
            let mut policy = build(entry.name, &arms, &options).unwrap();
            for call in 0..600u64 {
                let arm = policy.decide(Context::default()).arm;
                policy.learn(Reading { call, arm, time_us: Some([70.0, 76.0, 100.0][arm]), channels: None });
            }
            assert_eq!(policy.in_use(), expected, "{} at a price of {price}: {}", entry.name, policy.because());
        }
    }
}
