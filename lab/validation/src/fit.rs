//! Fits the latency and ramp constants: damped Gauss-Newton (Levenberg-Marquardt) on their logarithms, with weights
//! that reduce the influence of outliers (iteratively re-weighted least squares). Deterministic.
//!
//! The fit changes the fields that `fabric::constants` marks (latencies, ramps, copies). Plateau rates, link and NIC
//! efficiencies and NCCL's decisions are measured or nominal and stay unchanged. The search starts from one nominal set
//! for all classes (the latencies of NCCL's cost model), not from the shipped constants.

use super::cases::{Case, Cases};
use super::score::{ValidationReport, predict, score};
use fabric::constants::{ClassConstants, LatencyCurve, NetworkConstants};
use fabric::{Constants, Fabric, GpuClass};
use rayon::prelude::*;
use serde::Serialize;
use topology::{Collective, NetworkClass};

/// Steps of the search.
const STEPS: usize = 48;
/// Relative change for numerical derivatives.
const NUDGE: f64 = 0.01;
/// Largest change of latencies and ramps of a class from nominal, as a factor.
const CURVE_FACTOR: f64 = 12.0;
/// The same for shares and copies.
const SHARE_FACTOR: f64 = 2.0;
/// The same for networks.
const NETWORK_FACTOR: f64 = 6.0;
/// Number of rows of one family in the fit, spread over its table.
const ROWS_PER_FAMILY: usize = 60;
/// An error `e` of one row (as a logarithm) counts `e^2 / (e^2 + ERROR_HALF^2)`: a square near zero, at most 1. Systems
/// that differ from their class therefore have little influence on its constants.
const ERROR_HALF: f64 = 0.15;

/// Weight of the distance from the nominal value. It keeps constants that no row determines from drifting.
const RIDGE: f64 = 0.002;
/// Weight of the distance from the same constant of the other classes (or networks), as factors on nominal. A class
/// without rows for a collective thereby learns from the others.
const KINSHIP: f64 = 0.005;

/// Classes with separate constants to fit; P100 uses those of V100, L40S and 4090 (PCIe only) need none.
const CLASSES: [GpuClass; 4] = [GpuClass::Volta, GpuClass::Ampere, GpuClass::Hopper, GpuClass::Blackwell];
/// Networks with separate constants to fit; no-GPUDirect and TCP use those of RoCE (too few sweeps are published).
const NETWORKS: [(NetworkClass, GpuClass); 4] = [
    (NetworkClass::Infiniband, GpuClass::Hopper),
    (NetworkClass::Roce, GpuClass::Hopper),
    (NetworkClass::Efa, GpuClass::Ampere),
    (NetworkClass::Efa, GpuClass::Hopper),
];

/// Fitted constants of one network.
const NETWORK_FIELDS: usize = 11;

/// Both halves. The families are arranged as systems x collectives and coloured like a chess board, so that each half
/// has every collective and half of the published data of every system. (Halves without a whole GPU generation or a
/// whole collective would measure the gap rather than the fit.)
#[derive(Clone, Debug, Serialize)]
pub struct Cross {
    /// First half, judged with constants fitted on the second.
    pub first_by_second: ValidationReport,
    /// Second half, judged with constants fitted on the first.
    pub second_by_first: ValidationReport,
}

/// Fits on half of the families, reports on the others, both ways.
pub fn cross(cases: &Cases, fabrics: &[Fabric]) -> Cross {
    let mut systems: Vec<(&str, &str)> = Vec::new();
    let mut half_of = Vec::with_capacity(cases.families.len());
    for name in &cases.families {
        let key = (name.source.as_str(), name.system.as_str());
        let system = systems.iter().position(|s| *s == key).unwrap_or_else(|| {
            systems.push(key);
            systems.len() - 1
        });
        let collective = Collective::ALL.iter().position(|c| c.name() == name.collective).unwrap_or(0);
        half_of.push((system + collective) % 2);
    }
    let judge = |half: usize| {
        let fitted = fit(cases, fabrics, |f| half_of[f] != half);
        let tuned: Vec<Fabric> = fabrics.iter().map(|f| f.retuned(fitted.clone())).collect();
        let mut rest = cases.clone();
        rest.cases.retain(|c| half_of[c.family] == half);
        rest.left_out.retain(|f, _| half_of[*f] == half);
        let mut report = score(&rest, &tuned);
        report.families.retain(|f| f.errors.all.rows > 0 || f.errors.left_out > 0);
        report
    };
    Cross { first_by_second: judge(0), second_by_first: judge(1) }
}

