//! Readings that lie far from all others: their own noise, and what an odd reading says of its split.
//!
//! A reading's noise beyond the ordinary is its own: no other place shares it, so one bad reading among good ones says nothing of others.

use super::{Gp, GpPoint};
use std::collections::HashMap;

/// A reading counts less if its leave-one-out residual is beyond so many standard deviations.
pub(super) const OUTLIER_SDS: f64 = 2.8;
/// Before the hyperparameters are known, a residual beyond so many standard deviations of the starting ones marks a reading as an outlier.
pub(super) const ABSURD_SDS: f64 = 8.0;
/// Largest variance of a reading's own noise, as a multiple of the common one: a reading a thousand deviations off says nothing.
pub(super) const NOISE_FACTOR_MAX: f64 = 1e6;
/// Most marks of outliers of one fit.
pub(super) const MARKS_MAX: usize = 4;
/// A split whose only reading is odd may be odd itself: its irregularity has the variance of that reading's noise, up to so many times the
/// ordinary one. A second reading of the split, on other hosts, says which of the two is odd.
const ODD_SPLIT_MAX: f64 = 4.0;

/// The noise of a reading, as a multiple of the common variance `n2`, that lies `residual` from its prediction, with `variance` as an ordinary
/// reading. It begins at `sds` deviations and grows with the third power of the distance, so that no threshold divides readings, and
/// what a reading says of others falls with the square.
pub(super) fn noise_factor(residual: f64, variance: f64, n2: f64, sds: f64) -> f64 {
    let beyond = residual.abs() / (sds * variance.sqrt());
    (1.0 + variance / n2 * (beyond.powi(3) - 1.0).max(0.0)).clamp(1.0, NOISE_FACTOR_MAX)
}

impl Gp {
    /// Gives readings beyond `sds` standard deviations their own noise. `true` if anything changed.
    pub(super) fn mark_outliers(&mut self, sds: f64) -> bool {
        let n2 = self.variances()[1];
        let mut changed = false;
        for (i, inverse) in self.factor.inverse_diagonal().into_iter().enumerate() {
            let v = 1.0 / inverse;
            let residual = self.alpha[i] * v;
            // Its variance as an ordinary reading.
            let ordinary = (v - n2 * (self.points[i].noise_factor - 1.0)).max(n2);
            let factor = noise_factor(residual, ordinary, n2, sds);
            if (factor / self.points[i].noise_factor - 1.0).abs() > 0.05 {
                self.points[i].noise_factor = factor;
                changed = true;
            }
        }
        changed
    }

    /// The variance of every split's irregularity ([`ODD_SPLIT_MAX`]).
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
