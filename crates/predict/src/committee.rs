//! Two Gaussian processes that look at the network through different glasses, averaged.
//!
//! Both correct the same physical bound. One trusts its shape; the other also sees by how much that physics departs from the plain
//! NIC rule, and so can learn to undo it where the physics jumps in the wrong place (NCCL's algorithm choice for medium messages,
//! say). Which of them is right differs from size to size and from system to system, and 100 readings are too few to tell; their
//! mean is close to the better one everywhere (`linkwise evaluate` on the measured tables).

use crate::features::{PHYSICS_OVER_NICS, Row};
use crate::gp::{Gp, Point, SavedGp};

/// The committee.
#[derive(Clone, Debug)]
pub struct Committee {
    members: [Gp; 2],
    ceiling: f64,
}

/// A mean may exceed the highest reading (over its bound) by so many deviations of the noise, not more: beyond it extrapolates.
const CEILING_SDS: f64 = 2.0;

fn ceiling(members: &[Gp; 2]) -> f64 {
    let of = |m: &Gp| {
        let trusted = m.points().iter().filter(|p| p.noise_factor <= 1.5).map(|p| p.y);
        trusted.fold(f64::NEG_INFINITY, f64::max) + CEILING_SDS * m.noise_sd()
    };
    let highest = of(&members[0]).max(of(&members[1]));
    if highest.is_finite() { highest } else { f64::INFINITY }
}

/// What a committee is kept as.
pub type SavedCommittee = [SavedGp; 2];

impl Committee {
    /// Fits both members. `None` without usable points.
    pub fn fit(points: Vec<Point>) -> Option<Committee> {
        // A feature that never varies is not used: so the first member does not see the departure.
        let plain = points.iter().cloned().map(|mut p| {
            p.x[PHYSICS_OVER_NICS] = 0.0;
            p
        });
        Some(Committee::of([Gp::fit(plain.collect())?, Gp::fit(points)?]))
    }

    fn of(members: [Gp; 2]) -> Committee {
        Committee { ceiling: ceiling(&members), members }
    }

    /// No mean of `ln(busbw / bound)` is taken to be above this.
    pub fn ceiling(&self) -> f64 {
        self.ceiling
    }

    fn average(&self, f: impl Fn(&Gp) -> f64) -> f64 {
        0.5 * (f(&self.members[0]) + f(&self.members[1]))
    }

    /// The part of the mean of `ln(busbw / bound)` that depends on features.
    pub fn feature_mean(&self, row: &Row, width: usize, scratch: &mut Vec<f64>) -> f64 {
        0.5 * self.members.iter().map(|m| m.feature_mean(&row[..width], scratch)).sum::<f64>()
    }

    /// How much of the mean is irregularity of this very split ([`Gp::irregularity`]).
    pub fn irregularity(&self, row: &Row, width: usize) -> f64 {
        self.average(|m| m.irregularity(&row[..width]))
    }

    /// What a host adds at full weight.
    pub fn host_effect(&self, host: u32) -> f64 {
        self.average(|m| m.host_effect(host))
    }

    /// What all host weights of a candidate are multiplied with (see [`Gp::host_share`]).
    pub fn host_share(&self, weight: f64) -> f64 {
        // Both members know the same readings.
        self.members[0].host_share(weight)
    }

    /// Deviation of `ln(busbw / bound)` of a single allocation: the members' own and their disagreement. O(n²).
    pub fn deviation(&self, x: &[f64], hosts: &[(u32, f64)]) -> f64 {
        let mut scratch = Vec::new();
        let share = self.host_share(hosts.iter().map(|h| h.1).sum());
        let mean = |m: &Gp, s: &mut Vec<f64>| {
            m.feature_mean(x, s) + share * hosts.iter().map(|&(h, w)| w * m.host_effect(h)).sum::<f64>()
        };
        let apart = 0.5 * (mean(&self.members[0], &mut scratch) - mean(&self.members[1], &mut scratch));
        (self.average(|m| m.deviation(x, hosts).1.powi(2)) + apart * apart).sqrt()
    }

    /// Leave-one-out means at the points.
    pub fn leave_one_out(&self) -> Vec<f64> {
        let [a, b] = [0, 1].map(|i| self.members[i].leave_one_out());
        a.iter().zip(&b).map(|(a, b)| 0.5 * (a.0 + b.0)).collect()
    }

    /// Learns one more reading: O(n²). `false` if it cannot be used; then neither member changes.
    pub fn update(&mut self, point: Point) -> bool {
        let mut next = self.clone();
        let ok = next.members.iter_mut().all(|m| m.update(point.clone()));
        if ok {
            *self = Committee::of(next.members);
        }
        ok
    }

    /// How many readings it knows.
    pub fn len(&self) -> usize {
        self.members[0].points().len()
    }
    /// None? (Never, of a fitted one.)
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Readings that both members take for outliers.
    pub fn distrusted(&self) -> usize {
        let far = |i: usize| self.members[i].points().iter().map(|p| p.noise_factor > 1.5);
        far(0).zip(far(1)).filter(|(a, b)| *a && *b).count()
    }
    /// Likelihood evaluations that the fit took.
    pub fn evaluations(&self) -> usize {
        self.members.iter().map(Gp::evaluations).sum()
    }
    /// The members.
    pub fn members(&self) -> &[Gp; 2] {
        &self.members
    }
    /// To keep.
    pub fn save(&self) -> SavedCommittee {
        [self.members[0].save(), self.members[1].save()]
    }
    /// From what was kept.
    pub fn load(saved: SavedCommittee, width: usize) -> Result<Committee, String> {
        let [a, b] = saved;
        Ok(Committee::of([Gp::load(a, width)?, Gp::load(b, width)?]))
    }
}