/// Fits on all families and prints the constants.
pub fn all(cases: &Cases, fabrics: &[Fabric]) -> String {
    let fitted = fit(cases, fabrics, |_| true);
    format!("{fitted:#?}\n")
}

/// Passes every fitted constant to `see`, in a fixed order, with the largest factor of its change from nominal.
fn visit(c: &mut Constants, see: &mut dyn FnMut(&mut f64, f64)) {
    fn curve(c: &mut LatencyCurve, see: &mut dyn FnMut(&mut f64, f64)) {
        [&mut c.base_us, &mut c.step_us, &mut c.fill_us, &mut c.fill_at, &mut c.fill_power]
            .into_iter()
            .for_each(|v| see(v, CURVE_FACTOR));
    }
    for class in CLASSES {
        let k = c.class_mut(class);
        curve(&mut k.ring, see);
        curve(&mut k.nvls, see);
        curve(&mut k.all_to_all, see);
        let shares = [&mut k.own_copy, &mut k.all_reduce_own_copy, &mut k.direct_share, &mut k.direct_own_copy];
        shares.into_iter().for_each(|v| see(v, SHARE_FACTOR));
    }
    curve(&mut c.pcie.ring, see);
    curve(&mut c.pcie.all_to_all, see);
    see(&mut c.pcie.own_copy, SHARE_FACTOR);
    see(&mut c.pcie.direct_own_copy, SHARE_FACTOR);
    see(&mut c.pcie.direct_share, SHARE_FACTOR);
    for (class, oldest) in NETWORKS {
        let k = c.network_mut(class, oldest);
        let all = [
            &mut k.tree_base_us,
            &mut k.tree_level_us,
            &mut k.tree_chunk,
            &mut k.ring_base_us,
            &mut k.ring_step_us,
            &mut k.nvls_tree_base_us,
            &mut k.nvls_tree_level_us,
            &mut k.nvls_tree_chunk,
            &mut k.chunk_max_us,
            &mut k.ramp_us,
            &mut k.ramp_at,
        ];
        all.into_iter().for_each(|v| see(v, NETWORK_FACTOR));
    }
}

fn values(c: &Constants) -> Vec<f64> {
    let mut out = Vec::new();
    visit(&mut c.clone(), &mut |v, _| out.push(*v));
    out
}

fn with(c: &Constants, values: &[f64]) -> Constants {
    let (mut c, mut i) = (c.clone(), 0);
    visit(&mut c, &mut |v, _| {
        *v = values[i];
        i += 1;
    });
    let volta = *c.class(GpuClass::Volta);
    let pascal = c.class_mut(GpuClass::Pascal);
    *pascal = ClassConstants {
        link_efficiency: pascal.link_efficiency,
        full_ring_gb_per_s: pascal.full_ring_gb_per_s,
        ..volta
    };
    let roce = *c.network(NetworkClass::Roce, GpuClass::Hopper);
    for class in [NetworkClass::RdmaNoGdr, NetworkClass::Tcp] {
        let n = c.network_mut(class, GpuClass::Hopper);
        *n = NetworkConstants { efficiency: n.efficiency, ..roce };
    }
    c
}

