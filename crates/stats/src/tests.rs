use super::*;
use proptest::prelude::*;

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-9 * b.abs().max(1e-3), "{a} is not {b}");
}

fn values() -> impl Strategy<Value = Vec<f64>> {
    proptest::collection::vec((0u32..40).prop_map(|v| f64::from(v) * 0.5 + 1.0), 1..30)
}

/// Reference by definition: counts every arrangement of the pooled values.
fn by_all_arrangements(first: &[f64], second: &[f64]) -> f64 {
    let u = |a: &[f64], b: &[f64]| -> f64 {
        a.iter()
            .map(|x| {
                b.iter()
                    .map(|y| {
                        if x > y {
                            1.0
                        } else if x == y {
                            0.5
                        } else {
                            0.0
                        }
                    })
                    .sum::<f64>()
            })
            .sum()
    };
    let pooled: Vec<f64> = first.iter().chain(second).copied().collect();
    let observed = u(first, second);
    let (mut at_most, mut all) = (0.0, 0.0);
    for mask in 0u32..1 << pooled.len() {
        if mask.count_ones() as usize == first.len() {
            let of = |bit: bool| -> Vec<f64> {
                pooled.iter().enumerate().filter(|(i, _)| (mask >> i & 1 == 1) == bit).map(|p| *p.1).collect()
            };
            all += 1.0;
            at_most += f64::from(u(&of(true), &of(false)) <= observed + 1e-9);
        }
    }
    at_most / all
}

proptest! {
    #[test]
    fn the_exact_test_counts_all_arrangements(seed: u64, n in 1usize..6, m in 1usize..6) {
        let mut r = crate::random::Random::new(seed);
        let mut pooled: Vec<f64> = (0..n + m).map(|i| i as f64).collect();
        r.shuffle(&mut pooled);
        let (a, b) = pooled.split_at(n);
        let (ours, counted) = (mann_whitney_below(a, b), by_all_arrangements(a, b));
        prop_assert!((ours - counted).abs() < 1e-12, "{ours} {counted}");
    }

    #[test]
    fn deltas_change_sign_with_the_order_of_arguments_and_count_pairs(a in values(), b in values()) {
        let delta = cliffs_delta_below(&a, &b);
        prop_assert!((delta + cliffs_delta_below(&b, &a)).abs() < 1e-9);
        let pairs: f64 = a.iter().map(|x| b.iter().map(|y| (y > x) as i32 as f64 - (y < x) as i32 as f64).sum::<f64>()).sum();
        prop_assert!((delta - pairs / (a.len() * b.len()) as f64).abs() < 1e-9);
    }

    #[test]
    fn a_p_value_lies_in_0_to_1_and_one_of_two_directions_is_uncertain(a in values(), b in values()) {
        let (p, q) = (mann_whitney_below(&a, &b), mann_whitney_below(&b, &a));
        prop_assert!((0.0..=1.0).contains(&p) && (0.0..=1.0).contains(&q));
        prop_assert!(p.max(q) >= 0.5 - 1e-9, "{p} {q}");
    }

    #[test]
    fn trimming_keeps_the_middle_half(a in values()) {
        let kept = iqr_trimmed(&a);
        let s = sorted(&a);
        let middle = a.iter().filter(|x| (quantile_of_sorted(&s, 0.25)..=quantile_of_sorted(&s, 0.75)).contains(x)).count();
        prop_assert!(kept.len() >= middle && kept.len() <= a.len());
    }

    #[test]
    fn quantiles_rise_and_stay_inside(a in values(), p in 0.0f64..=1.0, q in 0.0f64..=1.0) {
        let (low, high) = (quantile(&a, p.min(q)), quantile(&a, p.max(q)));
        prop_assert!(low <= high && quantile(&a, 0.0) <= low && high <= quantile(&a, 1.0));
    }
}

#[test]
fn quantiles_are_those_of_numpy() {
    // numpy.quantile([1, 2, 4, 8, 16], [0, .1, .25, .5, .9, 1])
    let v = [16.0, 1.0, 8.0, 2.0, 4.0];
    for (q, expected) in [(0.0, 1.0), (0.1, 1.4), (0.25, 2.0), (0.5, 4.0), (0.9, 12.8), (1.0, 16.0)] {
        close(quantile(&v, q), expected);
    }
    assert!(median(&[]).is_nan());
}

#[test]
fn medians_of_odd_even_and_empty_samples() {
    assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
    assert_eq!((upper_median(&[4.0, 1.0, 2.0, 3.0]), upper_median(&[7.0])), (3.0, 7.0));
    assert!(median(&[]).is_nan() && upper_median(&[]).is_nan() && mad_sd(&[]).is_nan() && mean(&[]).is_nan());
    assert!(nearest_quantile_of_sorted(&[], 0.5).is_nan() && quantile_of_sorted(&[], 0.5).is_nan());
    assert_eq!((median_or(&[], 0.0), median_or(&[1.0, 2.0], 0.0)), (0.0, 1.5));
    assert_eq!(median(&[f64::NAN, 1.0, 2.0]), 2.0, "NaN counts as the largest");
}

#[test]
fn one_outlier_changes_neither_median_nor_spread() {
    let (calm, wild) = ([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5e9]);
    assert_eq!((median(&calm), median(&wild)), (3.0, 3.0));
    assert_eq!((mad_sd(&calm), mad_sd(&wild)), (1.4826, 1.4826));
    assert_eq!(mad_sd_about(&[1.0, 3.0], 0.0), 2.0 * 1.4826);
}

