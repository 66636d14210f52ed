//! The paper's online tuner (v2): every arm runs in turn for M rounds. Then the arm with the lowest IQR-trimmed mean is
//! used for the rest of the job, if it beats AUTO by the gate.
//!
//! Source: Bandit-Guided NCCL Tuning, section 4.2. The published code, which is [`RoundRobin::without_gate`], has no gate.

use crate::arm::Arm;
use crate::ledger::Ledger;
use crate::objective::Objective;
use crate::policy::{ArmDecision, Context, Phase, Policy, Reading};
use stats::iqr_trimmed_mean;

/// Rounds of exploration: the paper's M.
pub const ROUNDS: usize = 10;
/// Smallest improvement over AUTO, as a share of AUTO's time: the paper's gate.
pub const GATE: f64 = 0.05;

/// Explores, chooses once, and exploits that choice.
pub struct RoundRobin {
    arms: Vec<Arm>,
    auto: usize,
    objective: Objective,
    gate: Option<f64>,
    ledger: Ledger,
    /// Costs in microseconds, per arm, of the exploration calls.
    costs_us: Vec<Vec<f64>>,
    /// The chosen arm, once exploration is over.
    chosen: Option<Chosen>,
}

struct Chosen {
    arm: usize,
    because: String,
}

impl RoundRobin {
    /// The policy with the paper's gate. `auto` is the index of AUTO in `arms`.
    pub fn new(arms: &[Arm], auto: usize, objective: Objective) -> Self {
        RoundRobin {
            arms: arms.to_vec(),
            auto,
            objective,
            gate: Some(GATE),
            ledger: Ledger::default(),
            costs_us: arms.iter().map(|_| Vec::with_capacity(ROUNDS)).collect(),
            chosen: None,
        }
    }

    /// The policy of the published code: the arm with the lowest trimmed mean, also if it is not AUTO.
    pub fn without_gate(arms: &[Arm], auto: usize, objective: Objective) -> Self {
        RoundRobin { gate: None, ..RoundRobin::new(arms, auto, objective) }
    }

    fn explore_calls(&self) -> u64 {
        (self.arms.len() * ROUNDS) as u64
    }

    fn reading_count(&self) -> usize {
        self.costs_us.iter().map(Vec::len).sum()
    }

    /// All readings have arrived, or as many additional calls have passed as exploration had. Missing readings then
    /// count as lost.
    fn is_time_to_choose(&self) -> bool {
        let next = self.ledger.next_call();
        next >= self.explore_calls()
            && (self.reading_count() as u64 >= self.explore_calls() || next >= 2 * self.explore_calls())
    }