/// The rows of the families that `train` selects, with weights: at most [`ROWS_PER_FAMILY`] of each family. Plateau and sweep
/// of a family have equal weights, independent of their numbers of rows.
fn weighted_rows(cases: &Cases, train: impl Fn(usize) -> bool) -> Vec<(&Case, f64)> {
    let mut by_family = vec![Vec::new(); cases.families.len()];
    for c in cases.cases.iter().filter(|c| train(c.family)) {
        by_family[c.family].push(c);
    }
    for rows in &mut by_family {
        let n = rows.len();
        if n > ROWS_PER_FAMILY {
            // Multiples of the golden ratio: uniform over the table, and independent of the period of its sizes and
            // configurations.
            let at = |i: usize| (i as f64 * 0.618_033_988_749_895).fract();
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|a, b| at(*a).total_cmp(&at(*b)));
            *rows = order[..ROWS_PER_FAMILY].iter().map(|i| rows[*i]).collect();
        }
    }
    let mut out = Vec::new();
    for family in &by_family {
        for plateau in [false, true] {
            let part: Vec<_> = family.iter().filter(|r| r.plateau == plateau).collect();
            let weight = 1.0 / part.len().max(1) as f64;
            out.extend(part.into_iter().map(|r| (*r, weight)));
        }
    }
    out
}

/// Fits the constants on the families that `train` selects.
fn fit(cases: &Cases, fabrics: &[Fabric], train: impl Fn(usize) -> bool) -> Constants {
    let fit = Fit::new(fabrics, weighted_rows(cases, train));
    let mut at = Point { errors: fit.errors(&fit.origin), logs: fit.origin.clone() };
    let mut damping = 1e-2;
    for step in 0..STEPS {
        // Wide at first, so that no row that looks like an outlier early is excluded permanently.
        let half = (0.6 * 0.9f64.powi(step as i32)).max(ERROR_HALF);
        if let Some(better) = fit.step(&at, half, &mut damping) {
            at = better;
        }
    }
    fit.constants(&at.logs)
}

/// One point of the search: the logarithms of all constants, and the errors of all rows.
struct Point {
    logs: Vec<f64>,
    errors: Vec<f64>,
}

/// The objective of the search: the weighted errors of the rows, and the distances of the constants from their nominal values
/// and from related constants.
struct Fit<'a> {
    fabrics: &'a [Fabric<'a>],
    rows: Vec<(&'a Case, f64)>,
    start: Constants,
    /// Logarithms of the nominal values, and the allowed distance from each.
    origin: Vec<f64>,
    reach: Vec<f64>,
    kin: Vec<Vec<usize>>,
}

impl<'a> Fit<'a> {
    fn new(fabrics: &'a [Fabric<'a>], rows: Vec<(&'a Case, f64)>) -> Self {
        let start = Constants::nominal();
        let origin: Vec<f64> = values(&start).iter().map(|v| v.max(1e-3).ln()).collect();
        let mut reach = Vec::new();
        visit(&mut start.clone(), &mut |_, factor| reach.push(factor.ln()));
        Fit { fabrics, rows, start, kin: kin(origin.len()), origin, reach }
    }

    fn constants(&self, logs: &[f64]) -> Constants {
        with(&self.start, &logs.iter().map(|v| v.exp()).collect::<Vec<f64>>())
    }

    /// The logarithm of predicted over measured bandwidth of every row.
    fn errors(&self, logs: &[f64]) -> Vec<f64> {
        let c = self.constants(logs);
        let tuned: Vec<Fabric> = self.fabrics.iter().map(|f| f.retuned(c.clone())).collect();
        self.rows.iter().map(|(r, _)| (predict(r, &tuned).0 / r.measured_gb_per_s).max(1e-9).ln()).collect()
    }

    /// Distance of a constant from the mean of the related constants, and from its nominal value.
    fn away(&self, logs: &[f64], i: usize) -> (f64, f64) {
        let kin = &self.kin[i];
        let mean = kin.iter().map(|&j| logs[j] - self.origin[j]).sum::<f64>() / kin.len() as f64;
        (logs[i] - self.origin[i] - mean, logs[i] - self.origin[i])
    }

    fn cost(&self, at: &Point, half: f64) -> f64 {
        let away = (0..at.logs.len()).map(|i| self.away(&at.logs, i));
        let ridge = away.map(|(k, o)| KINSHIP * k * k + RIDGE * o * o).sum::<f64>();
        let errors = at.errors.iter().zip(&self.rows);
        errors.map(|(e, (_, w))| w * e * e / (e * e + half * half)).sum::<f64>() + ridge
    }

