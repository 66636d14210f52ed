//! The negative log posterior of hyperparameters and its gradient, and the fit that minimises it.

use super::{GpPoint, Hyperparameters, JITTER, LASTING, NOISE_SD, host_overlap, matern, weighted_squares};
use crate::stop::Stop;
use linalg::{LowerTriangular, dot};

/// The value of the likelihood if the kernel matrix is not positive definite.
const DEGENERATE: f64 = 1e9;
/// Minimum and maximum logarithm of the noise, in units of the target's deviation.
const LN_NOISE: (f64, f64) = (-5.0, 1.0);

/// The expected noise of readings whose targets have the standard deviation `y_sd`: its logarithm in units of `y_sd`.
pub(super) fn expected_ln_noise(y_sd: f64) -> f64 {
    (NOISE_SD.0 / y_sd).ln().clamp(-2.0, 0.5)
}

/// The values that do not change with the hyperparameters. `d` features, `n` readings.
pub(super) struct Likelihood {
    /// Scaled features, point by point.
    x: Vec<Vec<f64>>,
    /// Scaled targets.
    y: Vec<f64>,
    /// Noise factor of each reading.
    noise: Vec<f64>,
    /// Linear part of the kernel, lower triangle.
    linear: Vec<Vec<f64>>,
    /// Host part of the kernel, lower triangle.
    hosts: Vec<Vec<f64>>,
    /// Indices of earlier readings of the same split.
    twins: Vec<Vec<usize>>,
    /// Weak priors: mean and standard deviation of each logarithm.
    prior: Vec<(f64, f64)>,
    /// Minimum logarithm of the noise.
    ln_noise_min: f64,
    /// The smooth part of the kernel and its slope at the last hyperparameters, as lower triangles.
    smooth: Vec<Vec<f64>>,
    slope: Vec<Vec<f64>>,
}

/// Hyperparameters as variances: smooth, noise, linear, host.
struct Variances {
    s2: f64,
    n2: f64,
    l2: f64,
    h2: f64,
}

impl Likelihood {
    /// Builds the likelihood from readings, their `d` scaled features and their targets in units of `y_sd`. O(n² (d +
    /// hosts)).
    pub(super) fn new(points: &[GpPoint], d: usize, x: Vec<Vec<f64>>, y: Vec<f64>, y_sd: f64) -> Likelihood {
        let n = points.len();
        let noise: Vec<f64> = points.iter().map(|p| p.noise_factor).collect();
        let linear: Vec<Vec<f64>> =
            (0..n).map(|i| (0..=i).map(|j| 1.0 + dot(&x[i], &x[j]) / d.max(1) as f64).collect()).collect();
        let hosts: Vec<Vec<f64>> =
            (0..n).map(|i| (0..=i).map(|j| host_overlap(&points[i].hosts, &points[j].hosts)).collect()).collect();
        let twins: Vec<Vec<usize>> = (0..n)
            .map(|i| {
                let same = |j: &usize| x[i].iter().zip(&x[*j]).all(|(a, b)| (a - b).abs() < 1e-9);
                (0..i).filter(same).collect()
            })
            .collect();
        let mut prior = vec![(1.0, 1.0); d];
        prior.extend([(0.0, 3.0), (expected_ln_noise(y_sd), 1.4), (-1.0, 3.0), (-2.5, 1.0)]);
        let ln_noise_min = (NOISE_SD.1 / y_sd).ln().clamp(LN_NOISE.0, 0.0);
        let smooth: Vec<Vec<f64>> = (0..n).map(|i| vec![0.0; i + 1]).collect();
        let slope = smooth.clone();
        Likelihood { x, y, noise, linear, hosts, twins, prior, ln_noise_min, smooth, slope }
    }

    /// Minimises from `start`. Returns the best hyperparameters and the number of evaluations.
    pub(super) fn minimise(
        mut self,
        start: &Hyperparameters,
        evaluations_max: usize,
        stop: Stop<'_>,
    ) -> (Hyperparameters, usize) {
        let d = start.ln_length.len();
        let mut theta: Vec<f64> = start.ln_length.clone();
        theta.extend([start.ln_smooth, start.ln_noise, start.ln_linear, start.ln_host]);
        let mut bounds = vec![(-2.0, 5.0); d];
        bounds.extend([(-3.0, 3.0), (self.ln_noise_min, LN_NOISE.1), (-5.0, 2.0), (-6.0, 0.5)]);
        let mut f = |t: &[f64], g: &mut [f64]| {
            if stop.is_set() {
                g.fill(0.0);
                return 0.0;
            }
            self.evaluate(t, g)
        };
        let effort = linalg::minimise(&mut f, &mut theta, &bounds, evaluations_max);
        let hyper = Hyperparameters {
            ln_length: theta[..d].to_vec(),
            ln_smooth: theta[d],
            ln_noise: theta[d + 1],
            ln_linear: theta[d + 2],
            ln_host: theta[d + 3],
        };
        (hyper, effort.evaluations)
    }

