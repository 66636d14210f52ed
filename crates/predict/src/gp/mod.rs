//! A Gaussian process on the log-ratio of measured bandwidth to the bound.
//!
//! `ln(busbw / bound) = m + f(x) + l(x) + Σ_h w_h b_h + e`. `f` has a Matérn 5/2 kernel with one length per feature
//! (ARD), and `l` is linear. `b_h` is the effect of host `h`, weighted by the host's influence on the result. `e` is
//! noise together with the irregularity that no feature explains. Hyperparameters maximise the marginal likelihood
//! times weak log-normal priors. Readings whose leave-one-out residual is implausible get their own larger noise, in
//! effect a Student-t distribution, so that a single bad reading does not decide. That noise belongs to the reading
//! alone: the farther off a reading is, the less it affects other predictions.
//!
//! Cost: one likelihood with gradient takes n³/2 multiply-adds, on at most [`FITTED_POINTS_MAX`] points. A fit takes 20
//! to 40 of them, and a few factorisations of all points (n³/3). A mean is O(n d), a deviation O(n²), an update O(n²).

mod likelihood;
mod outliers;
mod update;

use crate::stop::Stop;
use likelihood::Likelihood;
use linalg::{LowerTriangular, dot, exp_neg};
use outliers::{ABSURD_SDS, MARKS_MAX, NOISE_FACTOR_MAX, OUTLIER_SDS};
use serde::{Deserialize, Serialize};
pub(crate) use update::Instead;

/// Maximum number of readings in a process.
pub const POINTS_MAX: usize = 4096;
/// Number of points from which a process drops one point per learned reading: an update costs the square of the points,
/// a load from a file the third power (0.2 s), and the file holds every point. A process that was fitted on more points
/// keeps their number.
pub const UPDATED_POINTS_MAX: usize = 768;
/// Maximum number of readings for fitting hyperparameters, evenly spread: an evaluation costs their third power.
const FITTED_POINTS_MAX: usize = 384;
/// Maximum number of likelihood evaluations in one fit.
const EVALUATIONS_MAX: usize = 28;
/// Distance beyond the readings within which a feature is used, in standard deviations of the feature over the
/// readings. Farther out the correction is constant: a line through readings of four hosts says nothing about four
/// hundred.
const REACH_SDS: f64 = 1.0;
/// Added to the standard deviation of the mean for features out of reach.
const OUT_OF_REACH_SD: f64 = 0.1;
/// Share of the ordinary noise's variance that is irregularity: it belongs to the split and recurs in every use of the
/// split. The rest, and all noise beyond the ordinary, belongs to the single reading.
const LASTING: f64 = 0.8;
/// Expected noise and irregularity (of the logarithm) before any reading, and their minimum: nccl-tests repeats within
/// 1 %, splits differ by about 2 %.
const NOISE_SD: (f64, f64) = (0.02, 0.003);
/// Maximum distance from the median, in robust standard deviations, at which readings count in the scale of the target.
const SCALE_SDS: f64 = 4.0;
/// Maximum number of stored readings of one allocation, the newest; the target is their median.
const RECENT_MAX: usize = 7;
/// Maximum squared distance (in lengths) between points of the same split.
const SAME_SPLIT: f64 = 1e-12;
/// Jitter that keeps the matrix positive definite, in units of the target's variance.
const JITTER: f64 = 1e-6;
/// Maximum number of retries with more noise for a singular matrix; each adds a factor of `e` to the noise variance.
const NOISIER_MAX: usize = 8;

/// One reading as features and target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpPoint {
    /// Features.
    pub x: Vec<f64>,
    /// Hosts and their weights.
    pub hosts: Vec<(u32, f64)>,
    /// `ln(busbw / bound)`.
    pub y: f64,
    /// Noise variance of the reading as a multiple of the common one; 1 for an ordinary reading.
    pub noise_factor: f64,
    /// The newest readings of this allocation, if it was measured again after the fit; `y` is their median.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<f64>,
}

impl GpPoint {
    /// An ordinary reading.
    pub fn new(x: Vec<f64>, hosts: Vec<(u32, f64)>, y: f64) -> GpPoint {
        GpPoint { x, hosts, y, noise_factor: 1.0, recent: Vec::new() }
    }

    /// True if both are readings of one split of the same hosts.
    fn is_of(&self, other: &GpPoint) -> bool {
        self.x == other.x && self.hosts == other.hosts
    }