#[test]
fn nearest_quantiles_are_values_of_the_sample() {
    let v = [1.0, 2.0, 4.0, 8.0];
    assert_eq!([0.0, 0.4, 0.5, 0.95, 1.0].map(|q| nearest_quantile_of_sorted(&v, q)), [1.0, 2.0, 4.0, 8.0, 8.0]);
}

proptest! {
    #[test]
    fn the_median_is_the_middle_quantile_and_robust_spread_is_that_of_a_shifted_sample(a in values(), by in -9.0f64..9.0) {
        prop_assert!((median(&a) - quantile(&a, 0.5)).abs() < 1e-12);
        let shifted: Vec<f64> = a.iter().map(|v| v + by).collect();
        prop_assert!((mad_sd(&a) - mad_sd(&shifted)).abs() < 1e-9);
    }
}

#[test]
fn the_normal_distribution_has_its_tabulated_values() {
    assert!((normal_cdf(1.959_963_984_540_054) - 0.975).abs() < 1e-12);
    assert_eq!(normal_cdf(0.0), 0.5);
    assert!((normal_density(0.0) - 0.398_942_280_401_432_7).abs() < 1e-15);
}

#[test]
fn the_normal_tail_has_its_tabulated_values() {
    for (z, p) in [
        (0.0, 0.5),
        (1.0, 0.158_655_253_931_457_05),
        (1.959_963_984_540_054, 0.025),
        (3.0, 0.001_349_898_031_630_094_6),
        (5.0, 2.866_515_718_791_939_4e-7),
        (10.0, 7.619_853_024_160_527e-24),
        (-1.0, 0.841_344_746_068_542_9),
    ] {
        assert!((normal_tail(z) / p - 1.0).abs() < 1e-11, "{z}: {} {p}", normal_tail(z));
    }
}

#[test]
fn the_test_has_known_values() {
    // All 5 of 5 below: 1 arrangement of 252.
    close(mann_whitney_below(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]), 1.0 / 252.0);
    // Compared with the normal approximation where both apply.
    let a: Vec<f64> = (0..25).map(|i| f64::from(i) * 2.0).collect();
    let b: Vec<f64> = (0..25).map(|i| f64::from(i) * 2.0 + 9.0).collect();
    let exact = mann_whitney_below(&a, &b);
    let (n, u) = (25.0f64, a.iter().map(|x| b.iter().filter(|y| x > y).count()).sum::<usize>() as f64);
    let approximate = normal_tail(-((u - n * n / 2.0 + 0.5) / (n * n * (2.0 * n + 1.0) / 12.0).sqrt()));
    assert!((exact - approximate).abs() < 0.002, "{exact} {approximate}");
    // scipy.stats.mannwhitneyu([1,1,2,3], [2,3,4,5], alternative="less", method="asymptotic") by its formula:
    // U = 2, ties 2,2,2 -> variance 16/12 (9 - 18/56), z = (2 - 8 + 0.5)/sqrt(variance)
    let variance: f64 = 16.0 / 12.0 * (9.0 - 18.0 / 56.0);
    close(mann_whitney_below(&[1.0, 1.0, 2.0, 3.0], &[2.0, 3.0, 4.0, 5.0]), normal_tail(5.5 / variance.sqrt()));
    assert_eq!(mann_whitney_below(&[1.0, 1.0], &[1.0, 1.0]), 1.0);
    assert_eq!(mann_whitney_below(&[], &[1.0]), 1.0);
}

#[test]
fn halves_that_disagree_are_found() {
    let (one, two, three) = ([1.0; 8], [2.0; 8], [3.0; 8]);
    assert!(halves_agree_below([&one, &one], [&two, &two]));
    assert!(!halves_agree_below([&one, &three], [&two, &two]));
    assert!(!halves_agree_below([&one, &[]], [&two, &two]), "an empty half agrees with nothing");
}

#[test]
fn quantiles_accept_infinite_values() {
    let never = f64::INFINITY;
    assert_eq!(quantile(&[1.0, 2.0, never, never, never], 0.25), 2.0, "exactly at a value next to infinity");
    assert_eq!(median(&[1.0, never, 2.0]), 2.0);
    assert_eq!(median(&[1.0, never, never, never]), never);
    assert_eq!(median(&[1.0, never]), never);
}

#[test]
fn values_are_drawn_again_as_often_as_their_weights_say() {
    let draw = |weights: [f64; 4], random| resampled(&[0, 1, 2, 3], &weights.map(f64::ln), random);
    assert_eq!(draw([5.0; 4], 0.5), [0, 1, 2, 3]);
    assert_eq!(draw([0.0, 3.0, 0.0, 1.0], 0.5), [1, 1, 1, 3]);
    assert_eq!(draw([1e-300, 0.0, 1.0, 1.0], 0.999), [2, 2, 3, 3], "tiny weights do not overflow");
    for i in 0..100 {
        let out = draw([1.0, 2.0, 4.0, 1.0], f64::from(i) / 100.0);
        assert_eq!((out.len(), out.iter().filter(|v| **v == 2).count()), (4, 2), "{out:?}");
    }
    assert_eq!(draw([0.0; 4], 0.5), [3; 4], "no weight at all");
    assert_eq!(resampled(&[0; 0], &[], 0.5), [0; 0]);
}
