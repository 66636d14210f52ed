//! The veto of whole steps: where other times judge arms, an arm that makes steps longer is out.

use std::collections::{BTreeMap, VecDeque};

/// Times that are kept per arm.
const KEPT: usize = 64;
/// Fewest times of an arm, and of AUTO, for a veto.
const LEAST: usize = 16;
/// Standard errors by which the median step must be longer than with AUTO.
const ERRORS_MIN: f64 = 4.0;
/// Share of a step by which it must be longer.
const LONGER_MIN: f64 = 0.005;

/// The lengths of steps by arm; arm 0 is AUTO.
#[derive(Debug, Clone, Default)]
pub struct StepVeto {
    times: BTreeMap<usize, VecDeque<f64>>,
}

impl StepVeto {
    /// Adds a step that had one arm throughout, microseconds. Impossible times are left out.
    pub fn note(&mut self, arm: usize, time_us: f64) {
        if !(time_us.is_finite() && time_us > 0.0) {
            return;
        }
        let times = self.times.entry(arm).or_default();
        if times.len() == KEPT {
            times.pop_front();
        }
        times.push_back(time_us);
    }

    /// Steps with the arm are longer than with AUTO, beyond their scatter.
    pub fn forbids(&self, arm: usize) -> bool {
        let (Some(auto), Some(other)) = (self.level(0), self.level(arm)) else { return false };
        let error = auto.1.hypot(other.1);
        other.0 - auto.0 > (ERRORS_MIN * error).max(LONGER_MIN * auto.0)
    }

    /// The median and its standard error.
    fn level(&self, arm: usize) -> Option<(f64, f64)> {
        let times = self.times.get(&arm).filter(|t| t.len() >= LEAST)?;
        let middle = |mut v: Vec<f64>| {
            v.sort_by(f64::total_cmp);
            v[v.len() / 2]
        };
        let median = middle(times.iter().copied().collect());
        // 1.4826 times the median deviation is a normal deviation; a median's error is 1.2533 times a mean's.
        let deviation = 1.4826 * middle(times.iter().map(|t| (t - median).abs()).collect());
        Some((median, 1.2533 * deviation / (times.len() as f64).sqrt()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(n: u64, longer: f64, scatter: f64) -> StepVeto {
        let mut veto = StepVeto::default();
        for i in 0..n {
            let noise = |k: u64| 1.0 + scatter * (((i * k) % 11) as f64 / 5.0 - 1.0);
            veto.note(0, 1000.0 * noise(7));
            veto.note(1, 1000.0 * (1.0 + longer) * noise(5));
        }
        veto
    }

    #[test]
    fn only_steps_that_are_longer_beyond_their_scatter_forbid_an_arm() {
        assert!(with(40, 0.05, 0.03).forbids(1));
        assert!(!with(15, 0.05, 0.03).forbids(1), "too few");
        assert!(!with(40, 0.01, 0.1).forbids(1), "within the scatter");
        assert!(!with(40, 0.004, 0.0).forbids(1), "too little");
        assert!(!with(40, -0.2, 0.03).forbids(1) && !with(40, 0.05, 0.03).forbids(2));
    }

    #[test]
    fn nonsense_is_left_out_and_memory_is_bounded() {
        let mut veto = with(2000, 0.0, 0.02);
        for t in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            veto.note(1, t);
        }
        assert!(!veto.forbids(1) && veto.times.values().all(|t| t.len() == KEPT));
    }
}
