//! Buckets of sizes: calls of similar size share readings.
//!
//! One bucket per power of two. The borders lie at the geometric middle between two powers (sqrt 2 times the lower
//! one), so that the sizes that programs use most are in the middle of a bucket. A size is that of the whole buffer:
//! for AllGather and ReduceScatter it is the total over the communicator's ranks. Only integer arithmetic is used, so
//! that every rank and every machine computes the same bucket.

/// The number of buckets: one per bit of a size.
pub const BUCKETS: u8 = 64;
/// A size keeps its previous bucket up to this distance beyond the border: one part in eight (2^-3) of the size.
pub const HYSTERESIS_SHIFT: u32 = 3;

/// The bucket of a size: log2, rounded to the nearest. 0 bytes count as 1.
pub fn bucket(bytes: u64) -> u8 {
    let bytes = bytes.max(1);
    let floor = bytes.ilog2();
    // Above sqrt(2) 2^floor exactly when bytes^2 > 2^(2 floor + 1).
    let is_upper = u128::from(bytes) * u128::from(bytes) > 1u128 << (2 * floor + 1);
    ((floor + u32::from(is_upper)) as u8).min(BUCKETS - 1)
}

/// The size in the middle of a bucket, bytes.
pub fn middle(bucket: u8) -> u64 {
    1u64 << bucket.min(BUCKETS - 1)
}

/// The bucket of a size, given the bucket of the previous call: a size near a border keeps the previous bucket until it
/// is an eighth beyond the border. All ranks must pass the same sequence of sizes: that of one communicator. `linkwise
/// tune play` uses this function. The plugin's slots depend on the size alone, because otherwise the slot of a call
/// would depend on all previous calls. There, sizes on the two sides of a border use two slots, each with its own
/// readings.
pub fn bucket_after(bytes: u64, before: Option<u8>) -> u8 {
    let plain = bucket(bytes);
    let Some(before) = before else { return plain };
    let slack = bytes.max(1) >> HYSTERESIS_SHIFT;
    let (nearest_low, nearest_high) = (bucket(bytes.max(1) - slack), bucket(bytes.saturating_add(slack)));
    if (nearest_low..=nearest_high).contains(&before) { before } else { plain }
}

/// The value at `bytes`, from values at sizes in rising order: log-log interpolation inside the range, the nearest
/// value outside (no extrapolation). `None` if `points` is empty. Values must be above 0.
pub fn interpolated(points: &[(u64, f64)], bytes: u64) -> Option<f64> {
    let above = points.partition_point(|p| p.0 < bytes);
    let (Some(high), Some(low)) = (points.get(above), above.checked_sub(1).and_then(|i| points.get(i))) else {
        return points.get(above).or(points.last()).map(|p| p.1);
    };
    let (x0, x1) = ((low.0.max(1) as f64).ln(), (high.0.max(1) as f64).ln());
    let weight = if x1 > x0 { ((bytes.max(1) as f64).ln() - x0) / (x1 - x0) } else { 0.0 };
    Some((low.1.ln() * (1.0 - weight) + high.1.ln() * weight).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buckets_rise_with_the_size_and_hold_sizes_within_sqrt_2_of_their_middle(a: u64, b: u64) {
            prop_assert!(bucket(a.min(b)) <= bucket(a.max(b)));
            let k = bucket(a);
            if (1..BUCKETS - 1).contains(&k) {
                let ratio = a as f64 / middle(k) as f64;
                prop_assert!((0.707..=1.415).contains(&ratio), "{a} {k}");
            }
        }

        #[test]
        fn a_size_stays_in_its_bucket_until_an_eighth_beyond_the_border_and_never_further(k in 4u8..60, share in 0.5f64..2.0) {
            let border = middle(k) as f64 * std::f64::consts::SQRT_2;
            let bytes = (border * share) as u64;
            let after = bucket_after(bytes, Some(k));
            if share > 1.0 / 0.87 { prop_assert_eq!(after, bucket(bytes)); prop_assert_ne!(after, k); }
            if share < 1.0 / 0.88 && bytes >= middle(k) { prop_assert_eq!(after, k); }
            prop_assert_eq!(bucket_after(bytes, None), bucket(bytes));
            prop_assert_eq!(bucket_after(bytes, Some(bucket(bytes))), bucket(bytes), "a plain bucket stays");
        }

        #[test]
        fn a_size_that_varies_around_a_border_stays_in_one_bucket(k in 4u8..60, first: bool, wobble in proptest::collection::vec(-0.05f64..0.05, 1..40)) {
            let border = middle(k) as f64 * std::f64::consts::SQRT_2;
            let start = if first { k } else { k + 1 };
            let mut now = Some(start);
            for w in wobble {
                now = Some(bucket_after((border * (1.0 + w)) as u64, now));
                prop_assert_eq!(now, Some(start));
            }
        }

        #[test]
        fn interpolation_stays_between_its_neighbours_and_meets_its_points(
            mut sizes in proptest::collection::btree_set(1u64..1 << 40, 1..8), at in 1u64..1 << 41, seed: u64
        ) {
            let mut r = stats::random::Random::new(seed);
            sizes.insert(1 << 20);
            let points: Vec<(u64, f64)> = sizes.iter().map(|s| (*s, 1.0 + 99.0 * r.unit())).collect();
            for p in &points {
                prop_assert!((interpolated(&points, p.0).unwrap() / p.1 - 1.0).abs() < 1e-9);
            }
            let value = interpolated(&points, at).unwrap();
            let all = points.iter().map(|p| p.1);
            prop_assert!(value >= all.clone().fold(f64::INFINITY, f64::min) - 1e-9 && value <= all.fold(0.0, f64::max) + 1e-9);
        }
    }

    #[test]
    fn powers_of_two_are_the_middles() {
        for k in 0..BUCKETS {
            assert_eq!(bucket(middle(k)), k);
        }
        assert_eq!((bucket(0), bucket(u64::MAX), bucket(46_340), bucket(46_341)), (0, 63, 15, 16));
        assert_eq!(interpolated(&[], 5), None);
    }
}
