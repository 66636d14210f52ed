//! A committee of Gaussian processes over different physics, weighted by their leave-one-out predictions.
//!
//! The physics of a system is not known in advance. The first member corrects the bound of `fabric` and trusts its
//! form. The second corrects the same bound, but has the ratio of that physics to the plain NIC rule as a feature, and
//! can undo a jump of the physics in the wrong place (for example at NCCL's algorithm choice for medium messages). The
//! third corrects the plain NIC rule. If their leave-one-out predictions are about equally good, their mean is better
//! than each member, because 100 readings are too few to choose one. A member of the wrong form gets no weight. The
//! weights are pseudo-BMA with a tempered density (Yao et al. 2018, "Using stacking to average Bayesian predictive
//! distributions").

use crate::bound::Analytic;
use crate::features::{PHYSICS_OVER_NICS, Row};
use crate::gp::{Gp, GpPoint, Instead, SavedGp};
use crate::stop::Stop;
use serde::{Deserialize, Serialize};

/// The base that a member corrects and the features that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum View {
    /// Corrects the physics, without the feature of its ratio to the plain NIC rule.
    Physics,
    /// Corrects the physics, with the feature of its ratio to the plain NIC rule.
    Departure,
    /// Corrects the plain NIC rule.
    Nics,
}

impl View {
    const ALL: [View; 3] = [View::Physics, View::Departure, View::Nics];

    /// The reading as a point of this view. A feature that never varies is not used.
    fn of(self, reading: &CommitteeReading) -> GpPoint {
        let mut p = reading.point.clone();
        if self != View::Departure {
            p.x[PHYSICS_OVER_NICS] = 0.0;
        }
        if self == View::Nics {
            SUBTLE.into_iter().for_each(|d| p.x[d] = 0.0);
        }
        p.over(self.ln_over_bound(reading.ln_nics_over_bound))
    }

    /// `ln(base of the view / bound)`.
    fn ln_over_bound(self, ln_nics_over_bound: f64) -> f64 {
        if self == View::Nics { ln_nics_over_bound } else { 0.0 }
    }
}

/// One reading of a multi-host allocation.
#[derive(Clone, Debug)]
pub struct CommitteeReading {
    /// The point of the physics: `y` is `ln(busbw / bound)`.
    pub point: GpPoint,
    /// See [`Analytic::ln_nics_over_bound`].
    pub ln_nics_over_bound: f64,
}

#[derive(Clone, Debug)]
struct Member {
    view: View,
    weight: f64,
    gp: Gp,
}

/// The committee.
#[derive(Clone, Debug)]
pub struct Committee {
    members: Vec<Member>,
    ceiling: f64,
    /// Factor of every standard deviation, chosen so that two thirds of the readings, each predicted from all others,
    /// lie within one deviation.
    widening: f64,
}

/// A member as saved in a model file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedMember {
    view: View,
    weight: f64,
    process: SavedGp,
}

/// A committee as saved in a model file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedCommittee {
    widening: f64,
    members: Vec<SavedMember>,
}

/// Maximum of a mean above the highest reading (both relative to the bound), in standard deviations of the noise.
/// Higher means would be extrapolation.
const CEILING_SDS: f64 = 2.0;
/// Exponent of the left-out readings' density in the weights. It is below 1 because residuals of one system are
/// correlated: ten equal readings are not ten independent ones.
const TEMPER: f64 = 0.2;
/// Members with less than this share of the best member's weight get weight 0.
const SILENT: f64 = 0.01;
/// Maximum number of standard deviations by which one reading counts against a member.
const WITNESS_SDS: f64 = 4.0;

/// Probability that a normal variable lies within one standard deviation.
const WITHIN_ONE: f64 = 0.683;
/// Range of the factor of standard deviations.
const WIDENING: (f64, f64) = (0.7, 4.0);
/// The left-out reading helped to choose the hyperparameters and constants. This is the number of readings that the
/// choice is assumed to have used up.
const SPENT: f64 = 4.0;

/// The factor of standard deviations: the quantile of the left-out residuals that should equal one deviation.
fn widening(members: &[Member]) -> f64 {
    let physics = members[0].gp.points();
    let each: Vec<(f64, Vec<(f64, f64)>)> =
        members.iter().filter(|m| m.weight > 0.0).map(|m| (m.weight, m.gp.leave_one_out())).collect();
    let heard: Vec<&Member> = members.iter().filter(|m| m.weight > 0.0).collect();
    let mut off: Vec<f64> = (0..physics.len())
        .map(|i| {
            let (mut mean, mut square) = (0.0, 0.0);
            for (m, (weight, left_out)) in heard.iter().zip(&each) {
                let (of, sd) = left_out[i];
                let of = of + physics[i].y - m.gp.points()[i].y;
                // An outlier's own noise is not part of the deviation stated for other readings.
                let sd2 = sd * sd - m.gp.noise_sd().powi(2) * (m.gp.points()[i].noise_factor - 1.0);
                mean += weight * of;
                square += weight * (sd2.max(1e-9) + of * of);
            }
            (physics[i].y - mean).abs() / (square - mean * mean).max(1e-9).sqrt()
        })
        .collect();
    off.sort_by(f64::total_cmp);
    let n = off.len();
    let at = ((n as f64 * WITHIN_ONE) as usize).min(n - 1);
    let few = (1.0 + SPENT / n as f64).sqrt();
    (few * off[at]).clamp(WIDENING.0, WIDENING.1)
}

