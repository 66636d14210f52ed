//! Decides whether PTS is worth running, by a vote of the most similar past requests.

use topology::Allocation;

/// Number of features of a request and EHA's answer.
pub const FEATURES: usize = 8 + HOST_BUCKETS;
/// Number of hosts with a feature of their own; all further hosts share the last feature.
const HOST_BUCKETS: usize = 8;
/// Number of past requests that vote; with fewer past requests PTS runs.
pub const NEIGHBOURS: usize = 5;
/// PTS is skipped if the votes for it have at most this share of the weight.
pub const RISK_MAX: f64 = 0.15;
/// Votes with at least this degree of contradiction (1: half and half) count as "PTS may help".
const CONFLICT_MAX: f64 = 0.30;
/// A distance has the weight 1 / (distance + this) in the vote.
const DISTANCE_MIN: f64 = 1e-6;

/// A past request.
#[derive(Clone, Debug, PartialEq)]
pub struct Past {
    /// The features of the request.
    pub features: [f64; FEATURES],
    /// True if other jobs mattered. Only past requests with the same value vote.
    pub contended: bool,
    /// True if PTS found a better allocation than EHA.
    pub pts_helped: bool,
}

/// The mismatch between EHA's answer and the free GPUs. Features: k; hosts of the answer; coverage of the plans; the
/// answer's hosts over all hosts with free GPUs; entropy of the answer's shares by host (1: even); its largest share;
/// half the L1 distance of its shares to those of the free GPUs, and to even shares over its hosts; per host the
/// difference of the answer's and the free GPUs' shares.
pub(super) fn features(k: usize, free: &Allocation, answer: &Allocation, coverage: f64) -> [f64; FEATURES] {
    let shares = |a: &Allocation| {
        let mut s = [0.0; HOST_BUCKETS];
        let total = a.gpu_count().max(1) as f64;
        for (h, m) in a.parts() {
            s[h.index().min(HOST_BUCKETS - 1)] += m.count() as f64 / total;
        }
        s
    };
    let (chosen, there) = (shares(answer), shares(free));
    let active = chosen.iter().filter(|s| **s > 0.0).count().max(1);
    let even = chosen.map(|s| if s > 0.0 { 1.0 / active as f64 } else { 0.0 });
    let half_l1 = |b: &[f64]| 0.5 * chosen.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f64>();
    let entropy = -chosen.iter().filter(|s| **s > 0.0).map(|s| s * s.ln()).sum::<f64>();
    let mut out = [0.0; FEATURES];
    out[0] = k as f64;
    out[1] = answer.host_count() as f64;
    out[2] = coverage;
    out[3] = active as f64 / there.iter().filter(|s| **s > 0.0).count().max(1) as f64;
    out[4] = if active > 1 { entropy / (active as f64).ln() } else { 0.0 };
    out[5] = chosen.iter().copied().fold(0.0, f64::max);
    out[6] = half_l1(&there);
    out[7] = half_l1(&even);
    for (o, (a, b)) in out[8..].iter_mut().zip(chosen.iter().zip(there)) {
        *o = a - b;
    }
    out
}

/// True if PTS should run: always, unless [`NEIGHBOURS`] similar past requests agree that it does not help.
/// O(past x features).
pub(super) fn pts_may_help(past: &[Past], query: &[f64; FEATURES], contended: bool) -> bool {
    let alike: Vec<&Past> = past.iter().filter(|p| p.contended == contended).collect();
    if alike.len() < NEIGHBOURS {
        return true;
    }
    let scales = scales(alike.iter().map(|p| &p.features).chain([query]));
    let distance = |p: &Past| {
        let squares = p.features.iter().zip(query).zip(scales).map(|((a, b), s)| ((a - b) / s).powi(2));
        squares.sum::<f64>().sqrt()
    };
    let mut by_distance: Vec<(f64, bool)> = alike.iter().map(|p| (distance(p), p.pts_helped)).collect();
    by_distance.sort_by(|a, b| a.0.total_cmp(&b.0));
    let weighed = by_distance[..NEIGHBOURS].iter().map(|(d, helped)| (1.0 / (d + DISTANCE_MIN), *helped));
    let (mut helped, mut all) = (0.0, 0.0);
    for (w, h) in weighed {
        all += w;
        helped += if h { w } else { 0.0 };
    }
    let risk = helped / all;
    let conflict = 1.0 - 2.0 * (risk - 0.5).abs();
    risk > RISK_MAX || conflict >= CONFLICT_MAX
}

/// Robust scale of every feature, with a lower limit for features that hardly vary.
fn scales<'f>(rows: impl Iterator<Item = &'f [f64; FEATURES]> + Clone) -> [f64; FEATURES] {
    std::array::from_fn(|i| {
        let column: Vec<f64> = rows.clone().map(|r| r[i]).collect();
        stats::mad_sd(&column).max(1e-9) // no rows: NaN, which `max` ignores
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(k: f64, pts_helped: bool) -> Past {
        let mut features = [0.0; FEATURES];
        features[0] = k;
        Past { features, contended: false, pts_helped }
    }

    fn at(k: f64) -> [f64; FEATURES] {
        past(k, false).features
    }

    #[test]
    fn without_enough_experience_pts_runs() {
        assert!(pts_may_help(&[], &at(8.0), false));
        let four: Vec<Past> = (0..4).map(|i| past(f64::from(i), false)).collect();
        assert!(pts_may_help(&four, &at(2.0), false));
    }

    #[test]
    fn neighbours_decide_not_the_crowd() {
        let mut all: Vec<Past> = (0..20).map(|i| past(f64::from(i), true)).collect();
        all.extend((40..50).map(|i| past(f64::from(i), false)));
        assert!(!pts_may_help(&all, &at(45.0), false));
        assert!(pts_may_help(&all, &at(10.0), false));
    }

    #[test]
    fn experience_of_idle_clusters_says_nothing_about_busy_ones() {
        let idle: Vec<Past> = (0..20).map(|i| past(f64::from(i), false)).collect();
        assert!(!pts_may_help(&idle, &at(10.0), false));
        assert!(pts_may_help(&idle, &at(10.0), true));
    }

    #[test]
    fn contradictory_neighbours_are_not_trusted() {
        let mixed: Vec<Past> = (0..20).map(|i| past(f64::from(i), i % 3 == 0)).collect();
        assert!(pts_may_help(&mixed, &at(10.5), false));
    }
}
