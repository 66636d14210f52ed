//! The conditions under which an answer differs from the simple rule.
//!
//! An answer differs from the choice of [`crate::rule`] only if the model predicts a gain larger than the slack. By
//! default the slack is one standard deviation of the difference between the two predictions, and more on a large site,
//! where the best of many independent predictions exceeds the truth by more than that. Among all candidates
//! within the slack of the best, the one of lowest cost ([`Cost`]) is chosen; among equal costs, the one with the
//! highest score.

use crate::cost::{Cost, tidiness};
use crate::exact::{Scored, TIE};
use std::fmt;
use std::str::FromStr;
use topology::{Allocation, Cluster};

/// The bandwidth that an answer may give up for fewer hosts, fewer switches, an even split and entirely free hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slack {
    /// This number of standard deviations of the difference of two predictions.
    Deviations(f64),
    /// A share of the best candidate's bandwidth, 0 to 1.
    Share(f64),
}

impl Slack {
    /// No slack: bandwidth alone decides.
    pub const NONE: Slack = Slack::Share(0.0);

    /// The slack between the best candidate and another, GB/s.
    pub fn between(self, best: &Scored, other: &Scored) -> f64 {
        match self {
            Slack::Share(share) => share * best.score_gb_per_s.abs(),
            Slack::Deviations(n) => n * deviation(best).hypot(deviation(other)),
        }
    }

    /// True if the slack is zero.
    pub fn is_none(self) -> bool {
        matches!(self, Slack::Share(v) | Slack::Deviations(v) if v == 0.0)
    }
}

impl Default for Slack {
    /// One standard deviation of the difference.
    fn default() -> Self {
        Slack::Deviations(1.0)
    }
}

/// Parses `5%` or `1sd`.
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

/// Standard deviation of a score, GB/s: that of the prediction, scaled like the score.
pub(crate) fn deviation(s: &Scored) -> f64 {
    s.prediction.std_gb_per_s / s.prediction.busbw_gb_per_s.max(1e-9) * s.score_gb_per_s.abs()
}

/// Cost of an answer's choice, and its gain over the simple rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Price {
    /// Cost of the choice to the cluster.
    pub cost: Cost,
    /// Cost of the rule's choice; None if no choice of the rule satisfies the request.
    pub rule_cost: Option<Cost>,
    /// Score of the choice minus that of the rule's choice, GB/s.
    pub gained_gb_per_s: f64,
    /// Minimum gain for an answer that differs from the rule, GB/s.
    pub slack_gb_per_s: f64,
    /// True if the choice is the rule's, or one of the same cost.
    pub keeps_rule: bool,
}

/// The candidates among which the policy chooses.
pub(crate) struct Field<'a> {
    pub cluster: &'a Cluster,
    /// The free GPUs before any constraint.
    pub free: &'a Allocation,
    pub slack: Slack,
    /// Largest number of hosts in any reading from which the model learned.
    pub hosts_measured_max: Option<usize>,
}

/// Readings support predictions for up to this multiple of their largest number of hosts.
const HOSTS_BEYOND_READINGS: usize = 2;
/// Relative standard deviation of a prediction that readings do not support: the deviation of the physical bound.
const UNSUPPORTED_SD: f64 = 0.3;

/// Expected maximum of so many independent standard normal variables (Cramér 1946). The expansion holds from three on;
/// 0 for fewer.
fn expected_maximum(of: f64) -> f64 {
    if of < 3.0 {
        return 0.0;
    }
    let root = (2.0 * of.ln()).sqrt();
    (root - (of.ln().ln() + (4.0 * std::f64::consts::PI).ln()) / (2.0 * root)).max(0.0)
}

impl Field<'_> {
    /// Number of deviations by which the best of all candidates exceeds one of them by chance, at least 1. Candidates
    /// without a common host err independently; as many of them exist as the free hosts can hold at once. On a site of a
    /// thousand hosts the best of all predictions is two deviations too high, on sixteen hosts less than one. Predictions
    /// inside one host rest on readings of that host, and are not selected so.
    fn selected_sds(&self, best: &Scored) -> f64 {
        let hosts = best.allocation.host_count();
        let disjoint = self.free.host_count() as f64 / hosts.max(1) as f64;
        if hosts < 2 { 1.0 } else { expected_maximum(disjoint).max(1.0) }
    }

    /// The minimum gain of `best` over another candidate, GB/s. A prediction for many more hosts than were measured is
    /// as uncertain as the physical bound, so leaving an allocation on fewer hosts then needs a large gain.
    fn slack_between(&self, best: &Scored, other: &Scored) -> f64 {
        let (hosts, others) = (best.allocation.host_count(), other.allocation.host_count());
        let unsupported = self.hosts_measured_max.is_some_and(|m| hosts > HOSTS_BEYOND_READINGS * m) && hosts > others;
        let least = if unsupported { UNSUPPORTED_SD * best.score_gb_per_s.abs() } else { 0.0 };
        let slack = match self.slack {
            Slack::Deviations(_) => self.selected_sds(best) * self.slack.between(best, other),
            Slack::Share(_) => self.slack.between(best, other),
        };
        slack.max(least)
    }

    pub fn cost(&self, s: &Scored) -> Cost {
        Cost::of(self.cluster, self.free, &s.allocation)
    }

    /// Index of the chosen candidate. `best`: the candidate with the highest value; `rule`: the simple rule's, if there
    /// is one.
    pub fn choose(&self, all: &[Scored], best: usize, rule: Option<usize>) -> usize {
        if all[best].allocation.gpu_count() < 2 {
            return best;
        }
        // Without slack, equal bandwidths still differ by their cost.
        let slack = |i: usize| match self.slack.is_none() {
            true => TIE * all[best].score_gb_per_s.abs(),
            false => self.slack_between(&all[best], &all[i]),
        };
        let near = |i: usize| all[best].score_gb_per_s - all[i].score_gb_per_s <= slack(i);
        match rule {
            Some(r) if near(r) => {
                // The rule does not distinguish equal hosts; among these the model decides.
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

    /// True if `a` is better than `b`; both have the same cost.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_maximum_of_normal_variables_is_near_that_of_tables() {
        // Tippett 1925.
        for (n, known) in [(3.0, 0.846), (10.0, 1.539), (100.0, 2.508), (1000.0, 3.241)] {
            assert!((expected_maximum(n) - known).abs() < 0.35, "{n}: {}", expected_maximum(n));
        }
        assert_eq!([0.0, 1.0, 2.0].map(expected_maximum), [0.0; 3]);
        assert!((3..2000).all(|n| expected_maximum(f64::from(n)) <= expected_maximum(f64::from(n) + 1.0)));
    }
}