    /// This reading merged with the earlier ones of the same allocation.
    fn joined(self, earlier: &GpPoint) -> GpPoint {
        let mut recent = if earlier.recent.is_empty() { vec![earlier.y] } else { earlier.recent.clone() };
        recent.push(self.y);
        recent.drain(..recent.len().saturating_sub(RECENT_MAX));
        GpPoint { y: stats::upper_median(&recent), recent, ..self }
    }

    /// The same target relative to a base that is `ln_base` above the present one.
    pub(crate) fn over(mut self, ln_base: f64) -> GpPoint {
        self.y -= ln_base;
        self.recent.iter_mut().for_each(|y| *y -= ln_base);
        self
    }
}

/// Logarithms of the hyperparameters: lengths first, then standard deviations in units of the target's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hyperparameters {
    /// ln of one length per active feature.
    pub ln_length: Vec<f64>,
    /// ln of the standard deviation of the smooth part.
    pub ln_smooth: f64,
    /// ln of the standard deviation of noise and irregularity.
    pub ln_noise: f64,
    /// ln of the standard deviation of the linear part.
    pub ln_linear: f64,
    /// ln of the standard deviation of a host's effect.
    pub ln_host: f64,
}

/// A fitted process.
#[derive(Clone, Debug)]
pub struct Gp {
    points: Vec<GpPoint>,
    hyper: Hyperparameters,
    /// Indices of the features in use: those that vary.
    active: Vec<usize>,
    /// Per active feature: mean and standard deviation over the points of the fit.
    scale: Vec<(f64, f64)>,
    y_mean: f64,
    y_sd: f64,
    // Derived values:
    /// Feature-major: `columns[d * n + i]` is the scaled coordinate divided by its length.
    columns: Vec<f64>,
    /// Scaled features, point by point (for the linear part).
    rows: Vec<Vec<f64>>,
    /// Minimum and maximum used value of every scaled feature.
    range: Vec<(f64, f64)>,
    /// Maximum host weight of any reading.
    host_weight_max: f64,
    /// Weights of the linear posterior mean.
    linear_weights: Vec<f64>,
    linear_constant: f64,
    factor: LowerTriangular,
    alpha: Vec<f64>,
    host_effect: Vec<f64>,
    /// By point: the variance of its split's irregularity, as a multiple of the ordinary variance (see `outliers`).
    oddity: Vec<f64>,
    evaluations: usize,
}

/// A [`Gp`] as saved in a model file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedGp {
    /// Readings.
    pub points: Vec<GpPoint>,
    /// Hyperparameters.
    pub hyper: Hyperparameters,
    /// Features in use.
    pub active: Vec<usize>,
    /// Mean and standard deviation of each feature in use.
    pub scale: Vec<(f64, f64)>,
    /// Mean of the target.
    pub y_mean: f64,
    /// Standard deviation of the target.
    pub y_sd: f64,
}

/// Matérn 5/2 with unit variance at squared distance `r2`, and its derivative by `-r2 / 2`.
#[inline(always)]
fn matern(r2: f64) -> (f64, f64) {
    let r = (5.0 * r2).sqrt();
    let e = exp_neg(-r);
    ((1.0 + r + r * r * (1.0 / 3.0)) * e, (5.0 / 3.0) * (1.0 + r) * e)
}

/// `Σ w (v - c)²` in a fixed order of additions.
fn weighted_squares(weight: &[f64], column: &[f64], v: f64) -> f64 {
    let column = &column[..weight.len()];
    let mut acc = [0.0f64; 4];
    let (mut w, mut c) = (weight.chunks_exact(4), column.chunks_exact(4));
    for (w, c) in (&mut w).zip(&mut c) {
        for i in 0..4 {
            acc[i] += w[i] * ((v - c[i]) * (v - c[i]));
        }
    }
    let rest = w.remainder().iter().zip(c.remainder()).map(|(w, c)| w * ((v - c) * (v - c)));
    (acc[0] + acc[2]) + (acc[1] + acc[3]) + rest.sum::<f64>()
}

fn host_overlap(a: &[(u32, f64)], b: &[(u32, f64)]) -> f64 {
    // Both lists are sorted by host.
    let (mut i, mut j, mut s) = (0, 0, 0.0);
    while i < a.len() && j < b.len() {
        match a[i].0.cmp(&b[j].0) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => {
                s += a[i].1 * b[j].1;
                i += 1;
                j += 1;
            }
        }
    }
    s
}

