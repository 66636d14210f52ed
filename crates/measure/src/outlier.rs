//! Outliers among readings.
//!
//! Within a host a reading is compared with subsets of the same class of links ([`crate::intra::class`]). Across hosts
//! it is compared with its nearest count vectors, as log-ratio to the expected bandwidth. Both comparisons use medians,
//! so that one bad reading does not affect the result for others.

use crate::features::{distance, features};
use crate::intra::class;
use stats::{mad_sd, mad_sd_about, median};
use std::collections::BTreeMap;
use topology::{Allocation, Cluster, GpuMask, HostId, HostType};

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

/// A host deviates from its type if the median of its spot checks is lower by more than this many robust standard
/// deviations of the hosts ...
const HOST_Z_MAX: f64 = 3.5;
/// ... and by more than this (log units) ...
pub const HOST_MIN: f64 = 0.05;
/// ... or a single spot check by more than this, and by [`HOST_Z_MAX`] robust standard deviations of all checks.
pub const HOST_SINGLE_MIN: f64 = 0.15;
/// A few checks of a host are repeated beyond this many robust standard deviations: fewer than above, so that noise does
/// not hide a slow host, and few enough that repetitions cost little.
const REPEAT_Z_MAX: f64 = 2.5;
/// Fewer hosts have no median that one bad host could not move: each is compared with the reference host.
pub const HOSTS_MIN: usize = 4;

/// A host with fewer spot checks than this has no median of its own.
const CHECKS_FOR_MEDIAN: usize = 4;

/// One spot check of a host.
#[derive(Clone, Copy, Debug)]
pub struct SpotReading {
    pub host: HostId,
    pub mask: GpuMask,
    pub gb_per_s: f64,
}

/// A host whose spot checks are slower than those of its type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviatingHost {
    pub host: HostId,
    /// Median over its checks of the log-ratio to the type.
    pub log_ratio: f64,
    /// Number of its checks.
    pub checks: usize,
}

/// The comparison of the spot checks of one type.
#[derive(Clone, Debug, Default)]
pub struct HostComparison {
    /// Indices of the readings to repeat.
    pub outliers: Vec<usize>,
    pub deviating: Vec<DeviatingHost>,
    /// The host nearest to the median, without the reference; `None` if hosts are compared with the reference.
    pub usual: Option<HostId>,
    /// Number of compared hosts; 0 if they are compared with the reference.
    pub hosts: usize,
}

