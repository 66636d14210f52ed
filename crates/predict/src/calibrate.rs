//! Calibrates the physics' sharing constants and the cluster file's rates to readings.
//!
//! NCCL determines the form of these effects, and the system determines their strength: the loss of a NIC shared by
//! several senders, the rate of a channel, the deficit of trees against rings. With few readings the prior (the
//! constants passed in) dominates; with a hundred, the readings dominate. The Gaussian processes then correct the
//! residuals.

use crate::bound::{Bounds, Memo};
use crate::rates::{KEPT, LearnedRates, NIC_FACTOR, RatedCluster, TierRates, UPLINK_FACTOR};
use crate::shares::HostShare;
use crate::stop::Stop;
use fabric::constants::ShareConstants;
use fabric::{Constants, Fabric, FabricTables};
use std::cell::RefCell;
use topology::{Bytes, Cluster, Collective};

/// Maximum number of readings used. Of more readings, an evenly spaced selection is used.
const READINGS_MAX: usize = 300;
/// Maximum number of sweeps over the constants.
const SWEEPS_MAX: usize = 10;
/// Residuals of `ln(busbw / bound)` above this cost linearly, below it quadratically.
const ROBUST: f64 = 0.03;
/// Above this, the cost grows with the logarithm: a reading a third off its class says little about the constants.
const ODD: f64 = 12.0;
/// Minimum number of readings that must gain when a constant moves.
const SUPPORT: usize = 3;
/// A move that gains this much beyond its price is made in full, one that gains less in part.
const SUPPORT_FULL: f64 = 0.7;
/// First and last step of every constant, in its own coordinate.
const STEP: (f64, f64) = (0.16, 0.01);

/// Values that a fit may move: sharing constants and the rates in the cluster file.
#[derive(Clone, Debug, PartialEq)]
struct Tuned {
    constants: Constants,
    /// By group of host types with the same hardware: factor of the NICs' rate.
    nics: Vec<f64>,
    /// By tier.
    tiers: Vec<TierRates>,
}

/// The value that a dial moves.
#[derive(Clone, Copy)]
enum Place {
    Share(fn(&mut ShareConstants) -> &mut f64),
    Nics(usize),
    Uplinks(usize),
    Kept(usize),
}

/// One value that a fit may move: its place, its range, and whether its coordinate is its logarithm.
#[derive(Clone, Copy)]
struct Dial {
    at: Place,
    range: (f64, f64),
    ln: bool,
    /// Standard deviation of the prior, in the coordinate.
    prior_sd: f64,
}

impl Dial {
    const fn share(at: fn(&mut ShareConstants) -> &mut f64, range: (f64, f64), ln: bool) -> Dial {
        Dial { at: Place::Share(at), range, ln, prior_sd: PRIOR_SD }
    }

    /// True for a rate that the cluster file states.
    fn is_told(&self) -> bool {
        matches!(self.at, Place::Nics(_) | Place::Uplinks(_))
    }

    /// Leaves a share of the value's way from `start`.
    fn move_part(&self, start: &Tuned, t: &mut Tuned, share: f64) {
        let from = *self.value(&mut start.clone());
        let to = self.value(t);
        *to = if self.ln { from * (*to / from).powf(share) } else { from + share * (*to - from) };
    }

    fn value<'t>(&self, t: &'t mut Tuned) -> &'t mut f64 {
        match self.at {
            Place::Share(at) => at(&mut t.constants.share),
            Place::Nics(i) => &mut t.nics[i],
            Place::Uplinks(i) => &mut t.tiers[i].uplinks,
            Place::Kept(i) => &mut t.tiers[i].kept,
        }
    }
}

