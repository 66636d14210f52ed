//! Statistics of small samples for all crates: order statistics, robust spread, the normal distribution, two-sample tests.
//!
//! The plugins that training processes load use this crate, so it has no dependencies. Slices hold samples in any order
//! unless a name contains `sorted`. The median, quantile and mean of an empty sample are NaN; [`median_or`] returns a
//! given value. Values are ordered by `f64::total_cmp`: NaN counts as the largest value (with its sign set, as the
//! smallest). Infinite values are valid, and no function panics.

#[cfg(any(test, feature = "random"))]
pub mod random;

/// The factor from the median absolute deviation to the standard deviation of a normal sample.
pub const MAD_TO_SD: f64 = 1.4826;

/// The q-quantile (0 to 1) of sorted values by linear interpolation between order statistics: Hyndman and Fan's type 7, which
/// NumPy, R and spreadsheets use by default. NaN for an empty sample.
pub fn quantile_of_sorted(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let low = at.floor() as usize;
    let (below, above) = (sorted[low], sorted[(low + 1).min(last)]);
    let weight = at - low as f64;
    // Scores of events that never happened are infinite. Interpolation would give NaN: 0 times infinity, or infinity
    // minus infinity.
    if weight == 0.0 || below == above { below } else { below + (above - below) * weight }
}

/// The values in ascending order.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut out = values.to_vec();
    out.sort_by(f64::total_cmp);
    out
}

/// The q-quantile of values in any order; see [`quantile_of_sorted`]. O(n log n).
pub fn quantile(values: &[f64], q: f64) -> f64 {
    quantile_of_sorted(&sorted(values), q)
}

/// The median; for an even number of values the mean of the two middle ones. O(n log n).
pub fn median(values: &[f64]) -> f64 {
    median_of_sorted(&sorted(values))
}

/// The median of sorted values.
pub fn median_of_sorted(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]),
    }
}

/// The median, or `empty` for an empty sample.
pub fn median_or(values: &[f64], empty: f64) -> f64 {
    if values.is_empty() { empty } else { median(values) }
}

/// As many values, each as often as its weight says, in their order: systematic resampling (Kitagawa 1996). `ln_weights`: the
/// weights' logarithms; `random`: a number from 0 to 1. O(n).
pub fn resampled<T: Clone>(values: &[T], ln_weights: &[f64], random: f64) -> Vec<T> {
    let Some(last) = values.last() else { return Vec::new() };
    let most = ln_weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = ln_weights.iter().map(|l| (l - most).exp()).collect();
    let step = weights.iter().sum::<f64>() / values.len() as f64;
    let (mut at, mut sum) = (random * step, 0.0);
    let mut out = Vec::with_capacity(values.len());
    for (value, weight) in values.iter().zip(&weights) {
        sum += weight;
        while at < sum && out.len() < values.len() {
            out.push(value.clone());
            at += step;
        }
    }
    // Rounding may leave out the last one.
    out.resize(values.len(), last.clone());
    out
}

/// The middle value; for an even number of values the upper of the two. Always one of the values. O(n log n).
pub fn upper_median(values: &[f64]) -> f64 {
    upper_median_of_sorted(&sorted(values))
}