/// Compares the hosts of a type by their spot checks, those of `reference` included. A check is compared with the median
/// over hosts of the checks of its class of links, and a host's median with the spread of the hosts. So neither noise nor
/// a defective reference makes a healthy host deviate. Readings of 0 deviate. A host faster than the median is healthy:
/// only slower ones deviate. Without a median, the faster of two hosts deviates too, because the reference may be the
/// slow one. O(n log n).
///
/// The spread is that of the hosts above the median: defects only make hosts slower, and many slow hosts would otherwise
/// hide each other.
pub fn hosts(host_type: &HostType, reference: HostId, readings: &[SpotReading]) -> HostComparison {
    let mut classes: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (i, r) in readings.iter().enumerate() {
        classes.entry(class(host_type, r.mask)).or_default().push(i);
    }
    let ln = |i: usize| readings[i].gb_per_s.max(1e-9).ln();
    // Log-ratio of each check to its class; none without a comparison.
    let mut ratio: Vec<Option<f64>> = vec![None; readings.len()];
    let mut by_median = false;
    for members in classes.values() {
        let mut hosts: Vec<HostId> = members.iter().map(|&i| readings[i].host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.len() >= HOSTS_MIN {
            by_median = true;
            let centre = median(&members.iter().map(|&i| ln(i)).collect::<Vec<_>>());
            members.iter().for_each(|&i| ratio[i] = Some(ln(i) - centre));
            continue;
        }
        for &i in members.iter().filter(|&&i| readings[i].host != reference) {
            let same = |j: &&usize| readings[**j].host == reference && readings[**j].mask == readings[i].mask;
            ratio[i] = members.iter().find(same).map(|&j| ln(i) - ln(j));
        }
    }
    let mut of_host: BTreeMap<HostId, Vec<usize>> = BTreeMap::new();
    (0..readings.len())
        .filter(|i| ratio[*i].is_some())
        .for_each(|i| of_host.entry(readings[i].host).or_default().push(i));
    let value = |i: usize| ratio[i].unwrap_or(0.0);
    let middle: Vec<(HostId, f64)> =
        of_host.iter().map(|(h, checks)| (*h, median(&checks.iter().map(|&i| value(i)).collect::<Vec<_>>()))).collect();
    let all: Vec<f64> = ratio.iter().flatten().copied().collect();
    let (spread_of_checks, many) = (upper_side(&all, median(&all)), checks_each(&of_host) >= CHECKS_FOR_MEDIAN);
    // The median of n checks scatters 1.25 / sqrt(n) times as much as one; few hosts may by chance show less.
    let chance = if many { 1.25 * spread_of_checks / (checks_each(&of_host) as f64).sqrt() } else { 0.0 };
    let (centre, spread) = match by_median {
        true => centre_and_spread(middle.iter().map(|m| m.1).collect(), chance),
        false => (0.0, 0.0),
    };
    let limit_of_one = HOST_SINGLE_MIN.max(HOST_Z_MAX * spread_of_checks);
    let mut out = HostComparison { hosts: if by_median { middle.len() } else { 0 }, ..HostComparison::default() };
    for ((h, checks), (_, of_all)) in of_host.iter().zip(&middle) {
        let few = checks.len() < CHECKS_FOR_MEDIAN;
        let limit = if few && !by_median { limit_of_one } else { HOST_MIN.max(HOST_Z_MAX * spread) };
        let log_ratio = of_all - centre;
        let below = |v: f64| if by_median { -v } else { v.abs() };
        if below(log_ratio) > limit || checks.iter().any(|&i| below(value(i) - centre) > limit_of_one) {
            out.deviating.push(DeviatingHost { host: *h, log_ratio, checks: checks.len() });
        }
        // A check of many is compared with the others of its host; a few decide alone, so they are repeated before they count.
        let (middle, most) = match (few, by_median) {
            (true, true) => (centre, HOST_MIN.max(REPEAT_Z_MAX * spread)),
            (true, false) => (0.0, limit_of_one),
            (false, _) => (*of_all, limit_of_one),
        };
        // A fast check of a few hides no slow host: it is repeated only if it is implausibly fast.
        let far = |v: f64| -v > most || v > most.max(limit_of_one);
        out.outliers.extend(checks.iter().copied().filter(|&i| far(value(i) - middle)));
    }
    let others = middle.iter().filter(|m| by_median && m.0 != reference);
    let far = |m: &(HostId, f64)| (m.1 - centre).abs();
    out.usual = others.min_by(|a, b| far(a).total_cmp(&far(b)).then(a.0.cmp(&b.0))).map(|m| m.0);
    out.outliers.sort_unstable();
    out
}

/// The usual number of checks of a host.
fn checks_each(of_host: &BTreeMap<HostId, Vec<usize>>) -> usize {
    stats::upper_median(&of_host.values().map(|c| c.len() as f64).collect::<Vec<_>>()) as usize
}

/// Centre and spread of the hosts, `chance` at least. Computed again without the hosts that deviate from the first ones:
/// many slow hosts move both.
fn centre_and_spread(mut values: Vec<f64>, chance: f64) -> (f64, f64) {
    let of = |values: &[f64]| (median(values), upper_side(values, median(values)).max(chance));
    let (centre, spread) = of(&values);
    values.retain(|v| (v - centre).abs() <= HOST_MIN.max(HOST_Z_MAX * spread));
    of(&values)
}

/// Robust standard deviation about `centre` of the values above it. 0 for fewer values than [`HOSTS_MIN`].
fn upper_side(values: &[f64], centre: f64) -> f64 {
    match values.len() < HOSTS_MIN {
        true => 0.0,
        false => mad_sd_about(&values.iter().copied().filter(|v| *v >= centre).collect::<Vec<_>>(), centre),
    }
}

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
