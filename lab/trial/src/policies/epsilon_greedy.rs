//! Epsilon-greedy, for comparison, and the paper's v1: the same policy with random numbers that differ between ranks.
//!
//! Source: Bandit-Guided NCCL Tuning, section 4.2. In v1 every rank seeds its own generator, so ranks choose different
//! arms for one call; the real library may then hang. The trial counts such calls with `--ranks`.

use stats::random::Random;
use tune::arm::Arm;
use tune::ledger::Ledger;
use tune::objective::Objective;
use tune::policy::{ArmDecision, Context, Phase, Policy, Reading};

/// Share of calls that explore.
pub const EPSILON: f64 = 0.1;

/// Plays the arm with the lowest mean, and a random arm in a tenth of the calls.
pub struct EpsilonGreedy {
    name: &'static str,
    arms: Vec<Arm>,
    auto: usize,
    objective: Objective,
    ledger: Ledger,
    random: Random,
    /// Per arm: readings and the sum of costs, microseconds.
    costs_us: Vec<(u64, f64)>,
}

impl EpsilonGreedy {
    /// `auto` is the index of AUTO in `arms`; `seed` must be the same on every rank.
    pub fn new(arms: &[Arm], auto: usize, objective: Objective, seed: u64) -> Self {
        EpsilonGreedy {
            name: "epsilon-greedy",
            arms: arms.to_vec(),
            auto,
            objective,
            ledger: Ledger::default(),
            random: Random::of(seed, 2),
            costs_us: vec![(0, 0.0); arms.len()],
        }
    }

    /// The paper's v1: the rank is part of the seed. For comparison only.
    pub fn v1(arms: &[Arm], auto: usize, objective: Objective, seed: u64, rank: u32) -> Self {
        let random = Random::of(seed, 3 + u64::from(rank));
        EpsilonGreedy { name: "v1", random, ..EpsilonGreedy::new(arms, auto, objective, seed) }
    }
}

impl Policy for EpsilonGreedy {
    fn name(&self) -> &'static str {
        self.name
    }

    fn decide(&mut self, _: Context) -> ArmDecision {
        // Two draws for every call, so that streams of equal seeds stay aligned.
        let (explore, arm) = (self.random.unit() < EPSILON, self.random.below(self.arms.len()));
        let arm = if explore { arm } else { self.in_use() };
        self.ledger.decided(arm);
        let phase = if arm == self.in_use() { Phase::Exploit } else { Phase::Explore };
        ArmDecision { arm, phase }
    }

    fn learn(&mut self, reading: Reading) {
        let Some((arm, time_us)) = self.ledger.accept(&reading) else { return };
        self.costs_us[arm].0 += 1;
        self.costs_us[arm].1 += self.objective.of(time_us, &self.arms, &reading);
    }

    fn in_use(&self) -> usize {
        let mean = |arm: usize| self.costs_us[arm].1 / self.costs_us[arm].0 as f64;
        let seen = (0..self.arms.len()).filter(|a| self.costs_us[*a].0 > 0);
        seen.min_by(|a, b| mean(*a).total_cmp(&mean(*b))).unwrap_or(self.auto)
    }

    fn because(&self) -> String {
        format!("{} has the lowest mean; {} has no gate", self.arms[self.in_use()], self.name)
    }
}
