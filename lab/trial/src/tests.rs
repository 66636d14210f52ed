use super::*;
use crate::policies::build;
use tune::registry::{self, PolicyOptions};

fn score(spec: &Spec, policy: &str, runs: u64) -> Score {
    let make = |spec: &Spec, seed: u64, rank: u32| {
        build(policy, &spec.arms, &PolicyOptions { seed, rank, ..PolicyOptions::default() })
    };
    let mut out = Score::default();
    for seed in 0..runs {
        out.outcomes.push(run(spec, &make, seed, 1, &mut out.curve).unwrap());
    }
    out
}

#[test]
fn the_mean_of_draws_is_the_truth_that_scores_use() {
    let noises = [
        Noise::LogNormal { cv: 0.2 },
        Noise::BANDIT_LOG,
        Noise::Resampled(vec![1.0, 2.0, 9.0].into()),
        Noise::PerArm(vec![vec![600.0, 800.0], vec![1100.0], vec![1200.0], vec![900.0, 1100.0]].into()),
    ];
    for noise in noises {
        let spec = Spec { is_shuffled: false, ..Spec::new("x", 1000.0, &[0.7, 1.1, 1.2], noise.clone()) };
        let mut environment = Simulated::new(&spec, 3);
        let n = 20_000;
        for arm in 0..4 {
            let mut sum = 0.0;
            for call in 0..n {
                environment.begin(call, 0);
                environment.use_arm(arm);
                sum += environment.time_us(arm);
            }
            let (mean, truth) = (sum / n as f64, environment.mean_us(arm));
            assert!((mean / truth - 1.0).abs() < 0.02, "{noise:?} {arm}: {mean} {truth}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_outcome_and_another_seed_another() {
    let spec = &targets::four_arms(0.3, 0.1, 300)[1];
    assert_eq!(score(spec, "round-robin", 5), score(spec, "round-robin", 5));
    let s = score(spec, "round-robin", 5);
    assert!(s.outcomes.windows(2).any(|w| w[0] != w[1]));
}

#[test]
fn round_robin_decides_after_its_forty_calls_and_not_before() {
    let spec = &targets::four_arms(0.3, 0.05, 200)[0];
    let s = score(spec, "round-robin", 50);
    assert_eq!((s.right_after(39), s.right_after(40)), (0.0, 1.0));
    assert_eq!(s.median_decided_after(), Some(40.0));
    assert_eq!(s.outcomes[0].explored_until_decided, 40);
    assert!(s.looking_cost().is_nan() && s.wrong_runs() == 0.0, "the run ends before it counts as settled");
    let longer = score(&Spec { calls: 500, ..spec.clone() }, "round-robin", 5);
    assert!(longer.looking_cost().abs() < 1e-12, "it never explores again");
}

#[test]
fn a_price_on_channels_changes_which_arm_is_right_and_policies_that_know_it_find_that_one() {
    let arms = ["RING/SIMPLE@16", "RING/SIMPLE@4", "AUTO"].map(|a| a.parse().unwrap()).to_vec();
    let base = Spec::new("x", 1_000.0, &[0.70, 0.76], Noise::LogNormal { cv: 0.03 });
    let plain = Spec { arms, is_shuffled: false, calls: 600, ..base };
    for (price, best) in [(0.0, 0), (0.02, 1)] {
        let objective = tune::Objective::with_price(price).unwrap();
        let spec = Spec { objective, ..plain.clone() };
        let make = |spec: &Spec, seed: u64, _: u32| {
            build("adaptive", &spec.arms, &PolicyOptions { seed, objective, ..PolicyOptions::default() })
        };
        let mut s = Score::default();
        for seed in 0..20 {
            s.outcomes.push(run(&spec, &make, seed, 1, &mut s.curve).unwrap());
        }
        assert!(s.ends_with(3)[best] > 0.9 && s.right_after(300) > 0.9, "{price}: {:?}", s.ends_with(3));
        // 0.76 on 4 channels costs a factor of 1.08, against 1 on 8 channels with 1.16; or 0.70.
        let gain = s.mean(|o| o.improvement_expected);
        assert!((gain - [0.30, 1.0 - 0.76 * 1.08 / 1.16][best]).abs() < 0.03, "{price}: {gain}");
    }
}

#[test]
fn round_robin_is_misled_by_two_modes_far_more_often_than_the_target_allows() {
    let spec = &targets::no_better_arm(&Noise::BANDIT_LOG, 202_500.0, "modes")[0];
    let wrong = score(spec, "round-robin", 300).wrong_runs();
    assert!((0.4..0.9).contains(&wrong), "{wrong}");
}

#[test]
fn the_first_use_of_every_arm_is_slow_and_a_query_is_not_a_use() {
    let spec = Spec { first_use_factor: 5.0, is_shuffled: false, ..targets::four_arms(0.3, 0.0, 10)[0].clone() };
    let mut environment = Simulated::new(&spec, 1);
    let mut took = |call: u64, used: usize| {
        environment.begin(call, 3);
        environment.use_arm(used);
        (0..4).map(|arm| environment.time_us(arm) / environment.mean_us(arm)).map(f64::round).collect::<Vec<_>>()
    };
    assert_eq!(took(0, 0), [5.0, 1.0, 1.0, 1.0], "a query of AUTO gives its time after warm-up");
    assert_eq!(took(1, 3), [1.0, 1.0, 1.0, 5.0], "the first call of AUTO is slow, too");
    assert_eq!(took(2, 3), [1.0; 4]);
}

#[test]
fn exploring_costs_the_time_beyond_the_faster_of_auto_and_the_arm_in_use() {
    // Ten rounds of arms at 1.2, 1.3 and 1.5 times AUTO's 1,000 us, then only AUTO.
    let spec = Spec::new("x", 1_000.0, &[1.2, 1.3, 1.5], Noise::LogNormal { cv: 0.05 });
    let s = score(&spec, "round-robin", 5);
    assert_eq!(s.median_decided_after(), Some(0.0), "AUTO is right from the beginning");
    s.outcomes.iter().for_each(|o| assert!((o.explore_cost_us - 10_000.0).abs() < 1e-6, "{}", o.explore_cost_us));
    // An arm in use that is better than AUTO does not reduce this cost: improvement and break-even count that.
    let spec = Spec::new("x", 1_000.0, &[0.7, 1.3, 1.5], Noise::LogNormal { cv: 0.05 });
    let s = score(&spec, "round-robin", 5);
    s.outcomes.iter().for_each(|o| assert!((o.explore_cost_us - 5_000.0).abs() < 1e-6, "{}", o.explore_cost_us));
    assert!(score(&spec, "auto", 1).outcomes[0].explore_cost_us.to_bits() == 0, "0, and not -0");
    // Explorations of AUTO while a better arm is in use cost the difference to that arm.
    let ucb = score(&spec, "ucb1", 5);
    assert!(ucb.outcomes.iter().all(|o| o.explore_cost_us > 100.0 * 300.0), "{:?}", ucb.mean(|o| o.explore_cost_us));
}

#[test]
fn a_change_affects_the_arm_in_use_and_a_policy_that_never_explores_again_does_not_recover() {
    let spec = &targets::in_use_worsens(&Noise::LogNormal { cv: 0.03 }, 1000.0, "x", 300)[0];
    let s = score(spec, "round-robin", 30);
    assert_eq!(s.recovered_within(300), 0.0);
    assert!(s.outcomes.iter().all(|o| o.recovered_after == Some(None)));
    assert_eq!(s.recovery_quantile(0.5), None);
}

#[test]
fn late_and_lost_readings_reach_the_policy_as_such() {
    let spec = Spec { lost: 0.3, epoch_calls: 16, ..targets::four_arms(0.4, 0.05, 200)[0].clone() };
    let s = score(&spec, "round-robin", 20);
    assert!(s.right_after(150) > 0.9 && s.right_after(47) < 0.1, "{} {}", s.right_after(150), s.right_after(47));
}

#[test]
fn every_environment_of_the_targets_is_valid() {
    for target in targets::all(Some(&Noise::Resampled(vec![1.0, 3.0].into()))) {
        for spec in &target.specs {
            assert_eq!(registry::check_arms(&spec.arms), Ok(spec.arms.len() - 1), "{}", spec.name);
            assert_eq!(spec.arms.len(), spec.means_us.len());
            assert!(spec.means_us.iter().all(|m| *m > 0.0) && spec.change.is_none_or(|c| c.0 < spec.calls));
            if let targets::Measure::RightAfter(n) = target.measure {
                assert!((n as u64) < spec.calls, "{}", spec.name);
            }
        }
    }
}

#[test]
fn a_large_step_is_detected_and_one_below_the_noise_is_not() {
    let spec = |step: f64, cv: f64| {
        let base = Spec::new("x", 1000.0, &[0.7, 1.1], Noise::LogNormal { cv });
        let overlap =
            Overlap { means_us: vec![700.0 * step, 1100.0 * step, 1000.0 * step], phase_calls: 50, is_told: false };
        Spec { is_shuffled: false, overlap: Some(overlap), ..base }
    };
    let [large, limit] = detect(&spec(1.3, 0.03), 2, 1);
    assert!(large.precision().unwrap() > 0.9 && large.recall().unwrap() > 0.9, "{large:?}");
    assert!(limit.accuracy() > large.accuracy() && limit.accuracy().unwrap() > 0.97);
    let [drowned, limit] = detect(&spec(1.02, 0.2), 2, 1);
    assert!(drowned.accuracy().unwrap() < 0.7 && limit.accuracy().unwrap() < 0.7, "{drowned:?}");
    assert_eq!(detect(&spec(1.0, 0.0), 2, 1)[0].precision(), None, "without a step nothing is detected");
}

#[test]
fn no_detector_is_better_than_the_filter_that_knows_levels_and_noise() {
    for (step, cv) in [(1.1, 0.05), (1.2, 0.1), (1.5, 0.2)] {
        let overlap = Overlap { means_us: vec![100.0 * step], phase_calls: 50, is_told: false };
        let base = Spec::new("step", 100.0, &[], Noise::LogNormal { cv });
        let spec = Spec { overlap: Some(overlap), ..base };
        let mut all = [Detection::default(), Detection::default()];
        for seed in 0..20 {
            all.iter_mut().zip(&detect(&spec, 0, seed)).for_each(|(sum, one)| sum.add(one));
        }
        let [own, limit] = all;
        assert!(own.accuracy() <= limit.accuracy() && own.area() <= limit.area(), "{step} {cv}");
        assert!(own.accuracy().unwrap() > limit.accuracy().unwrap() - 0.12, "{step} {cv}: {:?}", own.accuracy());
    }
}

#[test]
fn the_area_under_the_curve_counts_pairs() {
    let mut d = Detection::default();
    for (is_overlapped, p) in [(true, 0.9), (true, 0.3), (false, 0.1), (false, 0.3)] {
        d.count(is_overlapped, Some(p));
    }
    // Three of four pairs are in order, and one is a tie.
    assert_eq!((d.area(), d.accuracy()), (Some(3.5 / 4.0), Some(0.75)));
}

#[test]
fn offline_readings_are_those_of_the_same_nodes() {
    let spec = &targets::four_arms(0.4, 0.05, 100)[1];
    let environment = Simulated::new(spec, 9);
    let readings = environment.offline_us(50);
    for (arm, times) in readings.iter().enumerate() {
        let ratio = stats::mean(times) / environment.mean_us(arm);
        assert!((ratio - 1.0).abs() < 0.05, "{arm}: {ratio}");
    }
}
