//! Outliers of measured tables: rows far from comparable rows. Tables that were measured once contain some of them.

use super::tables::{CountRows, IntraRows};
use topology::{Allocation, GpuMask, HostType};

/// Treatment of outliers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Outliers {
    /// Keep them as the truth.
    #[default]
    Keep,
    /// Remove them: allocations that need them have no row.
    Remove,
    /// Replace them by the median of comparable rows.
    Replace,
}

impl Outliers {
    /// The word in descriptions.
    pub fn word(self) -> &'static str {
        match self {
            Outliers::Keep => "kept",
            Outliers::Remove => "removed",
            Outliers::Replace => "replaced",
        }
    }
}

/// Treats the flagged rows of one host and returns their number. Flags: [`measure::outlier::intra`].
pub fn intra(t: &HostType, rows: &mut IntraRows, how: Outliers) -> usize {
    let readings: Vec<(GpuMask, f64)> = rows.rows().collect();
    let flagged = measure::outlier::intra(t, &readings);
    for &i in &flagged {
        let (mask, _) = readings[i];
        let class = measure::intra::class(t, mask);
        let like = readings.iter().enumerate().filter(|(j, r)| {
            !flagged.contains(j) && r.0.count() == mask.count() && measure::intra::class(t, r.0) == class
        });
        let like: Vec<f64> = like.map(|(_, r)| r.1).collect();
        let new = (how == Outliers::Replace && !like.is_empty()).then(|| stats::upper_median(&like));
        rows.set(mask, new);
    }
    flagged.len()
}

/// Treats the flagged multi-host rows and returns their number. Flags: [`measure::outlier::multi`], compared with the
/// physics with nominal constants. A replaced row gets the physics' estimate times the median ratio of the nearest rows
/// to their estimates.
pub fn counts(cluster: &topology::Cluster, rows: &mut CountRows, how: Outliers) -> usize {
    let fabric = fabric::Fabric::with_constants(cluster, fabric::Constants::unfitted());
    let mut keys: Vec<_> = rows.by_counts.keys().copied().collect();
    keys.sort();
    let readings: Vec<(Allocation, f64, f64)> = keys
        .iter()
        .map(|k| {
            let a = k.allocation();
            let expected = fabric.estimate(&a, rows.collective, rows.size).busbw.gb_per_s();
            (a, rows.by_counts[k], expected)
        })
        .collect();
    let flagged = measure::outlier::multi(cluster, &readings);
    let features: Vec<Vec<f64>> = readings.iter().map(|r| measure::features::features(cluster, &r.0)).collect();
    for &i in &flagged {
        let mut near: Vec<(f64, f64)> = (0..readings.len())
            .filter(|j| !flagged.contains(j))
            .map(|j| (measure::features::distance(&features[i], &features[j]), readings[j].1 / readings[j].2))
            .collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let ratios: Vec<f64> = near.iter().take(measure::outlier::NEIGHBOURS).map(|n| n.1).collect();
        if how == Outliers::Replace && !ratios.is_empty() {
            rows.by_counts.insert(keys[i], readings[i].2 * stats::upper_median(&ratios));
        } else {
            rows.by_counts.remove(&keys[i]);
        }
    }
    flagged.len()
}
