//! Outliers among readings.
//!
//! Within a host a reading is compared with subsets of the same class of links ([`crate::intra::class`]). Across hosts
//! it is compared with its nearest count vectors, as log-ratio to the expected bandwidth. Both comparisons use medians,
//! so that one bad reading does not affect the result for others.

use crate::features::{distance, features};
use crate::intra::class;
use stats::{mad_sd, mad_sd_about, median};
use std::collections::BTreeMap;
use topology::{Allocation, Cluster, GpuMask, HostType};

/// A reading beyond this many robust standard deviations is an outlier ...
pub const Z_MAX: f64 = 5.0;
/// ... with at least this standard deviation (log units) within a host ...
pub const SPREAD_INTRA_MIN: f64 = 0.015;
/// ... and this across hosts, where the expectation is less accurate.
pub const SPREAD_MULTI_MIN: f64 = 0.03;
/// Smaller classes are not judged: if two readings differ, either may be wrong.
pub const CLASS_MIN: usize = 4;
/// Nearest neighbours with which a count vector is compared.
pub const NEIGHBOURS: usize = 6;
/// Two readings of a point agree within this difference (log units).
pub const AGREEMENT_LOG_MAX: f64 = 0.06;

/// Indices of the outliers among the readings of one host, GB/s. Zero or less is always an outlier. O(n log n).
pub fn intra(host: &HostType, readings: &[(GpuMask, f64)]) -> Vec<usize> {
    let mut classes: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (i, (mask, gb_per_s)) in readings.iter().enumerate() {
        if *gb_per_s > 0.0 {
            classes.entry(class(host, *mask)).or_default().push(i);
        }
    }
    let mut found: Vec<usize> = (0..readings.len()).filter(|&i| readings[i].1 <= 0.0).collect();
    for members in classes.values().filter(|m| m.len() >= CLASS_MIN) {
        let logs: Vec<f64> = members.iter().map(|&i| readings[i].1.ln()).collect();
        let centre = median(&logs);
        let limit = Z_MAX * mad_sd_about(&logs, centre).max(SPREAD_INTRA_MIN);
        found.extend(members.iter().zip(&logs).filter(|(_, l)| (*l - centre).abs() > limit).map(|(i, _)| *i));
    }
    found.sort_unstable();
    found
}

/// Indices of the outliers among multi-host readings (allocation, reading and expected bandwidth, GB/s). O(n² d).
pub fn multi(cluster: &Cluster, readings: &[(Allocation, f64, f64)]) -> Vec<usize> {
    let mut found: Vec<usize> = (0..readings.len()).filter(|&i| readings[i].1 <= 0.0).collect();
    let usable: Vec<usize> = (0..readings.len()).filter(|&i| readings[i].1 > 0.0 && readings[i].2 > 0.0).collect();
    if usable.len() > NEIGHBOURS {
        let points: Vec<(Vec<f64>, f64)> =
            usable.iter().map(|&i| (features(cluster, &readings[i].0), (readings[i].1 / readings[i].2).ln())).collect();
        let residuals: Vec<f64> = (0..points.len())
            .map(|i| {
                let mut near: Vec<(f64, f64)> = (0..points.len())
                    .filter(|&j| j != i)
                    .map(|j| (distance(&points[i].0, &points[j].0), points[j].1))
                    .collect();
                near.select_nth_unstable_by(NEIGHBOURS - 1, |a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
                let logs: Vec<f64> = near[..NEIGHBOURS].iter().map(|n| n.1).collect();
                points[i].1 - median(&logs)
            })
            .collect();
        let limit = Z_MAX * mad_sd(&residuals).max(SPREAD_MULTI_MIN);
        found.extend(usable.iter().zip(&residuals).filter(|(_, r)| r.abs() > limit).map(|(i, _)| *i));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The value of a point with repeated readings, which is their median, and the readings that disagree with it.
pub fn resolve_readings(readings: &[f64]) -> (f64, Vec<bool>) {
    let positive: Vec<f64> = readings.iter().map(|r| r.max(1e-9)).collect();
    // For an even number the upper middle value is taken, because contention and interruptions only slow a run down.
    let middle = if positive.is_empty() { 0.0 } else { stats::upper_median(&positive) };
    (middle, positive.iter().map(|r| (r / middle).ln().abs() > AGREEMENT_LOG_MAX).collect())
}

pub fn agree(a: f64, b: f64) -> bool {
    a > 0.0 && b > 0.0 && (a / b).ln().abs() <= AGREEMENT_LOG_MAX
}