    /// The normal equations of a Gauss-Newton step: their matrix and their right side.
    fn normal_equations(&self, at: &Point, half: f64) -> (Vec<Vec<f64>>, Vec<f64>) {
        let Point { logs, errors: now } = at;
        let n = logs.len();
        let columns: Vec<Vec<f64>> = (0..n)
            .into_par_iter()
            .map(|i| {
                let mut there = logs.clone();
                there[i] += NUDGE;
                self.errors(&there).iter().zip(now).map(|(a, b)| (a - b) / NUDGE).collect()
            })
            .collect();
        let weighted = now.iter().zip(&self.rows);
        let weight: Vec<f64> = weighted.map(|(e, (_, w))| w * half * half / (e * e + half * half).powi(2)).collect();
        let rows = || 0..self.rows.len();
        let mut normal = vec![vec![0.0; n]; n];
        let mut right = vec![0.0; n];
        for i in 0..n {
            for j in 0..=i {
                let sum: f64 = rows().map(|k| weight[k] * columns[i][k] * columns[j][k]).sum();
                normal[i][j] = sum;
                normal[j][i] = sum;
            }
            right[i] = -rows().map(|k| weight[k] * columns[i][k] * now[k]).sum::<f64>();
        }
        for i in 0..n {
            let (from_kin, from_nominal) = self.away(logs, i);
            right[i] -= KINSHIP * from_kin + RIDGE * from_nominal;
            normal[i][i] += KINSHIP + RIDGE;
            self.kin[i].iter().for_each(|&j| normal[i][j] -= KINSHIP / self.kin[i].len() as f64);
        }
        (normal, right)
    }

    /// Tries six dampings and returns the first step that lowers the cost. `damping` falls after a success and grows after a
    /// failure.
    fn step(&self, at: &Point, half: f64, damping: &mut f64) -> Option<Point> {
        let (normal, right) = self.normal_equations(at, half);
        let n = right.len();
        let before = self.cost(at, half);
        for _ in 0..6 {
            let mut damped = normal.clone();
            (0..n).for_each(|i| damped[i][i] *= 1.0 + *damping);
            let d = solve(damped, right.clone())?;
            let (origin, reach) = (&self.origin, &self.reach);
            let moved =
                |i: usize| (at.logs[i] + d[i].clamp(-0.7, 0.7)).clamp(origin[i] - reach[i], origin[i] + reach[i]);
            let logs: Vec<f64> = (0..n).map(moved).collect();
            let there = Point { errors: self.errors(&logs), logs };
            if self.cost(&there, half) < before {
                *damping = (*damping * 0.4).max(1e-6);
                return Some(there);
            }
            *damping *= 4.0;
        }
        None
    }
}

/// For every constant, the indices of the same constant in the other classes or networks, itself included.
fn kin(count: usize) -> Vec<Vec<usize>> {
    let pcie = 2 * 5 + 3;
    let networks = NETWORKS.len() * NETWORK_FIELDS;
    let fields = (count - pcie - networks) / CLASSES.len();
    let class_part = fields * CLASSES.len();
    (0..count)
        .map(|i| {
            if i < class_part {
                (0..CLASSES.len()).map(|c| c * fields + i % fields).collect()
            } else if i < class_part + pcie {
                vec![i]
            } else {
                let first = class_part + pcie;
                (0..NETWORKS.len()).map(|c| first + c * NETWORK_FIELDS + (i - first) % NETWORK_FIELDS).collect()
            }
        })
        .collect()
}

/// Solves a symmetric positive definite system by Cholesky; `None` if it is not.
fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Option<Vec<f64>> {
    let n = b.len();
    for i in 0..n {
        for j in 0..=i {
            let sum: f64 = (0..j).map(|k| a[i][k] * a[j][k]).sum();
            let v = a[i][j] - sum;
            a[i][j] = if i == j {
                if v <= 0.0 {
                    return None;
                }
                v.sqrt()
            } else {
                v / a[j][j]
            };
        }
    }
    for i in 0..n {
        let sum: f64 = (0..i).map(|k| a[i][k] * b[k]).sum();
        b[i] = (b[i] - sum) / a[i][i];
    }
    for i in (0..n).rev() {
        let sum: f64 = (i + 1..n).map(|k| a[k][i] * b[k]).sum();
        b[i] = (b[i] - sum) / a[i][i];
    }
    Some(b)
}
