//! Plans the arms, sizes and readings that fit into the given time, in turns.
//!
//! A launch costs its start (CUDA, NCCL's setup: seconds), its warm-up and its readings. One pilot launch of AUTO
//! measures all three costs, and the plan follows from them. If the time is too short, the plan reduces, in this order:
//! the turns (fewer turns with more readings each), the readings (down to [`ITERATIONS_MIN`]), the sizes, the last
//! turns. Pure.

/// Smallest number of readings of an arm in a plan: enough for the gates at the effects that they require.
pub const ITERATIONS_MIN: u32 = 20;
/// Readings of the pilot launch.
pub const PILOT_ITERATIONS: u32 = 5;
/// The share of the time that is planned; the rest is for launches that take longer than the pilot.
const PLANNED_SHARE: f64 = 0.9;

/// The requested measurements.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanRequest {
    /// Arms.
    pub arms: usize,
    /// Kinds of execution: alone, and possibly during computation.
    pub kinds: usize,
    /// Sizes, bytes, rising.
    pub sizes: Vec<u64>,
    /// Whether one launch measures all sizes.
    pub is_in_one_go: bool,
    /// Readings of each arm and size.
    pub iterations: u32,
    /// Largest number of turns.
    pub turns: u32,
}

/// Cost of a launch, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LaunchCost {
    /// Start and end of a launch, without readings, seconds.
    pub start_s: f64,
    /// Warm-up of a launch, seconds.
    pub warmup_s: f64,
    /// One reading of every size of a launch, seconds.
    pub iteration_s: f64,
}

/// The measurements that fit.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchPlan {
    /// Turns: each launches every arm, in rotating order.
    pub turns: u32,
    /// Readings of one launch.
    pub iterations: u32,
    /// Sizes, bytes, rising.
    pub sizes: Vec<u64>,
    /// Launches of one turn.
    pub launches: usize,
    /// Expected time, seconds.
    pub seconds: f64,
}

impl LaunchCost {
    /// The cost from one launch that took `wall_s` for `warmup` and `iterations` readings of each size, whose times
    /// were `times_s`. A reading of nccl-tests with `-n 1` is four calls (one to synchronise and the timed one, out of
    /// place and in place). The warm-up of nccl-tests calls every power of two between the sizes; a step of another
    /// program counts once. The check of results counts as part of the start.
    pub fn of_pilot(wall_s: f64, times_s: &[f64], iterations: u32, warmup: u32, is_nccl_tests: bool) -> LaunchCost {
        let (sum, max) = (times_s.iter().sum::<f64>(), times_s.iter().copied().fold(0.0, f64::max));
        let (iteration_s, warmup_s) = match is_nccl_tests {
            true => (4.0 * sum, 2.0 * f64::from(warmup) * max),
            false => (sum, f64::from(warmup) * sum),
        };
        // Steps may overlap or be reported in part. The cost is limited to the duration of the launch.
        let said = f64::from(iterations) * iteration_s + warmup_s;
        let scale = if said > wall_s { wall_s / said } else { 1.0 };
        LaunchCost { start_s: (wall_s - said).max(0.0), warmup_s: warmup_s * scale, iteration_s: iteration_s * scale }
    }
}

impl PlanRequest {
    fn groups(&self, sizes: usize) -> usize {
        if self.is_in_one_go { 1 } else { sizes }
    }

    fn with(&self, turns: u32, iterations_in_all: u32, sizes: &[u64], cost: &LaunchCost) -> LaunchPlan {
        let iterations = iterations_in_all.div_ceil(turns);
        let launches = self.arms * self.kinds * self.groups(sizes.len());
        // The pilot measured all sizes, or the largest one. A subset of the sizes costs its share.
        let share = if self.is_in_one_go { sizes.len() as f64 / self.sizes.len() as f64 } else { 1.0 };
        let launch_s = cost.start_s + cost.warmup_s + f64::from(iterations) * cost.iteration_s * share;
        let seconds = f64::from(turns) * launches as f64 * launch_s;
        LaunchPlan { turns, iterations, sizes: sizes.to_vec(), launches, seconds }
    }

