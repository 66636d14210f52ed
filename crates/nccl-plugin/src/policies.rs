//! Policies by name.

use tune::{Arm, Context, Decision, Phase, Policy, Sample};

/// The policy where none is named.
pub const DEFAULT: &str = "sweep";

/// A policy by its name; the error lists them.
pub fn build(name: &str, arms: &[Arm]) -> Result<Box<dyn Policy>, String> {
    match name {
        "sweep" => Ok(Box::new(Sweep::new(arms.len()))),
        _ => Err(format!("there is no policy `{name}`; there is: sweep")),
    }
}

/// Calls of every arm that count, after one that does not (first use connects).
const TRIALS: usize = 8;

/// Tries all arms in turn, then keeps the one with the least median.
#[derive(Debug)]
struct Sweep {
    times: Vec<Vec<f64>>,
    decided: u64,
    /// Arm of every call of the sweep.
    lost: Vec<usize>,
}

impl Sweep {
    fn new(arms: usize) -> Self {
        Sweep { times: vec![Vec::new(); arms.max(1)], decided: 0, lost: vec![0; arms.max(1)] }
    }

    fn median(times: &[f64]) -> f64 {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::INFINITY)
    }

    fn best(&self) -> usize {
        let medians = self.times.iter().map(|t| Self::median(t));
        medians.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(i, _)| i)
    }
}

impl Policy for Sweep {
    fn name(&self) -> &'static str {
        "sweep"
    }

    fn decide(&mut self, _: Context) -> Decision {
        let arm = (self.decided / (TRIALS as u64 + 1)) as usize;
        self.decided += 1;
        if arm < self.times.len() {
            Decision { arm, phase: Phase::Explore }
        } else {
            Decision { arm: self.best(), phase: Phase::Exploit }
        }
    }

    fn learn(&mut self, sample: Sample) {
        let first = sample.call.is_multiple_of(TRIALS as u64 + 1);
        match (sample.time_us.filter(|t| t.is_finite() && *t > 0.0), self.times.get_mut(sample.arm)) {
            (Some(t), Some(times)) if !first && times.len() < 4 * TRIALS => times.push(t),
            (None, Some(_)) => {
                if let Some(l) = self.lost.get_mut(sample.arm) {
                    *l += 1;
                }
            }
            _ => {}
        }
    }

    fn in_use(&self) -> usize {
        if self.decided as usize >= self.times.len() * (TRIALS + 1) { self.best() } else { 0 }
    }

    fn because(&self) -> String {
        format!(
            "median of up to {TRIALS} calls: {:.1} us",
            Self::median(self.times.get(self.best()).map_or(&[], |t| t))
        )
    }
}
