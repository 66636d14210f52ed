//! Lower scores for lopsided splits among running jobs.
//!
//! The authors' reason: where NICs are shared, a long tail (8+1, 8+8+1) loses more bandwidth than the model learned in
//! training. They apply this only to clusters of one host type.

use place::Objective;

/// Largest difference of counts that does not count as lopsided.
const SPREAD_MAX: usize = 5;

/// True if other jobs matter and all hosts are of one type.
pub(super) fn applies(objective: &Objective) -> bool {
    let first = objective.cluster.hosts.first().map(|h| h.host_type);
    objective.contended() && objective.cluster.hosts.iter().all(|h| Some(h.host_type) == first)
}

/// Factor for a split's score: 0.5 to 1.
///
/// The factor is 1 unless the counts differ by more than [`SPREAD_MAX`]. Otherwise it is the product of these factors:
///
/// - 0.6 + 0.4 x least / largest;
/// - 1 - 0.35 x share of hosts with eight or more GPUs;
/// - 1 - 0.5 x imbalance (sum of |count - mean| over the total), at least 0.45;
/// - 0.35 if a host gives one GPU.
pub(super) fn multiplier(counts: &[usize]) -> f64 {
    let (Some(&least), Some(&largest)) = (counts.iter().min(), counts.iter().max()) else { return 1.0 };
    if largest - least <= SPREAD_MAX {
        return 1.0;
    }
    let hosts = counts.len() as f64;
    let total: usize = counts.iter().sum();
    let mean = total as f64 / hosts;
    let density = least as f64 / largest as f64;
    let saturated = counts.iter().filter(|c| **c >= 8).count() as f64 / hosts;
    let imbalance = counts.iter().map(|c| (*c as f64 - mean).abs()).sum::<f64>() / total as f64;
    let tail = if least == 1 { 0.35 } else { 1.0 };
    ((0.6 + 0.4 * density) * (1.0 - 0.35 * saturated) * (1.0 - 0.5 * imbalance).max(0.45) * tail).max(0.5)
}

#[cfg(test)]
mod tests {
    use super::multiplier;

    #[test]
    fn balanced_and_slightly_uneven_splits_keep_their_score() {
        for counts in [vec![8], vec![4, 4], vec![8, 3], vec![1, 6]] {
            assert_eq!(multiplier(&counts), 1.0, "{counts:?}");
        }
    }

    #[test]
    fn long_tails_lose_up_to_half() {
        assert_eq!(multiplier(&[8, 1]), 0.5);
        assert_eq!(multiplier(&[8, 8, 1]), 0.5);
        let m = multiplier(&[8, 2]);
        assert!((0.5..0.6).contains(&m), "{m}");
    }
}