    /// The value at hyperparameters `t`; writes the gradient to `g`. n³/2 multiply-adds.
    fn evaluate(&mut self, t: &[f64], g: &mut [f64]) -> f64 {
        let d = t.len() - 4;
        let inverse_sq: Vec<f64> = t[..d].iter().map(|l| (-2.0 * l).exp()).collect();
        let [s2, n2, l2, h2] = [0, 1, 2, 3].map(|i| (2.0 * t[d + i]).exp());
        let v = Variances { s2, n2, l2, h2 };
        // Feature-major, so that the inner loops run over points.
        let columns: Vec<Vec<f64>> =
            (0..d).map(|c| self.x.iter().map(|r| r[c] * inverse_sq[c].sqrt()).collect()).collect();
        g.fill(0.0);
        let Some(factor) = self.kernel(&columns, &v).cholesky() else { return DEGENERATE };
        let mut a = self.y.clone();
        factor.solve(&mut a);
        let mut value = 0.5 * dot(&self.y, &a) + factor.half_log_det();
        self.add_gradient(&factor.inverse(), &a, &columns, &v, g);
        for (i, (mean, sd)) in self.prior.iter().enumerate() {
            let z = (t[i] - mean) / sd;
            value += 0.5 * z * z;
            g[i] += z / sd;
        }
        value
    }

    /// The kernel matrix of the readings. Stores its smooth part and slope for the gradient.
    fn kernel(&mut self, columns: &[Vec<f64>], v: &Variances) -> LowerTriangular {
        let n = self.y.len();
        let mut k = LowerTriangular::zeros(n);
        for i in 0..n {
            let row = k.row_mut(i);
            let (smooth, slope) = (&mut self.smooth[i][..], &mut self.slope[i][..]);
            row.fill(0.0);
            for c in columns {
                let v = c[i];
                for (r2, w) in row.iter_mut().zip(c) {
                    *r2 += (v - w) * (v - w);
                }
            }
            for j in 0..=i {
                let (value, derivative) = matern(row[j]);
                smooth[j] = v.s2 * value;
                slope[j] = v.s2 * derivative;
            }
            for (((r, s), l), h) in row.iter_mut().zip(&*smooth).zip(&self.linear[i]).zip(&self.hosts[i]) {
                *r = s + v.l2 * l + v.h2 * h;
            }
            for &j in &self.twins[i] {
                row[j] += v.n2 * LASTING;
            }
            row[i] += v.n2 * self.noise[i] + JITTER;
        }
        k
    }

    /// Adds the gradient of the likelihood. `inverse` is the inverse of the kernel matrix, `a` its product with the
    /// targets.
    fn add_gradient(&self, inverse: &LowerTriangular, a: &[f64], columns: &[Vec<f64>], v: &Variances, g: &mut [f64]) {
        let (n, d) = (a.len(), columns.len());
        let mut weight = vec![0.0; n];
        for i in 0..n {
            let inv = inverse.row(i);
            let weight = &mut weight[..=i];
            // Of the symmetric matrix only the lower triangle is stored: an off-diagonal entry counts twice.
            for ((w, inv), aj) in weight.iter_mut().zip(inv).zip(a) {
                *w = inv - a[i] * aj;
            }
            weight[i] *= 0.5;
            g[d] += 2.0 * dot(weight, &self.smooth[i]);
            g[d + 1] += 2.0 * weight[i] * v.n2 * self.noise[i];
            g[d + 2] += 2.0 * v.l2 * dot(weight, &self.linear[i]);
            g[d + 3] += 2.0 * v.h2 * dot(weight, &self.hosts[i]);
            for (w, s) in weight.iter_mut().zip(&self.slope[i]) {
                *w *= s;
            }
            for (gd, c) in g[..d].iter_mut().zip(columns) {
                *gd += weighted_squares(weight, c, c[i]);
            }
            for &j in &self.twins[i] {
                g[d + 1] += 2.0 * (inv[j] - a[i] * a[j]) * v.n2 * LASTING;
            }
        }
    }
}
