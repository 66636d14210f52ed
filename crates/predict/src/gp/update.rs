//! Learns one more reading without a new fit.

use super::outliers::{OUTLIER_SDS, noise_factor};
use super::{Gp, GpPoint, POINTS_MAX, UPDATED_POINTS_MAX};
use std::collections::HashMap;

impl Gp {
    /// The reading that a full process drops ([`UPDATED_POINTS_MAX`]): the oldest one of the split with the most
    /// readings. Among splits with equally many readings, the split that was measured first is chosen. O(n).
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

    /// Index of the readings of a point's allocation, if it was measured before. O(n).
    pub(crate) fn place_of(&self, point: &GpPoint) -> Option<usize> {
        self.points.iter().position(|p| p.is_of(point))
    }

    /// True if the newest reading of the allocation with index `at` has the target `y`.
    pub(crate) fn is_newest(&self, at: usize, y: f64) -> bool {
        let p = &self.points[at];
        *p.recent.last().unwrap_or(&p.y) == y
    }

    /// Learns one more reading with unchanged hyperparameters. O(n²); O(n³) where it makes earlier outliers believed. A full process drops its
    /// [dispensable](Gp::dispensable) reading. `false` if the reading is degenerate.
    pub fn update(&mut self, point: GpPoint) -> bool {
        let instead = self.place_of(&point).map(Instead::Join).or_else(|| self.dispensable().map(Instead::Drop));
        self.update_instead(instead, point)
    }

    /// Learns one more reading, which replaces an earlier one if `instead` is set.
    pub(crate) fn update_instead(&mut self, instead: Option<Instead>, point: GpPoint) -> bool {
        let count = self.points.len() - usize::from(instead.is_some());
        if count >= POINTS_MAX || !point.y.is_finite() || point.x.iter().any(|v| !v.is_finite()) {
            return false;
        }
        let mut point = point;
        if let Some(Instead::Join(k)) = instead {
            point = point.joined(&self.points[k]);
        }
        if let Some(Instead::Drop(k) | Instead::Join(k)) = instead {
            self.points.remove(k);
            self.factor.remove(k);
            self.refresh_columns();
            self.refresh_alpha();
        }
        let (residual, noise_factor) = self.residual_of(&point);
        point.noise_factor = noise_factor;
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
        match self.believe_agreeing(residual) {
            true => self.condition_noisier(),
            false => {
                self.refresh_alpha();
                true
            }
        }
    }

    /// The distance of a new reading from its prediction, and its noise: larger for an implausible one, so that it counts less.
    fn residual_of(&self, point: &GpPoint) -> (f64, f64) {
        if self.points.is_empty() {
            return (0.0, 1.0);
        }
        let hosts = point.hosts.iter().map(|&(h, w)| w * self.host_effect(h)).sum::<f64>();
        let off = point.y - self.feature_mean(&point.x, &mut Vec::new()) - hosts;
        let (_, sd) = self.deviation(&point.x, &point.hosts);
        (off, noise_factor(off, sd * sd, self.noise_sd().powi(2), OUTLIER_SDS))
    }
}

/// The point that a new reading replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instead {
    /// The point of another allocation; its readings are dropped.
    Drop(usize),
    /// The point of the same allocation; the readings are merged.
    Join(usize),
}