/// The ranges must keep [`crate::bound::network_at_most_gb_per_s`] valid.
const DIALS: [Dial; 9] = [
    Dial::share(|s| &mut s.channel_gb_per_s, (2.0, 60.0), true),
    Dial::share(|s| &mut s.met, (0.0, 1.0), false),
    Dial::share(|s| &mut s.incast, (1.0, 3.0), true),
    Dial::share(|s| &mut s.incast_far, (1.0, 3.0), true),
    Dial::share(|s| &mut s.scattered, (1.0, 3.0), true),
    Dial::share(|s| &mut s.tree, (0.3, 1.0), true),
    Dial::share(|s| &mut s.nvls_tree_many, (0.3, 1.0), true),
    Dial::share(|s| &mut s.nvls_tree_ceiling, (0.3, 1.5), true),
    Dial::share(|s| &mut s.tree_ll128, (0.7, 2.0), true),
];
/// Number of sharing constants that a fit may move.
pub(crate) const CONSTANTS: usize = DIALS.len();
/// Standard deviation of the prior of sharing constants, in every coordinate.
const PRIOR_SD: f64 = 0.4;
/// Standard deviation of the prior of the cluster file's rates, which may be wrong by factors.
const RATE_PRIOR_SD: f64 = 1.0;
/// Factors by which a rate in the file may be wrong: ports come in pairs, and Gbit/s are entered as GB/s.
const LADDER: [f64; 6] = [0.125, 0.25, 0.5, 2.0, 4.0, 8.0];
/// A fitted rate this close to the file's (in the logarithm) is treated as the file's.
const NEARLY_RIGHT_LN: f64 = 0.35;
/// Minimum gain of a step of the ladder: `-ln` of the share of files that are wrong.
const LADDER_PRICE: f64 = 8.0;
/// Standard deviation of the offset common to all readings. A site is a few per cent better or worse than the physics;
/// larger offsets indicate wrong NIC rates in the file.
const OFFSET_SD: f64 = 0.06;
/// Maximum number of host types whose NICs get a factor.
const TYPES_MAX: usize = 8;

/// One multi-host reading.
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

/// True if every sharing constant is within the range of fits (with a margin for shipped constants).
pub(crate) fn plausible(share: ShareConstants) -> bool {
    let mut s = share;
    DIALS.iter().all(|d| {
        let Place::Share(at) = d.at else { return true };
        let v = *at(&mut s);
        v.is_finite() && v >= 0.5 * d.range.0 && v <= 2.0 * d.range.1
    })
}

/// The calibrated sharing constants, and the rates of NICs and tiers. `known` are slow parts that `readings` already
/// account for. A value moves only if at least [`SUPPORT`] readings gain by the move. Deterministic. Cost: up to a few
/// hundred estimates per reading, about a microsecond each.
pub(crate) fn calibrate(
    cluster: &Cluster,
    physics: &Fabric,
    constants: &Constants,
    collective: Collective,
    readings: &[CalibrationReading],
    known: &LearnedRates,
    stop: Stop<'_>,
) -> (Constants, LearnedRates) {
    let step = readings.len().div_ceil(READINGS_MAX).max(1);
    let seen: Vec<&CalibrationReading> = readings.iter().step_by(step).collect();
    if seen.is_empty() {
        return (constants.clone(), known.clone());
    }
    let with_switches = known.with_switches(cluster);
    let cluster: &Cluster = &with_switches;
    let groups = groups_of_types(cluster);
    let start = Tuned {
        constants: constants.clone(),
        nics: vec![1.0; groups.len()],
        tiers: vec![TierRates::TOLD; cluster.tiers().len()],
    };
    let dials = dials(&start);
    let slow = LearnedRates { slow: known.slow.clone(), switches: known.switches.clone(), ..LearnedRates::default() };
    let site = RefCell::new(slow.on(cluster));
    let c = Calibration { cluster, site, groups, physics, start, dials, collective, seen, stop };
    let (from, mut free) = c.wrong_by_factors();
    let mut best = c.descend(from, &free);
    // A value that hardly pays moves part of its way: no single reading decides between two far values.
    let share = |d: usize| match free[d] && c.is_nearly_right(&best, &c.dials[d]) {
        true => 0.0,
        false => (c.support(&best, &c.dials[d]) / SUPPORT_FULL).clamp(0.0, 1.0),
    };
    let unsupported: Vec<(usize, f64)> = (0..c.dials.len()).map(|d| (d, share(d))).filter(|d| d.1 < 1.0).collect();
    if !unsupported.is_empty() {
        for (d, share) in unsupported {
            free[d] = false; // a second descent moves the others
            c.dials[d].move_part(&c.start, &mut best, share);
        }
        best = c.descend(best, &free);
    }
    let rates = LearnedRates { slow: slow.slow, switches: slow.switches, ..c.rates(&best) };
    (best.constants, rates)
}

/// The host types in use that have NICs, as indices grouped by equal hardware.
fn groups_of_types(cluster: &Cluster) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let used = |t: &usize| cluster.hosts.iter().any(|h| h.host_type == *t);
    for t in (0..cluster.types.len()).filter(|t| !cluster.types[*t].nics.is_empty()).filter(used) {
        match groups.iter_mut().find(|g| crate::shares::alike(&cluster.types[g[0]], &cluster.types[t])) {
            Some(group) => group.push(t),
            None => groups.push(vec![t]),
        }
    }
    groups.truncate(TYPES_MAX);
    groups
}

