//! Calibrates the physics' constants of sharing to readings.
//!
//! NCCL determines the shape of these effects, the system their strength: the loss of a NIC that several senders share, the rate of a
//! channel, the deficit of trees against rings. With few readings the prior (the constants passed in) dominates, with a hundred the
//! readings do. The Gaussian processes then correct the residuals.

use crate::bound::{Bounds, Memo};
use crate::shares::HostShare;
use fabric::constants::ShareConstants;
use fabric::{Constants, Fabric, FabricTables};
use topology::{Bytes, Cluster, Collective};

/// Most readings used; of more, evenly spread ones.
const READINGS_MAX: usize = 300;
/// Most sweeps over the constants.
const SWEEPS_MAX: usize = 10;
/// Residuals of `ln(busbw / bound)` above this count by their size, below by their square.
const ROBUST: f64 = 0.03;
/// First step of every constant, in its own coordinate, and the last.
const STEP: (f64, f64) = (0.16, 0.01);

/// One constant: its place, its range, and whether its coordinate is its logarithm.
struct Dial {
    at: fn(&mut ShareConstants) -> &mut f64,
    range: (f64, f64),
    ln: bool,
}

/// Ranges keep [`crate::bound::network_at_most_gb_per_s`] true.
const DIALS: [Dial; 9] = [
    Dial { at: |s| &mut s.channel_gb_per_s, range: (2.0, 60.0), ln: true },
    Dial { at: |s| &mut s.met, range: (0.0, 1.0), ln: false },
    Dial { at: |s| &mut s.incast, range: (1.0, 3.0), ln: true },
    Dial { at: |s| &mut s.incast_far, range: (1.0, 3.0), ln: true },
    Dial { at: |s| &mut s.scattered, range: (1.0, 3.0), ln: true },
    Dial { at: |s| &mut s.tree, range: (0.3, 1.0), ln: true },
    Dial { at: |s| &mut s.nvls_tree_many, range: (0.3, 1.0), ln: true },
    Dial { at: |s| &mut s.nvls_tree_ceiling, range: (0.3, 1.5), ln: true },
    Dial { at: |s| &mut s.tree_ll128, range: (0.7, 2.0), ln: true },
];
/// How many constants a fit may move.
pub(crate) const CONSTANTS: usize = DIALS.len();
/// Deviation of the prior, in every coordinate.
const PRIOR_SD: f64 = 0.4;

/// One reading over several hosts.
pub(crate) struct CalibrationReading {
    pub parts: Vec<HostShare>,
    pub size: Bytes,
    pub busbw_gb_per_s: f64,
}

fn robust(r: f64) -> f64 {
    let z = r / ROBUST;
    (1.0 + z * z).sqrt() - 1.0
}

/// True if every constant of sharing is within the range of fits (with room for shipped constants).
pub(crate) fn plausible(share: ShareConstants) -> bool {
    let mut s = share;
    DIALS.iter().all(|d| {
        let v = *(d.at)(&mut s);
        v.is_finite() && v >= 0.5 * d.range.0 && v <= 2.0 * d.range.1
    })
}

