//! What arms do to the time of a step, from the steps of all plans together.
//!
//! Model of step t of a plan, as a share of the plan's step at AUTO:
//! `y(t) = a + b t + sum over slots s and lags l of k(l) e(s, arm of s in step t - l) + noise`. The effects `e` are those
//! of arms over AUTO. They add up, so one step tells about every slot whose arm it changes. The kernel `k` says in which
//! later steps the host sees a step of the GPU: it runs ahead by up to [`LAG_MAX`] steps. `a` and `b` are each plan's own.
//!
//! Noise is a share of the expected time. Residuals beyond [`CLIP`] robust deviations count as that much (Huber 1964), and
//! the part of a residual that the next step inherits is removed (Cochrane and Orcutt 1949). The kernel is the best of
//! the pure delays, then refined by alternating least squares. O(steps x slots squared + columns cubed).

use linalg::LowerTriangular;
use std::collections::{BTreeMap, VecDeque};

/// Steps that the host may run ahead of the GPU.
pub const LAG_MAX: usize = 3;
/// Residuals count up to this many deviations.
const CLIP: f64 = 2.0;
/// A residual beyond this many robust deviations of a good fit does not count at all.
const FAR: f64 = 8.0;
/// A residual beyond this many robust deviations disagrees with the fit.
const DISAGREES: f64 = 4.0;
/// Iterations of a robust fit, and of its kernel.
const ROUNDS: usize = 7;
const KERNEL_ROUNDS: usize = 3;
/// Strength of the pure delay against a mixture of two: the deviation of a kernel's entry that is believed without data.
const KERNEL_DEVIATION: f64 = 0.3;
/// An entry of the kernel below this share is none.
const KERNEL_SHARE_MIN: f64 = 0.1;
/// The kernel is known once an effect is this many standard errors from zero.
const KERNEL_KNOWN: f64 = 6.0;
/// An effect's deviation that is believed without data, as a share of the step: keeps every system solvable.
const EFFECT_DEVIATION: f64 = 0.5;
/// Smallest standard deviation of steps, as a share: no clock is better.
const DEVIATION_MIN: f64 = 0.002;
/// Least expected time over that of AUTO: an arm of single calls may take a fifth of it.
const EXPECTED_MIN: f64 = 0.1;
/// Inheritance of residuals: the smallest that is corrected, and the largest that is believed.
const MEMORY_MIN: f64 = 0.1;
const MEMORY_MAX: f64 = 0.9;
/// Steps of a plan with a time, below which the plan says nothing.
const STEPS_MIN: usize = 8;
/// Degrees of freedom below which nothing is said.
const FREEDOM_MIN: f64 = 5.0;

/// The steps of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Number of the plan.
    pub serial: u64,
    /// By slot: the arm of each step, AUTO is 0.
    pub arms: BTreeMap<u32, Vec<usize>>,
    /// The time of each step, microseconds.
    pub times_us: Vec<Option<f64>>,
}

/// A difference between two arms as a share of AUTO's step, and its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effect {
    /// Below zero: faster.
    pub share: f64,
    /// Standard error.
    pub error: f64,
}

/// The effects of all arms of some plans.
#[derive(Debug, Clone)]
pub struct Fit {
    columns: BTreeMap<(u32, usize), usize>,
    effects: Vec<f64>,
    /// Of the effects, row by row.
    covariance: Vec<Vec<f64>>,
    /// Steps by column that agree with the fit.
    steps: Vec<usize>,
    kernel: [f64; LAG_MAX + 1],
    /// Standard deviation of a step, as a share.
    pub deviation: f64,
    /// Degrees of freedom of the deviation.
    pub freedom: f64,
}

/// A step with its plan, and the arms that it may show.
struct Row {
    plan: usize,
    /// Position between -0.5 and 0.5 in its plan.
    at: f64,
    time: f64,
    /// Columns of the arms, by lag.
    arms: Vec<[Option<usize>; LAG_MAX + 1]>,
    /// The row before it is the step before it.
    follows: bool,
}

/// One solution.
struct Solution {
    kernel: [f64; LAG_MAX + 1],
    levels: Vec<f64>,
    beta: Vec<f64>,
    factor: LowerTriangular,
    residuals: Vec<f64>,
    scale: f64,
}