fn mean_sd(v: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let n = v.clone().count().max(1) as f64;
    let mean = v.clone().sum::<f64>() / n;
    (mean, (v.map(|x| (x - mean) * (x - mean)).sum::<f64>() / n).sqrt())
}

/// Median and standard deviation of targets. Targets far out count as [`SCALE_SDS`] robust deviations from the median.
fn robust_scale(y: &[f64]) -> (f64, f64) {
    let middle = stats::upper_median(y);
    let off: Vec<f64> = y.iter().map(|v| (v - middle).abs()).collect();
    let most = SCALE_SDS * (stats::MAD_TO_SD * stats::upper_median(&off)).max(0.02);
    (middle, mean_sd(y.iter().map(|v| (v - middle).clamp(-most, most))).1.max(1e-3))
}

/// Features that vary and do not repeat another one, with mean and standard deviation of each. O(points x features²).
fn active_features(points: &[GpPoint]) -> (Vec<usize>, Vec<(f64, f64)>) {
    let width = points[0].x.len();
    let mut active = Vec::new();
    let mut scale: Vec<(f64, f64)> = Vec::new();
    for d in 0..width {
        let (mean, sd) = mean_sd(points.iter().map(|p| p.x[d]));
        if sd < 1e-9 {
            continue;
        }
        // A feature that repeats another one (correlation of at least 0.9999) adds cost and no information.
        let repeats = active.iter().zip(&scale).any(|(&e, s): (&usize, _)| {
            let c: f64 = points.iter().map(|p| (p.x[d] - mean) * (p.x[e] - s.0)).sum::<f64>() / points.len() as f64;
            (c / (sd * s.1)).abs() > 0.9999
        });
        if !repeats {
            active.push(d);
            scale.push((mean, sd));
        }
    }
    (active, scale)
}

/// A scaled feature without rounding errors: hosts in another order must not make a different split.
fn snapped(v: f64) -> f64 {
    const STEP: f64 = 1e-8;
    (v / STEP).round() * STEP
}

impl Gp {
    /// Fits hyperparameters and conditions on the points (hosts sorted, at most [`POINTS_MAX`]). `None` without points.
    pub fn fit(points: Vec<GpPoint>) -> Option<Gp> {
        Gp::fit_near(points, None, Stop::default())
    }

    /// Like [`Gp::fit`], but starts from the hyperparameters of a process on nearly the same readings, which halves the
    /// evaluations. `None` also if it was stopped.
    pub fn fit_near(points: Vec<GpPoint>, near: Option<&Gp>, stop: Stop<'_>) -> Option<Gp> {
        if points.is_empty() || points.len() > POINTS_MAX {
            return None;
        }
        let (active, scale) = active_features(&points);
        let (y_mean, y_sd) = robust_scale(&points.iter().map(|p| p.y).collect::<Vec<_>>());
        let d = active.len();
        let mut hyper = Hyperparameters {
            ln_length: vec![1.0; d],
            ln_smooth: 0.0,
            ln_noise: likelihood::expected_ln_noise(y_sd),
            ln_linear: -1.0,
            ln_host: -2.5,
        };
        if let Some(n) = near {
            let known = |f: &usize| n.active.iter().position(|a| a == f).map_or(1.0, |i| n.hyper.ln_length[i]);
            hyper = Hyperparameters { ln_length: active.iter().map(known).collect(), ..n.hyper.clone() };
        }
        let mut gp = Gp::unconditioned(SavedGp { points, hyper, active, scale, y_mean, y_sd });
        if gp.condition() {
            gp.mark_outliers(ABSURD_SDS);
        }
        gp.optimise(if near.is_some() { EVALUATIONS_MAX / 2 } else { EVALUATIONS_MAX }, stop);
        if stop.is_set() || !gp.condition_noisier() {
            return None;
        }
        for round in 0..MARKS_MAX {
            if !gp.mark_outliers(OUTLIER_SDS) {
                break;
            }
            if round == 0 {
                gp.optimise(EVALUATIONS_MAX / 2, stop);
            }
            if stop.is_set() || !gp.condition_noisier() {
                return None;
            }
        }
        Some(gp)
    }

