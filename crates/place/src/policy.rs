//! When an answer leaves the simple rule.
//!
//! A model leaves the choice of [`crate::rule`] only where it predicts a gain beyond the slack; by default that is one standard deviation
//! of the difference of the two predictions. Then, of all candidates within the slack of the best, the one that costs the cluster least
//! wins ([`Cost`]), and between equal costs the one with the highest score.

use crate::cost::{Cost, tidiness};
use crate::exact::{Scored, TIE};
use std::fmt;
use std::str::FromStr;
use topology::{Allocation, Cluster};

/// The bandwidth that an answer gives up for fewer hosts, fewer switches, an even split and whole hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slack {
    /// So many standard deviations of the difference of two predictions.
    Deviations(f64),
    /// A share of the best candidate's bandwidth, 0 to 1.
    Share(f64),
}

impl Slack {
    /// Bandwidth alone decides.
    pub const NONE: Slack = Slack::Share(0.0);

    /// The slack between the best candidate and another, GB/s.
    pub fn between(self, best: &Scored, other: &Scored) -> f64 {
        match self {
            Slack::Share(share) => share * best.score_gb_per_s.abs(),
            Slack::Deviations(n) => n * deviation(best).hypot(deviation(other)),
        }
    }

    /// True if it gives up nothing.
    pub fn is_none(self) -> bool {
        matches!(self, Slack::Share(v) | Slack::Deviations(v) if v == 0.0)
    }
}

impl Default for Slack {
    /// One deviation of the difference.
    fn default() -> Self {
        Slack::Deviations(1.0)
    }
}

/// `5%` or `1sd`.
impl FromStr for Slack {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no slack; give a share of the bandwidth (`5%`) or deviations (`1sd`)");
        let number = |n: &str, most: f64| match n.trim().parse::<f64>() {
            Ok(v) if (0.0..=most).contains(&v) => Ok(v),
            _ => Err(wrong()),
        };
        match (text.strip_suffix('%'), text.strip_suffix("sd")) {
            (Some(share), _) => Ok(Slack::Share(number(share, 100.0)? / 100.0)),
            (_, Some(n)) => Ok(Slack::Deviations(number(n, 100.0)?)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Slack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Slack::Share(share) => write!(f, "{}%", (share * 1e4).round() / 100.0),
            Slack::Deviations(n) => write!(f, "{n}sd"),
        }
    }
}

/// Deviation of a score, GB/s: that of the prediction, scaled as the score is.
pub(crate) fn deviation(s: &Scored) -> f64 {
    s.prediction.std_gb_per_s / s.prediction.busbw_gb_per_s.max(1e-9) * s.score_gb_per_s.abs()
}

/// What an answer's choice costs, and what it gains over the simple rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Price {
    /// What the choice costs the cluster.
    pub cost: Cost,
    /// What the rule's choice would cost; None where the rule has none that keeps the limits.
    pub rule_cost: Option<Cost>,
    /// Score of the choice less that of the rule's, GB/s.
    pub gained_gb_per_s: f64,
    /// The gain that was needed to leave the rule, GB/s.
    pub slack_gb_per_s: f64,
    /// Is the choice the rule's, or one of the same cost?
    pub keeps_rule: bool,
}

/// Candidates between which the policy decides.
pub(crate) struct Field<'a> {
    pub cluster: &'a Cluster,
    /// The free GPUs before any constraint.
    pub free: &'a Allocation,
    pub slack: Slack,
    /// Most hosts of any reading that the model learned from.
    pub hosts_measured_max: Option<usize>,
}

/// Readings support allocations of up to so many times their most hosts.
const HOSTS_BEYOND_READINGS: usize = 2;
/// Relative deviation of a prediction that readings do not support: that of the physics alone.
const UNSUPPORTED_SD: f64 = 0.3;

impl Field<'_> {
    /// The gain that `best` needs over another, GB/s. A prediction for many more hosts than were measured is no more certain than the physics,
    /// so that it leaves an allocation on fewer hosts only for much.
    fn slack_between(&self, best: &Scored, other: &Scored) -> f64 {
        let (hosts, others) = (best.allocation.host_count(), other.allocation.host_count());
        let unsupported = self.hosts_measured_max.is_some_and(|m| hosts > HOSTS_BEYOND_READINGS * m) && hosts > others;
        let least = if unsupported { UNSUPPORTED_SD * best.score_gb_per_s.abs() } else { 0.0 };
        self.slack.between(best, other).max(least)
    }

    pub fn cost(&self, s: &Scored) -> Cost {
        Cost::of(self.cluster, self.free, &s.allocation)
    }

    /// Which candidate is chosen. `best`: the one with the highest value; `rule`: the simple rule's, if there is one.
    pub fn choose(&self, all: &[Scored], best: usize, rule: Option<usize>) -> usize {
        if self.slack.is_none() || all[best].allocation.gpu_count() < 2 {
            return best;
        }
        let near =
            |i: usize| all[best].score_gb_per_s - all[i].score_gb_per_s <= self.slack_between(&all[best], &all[i]);
        match rule {
            Some(r) if near(r) => {
                // The rule leaves open which of several equal hosts it takes: there the model decides.
                let cost = self.cost(&all[r]);
                let equal = (0..all.len()).filter(|i| *i == r || self.cost(&all[*i]) == cost);
                equal.reduce(|a, b| if self.prefers(&all[b], &all[a]) { b } else { a }).unwrap_or(r)
            }
            _ => {
                let mut within: Vec<(Cost, usize)> =
                    (0..all.len()).filter(|i| near(*i)).map(|i| (self.cost(&all[i]), i)).collect();
                within.sort();
                let Some(least) = within.first().map(|w| w.0.clone()) else { return best };
                let equal = within.into_iter().take_while(|w| w.0 == least).map(|w| w.1);
                equal.reduce(|a, b| if self.prefers(&all[b], &all[a]) { b } else { a }).unwrap_or(best)
            }
        }
    }

    /// Is `a` better than `b`, both of one cost?
    fn prefers(&self, a: &Scored, b: &Scored) -> bool {
        let value = |s: &Scored| s.score_gb_per_s - crate::exact::CAUTION_SDS * deviation(s);
        let (x, y) = (value(a), value(b));
        if (x - y).abs() > TIE * y.abs().max(x.abs()) {
            return x > y;
        }
        tidiness(self.free, &a.allocation) < tidiness(self.free, &b.allocation)
    }

    /// The price of a choice.
    pub fn price(&self, choice: &Scored, rule: Option<&Scored>) -> Price {
        let cost = self.cost(choice);
        let Some(rule) = rule else { return Price { cost, ..Price::default() } };
        let rule_cost = self.cost(rule);
        Price {
            keeps_rule: choice.allocation == rule.allocation || cost == rule_cost,
            gained_gb_per_s: choice.score_gb_per_s - rule.score_gb_per_s,
            slack_gb_per_s: self.slack_between(choice, rule),
            cost,
            rule_cost: Some(rule_cost),
        }
    }
}