/// The constants, those of sharing calibrated. Deterministic. Cost: up to a few hundred times the readings' estimates, about a microsecond
/// each.
pub(crate) fn calibrate(
    cluster: &Cluster,
    physics: &Fabric,
    constants: &Constants,
    collective: Collective,
    readings: &[CalibrationReading],
) -> Constants {
    let step = readings.len().div_ceil(READINGS_MAX).max(1);
    let seen: Vec<&CalibrationReading> = readings.iter().step_by(step).collect();
    let mut residuals = vec![0.0; seen.len()];
    let mut cost = |c: &Constants| -> f64 {
        let tables: FabricTables = physics.retuned(c.clone()).tables();
        let mut memo = Memo::default();
        let mut last = None;
        for (r, out) in seen.iter().zip(&mut residuals) {
            if last.replace(r.size).is_some_and(|s| s != r.size) {
                memo = Memo::default();
            }
            let bounds = Bounds { cluster, tables: &tables, collective, size: r.size, nccl: None };
            *out = (r.busbw_gb_per_s / bounds.of(&r.parts, &mut memo).bound_gb_per_s).ln();
        }
        // The Gaussian process learns the offset common to all readings.
        let middle = stats::upper_median(&residuals);
        let (mut start, mut now) = (constants.share, c.share);
        let prior: f64 = DIALS
            .iter()
            .map(|d| {
                let (a, b) = (*(d.at)(&mut start), *(d.at)(&mut now));
                let moved = if d.ln { (b / a).ln() } else { b - a };
                0.5 * (moved / PRIOR_SD).powi(2)
            })
            .sum();
        residuals.iter().map(|r| robust(r - middle)).sum::<f64>() + prior
    };
    let mut best = constants.clone();
    if seen.is_empty() {
        return best;
    }
    let mut least = cost(&best);
    let mut steps = [STEP.0; DIALS.len()];
    for _ in 0..SWEEPS_MAX {
        for (dial, step) in DIALS.iter().zip(&mut steps) {
            if *step < STEP.1 {
                continue;
            }
            let mut moved = false;
            for sign in [1.0, -1.0] {
                let mut next = best.clone();
                let value = (dial.at)(&mut next.share);
                let before = *value;
                let to = if dial.ln { before * (sign * *step).exp() } else { before + sign * *step };
                *value = to.clamp(dial.range.0, dial.range.1);
                if *value == before {
                    continue;
                }
                let c = cost(&next);
                if c < least - 1e-9 {
                    (best, least, moved) = (next, c, true);
                    break;
                }
            }
            *step *= if moved { 1.5 } else { 0.4 };
        }
        if steps.iter().all(|s| *s < STEP.1) {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intra::{HostReadings, IntraTables};
    use crate::shares::HostShareTable;
    use topology::{Allocation, GpuMask, HostId, catalog};

    fn readings(cluster: &Cluster, constants: Constants, splits: &[[usize; 4]]) -> Vec<CalibrationReading> {
        let fabric = Fabric::with_constants(cluster, constants);
        let none = vec![HostReadings::new(); cluster.hosts.len()];
        let intra = IntraTables::new(cluster, &none, &|_, _| 1e4);
        let table = HostShareTable::new(cluster, &intra, &fabric.tables());
        splits
            .iter()
            .map(|s| {
                let parts = s.iter().enumerate().filter(|p| *p.1 > 0);
                let a = Allocation::new(parts.map(|(h, n)| (HostId(h as u32), GpuMask::first(*n))));
                CalibrationReading {
                    parts: a.parts().iter().map(|&(h, m)| table.part(h, m)).collect(),
                    size: Bytes::gib(2),
                    busbw_gb_per_s: fabric.estimate(&a, Collective::AllReduce, Bytes::gib(2)).busbw.gb_per_s(),
                }
            })
            .collect()
    }

    /// Every n-th split over three or four hosts.
    fn splits(every: usize, from: usize) -> Vec<[usize; 4]> {
        let all = (1..=8usize)
            .flat_map(|a| (1..=a).flat_map(move |b| (1..=b).flat_map(move |c| (0..=c).map(move |d| [a, b, c, d]))));
        all.skip(from).step_by(every).collect()
    }

    fn off(cluster: &Cluster, constants: &Constants, readings: &[CalibrationReading]) -> f64 {
        let tables = Fabric::with_constants(cluster, constants.clone()).tables();
        let bounds =
            Bounds { cluster, tables: &tables, collective: Collective::AllReduce, size: Bytes::gib(2), nccl: None };
        let each = readings
            .iter()
            .map(|r| (r.busbw_gb_per_s / bounds.of(&r.parts, &mut Memo::default()).bound_gb_per_s).ln().abs());
        each.sum::<f64>() / readings.len() as f64
    }

    #[test]
    fn constants_of_sharing_are_found_again_from_a_hundred_readings_and_hold_for_others() {
        let cluster = catalog::cluster("h100").unwrap();
        let nominal = Constants::nominal();
        let mut real = nominal.clone();
        (real.share.incast, real.share.met, real.share.channel_gb_per_s) = (1.3, 0.2, 17.0);
        let physics = Fabric::with_constants(&cluster, nominal.clone());
        let seen = readings(&cluster, real.clone(), &splits(4, 0));
        let found = calibrate(&cluster, &physics, &nominal, Collective::AllReduce, &seen);
        assert_eq!(found, calibrate(&cluster, &physics, &nominal, Collective::AllReduce, &seen), "deterministic");
        let others = readings(&cluster, real, &splits(4, 2));
        let (before, after) = (off(&cluster, &nominal, &others), off(&cluster, &found, &others));
        assert!(after < 0.3 * before, "{after} after, {before} before; {:?}", found.share);
        assert!(plausible(found.share));
    }

    #[test]
    fn without_readings_nothing_is_calibrated_and_one_reading_hardly_moves_anything() {
        let cluster = catalog::cluster("h100").unwrap();
        let nominal = Constants::nominal();
        let physics = Fabric::with_constants(&cluster, nominal.clone());
        assert_eq!(calibrate(&cluster, &physics, &nominal, Collective::AllReduce, &[]), nominal);
        let mut one = readings(&cluster, nominal.clone(), &[[8, 8, 8, 3]]);
        one[0].busbw_gb_per_s *= 0.5;
        // A single reading is an offset, which the process learns.
        assert_eq!(calibrate(&cluster, &physics, &nominal, Collective::AllReduce, &one), nominal);
    }
}