    /// A process from its saved fields, with the derived fields empty.
    fn unconditioned(s: SavedGp) -> Gp {
        Gp {
            points: s.points,
            hyper: s.hyper,
            active: s.active,
            scale: s.scale,
            y_mean: s.y_mean,
            y_sd: s.y_sd,
            columns: Vec::new(),
            rows: Vec::new(),
            range: Vec::new(),
            host_weight_max: 0.0,
            linear_weights: Vec::new(),
            linear_constant: 0.0,
            factor: LowerTriangular::default(),
            alpha: Vec::new(),
            host_effect: Vec::new(),
            oddity: Vec::new(),
            evaluations: 0,
        }
    }

    /// The scaled coordinates, point-major.
    fn scaled(&self) -> Vec<Vec<f64>> {
        self.points
            .iter()
            .map(|p| self.active.iter().zip(&self.scale).map(|(&d, s)| snapped((p.x[d] - s.0) / s.1)).collect())
            .collect()
    }

    fn optimise(&mut self, evaluations_max: usize, stop: Stop<'_>) {
        let n = self.points.len();
        let used = n.min(FITTED_POINTS_MAX);
        let spread: Vec<usize> = (0..used).map(|i| i * n / used).collect();
        let points: Vec<GpPoint> = spread.iter().map(|i| self.points[*i].clone()).collect();
        let all = self.scaled();
        let x = spread.iter().map(|i| all[*i].clone()).collect();
        let y = points.iter().map(|p| (p.y - self.y_mean) / self.y_sd).collect();
        let likelihood = Likelihood::new(&points, self.active.len(), x, y, self.y_sd);
        let (hyper, evaluations) = likelihood.minimise(&self.hyper, evaluations_max, stop);
        self.evaluations += evaluations;
        self.hyper = hyper;
    }

    fn variances(&self) -> [f64; 4] {
        let h = &self.hyper;
        [h.ln_smooth, h.ln_noise, h.ln_linear, h.ln_host].map(|l| (2.0 * l).exp())
    }

    /// Factors the kernel matrix of the points. `false` if it is not positive definite.
    fn condition(&mut self) -> bool {
        let n = self.points.len();
        self.refresh_columns();
        let mut k = LowerTriangular::zeros(n);
        let mut row = vec![0.0; n];
        for i in 0..n {
            self.kernel_of_point(i, i, &mut row);
            k.row_mut(i).copy_from_slice(&row[..=i]);
            let own = self.own_variance(i);
            k.row_mut(i)[i] = own;
        }
        match k.cholesky() {
            Some(f) => self.factor = f,
            None => return false,
        }
        self.refresh_alpha();
        true
    }

    /// Factors the matrix, with increased noise if rounding makes it singular. `false` if no noise helps.
    fn condition_noisier(&mut self) -> bool {
        for _ in 0..NOISIER_MAX {
            if self.condition() {
                return true;
            }
            self.hyper.ln_noise += 0.5;
        }
        false
    }

    /// Prior variance of point `i` with its noise, scaled units.
    fn own_variance(&self, i: usize) -> f64 {
        let [s2, n2, l2, h2] = self.variances();
        let p = &self.points[i];
        let x = &self.rows[i];
        let d = self.active.len().max(1) as f64;
        s2 + l2 * (1.0 + dot(x, x) / d)
            + h2 * p.hosts.iter().map(|h| h.1 * h.1).sum::<f64>()
            + n2 * p.noise_factor
            + JITTER
    }

    /// Scaled features, clamped to the reach of the readings.
    fn scaled_row(&self, x: &[f64]) -> Vec<f64> {
        let scaled = self.active.iter().zip(&self.scale).map(|(&d, s)| snapped((x[d] - s.0) / s.1));
        scaled.zip(&self.range).map(|(v, r)| v.clamp(r.0, r.1)).collect()
    }

    /// True if the features or the number of hosts are beyond those of the readings.
    fn out_of_reach(&self, x: &[f64], hosts: &[(u32, f64)]) -> bool {
        let scaled = self.active.iter().zip(&self.scale).map(|(&d, s)| (x[d] - s.0) / s.1);
        let beyond = scaled.zip(&self.range).any(|(v, r)| v < r.0 || v > r.1);
        beyond || hosts.iter().map(|h| h.1).sum::<f64>() > self.host_weight_max + 1.0
    }