/// [`upper_median`] of sorted values.
pub fn upper_median_of_sorted(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The value of rank (n - 1) q, rounded, for q from 0 to 1: always one of the values. Used for tables of run times. NaN
/// for an empty sample.
pub fn nearest_quantile_of_sorted(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    sorted[(q.clamp(0.0, 1.0) * last as f64).round() as usize]
}

/// Robust standard deviation about `centre`: [`MAD_TO_SD`] times the median distance from it. NaN for an empty sample.
pub fn mad_sd_about(values: &[f64], centre: f64) -> f64 {
    MAD_TO_SD * median(&values.iter().map(|v| (v - centre).abs()).collect::<Vec<_>>())
}

/// Robust standard deviation: [`mad_sd_about`] the median.
pub fn mad_sd(values: &[f64]) -> f64 {
    mad_sd_about(values, median(values))
}

/// The arithmetic mean; NaN for an empty sample.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The sample standard deviation (n - 1); 0 for fewer than two values.
pub fn standard_deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let m = mean(values);
    (values.iter().map(|x| (x - m).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}

/// The interquartile range, Q3 - Q1.
pub fn iqr(values: &[f64]) -> f64 {
    let s = sorted(values);
    quantile_of_sorted(&s, 0.75) - quantile_of_sorted(&s, 0.25)
}

/// The values, in their order, without those outside [Q1 - 1.5 IQR, Q3 + 1.5 IQR] (outlier rule of Bandit-Guided NCCL
/// Tuning).
pub fn iqr_trimmed(values: &[f64]) -> Vec<f64> {
    let s = sorted(values);
    let (q1, q3) = (quantile_of_sorted(&s, 0.25), quantile_of_sorted(&s, 0.75));
    let reach = 1.5 * (q3 - q1);
    values.iter().copied().filter(|x| (q1 - reach..=q3 + reach).contains(x)).collect()
}

/// The mean of the values that [`iqr_trimmed`] keeps. The bandit of Bandit-Guided NCCL Tuning ranks arms by it.
pub fn iqr_trimmed_mean(values: &[f64]) -> f64 {
    mean(&iqr_trimmed(values))
}

/// Probability that a standard normal variable exceeds `z`. Uses a series near 0 and a continued fraction outside; the
/// relative error is below 1e-12 up to z = 30.
pub fn normal_tail(z: f64) -> f64 {
    if z.is_nan() {
        return f64::NAN;
    }
    if z < 0.0 {
        return 1.0 - normal_tail(-z);
    }
    let density = normal_density(z);
    if z < 3.0 {
        // Phi(z) = 1/2 + density (z + z^3/3 + z^5/(3 5) + ...)
        let (mut term, mut sum, mut k) = (z, z, 1.0);
        while term > 1e-18 * sum {
            k += 2.0;
            term *= z * z / k;
            sum += term;
        }
        return 0.5 - density * sum;
    }
    // Mills' ratio as 1 / (z + 1 / (z + 2 / (z + 3 / ...))), evaluated from the innermost term.
    let fraction = (1..=200).rev().fold(z, |inner, k| z + f64::from(k) / inner);
    density / fraction
}

/// Probability that a standard normal variable is below `z`.
pub fn normal_cdf(z: f64) -> f64 {
    normal_tail(-z)
}

/// The density of the standard normal at `z`.
pub fn normal_density(z: f64) -> f64 {
    (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

/// Maximum sample size for the exact Mann-Whitney distribution.
pub const EXACT_MAX: usize = 25;

/// One-sided Mann-Whitney U test: the probability, if both samples come from one distribution, that `smaller` lies at
/// least as far below `larger` as observed. Exact (all arrangements counted) if there are no ties and both samples have
/// at most [`EXACT_MAX`] values; otherwise the normal approximation with corrections for ties and continuity. 1 if a
/// sample is empty or all values are equal. O((n + m) log (n + m)); O(n m (n + m)) if exact.
pub fn mann_whitney_below(smaller: &[f64], larger: &[f64]) -> f64 {
    let (n, m) = (smaller.len(), larger.len());
    if n == 0 || m == 0 {
        return 1.0;
    }
    let ranks = Ranks::of(smaller, larger);
    // U counts pairs in which `smaller` has the greater value; ties count half. A small U supports "below".
    let u = ranks.sum_of_first - (n * (n + 1)) as f64 / 2.0;
    if ranks.tie_term == 0.0 && n <= EXACT_MAX && m <= EXACT_MAX {
        return exact_at_most(n, m, u as usize);
    }
    let (nf, mf) = (n as f64, m as f64);
    let total = nf + mf;
    let variance = nf * mf / 12.0 * (total + 1.0 - ranks.tie_term / (total * (total - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = (u - nf * mf / 2.0 + 0.5) / variance.sqrt();
    normal_tail(-z).min(1.0)
}

struct Ranks {
    /// Sum of the mid-ranks of the first sample.
    sum_of_first: f64,
    /// Sum over groups of equal values of t^3 - t.
    tie_term: f64,
}

impl Ranks {
    fn of(first: &[f64], second: &[f64]) -> Ranks {
        let mut all: Vec<(f64, bool)> =
            first.iter().map(|x| (*x, true)).chain(second.iter().map(|x| (*x, false))).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut out = Ranks { sum_of_first: 0.0, tie_term: 0.0 };
        let mut start = 0;
        while start < all.len() {
            let end = start + all[start..].iter().take_while(|x| x.0 == all[start].0).count().max(1);
            let mid_rank = (start + 1 + end) as f64 / 2.0;
            let of_first = all[start..end].iter().filter(|x| x.1).count();
            out.sum_of_first += mid_rank * of_first as f64;
            let t = (end - start) as f64;
            out.tie_term += t * t * t - t;
            start = end;
        }
        out
    }
}

/// P(U <= u) over all arrangements of n and m untied values: f(n, m, u) = f(n-1, m, u-m) + f(n, m-1, u), as
/// probabilities.
fn exact_at_most(n: usize, m: usize, u: usize) -> f64 {
    let size = n * m + 1;
    // probability[j][u] for the current i: the probability of U = u with i and j values.
    let mut row: Vec<Vec<f64>> = (0..=m).map(|_| point_mass(size)).collect();
    for i in 1..=n {
        let mut next: Vec<Vec<f64>> = Vec::with_capacity(m + 1);
        next.push(point_mass(size));
        for j in 1..=m {
            let (take_first, take_second) = (i as f64 / (i + j) as f64, j as f64 / (i + j) as f64);
            let cell = (0..size)
                .map(|v| {
                    let from_first = if v >= j { row[j][v - j] } else { 0.0 };
                    take_first * from_first + take_second * next[j - 1][v]
                })
                .collect();
            next.push(cell);
        }
        row = next;
    }
    row[m][..=u.min(n * m)].iter().sum::<f64>().min(1.0)
}

fn point_mass(size: usize) -> Vec<f64> {
    let mut out = vec![0.0; size];
    out[0] = 1.0;
    out
}

/// Cliff's delta in the direction of the test: P(smaller < larger) - P(smaller > larger) over all pairs, from -1 to 1.
/// 0 if a sample is empty. O((n + m) log (n + m)).
pub fn cliffs_delta_below(smaller: &[f64], larger: &[f64]) -> f64 {
    let pairs = (smaller.len() * larger.len()) as f64;
    if pairs == 0.0 {
        return 0.0;
    }
    let n = smaller.len() as f64;
    let u = Ranks::of(smaller, larger).sum_of_first - n * (n + 1.0) / 2.0;
    1.0 - 2.0 * u / pairs
}

/// Split-half agreement: true if `smaller` has the lower median in both halves, each trimmed separately. False if a
/// half is empty. The caller must split the samples before trimming, because dropping a value first would shift later
/// values to the other half.
pub fn halves_agree_below(smaller: [&[f64]; 2], larger: [&[f64]; 2]) -> bool {
    let middle = |half: &[f64]| median(&iqr_trimmed(half));
    smaller.iter().zip(&larger).all(|(s, l)| middle(s) < middle(l)) // a comparison with NaN is false
}

#[cfg(test)]
mod tests;