    /// All candidate plans, the best first.
    fn candidates<'a>(&'a self, cost: &'a LaunchCost) -> impl Iterator<Item = LaunchPlan> + 'a {
        let few = ITERATIONS_MIN.min(self.iterations);
        let some = (self.iterations / 2).max(few);
        let turns = self.turns.min(self.iterations).max(1);
        let two = turns.min(2);
        let mut halves = vec![self.sizes.clone()];
        while let Some(last) = halves.last().filter(|s| s.len() > 1) {
            halves.push(every_second(last));
        }
        let full = (two..=turns).rev().map(|t| (t, self.iterations)).collect::<Vec<_>>();
        let less = [(two, some), (two, few)];
        let at = move |sizes: &Vec<u64>, ways: &[(u32, u32)]| -> Vec<LaunchPlan> {
            ways.iter().map(|&(t, n)| self.with(t, n, sizes, cost)).collect()
        };
        let first: Vec<LaunchPlan> = halves.iter().flat_map(|s| [at(s, &full), at(s, &less)].concat()).collect();
        let last: Vec<LaunchPlan> =
            halves.iter().flat_map(|s| at(s, &[(1, self.iterations), (1, some), (1, few)])).collect();
        first.into_iter().chain(last)
    }

    /// The best plan that fits into `seconds`. If none fits, the error is the smallest plan, with its time.
    pub fn plan(&self, cost: &LaunchCost, seconds: f64) -> Result<LaunchPlan, LaunchPlan> {
        let mut least: Option<LaunchPlan> = None;
        for plan in self.candidates(cost) {
            if plan.seconds <= PLANNED_SHARE * seconds {
                return Ok(plan);
            }
            if least.as_ref().is_none_or(|l| plan.seconds < l.seconds) {
                least = Some(plan);
            }
        }
        Err(least.unwrap_or_else(|| self.with(1, 1, &self.sizes, cost)))
    }

    /// An earlier plan, with its time computed from `cost`.
    ///
    /// # Errors
    /// A message: the plan does not belong to this request.
    pub fn kept(&self, turns: u32, iterations: u32, sizes: &[u64], cost: &LaunchCost) -> Result<LaunchPlan, String> {
        let fits = (1..=self.turns).contains(&turns)
            && (1..=self.iterations).contains(&iterations)
            && !sizes.is_empty()
            && sizes.windows(2).all(|w| w[0] < w[1])
            && sizes.iter().all(|s| self.sizes.contains(s));
        let in_all = turns.saturating_mul(iterations);
        if fits {
            Ok(self.with(turns, in_all, sizes, cost))
        } else {
            Err("the plan does not belong to this run".into())
        }
    }

    /// Time of everything requested, seconds.
    pub fn seconds_of_all(&self, cost: &LaunchCost) -> f64 {
        self.with(self.turns.min(self.iterations).max(1), self.iterations, &self.sizes, cost).seconds / PLANNED_SHARE
    }
}