    fn choose(&self) -> Chosen {
        let means: Vec<f64> = self.costs_us.iter().map(|c| iqr_trimmed_mean(c)).collect();
        let auto_us = means[self.auto];
        let best = (0..means.len()).filter(|a| means[*a].is_finite()).min_by(|a, b| means[*a].total_cmp(&means[*b]));
        let Some(best) = best.filter(|_| auto_us.is_finite()) else {
            return Chosen {
                arm: self.auto,
                because: "AUTO: exploration has no reading of AUTO to compare with".into(),
            };
        };
        let gain = 1.0 - means[best] / auto_us;
        let name = self.arms[best];
        let compared = format!("trimmed mean {:.1} us, AUTO {auto_us:.1} us", means[best]);
        match self.gate {
            _ if best == self.auto => {
                Chosen { arm: best, because: format!("AUTO has the lowest trimmed mean, {auto_us:.1} us") }
            }
            Some(gate) if gain < gate => {
                let because = format!(
                    "AUTO: {name} is better by {:.1} %, below the gate of {:.0} % ({compared})",
                    gain * 100.0,
                    gate * 100.0
                );
                Chosen { arm: self.auto, because }
            }
            _ => {
                Chosen { arm: best, because: format!("{name} has the lowest {compared}: {:.1} % better", gain * 100.0) }
            }
        }
    }
}

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        match self.gate {
            Some(_) => "round-robin",
            None => "round-robin-ungated",
        }
    }

    fn decide(&mut self, _: Context) -> ArmDecision {
        if self.chosen.is_none() && self.is_time_to_choose() {
            self.chosen = Some(self.choose());
        }
        let call = self.ledger.next_call();
        let decision = match call < self.explore_calls() {
            true => ArmDecision { arm: (call % self.arms.len() as u64) as usize, phase: Phase::Explore },
            false => ArmDecision { arm: self.in_use(), phase: Phase::Exploit },
        };
        self.ledger.decided(decision.arm);
        decision
    }

    fn learn(&mut self, reading: Reading) {
        let Some((arm, time_us)) = self.ledger.accept(&reading) else { return };
        if reading.call < self.explore_calls() && self.chosen.is_none() {
            self.costs_us[arm].push(self.objective.of(time_us, &self.arms, &reading));
        }
    }

    fn in_use(&self) -> usize {
        self.chosen.as_ref().map_or(self.auto, |c| c.arm)
    }

    fn because(&self) -> String {
        match &self.chosen {
            Some(chosen) => chosen.because.clone(),
            None => format!("AUTO: exploring, {} of {} readings", self.reading_count(), self.explore_calls()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arms() -> Vec<Arm> {
        ["TREE/SIMPLE", "TREE/LL128", "RING/SIMPLE", "AUTO"].iter().map(|a| a.parse().unwrap()).collect()
    }

    /// Runs `calls` calls; `time` gives the time of each arm.
    fn run(policy: &mut dyn Policy, calls: u64, time: impl Fn(u64, usize) -> Option<f64>) -> Vec<usize> {
        (0..calls)
            .map(|call| {
                let d = policy.decide(Context::default());
                policy.learn(Reading { call, arm: d.arm, time_us: time(call, d.arm), channels: None });
                d.arm
            })
            .collect()
    }

    #[test]
    fn arms_take_turns_for_ten_rounds_then_the_fastest_stays() {
        let mut policy = RoundRobin::new(&arms(), 3, Objective::Time);
        let used = run(&mut policy, 60, |_, arm| Some([70.0, 90.0, 120.0, 100.0][arm]));
        assert!((0..40).all(|i| used[i] == i % 4));
        assert!(used[40..].iter().all(|a| *a == 0));
        assert!(
            policy.because().contains("TREE/SIMPLE") && policy.because().contains("30.0 %"),
            "{}",
            policy.because()
        );
    }

    #[test]
    fn an_improvement_of_4_percent_fails_the_gate_and_6_percent_passes() {
        for (time, expected) in [(96.0, 3), (94.0, 0)] {
            let mut policy = RoundRobin::new(&arms(), 3, Objective::Time);
            run(&mut policy, 41, |_, arm| Some([time, 130.0, 120.0, 100.0][arm]));
            assert_eq!(policy.in_use(), expected);
        }
        let mut ungated = RoundRobin::without_gate(&arms(), 3, Objective::Time);
        run(&mut ungated, 41, |_, arm| Some([99.9, 130.0, 120.0, 100.0][arm]));
        assert_eq!(ungated.in_use(), 0);
    }

    #[test]
    fn a_spike_is_trimmed_and_lost_readings_delay_the_choice_at_most_as_long_as_exploration_took() {
        let time = |call: u64, arm: usize| match (call, arm) {
            (8, _) => Some(1e6),
            (_, 1) => None,
            (_, arm) => Some([70.0, 0.0, 120.0, 100.0][arm]),
        };
        let mut policy = RoundRobin::new(&arms(), 3, Objective::Time);
        let used = run(&mut policy, 100, time);
        assert!(used[40..80].iter().all(|a| *a == 3) && used[80..].iter().all(|a| *a == 0), "{used:?}");
    }

    #[test]
    fn without_a_reading_of_auto_nothing_leaves_auto() {
        let mut policy = RoundRobin::without_gate(&arms(), 3, Objective::Time);
        run(&mut policy, 100, |_, arm| (arm != 3).then_some(10.0));
        assert_eq!(policy.in_use(), 3);
    }
}