    /// Factor of all host weights of a candidate. It is 1 up to the largest sum of weights in the readings; beyond that
    /// it limits the sum to that value. Readings of a few hosts measure the effect of one host among a few; the effects
    /// of a hundred hosts do not add up.
    pub fn host_share(&self, weight: f64) -> f64 {
        if weight > self.host_weight_max { self.host_weight_max / weight } else { 1.0 }
    }

    fn refresh_columns(&mut self) {
        let n = self.points.len();
        let x = self.scaled();
        self.columns.clear();
        self.columns.reserve(self.active.len() * n);
        for (d, ln_length) in self.hyper.ln_length.iter().enumerate() {
            let inverse = (-ln_length).exp();
            self.columns.extend(x.iter().map(|row| row[d] * inverse));
        }
        self.range = (0..self.active.len())
            .map(|d| {
                let of_points = || x.iter().map(|row| row[d]);
                let (low, high) =
                    (of_points().fold(f64::INFINITY, f64::min), of_points().fold(f64::NEG_INFINITY, f64::max));
                (low - REACH_SDS, high + REACH_SDS)
            })
            .collect();
        let weights = self.points.iter().map(|p| p.hosts.iter().map(|h| h.1).sum::<f64>());
        self.host_weight_max = weights.fold(0.0, f64::max);
        self.rows = x;
        self.refresh_oddity();
    }

    /// Indices of the readings of a split, which is given by its scaled features.
    fn twins<'a>(&'a self, row: &'a [f64]) -> impl Iterator<Item = usize> + 'a {
        let same = move |r: &Vec<f64>| r.iter().zip(row).all(|(a, b)| a == b);
        self.rows.iter().enumerate().filter(move |(_, r)| same(r)).map(|(j, _)| j)
    }

    /// Kernel of point `i` with points `0..=last`, without noise.
    fn kernel_of_point(&self, i: usize, last: usize, out: &mut [f64]) {
        let p = &self.points[i];
        let x = &self.rows[i];
        let mut k = vec![0.0; self.points.len()];
        self.smooth_kernel(x, &mut k);
        let [_, _, l2, h2] = self.variances();
        let d = self.active.len().max(1) as f64;
        for j in 0..=last {
            let q = &self.points[j];
            out[j] = k[j] + l2 * (1.0 + dot(x, &self.rows[j]) / d) + h2 * host_overlap(&p.hosts, &q.hosts);
        }
    }

    /// The Matérn part of the kernel between scaled features and every point, including the irregularity that a split
    /// shares with its readings.
    fn smooth_kernel(&self, x: &[f64], out: &mut [f64]) {
        let n = self.points.len();
        let out = &mut out[..n];
        out.fill(0.0);
        for (d, v) in x.iter().enumerate() {
            let v = v * (-self.hyper.ln_length[d]).exp();
            for (o, c) in out.iter_mut().zip(&self.columns[d * n..(d + 1) * n]) {
                *o += (v - c) * (v - c);
            }
        }
        let [s2, n2, ..] = self.variances();
        // Two simple passes over the distances, which use vector units; the third pass is rare.
        let nearest = out.iter().fold(f64::INFINITY, |a, b| if *b < a { *b } else { a });
        let twins: Vec<usize> = match nearest < SAME_SPLIT {
            true => (0..n).filter(|j| out[*j] < SAME_SPLIT && self.rows[*j] == x).collect(),
            false => Vec::new(),
        };
        for o in out.iter_mut() {
            *o = s2 * matern(*o).0;
        }
        for j in twins {
            out[j] += LASTING * n2 * self.oddity[j];
        }
    }

    fn refresh_alpha(&mut self) {
        let mut a: Vec<f64> = self.points.iter().map(|p| (p.y - self.y_mean) / self.y_sd).collect();
        self.factor.solve(&mut a);
        let [_, _, l2, h2] = self.variances();
        let x = &self.rows;
        let d = self.active.len();
        self.linear_constant = l2 * a.iter().sum::<f64>();
        self.linear_weights =
            (0..d).map(|k| l2 / d as f64 * a.iter().zip(x).map(|(a, r)| a * r[k]).sum::<f64>()).collect();
        let hosts = self.points.iter().flat_map(|p| p.hosts.iter().map(|h| h.0 as usize + 1)).max().unwrap_or(0);
        self.host_effect = vec![0.0; hosts];
        for (p, a) in self.points.iter().zip(&a) {
            for &(h, w) in &p.hosts {
                self.host_effect[h as usize] += h2 * a * w;
            }
        }
        self.alpha = a;
    }

