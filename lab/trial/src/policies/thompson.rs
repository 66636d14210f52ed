//! Thompson sampling on log times, for comparison: it has no gate and never stops exploring.

use stats::random::Random;
use tune::arm::Arm;
use tune::ledger::Ledger;
use tune::objective::Objective;
use tune::policy::{ArmDecision, Context, Phase, Policy, Reading};

/// Prior standard deviation of an arm's mean log time around the first reading: a factor of e.
const PRIOR_SD: f64 = 1.0;
/// Assumed standard deviation of a log time until an arm has two readings.
const NOISE_SD_FIRST: f64 = 0.2;

/// Draws a mean for every arm from its posterior (normal, with the variance of the noise pooled over arms) and plays
/// the lowest. The random numbers come from a seed that all ranks share, with one draw per arm and call, so ranks
/// agree.
pub struct Thompson {
    arms: Vec<Arm>,
    auto: usize,
    objective: Objective,
    ledger: Ledger,
    random: Random,
    prior_mean: Option<f64>,
    /// Per arm: readings, mean and sum of squared deviations of log costs (Welford).
    moments: Vec<(f64, f64, f64)>,
}

impl Thompson {
    /// `auto` is the index of AUTO in `arms`; `seed` must be the same on every rank.
    pub fn new(arms: &[Arm], auto: usize, objective: Objective, seed: u64) -> Self {
        Thompson {
            arms: arms.to_vec(),
            auto,
            objective,
            ledger: Ledger::default(),
            random: Random::of(seed, 1),
            prior_mean: None,
            moments: vec![(0.0, 0.0, 0.0); arms.len()],
        }
    }

    fn noise_variance(&self) -> f64 {
        let (freedom, squares) =
            self.moments.iter().fold((0.0, 0.0), |(f, s), m| (f + (m.0 - 1.0f64).max(0.0), s + m.2));
        if freedom > 0.0 { (squares / freedom).max(1e-12) } else { NOISE_SD_FIRST * NOISE_SD_FIRST }
    }

    /// Mean and standard deviation of an arm's posterior.
    fn posterior(&self, arm: usize) -> (f64, f64) {
        let (n, mean, _) = self.moments[arm];
        let (prior_weight, weight) = (1.0 / (PRIOR_SD * PRIOR_SD), n / self.noise_variance());
        let centre = (prior_weight * self.prior_mean.unwrap_or(0.0) + weight * mean) / (prior_weight + weight);
        (centre, (1.0 / (prior_weight + weight)).sqrt())
    }
}

impl Policy for Thompson {
    fn name(&self) -> &'static str {
        "thompson"
    }

    fn decide(&mut self, _: Context) -> ArmDecision {
        let mut best = (self.auto, f64::INFINITY);
        for arm in 0..self.arms.len() {
            let (centre, sd) = self.posterior(arm);
            let drawn = centre + sd * self.random.normal();
            if drawn < best.1 {
                best = (arm, drawn);
            }
        }
        self.ledger.decided(best.0);
        let phase = if best.0 == self.in_use() { Phase::Exploit } else { Phase::Explore };
        ArmDecision { arm: best.0, phase }
    }

    fn learn(&mut self, reading: Reading) {
        let Some((arm, time_us)) = self.ledger.accept(&reading) else { return };
        let x = self.objective.of(time_us, &self.arms, &reading).ln();
        self.prior_mean.get_or_insert(x);
        let m = &mut self.moments[arm];
        m.0 += 1.0;
        let step = x - m.1;
        m.1 += step / m.0;
        m.2 += step * (x - m.1);
    }

    fn in_use(&self) -> usize {
        let seen = (0..self.arms.len()).filter(|a| self.moments[*a].0 > 0.0);
        seen.min_by(|a, b| self.moments[*a].1.total_cmp(&self.moments[*b].1)).unwrap_or(self.auto)
    }

    fn because(&self) -> String {
        format!("{} has the lowest mean log time; Thompson sampling has no gate", self.arms[self.in_use()])
    }
}
