use super::*;
use proptest::prelude::*;
use stats::random::Random;

/// Plans of two slots with three arms each (effects 0, -8, 30 % and 0, 5, -3 %), the host `lag` steps ahead.
fn plans(lag: usize, cv: f64, delayed: usize, seed: u64) -> Vec<Record> {
    let mut random = Random::new(seed);
    let effects = [[0.0, -0.08, 0.3], [0.0, 0.05, -0.03]];
    let plan = |serial| {
        let n = 60;
        let arms: Vec<Vec<usize>> = (0..2).map(|_| (0..n).map(|_| random.below(3)).collect()).collect();
        let mut times = Vec::new();
        for t in 0..n {
            let at = t - lag.min(t);
            let share: f64 = (0..2).map(|s| effects[s][arms[s][at]]).sum();
            times.push(Some(2e5 * (1.0 + share) * random.log_normal(cv)));
        }
        for _ in 0..delayed {
            let t = random.below(n);
            times[t] = times[t].map(|x| 3.0 * x);
        }
        Record { serial, arms: (0..).zip(arms).collect(), times_us: times }
    };
    (0..2).map(plan).collect()
}

#[test]
fn effects_of_two_slots_and_the_delay_are_found_also_with_delayed_steps() {
    for lag in 0..=LAG_MAX {
        for delayed in [0, 3] {
            let all = plans(lag, 0.02, delayed, 3 + lag as u64);
            let fit = Fit::of(all.iter(), LAG_MAX).unwrap_or_else(|| panic!("no fit"));
            assert_eq!(fit.lag(), lag);
            for (slot, arm, truth) in [(0, 1, -0.08), (0, 2, 0.3), (1, 1, 0.05), (1, 2, -0.03)] {
                let e = fit.over(slot, arm, 0).unwrap_or_else(|| panic!("slot {slot}, arm {arm}"));
                assert!((e.share - truth).abs() < 4.0 * e.error && e.error < 0.012, "lag {lag}: {e:?}, not {truth}");
            }
        }
    }
}

#[test]
fn one_stall_of_many_steps_is_left_out() {
    let mut random = Random::new(11);
    let blocks = [0, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0];
    let arms: Vec<usize> = blocks.iter().flat_map(|arm| [*arm; 3]).collect();
    for at in LAG_MAX..arms.len() {
        let time = |arm: &usize| [4e3, 1e3][*arm] * random.log_normal(0.03);
        let mut times: Vec<f64> = arms.iter().map(time).collect();
        times[at] += 5e4;
        let all = [Record {
            serial: 0,
            arms: BTreeMap::from([(0, arms.clone())]),
            times_us: times.into_iter().map(Some).collect(),
        }];
        let e = Fit::of(all.iter(), LAG_MAX).and_then(|f| f.over(0, 1, 0)).unwrap_or_else(|| panic!("no fit"));
        assert!((e.share + 0.75).abs() < 0.03 && e.error < 0.03, "stall in step {at}: {e:?}");
    }
}

#[test]
fn standard_errors_are_as_large_as_errors_are() {
    let mut z = Vec::new();
    for seed in 0..150 {
        let all = plans(1, 0.03, 1, 100 + seed);
        let Some(fit) = Fit::of(all.iter(), LAG_MAX) else { panic!("no fit") };
        z.extend(fit.over(1, 2, 0).map(|e| (e.share + 0.03) / e.error));
    }
    let spread = stats::standard_deviation(&z);
    assert!((0.8..1.25).contains(&spread), "{spread}");
}

proptest! {
    /// Whatever the times are, there is no panic, no number that is not finite, and twice the same answer.
    #[test]
    fn any_times_give_finite_effects_and_the_same_ones_again(
        times in proptest::collection::vec(prop_oneof![
            6 => (1.0f64..1e6).prop_map(Some),
            1 => Just(None),
            1 => prop_oneof![Just(0.0), Just(-1.0), Just(f64::NAN), Just(f64::INFINITY), Just(1e-300), Just(1e14)].prop_map(Some),
        ], 0..90),
        arms in proptest::collection::vec(0usize..4, 0..90),
        lag in 0usize..6,
    ) {
        let other: Vec<usize> = arms.iter().rev().copied().collect();
        let record = |serial| Record {
            serial,
            arms: BTreeMap::from([(0, arms.clone()), (7, other.clone())]),
            times_us: times.clone(),
        };
        let all = [record(0), record(1)];
        if let Some(fit) = Fit::of(all.iter(), lag) {
            let again = Fit::of(all.iter(), lag).map(|f| format!("{f:?}"));
            prop_assert_eq!(Some(format!("{fit:?}")), again);
            for arm in 0..4 {
                if let Some(e) = fit.over(7, arm, 0) {
                    prop_assert!(e.share.is_finite() && e.error.is_finite() && e.error >= 0.0, "{:?}", e);
                }
            }
        }
    }
}

#[test]
fn no_more_plans_are_kept_than_allowed() {
    let mut records = VecDeque::new();
    for serial in 0..100 {
        push(&mut records, Record { serial, arms: BTreeMap::new(), times_us: Vec::new() }, 12);
    }
    assert_eq!((records.len(), records[0].serial), (12, 88));
}
