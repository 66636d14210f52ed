//! LinearBW: least squares on ten features of the hosts, the baseline of BandPilot's newer version.
//!
//! The features are those of its published code: mean, deviation, largest and smallest intra bandwidth over the hosts;
//! number of hosts; mean, deviation and largest count, largest minus smallest; total count. Like that code, the
//! features use raw bandwidths, not logarithms. The published code uses gradient descent; this code solves the least
//! squares directly, with a ridge of [`RIDGE`] against features that do not vary.

use super::tokens::Scale;
use linalg::LowerTriangular;
use predict::HostShare;
use serde::{Deserialize, Serialize};

/// Number of features.
pub const FEATURES: usize = 10;
/// Ridge added to the diagonal of the (scaled) normal equations, per sample.
const RIDGE: f64 = 1e-6;
/// Minimum prediction, because a linear function can give zero or negative values.
const BUSBW_MIN_GB_PER_S: f64 = 0.01;

/// A fitted linear function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FittedLine {
    /// Scales of the features.
    pub scales: [Scale; FEATURES],
    /// Weights of the scaled features, GB/s.
    pub weights: [f64; FEATURES],
    /// Mean of the fitted bandwidths, GB/s.
    pub offset_gb_per_s: f64,
    /// By host type: the feature value of a single GPU, as for networks.
    pub alone_gb_per_s: Vec<f64>,
}

fn mean_and_deviation(v: &[f64]) -> (f64, f64) {
    let mean = v.iter().sum::<f64>() / v.len() as f64;
    (mean, (v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64).sqrt())
}

fn features(parts: &[HostShare], alone_gb_per_s: &[f64]) -> [f64; FEATURES] {
    let alone = |p: &HostShare| alone_gb_per_s.get(p.host_type as usize).copied().unwrap_or(1.0);
    let bandwidths: Vec<f64> = parts.iter().map(|p| p.intra_gb_per_s.min(alone(p))).collect();
    let counts: Vec<f64> = parts.iter().map(|p| f64::from(p.count)).collect();
    let least = |v: &[f64]| v.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |v: &[f64]| v.iter().copied().fold(0.0, f64::max);
    let (bandwidth, bandwidth_sd) = mean_and_deviation(&bandwidths);
    let (count, count_sd) = mean_and_deviation(&counts);
    [
        bandwidth,
        bandwidth_sd,
        most(&bandwidths),
        least(&bandwidths),
        parts.len() as f64,
        count,
        count_sd,
        most(&counts),
        most(&counts) - least(&counts),
        counts.iter().sum(),
    ]
}

impl FittedLine {
    /// Solves the least squares. None only if the equations cannot be solved; the ridge prevents this for finite
    /// values.
    pub fn fit(seen: &[Vec<HostShare>], busbw_gb_per_s: &[f64], alone_gb_per_s: Vec<f64>) -> Option<FittedLine> {
        let n = seen.len();
        let rows: Vec<[f64; FEATURES]> = seen.iter().map(|p| features(p, &alone_gb_per_s)).collect();
        let scales: [Scale; FEATURES] = std::array::from_fn(|f| Scale::of(rows.iter().map(move |r| r[f])));
        let offset_gb_per_s = busbw_gb_per_s.iter().sum::<f64>() / n.max(1) as f64;
        let mut normal = LowerTriangular::zeros(FEATURES);
        let mut weights = [0.0; FEATURES];
        for (row, v) in rows.iter().zip(busbw_gb_per_s) {
            let x: [f64; FEATURES] = std::array::from_fn(|f| scales[f].down(row[f]));
            for i in 0..FEATURES {
                weights[i] += x[i] * (v - offset_gb_per_s);
                for (sum, xj) in normal.row_mut(i).iter_mut().zip(&x) {
                    *sum += x[i] * xj;
                }
            }
        }
        for i in 0..FEATURES {
            normal.row_mut(i)[i] += RIDGE * n as f64;
        }
        normal.cholesky()?.solve(&mut weights);
        Some(FittedLine { scales, weights, offset_gb_per_s, alone_gb_per_s })
    }

    /// Predicted bandwidth of a candidate, GB/s.
    pub fn busbw_gb_per_s(&self, parts: &[HostShare]) -> f64 {
        let row = features(parts, &self.alone_gb_per_s);
        let v = (0..FEATURES).map(|f| self.weights[f] * self.scales[f].down(row[f])).sum::<f64>();
        (v + self.offset_gb_per_s).clamp(BUSBW_MIN_GB_PER_S, 1e6)
    }

    /// True if all values are usable.
    pub fn check(&self, types: usize) -> Result<(), String> {
        let numbers = self.weights.iter().chain([&self.offset_gb_per_s]).all(|v| v.is_finite() && v.abs() < 1e9);
        let alone = self.alone_gb_per_s.len() == types
            && self.alone_gb_per_s.iter().all(|v| v.is_finite() && (0.0..=1e6).contains(v));
        if numbers && alone && self.scales.iter().all(Scale::fine) {
            Ok(())
        } else {
            Err("a number of its line is out of range".into())
        }
    }
}
