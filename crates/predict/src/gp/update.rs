//! Learning one more reading without a new fit.

use super::{Gp, GpPoint, OUTLIER_SDS, POINTS_MAX, UPDATED_POINTS_MAX};
use std::collections::HashMap;

impl Gp {
    /// The reading that a full process drops ([`UPDATED_POINTS_MAX`]): the oldest of the split with the most
    /// readings; of splits with as many, the one read first. O(n).
    pub fn dispensable(&self) -> Option<usize> {
        if self.points.len() < UPDATED_POINTS_MAX {
            return None;
        }
        let mut splits: HashMap<Vec<u64>, (usize, usize)> = HashMap::new();
        for (i, p) in self.points.iter().enumerate() {
            splits.entry(p.x.iter().map(|v| v.to_bits()).collect()).or_insert((0, i)).0 += 1;
        }
        splits.into_values().max_by_key(|&(count, first)| (count, std::cmp::Reverse(first))).map(|s| s.1)
    }

    /// Learns one more reading, hyperparameters unchanged: O(n²). A full process drops its [dispensable](Gp::dispensable) reading. `false` if
    /// the reading is degenerate.
    pub fn update(&mut self, point: GpPoint) -> bool {
        self.update_without(self.dispensable(), point)
    }

    /// The same, dropping the reading `drop` first.
    pub(crate) fn update_without(&mut self, drop: Option<usize>, point: GpPoint) -> bool {
        let count = self.points.len() - usize::from(drop.is_some());
        if count >= POINTS_MAX || !point.y.is_finite() || point.x.iter().any(|v| !v.is_finite()) {
            return false;
        }
        if let Some(k) = drop {
            self.points.remove(k);
            self.factor.remove(k);
            self.refresh_columns();
            self.refresh_alpha();
        }
        let mut point = point;
        let mut scratch = Vec::new();
        let expected = self.feature_mean(&point.x, &mut scratch)
            + point.hosts.iter().map(|&(h, w)| w * self.host_effect(h)).sum::<f64>();
        let (_, sd) = self.deviation(&point.x, &point.hosts);
        let z2 = ((point.y - expected) / sd).powi(2);
        if z2 > OUTLIER_SDS * OUTLIER_SDS {
            // The reading counts little until a few others agree.
            point.noise_factor = ((point.y - expected) / self.noise_sd()).powi(2).clamp(1.0, 1e4);
        }
        self.points.push(point);
        self.refresh_columns();
        let i = self.points.len() - 1;
        let mut row = vec![0.0; i + 1];
        self.kernel_of_point(i, i, &mut row);
        row[i] = self.own_variance(i);
        if !self.factor.append(&row) {
            self.points.pop();
            self.refresh_columns();
            return false;
        }
        self.refresh_alpha();
        true
    }
}