/// Every second size including the largest; a geometric series stays geometric.
fn every_second(sizes: &[u64]) -> Vec<u64> {
    let mut out: Vec<u64> = sizes.iter().rev().step_by(2).copied().collect();
    out.reverse();
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWO_MINUTES: f64 = 120.0;

    fn ask(arms: usize, kinds: usize) -> PlanRequest {
        let sizes = (0..6).map(|i| (256u64 << 10) << (2 * i)).collect();
        PlanRequest { arms, kinds, sizes, is_in_one_go: true, iterations: 50, turns: 5 }
    }

    /// A program that takes six seconds to start, as nccl-tests on eight GPUs may, and 20 ms for a reading of all sizes.
    const SLOW_START: LaunchCost = LaunchCost { start_s: 6.0, warmup_s: 0.1, iteration_s: 0.02 };

    #[test]
    fn five_arms_of_a_program_that_starts_in_six_seconds_fit_into_two_minutes() {
        let plan = ask(5, 1).plan(&SLOW_START, TWO_MINUTES).unwrap();
        assert_eq!((plan.turns, plan.iterations, plan.launches, plan.sizes.len()), (3, 17, 5, 6));
        assert!((plan.seconds - 15.0 * (6.1 + 17.0 * 0.02)).abs() < 1e-9 && plan.seconds <= TWO_MINUTES);
        // With two kinds of execution, two turns would take 124 s; one turn has all readings.
        let plan = ask(5, 2).plan(&SLOW_START, TWO_MINUTES).unwrap();
        assert_eq!((plan.turns, plan.iterations, plan.launches), (1, 50, 10));
        // With a quick start the plan has everything that was requested.
        let quick = LaunchCost { start_s: 0.5, ..SLOW_START };
        let plan = ask(5, 1).plan(&quick, TWO_MINUTES).unwrap();
        assert_eq!((plan.turns, plan.iterations), (5, 10));
    }

    #[test]
    fn for_slow_calls_the_plan_first_reduces_readings_and_then_sizes() {
        // The paper's two hosts: 675 ms a call at 256 MB, so 3.5 s for a reading of all sizes.
        let slow = LaunchCost { start_s: 2.0, warmup_s: 1.0, iteration_s: 0.4 };
        let plan = ask(5, 1).plan(&slow, TWO_MINUTES).unwrap();
        assert_eq!(
            (plan.turns, plan.iterations, plan.sizes.len()),
            (2, 13, 6),
            "half of the readings in two turns: 82 s"
        );
        let slower = LaunchCost { iteration_s: 1.1, ..slow };
        let plan = ask(5, 1).plan(&slower, TWO_MINUTES).unwrap();
        assert_eq!((plan.turns, plan.sizes.clone()), (2, vec![1 << 20, 16 << 20, 256 << 20]));
        let e = ask(5, 1).plan(&LaunchCost { start_s: 60.0, ..slow }, TWO_MINUTES).unwrap_err();
        assert!(e.turns == 1 && e.seconds > 300.0, "{e:?}");
    }

    #[test]
    fn a_pilot_separates_the_cost_of_start_and_readings() {
        // Two sizes of 1 and 3 ms: 5 readings are 80 ms of calls, 10 calls of warm-up at most 60 ms.
        let cost = LaunchCost::of_pilot(6.14, &[0.001, 0.003], 5, 10, true);
        assert!((cost.iteration_s - 0.016).abs() < 1e-12 && (cost.start_s - 6.0).abs() < 1e-9, "{cost:?}");
        let steps = LaunchCost::of_pilot(4.0, &[0.2], 5, 10, false);
        assert!((steps.start_s - 1.0).abs() < 1e-9 && (steps.iteration_s - 0.2).abs() < 1e-9);
        let overlapping = LaunchCost::of_pilot(1.5, &[0.2], 5, 10, false);
        assert_eq!((overlapping.start_s, (overlapping.iteration_s * 15.0 - 1.5).abs() < 1e-9), (0.0, true));
    }

    proptest! {
        #[test]
        fn a_plan_keeps_the_time_or_gives_the_time_of_the_smallest_plan(
            arms in 1usize..30, kinds in 1usize..=2, n in 1u64..8, one_go: bool, iterations in 1u32..200, turns in 1u32..9,
            start_s in 0.0f64..20.0, warmup_s in 0.0f64..3.0, iteration_s in 0.0f64..1.0, seconds in 1.0f64..600.0,
        ) {
            let sizes = (0..n).map(|i| 1024 << i).collect();
            let ask = PlanRequest { arms, kinds, sizes, is_in_one_go: one_go, iterations, turns };
            let cost = LaunchCost { start_s, warmup_s, iteration_s };
            match (ask.plan(&cost, seconds), ask.plan(&cost, 2.0 * seconds)) {
                (Ok(p), more) => {
                    prop_assert!(more.is_ok() && p.seconds <= seconds && p.turns >= 1 && p.turns <= turns.max(1));
                    prop_assert!(p.turns * p.iterations >= ITERATIONS_MIN.min(iterations));
                    prop_assert!(!p.sizes.is_empty() && p.sizes.last() == ask.sizes.last());
                }
                (Err(least), _) => prop_assert!(least.seconds > PLANNED_SHARE * seconds),
            }
            prop_assert!(ask.plan(&cost, ask.seconds_of_all(&cost) + 1e-6).is_ok_and(|p| p.turns == turns.min(iterations)));
        }
    }
}