/// Dials of all values. Rates come first because they move most.
fn dials(t: &Tuned) -> Vec<Dial> {
    let rate = |at, range| Dial { at, range, ln: true, prior_sd: RATE_PRIOR_SD };
    let mut out: Vec<Dial> = (0..t.nics.len()).map(|i| rate(Place::Nics(i), NIC_FACTOR)).collect();
    for i in 0..t.tiers.len() {
        out.push(rate(Place::Kept(i), KEPT));
        out.push(rate(Place::Uplinks(i), UPLINK_FACTOR));
    }
    out.extend(DIALS);
    out
}

/// The readings and the physics of one calibration.
struct Calibration<'a> {
    /// The cluster as the file states it.
    cluster: &'a Cluster,
    /// The cluster with its slow parts, at the rates evaluated last.
    site: RefCell<RatedCluster>,
    groups: Vec<Vec<usize>>,
    physics: &'a Fabric<'a>,
    start: Tuned,
    dials: Vec<Dial>,
    collective: Collective,
    seen: Vec<&'a CalibrationReading>,
    stop: Stop<'a>,
}

impl Calibration<'_> {
    /// The rates that differ from the file's.
    fn rates(&self, t: &Tuned) -> LearnedRates {
        let of_group = |(group, factor): (&Vec<usize>, &f64)| -> Vec<(String, f64)> {
            group.iter().map(|t| (self.cluster.types[*t].name.clone(), *factor)).collect()
        };
        let nics = self.groups.iter().zip(&t.nics).filter(|g| *g.1 != 1.0).flat_map(of_group).collect();
        let tiers = self.cluster.tiers().iter().zip(&t.tiers).filter(|x| *x.1 != TierRates::TOLD);
        let tiers = tiers.map(|(tier, r)| (tier.name.clone(), *r)).collect();
        LearnedRates { nics, tiers, ..LearnedRates::default() }
    }

    /// The residual of every reading under the values `t`.
    fn residuals(&self, t: &Tuned) -> Vec<f64> {
        let tables: FabricTables = self.physics.retuned(t.constants.clone()).tables();
        let mut site = self.site.borrow_mut();
        site.set_shared(self.cluster, &self.rates(t));
        let site = &*site;
        let mut memo = Memo::default();
        let mut last = None;
        let residual = |r: &&CalibrationReading| {
            if last.replace(r.size).is_some_and(|s| s != r.size) {
                memo = Memo::default();
            }
            let bounds = Bounds { site, tables: &tables, collective: self.collective, size: r.size, nccl: None };
            (r.busbw_gb_per_s / bounds.of(&r.parts, &mut memo).bound_gb_per_s).ln()
        };
        self.seen.iter().map(residual).collect()
    }

    /// The cost of every reading, and of the common offset, under the values `t`.
    fn costs(&self, t: &Tuned) -> (Vec<f64>, f64) {
        let residuals = self.residuals(t);
        let middle = stats::upper_median(&residuals);
        (residuals.iter().map(|r| robust(r - middle)).collect(), 0.5 * (middle / OFFSET_SD).powi(2))
    }

    /// The prior's cost for the move of one value.
    fn prior(&self, t: &Tuned, dial: &Dial) -> f64 {
        let (a, b) = (*dial.value(&mut self.start.clone()), *dial.value(&mut t.clone()));
        let moved = if dial.ln { (b / a).ln() } else { b - a };
        0.5 * (moved / dial.prior_sd).powi(2)
    }

    /// The total cost. If the file's rates are taken as right, the offset is free: the Gaussian process learns it.
    fn cost(&self, t: &Tuned, offset_counts: bool) -> f64 {
        if self.stop.is_set() {
            return 0.0;
        }
        let prior: f64 = self.dials.iter().map(|d| self.prior(t, d)).sum();
        let (each, offset) = self.costs(t);
        each.iter().sum::<f64>() + prior + if offset_counts { offset } else { 0.0 }
    }

    /// The start values, with file rates that are wrong by factors replaced, and a flag for each value that may move:
    /// all but the other rates of the file.
    fn wrong_by_factors(&self) -> (Tuned, Vec<bool>) {
        let mut from = self.start.clone();
        let mut least = self.cost(&from, true);
        let mut free = Vec::with_capacity(self.dials.len());
        for dial in &self.dials {
            if !dial.is_told() {
                free.push(true);
                continue;
            }
            let at = |factor: f64| {
                let mut next = from.clone();
                *dial.value(&mut next) = factor.clamp(dial.range.0, dial.range.1);
                (self.cost(&next, true), next)
            };
            let best = LADDER.map(at).into_iter().reduce(|a, b| if b.0 < a.0 { b } else { a });
            let wrong = best.filter(|b| b.0 < least - LADDER_PRICE);
            free.push(wrong.is_some());
            if let Some(b) = wrong {
                (least, from) = b;
            }
        }
        (from, free)
    }

    /// True for a rate of the file whose error is smaller than the ladder's steps: such differences are attributed to
    /// the physics.
    fn is_nearly_right(&self, t: &Tuned, dial: &Dial) -> bool {
        dial.is_told() && dial.value(&mut t.clone()).ln().abs() < NEARLY_RIGHT_LN
    }

    /// Moves the free values one after the other, by shrinking steps.
    fn descend(&self, from: Tuned, free: &[bool]) -> Tuned {
        let wrong = self.dials.iter().zip(free).any(|(d, free)| *free && d.is_told());
        let mut best = from;
        let mut least = self.cost(&best, wrong);
        let mut steps = vec![STEP.0; self.dials.len()];
        for _ in 0..SWEEPS_MAX {
            for ((dial, step), _) in self.dials.iter().zip(&mut steps).zip(free).filter(|d| *d.1) {
                if *step < STEP.1 {
                    continue;
                }
                let better = [1.0, -1.0].into_iter().find_map(|sign| {
                    let next = stepped(&best, dial, sign * *step)?;
                    let cost = self.cost(&next, wrong);
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

    /// What a value's move gains beyond its price in the prior, without the readings that gain most: a single bad
    /// reading of a rare kind must not set the value of that kind. Infinite for a value that did not move.
    fn support(&self, best: &Tuned, dial: &Dial) -> f64 {
        let mut without = best.clone();
        *dial.value(&mut without) = *dial.value(&mut self.start.clone());
        if without == *best {
            return f64::INFINITY;
        }
        let (before, offset_before) = self.costs(&without);
        let (after, offset_after) = self.costs(best);
        let mut gains: Vec<f64> = before.iter().zip(after).map(|(before, after)| before - after).collect();
        gains.sort_by(|a, b| b.total_cmp(a));
        let offset = if dial.is_told() && gains.len() >= SUPPORT { offset_before - offset_after } else { 0.0 };
        gains.iter().skip(SUPPORT - 1).sum::<f64>() + offset - self.prior(best, dial)
    }
}

/// The values with one of them moved; `None` at the end of its range.
fn stepped(t: &Tuned, dial: &Dial, by: f64) -> Option<Tuned> {
    let mut next = t.clone();
    let value = dial.value(&mut next);
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

    /// The constants and rates that these readings give, from the nominal constants.
    fn calibrated(cluster: &Cluster, seen: &[CalibrationReading]) -> (Constants, LearnedRates) {
        let nominal = Constants::nominal();
        let physics = Fabric::with_constants(cluster, nominal.clone());
        let known = LearnedRates::default();
        calibrate(cluster, &physics, &nominal, Collective::AllReduce, seen, &known, Stop::default())
    }

    fn off(cluster: &Cluster, constants: &Constants, readings: &[CalibrationReading]) -> f64 {
        let tables = Fabric::with_constants(cluster, constants.clone()).tables();
        let site = LearnedRates::default().on(cluster);
        let bounds =
            Bounds { site: &site, tables: &tables, collective: Collective::AllReduce, size: Bytes::gib(2), nccl: None };
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
        let seen = readings(&cluster, real.clone(), &splits(4, 0));
        let (found, rates) = calibrated(&cluster, &seen);
        assert_eq!((found.clone(), rates), calibrated(&cluster, &seen), "deterministic");
        let others = readings(&cluster, real, &splits(4, 2));
        let (before, after) = (off(&cluster, &nominal, &others), off(&cluster, &found, &others));
        assert!(after < 0.3 * before, "{after} after, {before} before; {:?}", found.share);
        assert!(plausible(found.share));
    }

    #[test]
    fn without_readings_nothing_is_calibrated_and_one_reading_hardly_moves_anything() {
        let cluster = catalog::cluster("h100").unwrap();
        let nominal = Constants::nominal();
        assert_eq!(calibrated(&cluster, &[]), (nominal.clone(), LearnedRates::default()));
        let mut one = readings(&cluster, nominal.clone(), &[[8, 8, 8, 3]]);
        one[0].busbw_gb_per_s *= 0.5;
        // A single reading is an offset, which the Gaussian process learns.
        assert_eq!(calibrated(&cluster, &one), (nominal.clone(), LearnedRates::default()));
    }
}