impl Fit {
    /// Fits the records. `lag`: the longest delay that is possible. `None` with too few steps.
    pub fn of<'a>(records: impl Iterator<Item = &'a Record>, lag: usize) -> Option<Fit> {
        let (mut columns, mut rows, mut levels) = (BTreeMap::new(), Vec::new(), Vec::new());
        for record in records {
            add_rows(record, &mut columns, &mut rows, &mut levels);
        }
        let effects = columns.len();
        let width = effects + 2 * levels.len();
        let freedom = rows.len() as f64 - width as f64;
        if freedom < FREEDOM_MIN {
            return None;
        }
        let best = choose_kernel(&rows, &levels, effects, lag.min(LAG_MAX))?;
        let memory = memory(&rows, &best);
        let best = solve(&rows, &levels, effects, best.kernel, Some((&best, memory)))?;
        // Huber's estimate of the variance.
        let limit = CLIP * best.scale;
        let near = best.residuals.iter().filter(|r| r.abs() <= FAR * best.scale);
        let squares: f64 = near.map(|r| r.clamp(-limit, limit).powi(2)).sum();
        let inside = best.residuals.iter().filter(|r| r.abs() < limit).count() as f64 / rows.len() as f64;
        let deviation = ((squares / freedom).sqrt() / inside.max(0.5)).max(DEVIATION_MIN);
        let inverse = best.factor.inverse();
        let covariance = (0..effects)
            .map(|i| (0..effects).map(|j| inverse.row(i.max(j))[i.min(j)] * deviation * deviation).collect());
        let mut steps = vec![0; effects];
        for (row, _) in rows.iter().zip(&best.residuals).filter(|(_, r)| r.abs() < DISAGREES * best.scale) {
            let shown = |arms: &[Option<usize>; LAG_MAX + 1]| {
                (0..=LAG_MAX).find(|l| best.kernel[*l] >= 0.5).and_then(|l| arms[l])
            };
            row.arms.iter().filter_map(shown).for_each(|c| steps[c] += 1);
        }
        Some(Fit {
            columns,
            effects: best.beta[..effects].to_vec(),
            covariance: covariance.collect(),
            steps,
            kernel: best.kernel,
            deviation,
            freedom,
        })
    }

    /// Arm `a` of a slot over arm `b`. `None` if one of them has not run; AUTO always has.
    pub fn over(&self, slot: u32, a: usize, b: usize) -> Option<Effect> {
        let column = |arm: usize| match arm {
            0 => Some(None),
            _ => self.columns.get(&(slot, arm)).map(|c| Some(*c)),
        };
        let (a, b) = (column(a)?, column(b)?);
        let value = |c: Option<usize>| c.map_or(0.0, |c| self.effects[c]);
        let covariance = |x: Option<usize>, y: Option<usize>| match (x, y) {
            (Some(x), Some(y)) => self.covariance[x][y],
            _ => 0.0,
        };
        let variance = covariance(a, a) + covariance(b, b) - 2.0 * covariance(a, b);
        Some(Effect { share: value(a) - value(b), error: variance.max(0.0).sqrt() })
    }

    /// Steps with an arm of a slot that agree with the fit. One delayed step out of two agrees with nothing.
    pub fn steps(&self, slot: u32, arm: usize) -> usize {
        self.columns.get(&(slot, arm)).map_or(0, |c| self.steps[*c])
    }

    /// The longest delay with which steps show an arm, [`LAG_MAX`] as long as no arm shows.
    pub fn lag(&self) -> usize {
        let shows = |i: usize| self.effects[i].abs() > KERNEL_KNOWN * self.covariance[i][i].sqrt();
        if !(0..self.effects.len()).any(shows) {
            return LAG_MAX;
        }
        self.kernel.iter().rposition(|k| *k >= KERNEL_SHARE_MIN).unwrap_or(LAG_MAX)
    }
}

fn add_rows(record: &Record, columns: &mut BTreeMap<(u32, usize), usize>, rows: &mut Vec<Row>, levels: &mut Vec<f64>) {
    let valid = |t: &Option<f64>| t.filter(|t| t.is_finite() && *t > 0.0 && *t < 1e15);
    // The first steps may still show the arms from before the plan.
    let n = record.times_us.len();
    let times: Vec<(usize, f64)> = (LAG_MAX..n).filter_map(|t| Some((t, valid(record.times_us.get(t)?)?))).collect();
    if times.len() < STEPS_MIN {
        return;
    }
    for (slot, arms) in &record.arms {
        for (_, arm) in times.iter().filter_map(|(t, _)| Some((t, *arms.get(*t)?))) {
            if arm != 0 {
                let next = columns.len();
                columns.entry((*slot, arm)).or_insert(next);
            }
        }
    }
    let mut before = None;
    for (t, time) in &times {
        let of = |(slot, arms): (&u32, &Vec<usize>)| {
            std::array::from_fn(|l| arms.get(t - l).and_then(|arm| columns.get(&(*slot, *arm)).copied()))
        };
        rows.push(Row {
            plan: levels.len(),
            at: (*t as f64) / (n as f64) - 0.5,
            time: *time,
            arms: record.arms.iter().map(of).collect(),
            follows: before == Some(t - 1),
        });
        before = Some(*t);
    }
    levels.push(stats::median(&times.iter().map(|t| t.1).collect::<Vec<_>>()));
}

