//! Count-vector features: a description of a multi-host allocation before anything is measured.

use topology::{Allocation, Cluster};

/// Features in which similar allocations are close: hosts; smallest, largest and mean GPU count; fewest NICs used (all as logarithms); and each host
/// type's share of the GPUs. O(parts x GPUs x NICs).
pub fn features(cluster: &Cluster, allocation: &Allocation) -> Vec<f64> {
    let counts = allocation.counts();
    let total: usize = counts.iter().sum();
    let ln = |n: usize| (n.max(1) as f64).ln();
    let nics = allocation.parts().iter().map(|(h, m)| cluster.type_of(*h).nics_touched(*m).count_ones() as usize).min();
    let mut f = vec![
        1.5 * ln(counts.len()),
        2.0 * ln(counts.iter().copied().min().unwrap_or(0)),
        ln(counts.iter().copied().max().unwrap_or(0)),
        ln(total) - ln(counts.len()),
        ln(nics.unwrap_or(0)),
    ];
    let mut shares = vec![0.0; cluster.types.len()];
    for (h, m) in allocation.parts() {
        shares[cluster.host(*h).host_type] += m.count() as f64 / total.max(1) as f64;
    }
    f.extend(shares);
    f
}

/// Squared Euclidean distance.
pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum()
}