/// Features that the view of the plain NIC rule does not use: with fewer features it overfits less.
const SUBTLE: [usize; 4] = [5, 6, 8, 9];

fn ceiling(members: &[Member]) -> f64 {
    let of = |m: &Member| {
        let trusted = m.gp.points().iter().filter(|p| p.noise_factor <= 1.5).map(|p| p.y);
        trusted.fold(f64::NEG_INFINITY, f64::max) + CEILING_SDS * m.gp.noise_sd()
    };
    let highest = members.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
    if highest.is_finite() { highest } else { f64::INFINITY }
}

/// Log density of all readings, each predicted from all others; outliers are clipped.
fn left_out_density(gp: &Gp) -> f64 {
    let each = gp.leave_one_out().into_iter().zip(gp.points()).map(|((mean, sd), p)| {
        let z = ((p.y - mean) / sd).abs().min(WITNESS_SDS);
        -sd.ln() - 0.5 * z * z
    });
    each.sum()
}

impl Committee {
    /// Fits every member. `None` without usable points, or if it was stopped.
    pub fn fit(readings: &[CommitteeReading], stop: Stop<'_>) -> Option<Committee> {
        let mut fitted: Vec<(View, Gp)> = Vec::new();
        for view in View::ALL {
            let points = readings.iter().map(|r| view.of(r)).collect();
            let gp = Gp::fit_near(points, fitted.first().map(|f| &f.1), stop)?;
            fitted.push((view, gp));
        }
        let density: Vec<f64> = fitted.iter().map(|m| left_out_density(&m.1)).collect();
        let best = density.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut weight: Vec<f64> = density.iter().map(|d| (TEMPER * (d - best)).exp()).collect();
        weight.iter_mut().filter(|w| **w < SILENT).for_each(|w| *w = 0.0);
        let sum: f64 = weight.iter().sum();
        let members = fitted.into_iter().zip(weight).map(|((view, gp), w)| Member { view, weight: w / sum, gp });
        let members: Vec<Member> = members.collect();
        Some(Committee::of(widening(&members), members))
    }

    fn of(widening: f64, members: Vec<Member>) -> Committee {
        Committee { ceiling: ceiling(&members), members, widening }
    }

    /// Log density of the readings, each predicted from all others by the best member. Compares committees over
    /// different physics on the same readings.
    pub(crate) fn left_out_density(&self) -> f64 {
        self.heard().map(|m| left_out_density(&m.gp)).fold(f64::NEG_INFINITY, f64::max)
    }

    /// Upper limit of every mean of `ln(busbw / base)`, for each base.
    pub fn ceiling(&self) -> f64 {
        self.ceiling
    }