/// The pure delay that fits best, then refined.
fn choose_kernel(rows: &[Row], levels: &[f64], effects: usize, lag: usize) -> Option<Solution> {
    let pure = |shift: usize| std::array::from_fn(|l| if l == shift { 1.0 } else { 0.0 });
    let mut all: Vec<Solution> =
        (0..=lag).map(|shift| solve(rows, levels, effects, pure(shift), None)).collect::<Option<_>>()?;
    let scale = all.iter().map(|s| s.scale).fold(f64::INFINITY, f64::min);
    // One step far off must not decide.
    let loss =
        |s: &Solution| -> f64 { s.residuals.iter().map(|r| huber(r.abs().min(FAR * scale), CLIP * scale)).sum() };
    let losses: Vec<f64> = all.iter().map(loss).collect();
    let shift = (0..all.len()).min_by(|a, b| losses[*a].total_cmp(&losses[*b])).unwrap_or(0);
    let mut best = all.swap_remove(shift);
    if lag > 0 && effects > 0 {
        for _ in 0..KERNEL_ROUNDS {
            let kernel = refine(rows, &best, effects, shift, lag);
            best = solve(rows, levels, effects, kernel, None)?;
        }
    }
    Some(best)
}

fn huber(r: f64, limit: f64) -> f64 {
    if r < limit { r * r } else { limit * (2.0 * r - limit) }
}

/// The kernel that fits best for the effects of a solution.
fn refine(rows: &[Row], s: &Solution, effects: usize, shift: usize, lag: usize) -> [f64; LAG_MAX + 1] {
    let width = lag + 1;
    let weak = (s.scale / KERNEL_DEVIATION).powi(2);
    let mut normal: Vec<Vec<f64>> =
        (0..width).map(|i| (0..width).map(|j| if i == j { weak } else { 0.0 }).collect()).collect();
    let mut right: Vec<f64> = (0..width).map(|l| if l == shift { weak } else { 0.0 }).collect();
    let limit = CLIP * s.scale;
    for (row, r) in rows.iter().zip(&s.residuals) {
        let shown: Vec<f64> = (0..width).map(|l| shown(row, &s.beta[..effects], l)).collect();
        let y = r.clamp(-limit, limit) + shown.iter().zip(&s.kernel).map(|(z, k)| z * k).sum::<f64>();
        for i in 0..width {
            right[i] += shown[i] * y;
            for j in 0..width {
                normal[i][j] += shown[i] * shown[j];
            }
        }
    }
    let Some(factor) = factor(&normal) else { return s.kernel };
    factor.solve(&mut right);
    let k: Vec<f64> = right.iter().map(|k| k.max(0.0)).collect();
    let sum: f64 = k.iter().sum();
    if !(sum.is_finite() && sum > 0.1) {
        return s.kernel;
    }
    std::array::from_fn(|l| k.get(l).map_or(0.0, |v| v / sum))
}

/// The effects of the arms that a row had `l` steps before.
fn shown(row: &Row, effects: &[f64], l: usize) -> f64 {
    row.arms.iter().filter_map(|arms| arms[l]).map(|c| effects[c]).sum()
}

/// The part of a residual that the next step inherits.
fn memory(rows: &[Row], s: &Solution) -> f64 {
    let limit = CLIP * s.scale;
    let clipped: Vec<f64> = s.residuals.iter().map(|r| r.clamp(-limit, limit)).collect();
    let all: f64 = clipped.iter().map(|r| r * r).sum();
    let pairs: Vec<f64> = (1..rows.len()).filter(|i| rows[*i].follows).map(|i| clipped[i] * clipped[i - 1]).collect();
    let n = rows.len() as f64;
    // Residuals of a fit seem less alike than the noise is: by the share of parameters.
    let memory = pairs.iter().sum::<f64>() / all.max(f64::MIN_POSITIVE) + s.beta.len() as f64 / n;
    if memory > MEMORY_MIN + 1.5 / n.sqrt() { memory.min(MEMORY_MAX) } else { 0.0 }
}