    /// The part of the mean of `ln(busbw / bound)` that depends on features: `m + f(x) + l(x)`. `scratch` is a buffer.
    pub fn feature_mean(&self, x: &[f64], scratch: &mut Vec<f64>) -> f64 {
        scratch.resize(self.points.len(), 0.0);
        let row = self.scaled_row(x);
        self.smooth_kernel(&row, scratch);
        let v = dot(scratch, &self.alpha) + self.linear_constant + dot(&row, &self.linear_weights);
        self.y_mean + self.y_sd * v
    }

    /// The part of [`Gp::feature_mean`] that is irregularity of this split, learned from its readings; 0 for a split
    /// without readings, and for one whose readings are on so many separate hosts that it is no defect of one.
    pub fn irregularity(&self, x: &[f64]) -> f64 {
        let row = self.scaled_row(x);
        if self.is_of_many_hosts(&row) {
            return 0.0;
        }
        let n2 = self.variances()[1];
        self.y_sd * LASTING * n2 * self.twins(&row).map(|j| self.oddity[j] * self.alpha[j]).sum::<f64>()
    }

    /// The effect of a host at full weight; 0 for hosts without readings.
    pub fn host_effect(&self, host: u32) -> f64 {
        self.host_effect.get(host as usize).copied().unwrap_or(0.0) * self.y_sd
    }

    /// Standard deviation of `ln(busbw / bound)` at features `x`: of the mean, and of a single allocation (irregularity
    /// included). O(n²).
    pub fn deviation(&self, x: &[f64], hosts: &[(u32, f64)]) -> (f64, f64) {
        let n = self.points.len();
        let [s2, n2, l2, h2] = self.variances();
        let row = self.scaled_row(x);
        let share = self.host_share(hosts.iter().map(|h| h.1).sum());
        let d = self.active.len().max(1) as f64;
        let mut k = vec![0.0; n];
        self.smooth_kernel(&row, &mut k);
        // Weights indexed by host: the cost per reading depends only on the hosts of the reading, not on those of the
        // candidate.
        let mut weight = vec![0.0; self.host_effect.len()];
        for &(h, w) in hosts {
            if let Some(slot) = weight.get_mut(h as usize) {
                *slot = w * share;
            }
        }
        for ((k, p), x) in k.iter_mut().zip(&self.points).zip(&self.rows) {
            let overlap: f64 = p.hosts.iter().map(|&(h, w)| weight[h as usize] * w).sum();
            *k += l2 * (1.0 + dot(&row, x) / d) + h2 * overlap;
        }
        self.factor.solve_lower(&mut k);
        let prior =
            s2 + l2 * (1.0 + dot(&row, &row) / d) + h2 * hosts.iter().map(|h| (h.1 * share).powi(2)).sum::<f64>();
        let far = if self.out_of_reach(x, hosts) { OUT_OF_REACH_SD / self.y_sd } else { 0.0 };
        let oddity = self.twins(&row).map(|j| self.oddity[j]).fold(1.0, f64::max);
        let v = (prior + LASTING * n2 * oddity - dot(&k, &k)).max(1e-9) + far * far;
        (self.y_sd * v.sqrt(), self.y_sd * (v + (1.0 - LASTING) * n2).sqrt())
    }

    /// Standard deviation of the noise of `ln(busbw / bound)`.
    pub fn noise_sd(&self) -> f64 {
        self.y_sd * self.variances()[1].sqrt()
    }

    /// Leave-one-out means and standard deviations at the points, at the fitted hyperparameters (Rasmussen and
    /// Williams, 5.4.2).
    pub fn leave_one_out(&self) -> Vec<(f64, f64)> {
        let inverse = self.factor.inverse_diagonal();
        (0..self.points.len())
            .map(|i| {
                let v = 1.0 / inverse[i];
                (self.points[i].y - self.y_sd * self.alpha[i] * v, self.y_sd * v.sqrt())
            })
            .collect()
    }

    /// Log density of the readings under the fitted process, in units of the readings, so that processes on different
    /// bounds can be compared.
    pub fn ln_evidence(&self) -> f64 {
        let n = self.points.len() as f64;
        let y: Vec<f64> = self.points.iter().map(|p| (p.y - self.y_mean) / self.y_sd).collect();
        -0.5 * dot(&y, &self.alpha) - self.factor.half_log_det() - n * self.y_sd.ln()
    }