    fn heard(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|m| m.weight > 0.0)
    }

    fn average(&self, f: impl Fn(&Gp) -> f64) -> f64 {
        self.heard().map(|m| m.weight * f(&m.gp)).sum()
    }

    /// Logarithm of the weighted mean of the members' bases over the bound.
    pub fn ln_base_over_bound(&self, analytic: &Analytic) -> f64 {
        self.members.iter().map(|m| m.weight * m.view.ln_over_bound(analytic.ln_nics_over_bound)).sum()
    }

    /// The part of the mean of `ln(busbw / base)` that depends on features.
    pub fn feature_mean(&self, row: &Row, width: usize, scratch: &mut Vec<f64>) -> f64 {
        self.heard().map(|m| m.weight * m.gp.feature_mean(&row[..width], scratch)).sum()
    }

    /// The part of the mean that is irregularity of this split ([`Gp::irregularity`]).
    pub fn irregularity(&self, row: &Row, width: usize) -> f64 {
        self.average(|m| m.irregularity(&row[..width]))
    }

    /// The effect of a host at full weight.
    pub fn host_effect(&self, host: u32) -> f64 {
        self.average(|m| m.host_effect(host))
    }

    /// Factor of all host weights of a candidate (see [`Gp::host_share`]).
    pub fn host_share(&self, weight: f64) -> f64 {
        // All members hold the same readings.
        self.members[0].gp.host_share(weight)
    }

    /// Standard deviation of `ln(busbw)` of a single allocation, from the members' own deviations and their
    /// disagreement. O(n²).
    pub fn deviation(&self, x: &[f64], hosts: &[(u32, f64)], analytic: &Analytic) -> f64 {
        let mut scratch = Vec::new();
        let share = self.host_share(hosts.iter().map(|h| h.1).sum());
        let mut moments = [0.0; 3];
        for m in self.heard() {
            let of_hosts = hosts.iter().map(|&(h, w)| w * m.gp.host_effect(h)).sum::<f64>();
            let base = m.view.ln_over_bound(analytic.ln_nics_over_bound);
            let mean = base + m.gp.feature_mean(x, &mut scratch) + share * of_hosts;
            let own = m.gp.deviation(x, hosts).1.powi(2);
            for (sum, v) in moments.iter_mut().zip([own, mean, mean * mean]) {
                *sum += m.weight * v;
            }
        }
        self.widening * (moments[0] + (moments[2] - moments[1] * moments[1]).max(0.0)).sqrt()
    }

    /// Leave-one-out means of `ln(busbw / bound)` at the points.
    pub fn leave_one_out(&self) -> Vec<f64> {
        let mut out = vec![0.0; self.len()];
        let physics = self.members[0].gp.points();
        for m in &self.members {
            // A member's target is relative to its base. `p.y - q.y` is `ln(base / bound)`.
            let points = physics.iter().zip(m.gp.points());
            for ((o, l), (p, q)) in out.iter_mut().zip(m.gp.leave_one_out()).zip(points) {
                *o += m.weight * (l.0 + p.y - q.y);
            }
        }
        out
    }

    /// Learns one more reading. Readings of the same allocation are merged; a full committee drops the reading of
    /// another allocation ([`Gp::dispensable`]). Learning an identical reading again changes nothing. `false` if the
    /// reading cannot be used; then no member changes. O(n²).
    pub fn update(&mut self, reading: &CommitteeReading) -> bool {
        // The member that uses all features distinguishes splits best; all members hold the same readings.
        let widest = self.members.iter().find(|m| m.view == View::Departure).unwrap_or(&self.members[0]);
        let known = widest.gp.place_of(&widest.view.of(reading));
        if known.is_some_and(|k| widest.gp.is_newest(k, reading.point.y)) {
            return true;
        }
        let instead = known.map(Instead::Join).or_else(|| widest.gp.dispensable().map(Instead::Drop));
        let mut next = self.members.clone();
        let ok = next.iter_mut().all(|m| m.gp.update_instead(instead, m.view.of(reading)));
        if ok {
            *self = Committee::of(self.widening, next);
        }
        ok
    }

    /// Maximum number of hosts of any reading.
    pub fn hosts_measured_max(&self) -> usize {
        self.members[0].gp.points().iter().map(|p| p.hosts.len()).max().unwrap_or(0)
    }

    /// Number of readings.
    pub fn len(&self) -> usize {
        self.members[0].gp.points().len()
    }
    /// True without readings. A fitted committee is never empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Number of readings that every member treats as outliers.
    pub fn distrusted(&self) -> usize {
        let far = |i: usize| self.members.iter().all(|m| m.gp.points()[i].noise_factor > 1.5);
        (0..self.len()).filter(|i| far(*i)).count()
    }
    /// Number of likelihood evaluations of the fit.
    pub fn evaluations(&self) -> usize {
        self.members.iter().map(|m| m.gp.evaluations()).sum()
    }
    /// View and weight of every member.
    pub fn weights(&self) -> impl Iterator<Item = (View, f64)> + '_ {
        self.members.iter().map(|m| (m.view, m.weight))
    }
    /// The form for a model file.
    pub fn save(&self) -> SavedCommittee {
        let of = |m: &Member| SavedMember { view: m.view, weight: m.weight, process: m.gp.save() };
        SavedCommittee { widening: self.widening, members: self.members.iter().map(of).collect() }
    }
    /// Loads a committee from its form in a model file.
    pub fn load(saved: SavedCommittee, width: usize) -> Result<Committee, String> {
        let SavedCommittee { widening, members: saved } = saved;
        if !(WIDENING.0..=WIDENING.1).contains(&widening) {
            return Err("the factor of its deviations is out of range".into());
        }
        let views: Vec<View> = saved.iter().map(|m| m.view).collect();
        if views != View::ALL {
            return Err(format!("it has the members {views:?}; {:?} were expected", View::ALL));
        }
        let sum: f64 = saved.iter().map(|m| m.weight).sum();
        if saved.iter().any(|m| !(0.0..=1.0).contains(&m.weight)) || (sum - 1.0).abs() > 1e-6 {
            return Err("its weights do not add up to 1".into());
        }
        let readings = saved[0].process.points.len();
        if saved.iter().any(|m| m.process.points.len() != readings) {
            return Err("its members know different readings".into());
        }
        let member = |m: SavedMember| Ok(Member { view: m.view, weight: m.weight, gp: Gp::load(m.process, width)? });
        Ok(Committee::of(widening, saved.into_iter().map(member).collect::<Result<_, String>>()?))
    }
}