/// A robust fit with a kernel: by reweighting from scratch, or, from a solution and with the memory of its residuals, by
/// clipping them; steps far off then count no longer.
fn solve(
    rows: &[Row],
    levels: &[f64],
    effects: usize,
    kernel: [f64; LAG_MAX + 1],
    from: Option<(&Solution, f64)>,
) -> Option<Solution> {
    let memory = from.map_or(0.0, |f| f.1);
    let width = effects + 2 * levels.len();
    let sparse = |row: &Row| {
        let mut x: Vec<(usize, f64)> = Vec::with_capacity(2 + row.arms.len() * 2);
        for arms in &row.arms {
            for (l, column) in arms.iter().enumerate() {
                if let Some(c) = column
                    && kernel[l] > 0.0
                {
                    match x.iter_mut().find(|e| e.0 == *c) {
                        Some(e) => e.1 += kernel[l],
                        None => x.push((*c, kernel[l])),
                    }
                }
            }
        }
        x.push((effects + 2 * row.plan, 1.0));
        x.push((effects + 2 * row.plan + 1, row.at));
        x
    };
    let design: Vec<Vec<(usize, f64)>> = rows.iter().map(sparse).collect();
    let mut levels = from.map_or(levels, |f| &f.0.levels).to_vec();
    let mut beta = from.map_or(vec![0.0; width], |f| f.0.beta.clone());
    if from.is_none() {
        (0..levels.len()).for_each(|p| beta[effects + 2 * p] = 1.0);
    }
    let expected = |beta: &[f64], x: &[(usize, f64)]| x.iter().map(|(c, v)| beta[*c] * v).sum::<f64>();
    let (mut last, mut residuals) = (None, Vec::new());
    let mut scale = from.map_or(f64::INFINITY, |f| f.0.scale);
    for round in 0..ROUNDS {
        let mut normal = vec![vec![0.0; width]; width];
        let mut right = vec![0.0; width];
        let limit = CLIP * scale;
        // Each row over its expected time, so that all have the same noise.
        let one = |i: usize| {
            let fit = expected(&beta, &design[i]).max(EXPECTED_MIN);
            let y = rows[i].time / levels[rows[i].plan];
            let r = (y - fit) / fit;
            match from {
                None => (fit, y, if r.abs() > limit { (limit / r.abs()).sqrt() } else { 1.0 }),
                Some(_) if r.abs() > FAR * scale => (fit, fit, 1.0),
                Some(_) => (fit, fit + r.clamp(-limit, limit) * fit, 1.0),
            }
        };
        for i in 0..rows.len() {
            let (fit, y, weight) = one(i);
            let mut x: Vec<(usize, f64)> = design[i].iter().map(|(c, v)| (*c, v * weight / fit)).collect();
            let mut y = y * weight / fit;
            if memory > 0.0 && i > 0 && rows[i].follows {
                let (fit, before, _) = one(i - 1);
                y -= memory * before / fit;
                for (c, v) in &design[i - 1] {
                    match x.iter_mut().find(|e| e.0 == *c) {
                        Some(e) => e.1 -= memory * v / fit,
                        None => x.push((*c, -memory * v / fit)),
                    }
                }
            }
            for (a, v) in &x {
                right[*a] += v * y;
                for (b, w) in &x {
                    normal[*a][*b] += v * w;
                }
            }
        }
        let noise = if scale.is_finite() { scale } else { 0.05 };
        for (c, row) in normal.iter_mut().enumerate() {
            row[c] += if c < effects { (noise / EFFECT_DEVIATION).powi(2) } else { 1e-9 };
        }
        let factor = factor(&normal)?;
        factor.solve(&mut right);
        beta = right;
        last = Some(factor);
        let of = |i: usize| {
            let fit = expected(&beta, &design[i]).max(EXPECTED_MIN);
            (rows[i].time / levels[rows[i].plan] - fit) / fit
        };
        residuals = (0..rows.len()).map(of).collect();
        if memory > 0.0 {
            let own = |i: usize| residuals[i] - if i > 0 && rows[i].follows { memory * residuals[i - 1] } else { 0.0 };
            let fresh: Vec<f64> = (0..rows.len()).map(own).collect();
            if round + 1 == ROUNDS {
                residuals = fresh;
            }
        }
        scale = stats::mad_sd_about(&residuals, stats::median(&residuals)).max(DEVIATION_MIN);
        // The unit becomes the plan's step at AUTO.
        for (p, level) in levels.iter_mut().enumerate() {
            let own = beta[effects + 2 * p];
            if round + 1 < ROUNDS && own.is_finite() && own > 0.2 && own < 5.0 {
                *level *= own;
                beta[effects + 2 * p] = 1.0;
                beta[effects + 2 * p + 1] /= own;
            }
        }
    }
    Some(Solution { kernel, levels, beta, factor: last?, residuals, scale })
}

/// The Cholesky factor of a symmetric matrix; `None` if rounding leaves it without one.
pub fn factor(m: &[Vec<f64>]) -> Option<LowerTriangular> {
    let mut lower = LowerTriangular::zeros(m.len());
    for (i, row) in m.iter().enumerate() {
        lower.row_mut(i).copy_from_slice(row.get(..=i)?);
    }
    lower.cholesky()
}

/// The newest plans, at most `most` of them.
pub fn push(records: &mut VecDeque<Record>, record: Record, most: usize) {
    if records.len() == most {
        records.pop_front();
    }
    records.push_back(record);
}

#[cfg(test)]
mod tests;
