//! What the plugin does in training loops, with few runs. `linkwise-lab tune evaluate --loops` runs all of them. Simulated.
//!
//! The limits allow for the chance of a hundred runs.

use trial::training::{BETTER, LoopOutcome, LoopSlot, LoopSpec, NONE_BETTER, Scheme, StepNoise, one_slot, train};

fn runs(spec: &LoopSpec, scheme: Scheme, runs: u64) -> Vec<LoopOutcome> {
    (1..=runs).map(|seed| train(spec, scheme, seed)).collect()
}

fn found_in_200_steps(all: &[LoopOutcome]) -> usize {
    all.iter().filter(|o| o.found_after.is_some_and(|f| f <= 200)).count()
}

#[test]
fn the_best_arm_is_found_for_every_number_of_calls_and_every_lag() {
    for (calls, lag) in [(1, 0), (1, 3), (4, 1), (8, 2), (64, 0)] {
        let all = runs(&one_slot("", calls, lag, &BETTER), Scheme::WholeSteps, 100);
        let found = found_in_200_steps(&all);
        assert!(found >= 95, "{calls} calls, lag {lag}: found in {found} of 100 runs");
        let gains: Vec<f64> = all.iter().filter_map(|o| o.gain).map(|(stated, truth)| stated - truth).collect();
        // The fit leaves far steps out, so the gain is that of usual steps.
        assert!(stats::mean(&gains).abs() < 0.008, "the stated gain is {:.4} off", stats::mean(&gains));
    }
}

#[test]
fn arms_that_change_call_by_call_find_nothing_with_four_calls_per_step() {
    let all = runs(&one_slot("", 4, 0, &BETTER), Scheme::CallByCall, 20);
    assert_eq!(found_in_200_steps(&all), 0);
    let alone = runs(&one_slot("", 1, 0, &BETTER), Scheme::CallByCall, 20);
    assert!(found_in_200_steps(&alone) >= 18, "with one call per step they do");
}

#[test]
fn without_a_better_arm_steps_get_at_most_1_percent_longer_and_auto_stays() {
    for (calls, lag) in [(1, 1), (8, 3), (64, 0)] {
        let all = runs(&one_slot("", calls, lag, &NONE_BETTER), Scheme::WholeSteps, 60);
        let worst = all.iter().map(|o| o.longer).fold(0.0, f64::max);
        assert!(worst <= 0.01, "{calls} calls, lag {lag}: {worst}");
        assert!(stats::mean(&all.iter().map(|o| o.longer).collect::<Vec<_>>()) <= 0.005);
        assert!(all.iter().filter(|o| o.is_fooled).count() <= 2);
    }
}

#[test]
fn two_modes_fool_it_in_at_most_2_percent_of_runs() {
    let noise = StepNoise { mode_share: 0.5, mode_factor: 2.7, cv: 0.15, ..StepNoise::PLAIN };
    let spec = LoopSpec { noise, ..one_slot("", 4, 1, &[1.0; 5]) };
    let fooled = runs(&spec, Scheme::WholeSteps, 200).iter().filter(|o| o.is_fooled).count();
    assert!(fooled <= 8, "{fooled} of 200");
}

#[test]
fn many_sizes_together_cost_no_more_than_one() {
    let slot = LoopSlot { calls: 4, share: 0.01, levels: NONE_BETTER.to_vec() };
    let spec = LoopSpec { slots: vec![slot; 40], ..one_slot("", 1, 1, &[]) };
    let worst = runs(&spec, Scheme::WholeSteps, 10).iter().map(|o| o.longer).fold(0.0, f64::max);
    assert!(worst <= 0.01, "{worst}");
}

#[test]
fn without_told_steps_the_number_of_calls_is_found() {
    for calls in [1, 4, 8] {
        let spec = LoopSpec { is_told: false, ..one_slot("", calls, 2, &BETTER) };
        let all = runs(&spec, Scheme::WholeSteps, 40);
        let right = all.iter().filter(|o| o.calls_found.is_some_and(|c| c.is_multiple_of(calls.into()))).count();
        assert!(right >= 39, "{calls} calls: {right} of 40");
        assert!(found_in_200_steps(&all) >= 38, "{calls} calls: {}", found_in_200_steps(&all));
    }
}

#[test]
fn steps_with_varying_calls_are_left_alone_and_the_reason_is_given() {
    let spec = LoopSpec { varies: 3, ..one_slot("", 8, 1, &BETTER) };
    for outcome in runs(&spec, Scheme::WholeSteps, 20) {
        let why = outcome.never.unwrap_or_default();
        assert!(why.starts_with("cannot learn") && outcome.longer.abs() < 0.005, "{why} {}", outcome.longer);
    }
}

#[test]
fn sizes_that_share_a_step_are_found_together() {
    let slot = |calls, share| LoopSlot { calls, share, levels: BETTER.to_vec() };
    for slots in [vec![slot(16, 0.25), slot(4, 0.1), slot(1, 0.05)], vec![slot(128, 0.25), slot(64, 0.15)]] {
        let spec = LoopSpec { slots, ..one_slot("", 1, 1, &[]) };
        let all = runs(&spec, Scheme::WholeSteps, 60);
        let found = found_in_200_steps(&all);
        assert!(found >= 55, "{} sizes: {found} of 60", spec.slots.len());
    }
}

#[test]
fn noise_of_other_forms_neither_hides_the_best_arm_nor_fools() {
    let noises = [
        StepNoise { memory: 0.9, ..StepNoise::PLAIN },
        StepNoise { is_long_tailed: true, ..StepNoise::PLAIN },
        StepNoise { checkpoint_steps: 50, ..StepNoise::PLAIN },
        StepNoise { straggler: 0.15, ..StepNoise::PLAIN },
    ];
    for noise in noises {
        let better = LoopSpec { noise, ..one_slot("", 4, 1, &BETTER) };
        let found = found_in_200_steps(&runs(&better, Scheme::WholeSteps, 40));
        assert!(found >= 37, "{noise:?}: {found} of 40");
        let equal = LoopSpec { noise, ..one_slot("", 4, 1, &[1.0; 5]) };
        let fooled = runs(&equal, Scheme::WholeSteps, 40).iter().filter(|o| o.is_fooled).count();
        assert!(fooled <= 2, "{noise:?}: {fooled} of 40");
    }
}
