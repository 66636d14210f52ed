//! Switches of one tier whose flows keep more or less than those of others.
//!
//! The calibration finds one share per tier ([`crate::calibrate`]). Here every switch gets a factor of it: the most
//! probable factors, given what the processes leave unexplained of every reading, under a normal prior of the
//! logarithms. With a hundred readings most switches stay near 1.

use crate::bound::Memo;
use crate::calibrate::CalibrationReading;
use crate::model::{Correction, Model};
use crate::rates::{KEPT_OF_SWITCH, LearnedRates};
use linalg::{LowerTriangular, dot};
use std::collections::BTreeMap;

/// Standard deviation of the logarithm of a switch's factor: operators' switches are alike but for their traffic.
const FACTOR_SD: f64 = 0.06;
/// Minimum standard deviation of what is unexplained.
const SD_MIN: f64 = 0.02;
/// Readings farther off than this many deviations count less.
const ROBUST_SDS: f64 = 1.5;
/// Steps, and the step of a numerical derivative, in standard deviations of the prior.
const STEPS: usize = 4;
const DERIVATIVE: f64 = 0.25;
/// Maximum number of switches with a factor of their own, of those that most readings touch, and minimum number of
/// readings that touch such a switch.
const SWITCHES_MAX: usize = 128;
const READINGS_MIN: usize = 3;
/// Factors closer to 1 than this are left out.
const NEARLY_EQUAL: f64 = 0.005;

/// A switch: tier and number.
type Switch = (usize, usize);

/// The rates of a model with factors of its switches; `None` if no tier loses bandwidth or the readings tell nothing.
/// O(steps x (readings + readings that cross each switch)) estimates.
pub(crate) fn find(model: &Model, readings: &[CalibrationReading]) -> Option<LearnedRates> {
    let Correction::Gp(gp) = &model.correction else { return None };
    let (switches, crossing): (Vec<Switch>, Vec<Vec<usize>>) = crossed(model, readings).into_iter().unzip();
    if switches.is_empty() || gp.len() != readings.len() {
        return None;
    }
    let told = model.rates.with_switches(&model.cluster);
    let rates = |z: &[f64]| {
        let mut of: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
        for (&(tier, switch), z) in switches.iter().zip(z) {
            let factor = (FACTOR_SD * z).exp().clamp(KEPT_OF_SWITCH.0, KEPT_OF_SWITCH.1);
            let names = of.entry(told.tiers()[tier].name.clone()).or_default();
            names.insert(told.switch_name(tier, switch).into_owned(), factor);
        }
        LearnedRates { kept_of_switches: of, ..model.rates.clone() }
    };
    let mut site = model.site.clone();
    let mut ln_bounds = |z: &[f64], which: &[usize]| -> Vec<f64> {
        site.set_shared(&told, &rates(z));
        let mut memo: BTreeMap<topology::Bytes, Memo> = BTreeMap::new();
        let mut of = |r: &CalibrationReading| {
            let bounds = crate::bound::Bounds { site: &site, ..model.bounds(r.size) };
            bounds.of(&r.parts, memo.entry(r.size).or_default()).bound_gb_per_s.ln()
        };
        which.iter().map(|i| of(&readings[*i])).collect()
    };
    let all: Vec<usize> = (0..readings.len()).collect();
    let n = switches.len();
    let mut z = vec![0.0; n];
    let start = ln_bounds(&z, &all);
    let left_out = gp.leave_one_out();
    // What the processes do not explain, each reading predicted from all others.
    let unexplained: Vec<f64> = readings
        .iter()
        .zip(start.iter().zip(&left_out))
        .map(|(r, (bound, mean))| r.busbw_gb_per_s.ln() - bound - mean)
        .collect();
    let off: Vec<f64> = unexplained.iter().map(|e| e.abs()).collect();
    let sd = (stats::MAD_TO_SD * stats::upper_median(&off)).max(SD_MIN);
    let residuals = |now: &[f64]| -> Vec<f64> {
        unexplained.iter().zip(now.iter().zip(&start)).map(|(e, (b, s))| (e - (b - s)) / sd).collect()
    };
    let mut now = start.clone();
    for _ in 0..STEPS {
        let r = residuals(&now);
        let weight: Vec<f64> = r.iter().map(|r| (ROBUST_SDS / r.abs().max(1e-9)).min(1.0)).collect();
        let mut column = |i: usize| -> Vec<f64> {
            let mut moved = z.clone();
            moved[i] += DERIVATIVE;
            let mut column = vec![0.0; now.len()];
            for (k, b) in crossing[i].iter().zip(ln_bounds(&moved, &crossing[i])) {
                column[*k] = (b - now[*k]) / DERIVATIVE / sd;
            }
            column
        };
        let j: Vec<Vec<f64>> = (0..n).map(&mut column).collect();
        let weighted: Vec<Vec<f64>> = j.iter().map(|c| c.iter().zip(&weight).map(|(c, w)| c * w).collect()).collect();
        let mut normal = LowerTriangular::zeros(n);
        for (a, of_a) in weighted.iter().enumerate() {
            let row = normal.row_mut(a);
            row.iter_mut().zip(&j[..=a]).for_each(|(cell, of_b)| *cell = dot(of_a, of_b));
            row[a] += 1.0;
        }
        let mut step: Vec<f64> = (0..n).map(|i| dot(&weighted[i], &r) - z[i]).collect();
        normal.cholesky()?.solve(&mut step);
        z.iter_mut().zip(&step).for_each(|(z, s)| *z += s.clamp(-1.0, 1.0));
        now = ln_bounds(&z, &all);
    }
    let told_apart = z.iter().any(|z| (FACTOR_SD * z).abs() > NEARLY_EQUAL);
    told_apart.then(|| rates(&z))
}

/// The switches of tiers with loss that enough readings cross, each with these readings; those that most readings cross
/// first.
fn crossed(model: &Model, readings: &[CalibrationReading]) -> Vec<(Switch, Vec<usize>)> {
    let cluster = &model.site.cluster;
    let lossy: Vec<usize> = (0..cluster.tiers().len())
        .filter(|t| model.rates.tiers.get(&cluster.tiers()[*t].name).is_some_and(|r| r.kept < 1.0))
        .collect();
    let mut of: BTreeMap<Switch, Vec<usize>> = BTreeMap::new();
    for (i, r) in readings.iter().enumerate() {
        for &tier in &lossy {
            let mut above: Vec<usize> = r.parts.iter().map(|p| cluster.switch_of(tier, p.host)).collect();
            above.sort_unstable();
            above.dedup();
            if above.len() > 1 {
                above.into_iter().for_each(|s| of.entry((tier, s)).or_default().push(i));
            }
        }
    }
    let mut found: Vec<(Switch, Vec<usize>)> = of.into_iter().filter(|c| c.1.len() >= READINGS_MIN).collect();
    found.sort_by_key(|c| std::cmp::Reverse(c.1.len()));
    found.truncate(SWITCHES_MAX);
    found
}