    /// The readings of the process.
    pub fn points(&self) -> &[GpPoint] {
        &self.points
    }
    /// Number of likelihood evaluations in the fit.
    pub fn evaluations(&self) -> usize {
        self.evaluations
    }

    /// The form for a model file.
    pub fn save(&self) -> SavedGp {
        SavedGp {
            points: self.points.clone(),
            hyper: self.hyper.clone(),
            active: self.active.clone(),
            scale: self.scale.clone(),
            y_mean: self.y_mean,
            y_sd: self.y_sd,
        }
    }

    /// Builds a process from its saved form. The error message describes the invalid field.
    pub fn load(s: SavedGp, width: usize) -> Result<Gp, String> {
        let d = s.active.len();
        if s.points.is_empty() || s.points.len() > POINTS_MAX {
            return Err(format!("{} readings; 1 to {POINTS_MAX} are supported", s.points.len()));
        }
        if s.scale.len() != d || s.hyper.ln_length.len() != d || s.active.iter().any(|&a| a >= width) {
            return Err("features, scales and lengths do not match".into());
        }
        let fine = |v: f64| v.is_finite() && v.abs() < 1e6;
        let h = &s.hyper;
        let all_fine = s.scale.iter().all(|p| fine(p.0) && fine(p.1) && p.1 > 0.0)
            && h.ln_length.iter().chain([&h.ln_smooth, &h.ln_noise, &h.ln_linear, &h.ln_host]).all(|v| v.abs() <= 10.0)
            && fine(s.y_mean)
            && fine(s.y_sd)
            && s.y_sd > 0.0
            && s.points.iter().all(|p| {
                p.x.len() == width
                    && p.x.iter().all(|v| fine(*v))
                    && fine(p.y)
                    && p.recent.len() <= RECENT_MAX
                    && p.recent.iter().all(|y| fine(*y))
                    && p.noise_factor >= 1.0
                    && p.noise_factor <= NOISE_FACTOR_MAX
                    && p.hosts.iter().all(|h| fine(h.1) && (h.0 as usize) < topology::HOSTS_MAX)
                    && p.hosts.windows(2).all(|w| w[0].0 < w[1].0)
            });
        if !all_fine {
            return Err("a number is not finite or out of range".into());
        }
        let mut gp = Gp::unconditioned(s);
        if gp.condition() { Ok(gp) } else { Err("the kernel matrix is not positive definite".into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(i: usize) -> GpPoint {
        let x = vec![(i % 37) as f64 * 0.1, (i % 11) as f64];
        let y = 0.1 * x[0].sin() - 0.02 * x[1] + 0.01 * ((i * 7919 % 101) as f64 / 101.0 - 0.5);
        GpPoint::new(x, vec![((i % 5) as u32, 1.0)], y)
    }

    #[test]
    fn a_process_that_learns_for_ever_keeps_its_size_and_its_means() {
        let mut gp = Gp::fit((0..60).map(point).collect()).unwrap();
        for i in 60..UPDATED_POINTS_MAX + 200 {
            assert!(gp.update(point(i)));
        }
        assert_eq!(gp.points().len(), UPDATED_POINTS_MAX);
        // After dropping points one by one, the factor equals the factor of the remaining points.
        let again = Gp::load(gp.save(), 2).unwrap();
        let mut scratch = Vec::new();
        for i in 0..50 {
            let x = &point(i).x;
            let (a, b) = (gp.feature_mean(x, &mut scratch), again.feature_mean(x, &mut scratch));
            assert!((a - b).abs() < 1e-9, "{a} {b}");
        }
    }

    #[test]
    fn a_full_process_drops_the_oldest_reading_of_the_split_read_most() {
        let mut points: Vec<GpPoint> = (0..40).map(|i| GpPoint { x: vec![i as f64, 0.0], ..point(i) }).collect();
        for i in 0..UPDATED_POINTS_MAX - 40 {
            points.push(GpPoint { x: vec![7.0, 0.0], ..point(i) });
        }
        let gp = Gp::fit(points[..50].to_vec()).unwrap();
        assert_eq!(gp.dispensable(), None);
        let full = Gp { points, ..gp };
        assert_eq!(full.dispensable(), Some(7));
    }
}
