//! The summary of many runs.

use crate::outcome::{Curve, Outcome};

/// The runs of one policy in one environment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Score {
    /// One per seed, in the order of seeds.
    pub outcomes: Vec<Outcome>,
    /// Means over runs, call by call.
    pub curve: Curve,
}

/// A count as a share; NaN if `of` is 0.
pub fn share(count: usize, of: usize) -> f64 {
    count as f64 / of as f64
}

impl Score {
    fn count(&self, f: impl Fn(&Outcome) -> bool) -> f64 {
        share(self.outcomes.iter().filter(|o| f(o)).count(), self.outcomes.len())
    }

    fn values(&self, f: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        self.outcomes.iter().map(f).collect()
    }

    /// The mean over runs.
    pub fn mean(&self, f: impl Fn(&Outcome) -> f64) -> f64 {
        stats::mean(&self.values(f))
    }

    /// Cost of exploration once settled, the mean over runs; NaN if runs ended before.
    pub fn looking_cost(&self) -> f64 {
        self.mean(|o| o.looking_cost.unwrap_or(f64::NAN))
    }

    /// The median over runs.
    pub fn median(&self, f: impl Fn(&Outcome) -> f64) -> f64 {
        stats::median(&self.values(f))
    }

    /// The largest over runs.
    pub fn max(&self, f: impl Fn(&Outcome) -> f64) -> f64 {
        self.values(f).into_iter().fold(f64::NEG_INFINITY, f64::max)
    }

    /// Share of runs with the right arm in use after `readings` readings.
    pub fn right_after(&self, readings: usize) -> f64 {
        self.curve.right.get(readings).map_or(f64::NAN, |r| share(*r as usize, self.curve.runs as usize))
    }

    /// Share of runs that chose, at least once, an arm no better than AUTO.
    pub fn wrong_runs(&self) -> f64 {
        self.count(|o| o.wrong_choices > 0)
    }

    /// Share of runs that end with each of `arms` arms in use.
    pub fn ends_with(&self, arms: usize) -> Vec<f64> {
        (0..arms).map(|arm| self.count(|o| o.last_in_use == arm)).collect()
    }

    /// Share of runs that took longer than AUTO would have, exploration included (by more than a thousandth, by
    /// expected times).
    pub fn regressed_runs(&self) -> f64 {
        self.count(|o| o.improvement_expected < -0.001)
    }

    /// Share of runs that had the right arm in use permanently within `calls` of the change.
    pub fn recovered_within(&self, calls: u64) -> f64 {
        self.count(|o| matches!(o.recovered_after, Some(Some(n)) if n <= calls))
    }

    /// Median number of calls until decided; runs that never decided count as infinite. `None` if the median is
    /// infinite.
    pub fn median_decided_after(&self) -> Option<f64> {
        let m = self.median(|o| o.decided_after.map_or(f64::INFINITY, |d| d as f64));
        m.is_finite().then_some(m)
    }

    /// Median call of break-even, with the same rule.
    pub fn median_break_even(&self) -> Option<f64> {
        let m = self.median(|o| o.break_even.map_or(f64::INFINITY, |d| d as f64));
        m.is_finite().then_some(m)
    }

    /// The q-quantile of the calls from a change to recovery; runs that never recovered count as infinite.
    pub fn recovery_quantile(&self, q: f64) -> Option<f64> {
        let all: Option<Vec<f64>> =
            self.outcomes.iter().map(|o| o.recovered_after.map(|r| r.map_or(f64::INFINITY, |n| n as f64))).collect();
        all.map(|v| stats::quantile(&v, q)).filter(|v| v.is_finite())
    }
}
