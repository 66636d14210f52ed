//! Fitting the latency and ramp constants: pattern search on their logarithms, deterministic.
//!
//! Fitted are the fields that `fabric::constants` marks so (latencies, ramps, copies). Plateau rates, link and NIC efficiencies and
//! NCCL's decisions are measured or nominal and stay as they are. The search starts from one nominal set for all classes (the
//! latencies of NCCL's own cost model), not from the shipped constants.

use super::cases::Cases;
use super::score::{Report, predict, score};
use fabric::constants::Curve;
use fabric::{Constants, Fabric, GpuClass};
use serde::Serialize;
use topology::NetworkClass;

/// Rounds of the search; every round tries every constant up and down; a step that does not help is halved.
const ROUNDS: usize = 9;
/// First step of a constant: a factor.
const FIRST_STEP: f64 = 2.2;
/// Rows of one family that the fit looks at, evenly spread.
const ROWS_PER_FAMILY: usize = 60;
/// An error of one row counts at most so much (as a logarithm): outliers do not decide.
const ERROR_MAX: f64 = 0.5;

const CLASSES: [GpuClass; 6] =
    [GpuClass::Pascal, GpuClass::Volta, GpuClass::Ampere, GpuClass::Ada, GpuClass::Hopper, GpuClass::Blackwell];
const NETWORKS: [NetworkClass; 5] =
    [NetworkClass::Infiniband, NetworkClass::Roce, NetworkClass::Efa, NetworkClass::RdmaNoGdr, NetworkClass::Tcp];

/// Both halves.
#[derive(Clone, Debug, Serialize)]
pub struct Cross {
    /// Families with even numbers, judged with constants fitted on those with odd ones.
    pub even_by_odd: Report,
    /// The other way round.
    pub odd_by_even: Report,
}

/// Fits on every second family, reports on the others, both ways.
pub fn cross(cases: &Cases, fabrics: &[Fabric]) -> Cross {
    let judge = |parity: usize| {
        let fitted = fit(cases, fabrics, |f| f % 2 != parity);
        let tuned: Vec<Fabric> = fabrics.iter().map(|f| f.retuned(fitted.clone())).collect();
        let mut half = cases.clone();
        half.cases.retain(|c| c.family % 2 == parity);
        half.left_out.retain(|f, _| f % 2 == parity);
        let mut report = score(&half, &tuned);
        report.families.retain(|f| f.all.rows > 0 || f.left_out > 0);
        report
    };
    Cross { even_by_odd: judge(0), odd_by_even: judge(1) }
}

/// Fits on all families and prints the constants.
pub fn all(cases: &Cases, fabrics: &[Fabric]) -> String {
    format!("{:#?}\n", fit(cases, fabrics, |_| true))
}

/// Shows every fitted constant to `see`, in a fixed order.
fn visit(c: &mut Constants, see: &mut dyn FnMut(&mut f64)) {
    fn curve(c: &mut Curve, see: &mut dyn FnMut(&mut f64)) {
        [&mut c.base_us, &mut c.step_us, &mut c.fill_us, &mut c.fill_at].into_iter().for_each(see);
    }
    for class in CLASSES {
        let k = c.class_mut(class);
        curve(&mut k.ring, see);
        curve(&mut k.nvls, see);
        curve(&mut k.all_to_all, see);
        let shares = [&mut k.own_copy, &mut k.all_reduce_own_copy, &mut k.direct_share, &mut k.direct_own_copy];
        shares.into_iter().for_each(&mut *see);
    }
    curve(&mut c.pcie.ring, see);
    curve(&mut c.pcie.all_to_all, see);
    see(&mut c.pcie.fill_per_step_us);
    see(&mut c.pcie.direct_share);
    for class in NETWORKS {
        let k = c.network_mut(class);
        let all = [
            &mut k.tree_base_us,
            &mut k.tree_level_us,
            &mut k.tree_fill_us,
            &mut k.tree_fill_at,
            &mut k.ring_base_us,
            &mut k.ring_rank_us,
            &mut k.nvls_tree_base_us,
            &mut k.nvls_tree_host_us,
            &mut k.nvls_tree_rank_us,
            &mut k.ramp_us,
            &mut k.ramp_at,
        ];
        all.into_iter().for_each(&mut *see);
    }
}

fn values(c: &Constants) -> Vec<f64> {
    let mut out = Vec::new();
    visit(&mut c.clone(), &mut |v| out.push(*v));
    out
}

fn with(c: &Constants, values: &[f64]) -> Constants {
    let (mut c, mut i) = (c.clone(), 0);
    visit(&mut c, &mut |v| {
        *v = values[i];
        i += 1;
    });
    c
}

/// Fits the constants on the families that `train` names.
fn fit(cases: &Cases, fabrics: &[Fabric], train: impl Fn(usize) -> bool) -> Constants {
    let mut by_family = vec![Vec::new(); cases.families.len()];
    for c in cases.cases.iter().filter(|c| train(c.family)) {
        by_family[c.family].push(c);
    }
    for rows in &mut by_family {
        let n = rows.len();
        if n > ROWS_PER_FAMILY {
            *rows = (0..ROWS_PER_FAMILY).map(|i| rows[i * n / ROWS_PER_FAMILY]).collect();
        }
    }
    by_family.retain(|rows| !rows.is_empty());
    let cost = |c: &Constants| -> f64 {
        let tuned: Vec<Fabric> = fabrics.iter().map(|f| f.retuned(c.clone())).collect();
        by_family
            .iter()
            .map(|rows| {
                let sum: f64 = rows
                    .iter()
                    .map(|r| (predict(r, &tuned).0 / r.measured_gb_per_s).max(1e-9).ln().abs().min(ERROR_MAX))
                    .sum();
                sum / rows.len() as f64
            })
            .sum()
    };
    let start = Constants::nominal();
    let mut at = values(&start);
    let mut best = cost(&start);
    let mut step = vec![FIRST_STEP.ln(); at.len()];
    for _ in 0..ROUNDS {
        for i in 0..at.len() {
            let mut moved = false;
            for sign in [1.0, -1.0] {
                let mut there = at.clone();
                there[i] *= (sign * step[i]).exp();
                let c = cost(&with(&start, &there));
                if c < best - 1e-9 {
                    (at, best, moved) = (there, c, true);
                    break;
                }
            }
            step[i] *= if moved { 1.2 } else { 0.5 };
        }
    }
    with(&start, &at)
}
