//! UCB1 (Auer, Cesa-Bianchi, Fischer 2002), for comparison: it has no gate and never stops exploring.

use tune::arm::Arm;
use tune::ledger::Ledger;
use tune::objective::Objective;
use tune::policy::{ArmDecision, Context, Phase, Policy, Reading};

/// Plays the arm with the largest mean reward plus sqrt(2 ln n / n_arm).
///
/// Rewards must lie between 0 and 1, and higher must be better: a cost c becomes r / (r + c), where r is the first
/// cost.
pub struct Ucb1 {
    arms: Vec<Arm>,
    auto: usize,
    objective: Objective,
    ledger: Ledger,
    reference_us: Option<f64>,
    /// Per arm: readings and the sum of rewards.
    rewards: Vec<(u64, f64)>,
    /// Per arm: calls decided, so that arms whose readings are late are not played repeatedly.
    decided: Vec<u64>,
}

impl Ucb1 {
    /// `auto` is the index of AUTO in `arms`.
    pub fn new(arms: &[Arm], auto: usize, objective: Objective) -> Self {
        let n = arms.len();
        Ucb1 {
            arms: arms.to_vec(),
            auto,
            objective,
            ledger: Ledger::default(),
            reference_us: None,
            rewards: vec![(0, 0.0); n],
            decided: vec![0; n],
        }
    }

    fn mean(&self, arm: usize) -> Option<f64> {
        let (n, sum) = self.rewards[arm];
        (n > 0).then(|| sum / n as f64)
    }
}

impl Policy for Ucb1 {
    fn name(&self) -> &'static str {
        "ucb1"
    }

    fn decide(&mut self, _: Context) -> ArmDecision {
        let total = self.ledger.next_call().max(1) as f64;
        let bound = |arm: usize| match self.decided[arm] {
            0 => f64::INFINITY,
            n => self.mean(arm).unwrap_or(0.5) + (2.0 * total.ln() / n as f64).sqrt(),
        };
        let arm = (0..self.arms.len()).rev().max_by(|a, b| bound(*a).total_cmp(&bound(*b))).unwrap_or(self.auto);
        self.ledger.decided(arm);
        self.decided[arm] += 1;
        let phase = if arm == self.in_use() { Phase::Exploit } else { Phase::Explore };
        ArmDecision { arm, phase }
    }

    fn learn(&mut self, reading: Reading) {
        let Some((arm, time_us)) = self.ledger.accept(&reading) else { return };
        let cost_us = self.objective.of(time_us, &self.arms, &reading);
        let reference_us = *self.reference_us.get_or_insert(cost_us);
        self.rewards[arm].0 += 1;
        self.rewards[arm].1 += reference_us / (reference_us + cost_us);
    }

    fn in_use(&self) -> usize {
        let with_mean = (0..self.arms.len()).filter_map(|a| self.mean(a).map(|m| (a, m)));
        with_mean.rev().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(self.auto, |b| b.0)
    }

    fn because(&self) -> String {
        format!("{} has the highest mean reward; UCB1 has no gate", self.arms[self.in_use()])
    }
}
