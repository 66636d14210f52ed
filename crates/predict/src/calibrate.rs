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
/// Cost from which on a residual counts by its logarithm: a reading a third off its class says little about the constants.
const ODD: f64 = 12.0;
/// Readings that must gain by the move of a constant.
const SUPPORT: usize = 3;
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
    let cost = (1.0 + z * z).sqrt() - 1.0;
    if cost > ODD { ODD + (cost - ODD).ln_1p() } else { cost }
}

/// True if every constant of sharing is within the range of fits (with room for shipped constants).
pub(crate) fn plausible(share: ShareConstants) -> bool {
    let mut s = share;
    DIALS.iter().all(|d| {
        let v = *(d.at)(&mut s);
        v.is_finite() && v >= 0.5 * d.range.0 && v <= 2.0 * d.range.1
    })
}

/// The constants, those of sharing calibrated. Deterministic. A constant moves only if [`SUPPORT`] readings and more ask for it. Cost: up to
/// a few hundred times the readings' estimates, about a microsecond each.
pub(crate) fn calibrate(
    cluster: &Cluster,
    physics: &Fabric,
    constants: &Constants,
    collective: Collective,
    readings: &[CalibrationReading],
) -> Constants {
    let step = readings.len().div_ceil(READINGS_MAX).max(1);
    let seen: Vec<&CalibrationReading> = readings.iter().step_by(step).collect();
    if seen.is_empty() {
        return constants.clone();
    }
    let c = Calibration { cluster, physics, start: constants, collective, seen };
    let mut free = [true; DIALS.len()];
    let mut best = c.descend(constants.clone(), &free);
    let unsupported: Vec<usize> = (0..DIALS.len()).filter(|d| !c.is_supported(&best, &DIALS[*d])).collect();
    if !unsupported.is_empty() {
        for d in unsupported {
            free[d] = false;
            *(DIALS[d].at)(&mut best.share) = *(DIALS[d].at)(&mut constants.share.clone());
        }
        best = c.descend(best, &free);
    }
    best
}

/// The readings and the physics of one calibration.
struct Calibration<'a> {
    cluster: &'a Cluster,
    physics: &'a Fabric<'a>,
    start: &'a Constants,
    collective: Collective,
    seen: Vec<&'a CalibrationReading>,
}

impl Calibration<'_> {
    /// The cost of every reading under some constants.
    fn costs(&self, c: &Constants) -> Vec<f64> {
        let tables: FabricTables = self.physics.retuned(c.clone()).tables();
        let mut memo = Memo::default();
        let mut last = None;
        let residual = |r: &&CalibrationReading| {
            if last.replace(r.size).is_some_and(|s| s != r.size) {
                memo = Memo::default();
            }
            let (cluster, collective) = (self.cluster, self.collective);
            let bounds = Bounds { cluster, tables: &tables, collective, size: r.size, nccl: None };
            (r.busbw_gb_per_s / bounds.of(&r.parts, &mut memo).bound_gb_per_s).ln()
        };
        let residuals: Vec<f64> = self.seen.iter().map(residual).collect();
        // The Gaussian process learns the offset common to all readings.
        let middle = stats::upper_median(&residuals);
        residuals.iter().map(|r| robust(r - middle)).collect()
    }

    /// The cost of the move of one constant.
    fn prior(&self, c: &Constants, dial: &Dial) -> f64 {
        let (a, b) = (*(dial.at)(&mut self.start.share.clone()), *(dial.at)(&mut c.share.clone()));
        let moved = if dial.ln { (b / a).ln() } else { b - a };
        0.5 * (moved / PRIOR_SD).powi(2)
    }

    fn cost(&self, c: &Constants) -> f64 {
        let prior: f64 = DIALS.iter().map(|d| self.prior(c, d)).sum();
        self.costs(c).iter().sum::<f64>() + prior
    }

    /// Moves the free constants, one after the other, by steps that shrink.
    fn descend(&self, from: Constants, free: &[bool; DIALS.len()]) -> Constants {
        let mut best = from;
        let mut least = self.cost(&best);
        let mut steps = [STEP.0; DIALS.len()];
        for _ in 0..SWEEPS_MAX {
            for ((dial, step), _) in DIALS.iter().zip(&mut steps).zip(free).filter(|d| *d.1) {
                if *step < STEP.1 {
                    continue;
                }
                let better = [1.0, -1.0].into_iter().find_map(|sign| {
                    let next = stepped(&best, dial, sign * *step)?;
                    let cost = self.cost(&next);
                    (cost < least - 1e-9).then_some((next, cost))
                });
                *step *= if better.is_some() { 1.5 } else { 0.4 };
                if let Some(b) = better {
                    (best, least) = b;
                }
            }
            if steps.iter().zip(free).all(|(s, free)| !free || *s < STEP.1) {
                break;
            }
        }
        best
    }

    /// True if a constant's move still pays without the readings that gain most by it: a single bad reading of a rare kind must not set the
    /// constant of that kind.
    fn is_supported(&self, best: &Constants, dial: &Dial) -> bool {
        let mut without = best.clone();
        *(dial.at)(&mut without.share) = *(dial.at)(&mut self.start.share.clone());
        if without == *best {
            return true;
        }
        let mut gains: Vec<f64> =
            self.costs(&without).iter().zip(self.costs(best)).map(|(before, after)| before - after).collect();
        gains.sort_by(|a, b| b.total_cmp(a));
        gains.iter().skip(SUPPORT - 1).sum::<f64>() > self.prior(best, dial)
    }
}

/// The constants with one of them moved; `None` at the end of its range.
fn stepped(c: &Constants, dial: &Dial, by: f64) -> Option<Constants> {
    let mut next = c.clone();
    let value = (dial.at)(&mut next.share);
    let before = *value;
    let to = if dial.ln { before * by.exp() } else { before + by };
    *value = to.clamp(dial.range.0, dial.range.1);
    (*value != before).then_some(next)
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
