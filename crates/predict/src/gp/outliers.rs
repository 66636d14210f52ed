//! Readings far from all others: their own noise, and their effect on the irregularity of their split.
//!
//! A reading's noise beyond the ordinary belongs to that reading alone: one bad reading among good ones does not affect
//! other predictions.

use super::{Gp, GpPoint, host_overlap};
use std::collections::HashMap;

/// Leave-one-out residual, in standard deviations, beyond which a reading counts less.
pub(super) const OUTLIER_SDS: f64 = 2.8;
/// Residual, in standard deviations under the starting hyperparameters, beyond which a reading is marked as an outlier
/// before the fit.
pub(super) const ABSURD_SDS: f64 = 8.0;
/// Maximum variance of a reading's own noise, as a multiple of the common one: a reading a thousand deviations off
/// carries no information.
pub(super) const NOISE_FACTOR_MAX: f64 = 1e6;
/// Maximum number of rounds of marking outliers in one fit.
pub(super) const MARKS_MAX: usize = 4;
/// Maximum variance of a split's irregularity, as a multiple of the ordinary one. A split whose only reading is an
/// outlier may itself be irregular, so its irregularity gets the variance of that reading's noise up to this limit. A
/// second reading of the split, on other hosts, shows which of the two is the cause.
const ODD_SPLIT_MAX: f64 = 4.0;
/// Outliers of one split, on hosts that have nothing in common, from which they are believed. A slow part explains one of them; so many are the split.
const AGREEING_MIN: usize = 3;
/// Distance between outliers that agree, as a share of the newest one's residual.
const AGREEING_SHARE: f64 = 0.25;
/// Largest residual (of the logarithm, a factor of 4) of outliers that are believed: beyond, a wrong unit is more probable.
const AGREEING_LN_MAX: f64 = 1.4;

/// The noise of a reading as a multiple of the common variance `n2`. The reading lies `residual` from its prediction
/// and has the variance `variance` as an ordinary reading. The factor exceeds 1 beyond `sds` deviations and grows with
/// the third power of the distance. No sharp threshold divides readings, and the influence of a reading falls with the
/// square of its distance.
pub(super) fn noise_factor(residual: f64, variance: f64, n2: f64, sds: f64) -> f64 {
    let beyond = residual.abs() / (sds * variance.sqrt());
    (1.0 + variance / n2 * (beyond.powi(3) - 1.0).max(0.0)).clamp(1.0, NOISE_FACTOR_MAX)
}

impl Gp {
    /// Gives readings beyond `sds` standard deviations their own noise. `true` if any noise changed.
    pub(super) fn mark_outliers(&mut self, sds: f64) -> bool {
        let n2 = self.variances()[1];
        let mut changed = false;
        for (i, inverse) in self.factor.inverse_diagonal().into_iter().enumerate() {
            let v = 1.0 / inverse;
            let residual = self.alpha[i] * v;
            // The variance as an ordinary reading.
            let ordinary = (v - n2 * (self.points[i].noise_factor - 1.0)).max(n2);
            let factor = noise_factor(residual, ordinary, n2, sds);
            if (factor / self.points[i].noise_factor - 1.0).abs() > 0.05 {
                self.points[i].noise_factor = factor;
                changed = true;
            }
        }
        changed
    }

    /// Those of these readings that are on hosts which no other one of them has. O(n²) of their number.
    fn separate(&self, readings: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut separate: Vec<usize> = Vec::new();
        for j in readings {
            let hosts = &self.points[j].hosts;
            if separate.iter().all(|q| host_overlap(hosts, &self.points[*q].hosts) == 0.0) {
                separate.push(j);
            }
        }
        separate
    }

    /// True if the readings of a split, which is given by its scaled features, are on so many separate sets of hosts that no slow part explains what
    /// they have in common.
    pub(super) fn is_of_many_hosts(&self, row: &[f64]) -> bool {
        self.separate(self.twins(row).filter(|j| self.points[*j].noise_factor <= 1.0)).len() >= AGREEING_MIN
    }

    /// Believes the newest reading, an outlier that lies `residual` from its prediction, and the outliers of its split that agree with it, if they
    /// are on [`AGREEING_MIN`] separate sets of hosts and half as many again as the readings that disagree: where hosts are of two kinds, every
    /// reading would turn the split otherwise. Those count less from now on. `true` if
    /// any noise changed. O(n).
    pub(super) fn believe_agreeing(&mut self, residual: f64) -> bool {
        let Some(newest) = self.points.len().checked_sub(1).filter(|i| self.points[*i].noise_factor > 1.0) else {
            return false;
        };
        let y = self.points[newest].y;
        let noise = self.noise_sd();
        let near = (AGREEING_SHARE * residual.abs()).max(OUTLIER_SDS * noise);
        let (agreeing, others): (Vec<usize>, Vec<usize>) = self
            .twins(&self.rows[newest])
            .partition(|j| self.points[*j].noise_factor > 1.0 && (self.points[*j].y - y).abs() <= near);
        let separate = self.separate(agreeing.iter().rev().copied());
        let ordinary = others.iter().filter(|j| self.points[**j].noise_factor <= 1.0).count();
        if residual.abs() > AGREEING_LN_MAX || separate.len() < AGREEING_MIN || 2 * separate.len() <= 3 * ordinary {
            return false;
        }
        let middle = stats::upper_median(&separate.iter().map(|j| self.points[*j].y).collect::<Vec<_>>());
        for j in agreeing.into_iter().chain(others) {
            let p = &mut self.points[j];
            p.noise_factor = noise_factor(p.y - middle, noise * noise, noise * noise, OUTLIER_SDS);
        }
        true
    }

    /// Recomputes the variance of every split's irregularity ([`ODD_SPLIT_MAX`]).
    pub(super) fn refresh_oddity(&mut self) {
        let key = |row: &[f64]| row.iter().map(|v| v.to_bits()).collect::<Vec<u64>>();
        let mut readings: HashMap<Vec<u64>, usize> = HashMap::new();
        self.rows.iter().for_each(|r| *readings.entry(key(r)).or_default() += 1);
        let of = |(p, r): (&GpPoint, &Vec<f64>)| {
            if p.noise_factor > 1.0 && readings[&key(r)] == 1 { p.noise_factor.min(ODD_SPLIT_MAX) } else { 1.0 }
        };
        self.oddity = self.points.iter().zip(&self.rows).map(of).collect();
    }
}
