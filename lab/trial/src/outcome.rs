//! The outcome of one run.

/// One call with its true times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub arm: usize,
    pub in_use: usize,
    /// The arm in use is AUTO.
    pub is_auto: bool,
    pub is_explore: bool,
    /// The true times changed with this call.
    pub is_change: bool,
    /// The arm in use is the best one, or as good.
    pub is_right: bool,
    pub do_ranks_differ: bool,
    /// Its time, and AUTO's time in the same call.
    pub time_us: f64,
    pub auto_time_us: f64,
    /// Expected times, under the objective: of the arm that ran, of the arm in use, of the best, of AUTO.
    pub mean_us: f64,
    pub in_use_us: f64,
    pub best_us: f64,
    pub auto_us: f64,
}

/// Number of calls for which an arm must stay in use to count as decided or recovered.
const STAYS_CALLS: usize = 50;
/// From this ratio to the arm in use on, an arm is recognisably slow.
pub const SLOW_FACTOR: f64 = 1.5;
/// From this ratio on, an arm is certainly slow: noisy readings of an arm at 1.55 may average 1.45, those of an arm at
/// 2 do not.
pub const CLEARLY_SLOW_FACTOR: f64 = 2.0;
/// Number of calls in which the explorations of slow arms are counted.
pub const LOOKS_CALLS: usize = 2_000;

/// The outcome of one run. "Expected" means computed from the true means, free of noise, and with the price of channels
/// if the objective has one. Drawn times (medians, spread) do not include the price.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Number of readings until the right arm was in use permanently, before any change.
    pub decided_after: Option<u64>,
    /// Number of calls off the arm in use until then, or in the whole run if never.
    pub explored_until_decided: u64,
    /// Number of times that AUTO, or a better arm, was left for an arm that is not better than AUTO.
    pub wrong_choices: u64,
    /// Number of calls with such an arm in use.
    pub wrong_calls: u64,
    /// Expected time over the best arm's, minus 1.
    pub regret: f64,
    /// 1 - expected time over AUTO's.
    pub improvement_expected: f64,
    /// 1 - median time over AUTO's median in the same calls, from the second half of the run.
    pub improvement_late_median: f64,
    /// Expected cost of exploration, us: over all calls of the run (up to the change, if there is one) that ran another
    /// arm than the one in use, their time beyond the faster of the arm in use and AUTO. The time of the arm in use is
    /// never a cost of exploration. Negative only if explored arms are better than both.
    pub explore_cost_us: f64,
    /// The call after which the run's savings stay above its costs; 0 if there was no cost.
    pub break_even: Option<u64>,
    /// Expected cost of exploring other arms relative to the arm in use, once settled, as a share; `None` if the run
    /// ended before.
    pub looking_cost: Option<f64>,
    /// Largest number of explorations of one arm that is more than 1.5 times slower than the arm in use, once settled,
    /// in 2,000 calls.
    pub looks_at_slow_max: u64,
    /// The same for arms over 2 times slower.
    pub looks_at_clearly_slow_max: u64,
    /// Number of calls from the change until the right arm was in use permanently; `None` if never, or without a
    /// change.
    pub recovered_after: Option<Option<u64>>,
    /// Calls in which ranks chose different arms.
    pub differing_calls: u64,
    /// Interquartile range of AUTO's times and of the run's, second half, us.
    pub iqr_us: (f64, f64),
    /// Standard deviation of both.
    pub sd_us: (f64, f64),
    /// The arm in use at the end.
    pub last_in_use: usize,
}

/// The first call after which the right arm stays in use.
fn decided(calls: &[Call]) -> Option<usize> {
    let mut at = 0;
    while at < calls.len() {
        match calls[at..].iter().take(STAYS_CALLS).rposition(|c| !c.is_right) {
            None => return Some(at),
            Some(last_wrong) => at += last_wrong + 1,
        }
    }
    None
}

impl Outcome {
    pub(crate) fn of(calls: &[Call], settled_at: u64) -> Outcome {
        let change = calls.iter().position(|c| c.is_change);
        let before = &calls[..change.unwrap_or(calls.len())];
        let decided_at = decided(before);
        let learning = &before[..decided_at.unwrap_or(before.len())];
        let sum = |f: fn(&Call) -> f64| calls.iter().map(f).sum::<f64>();
        let (mean, best, auto) = (sum(|c| c.mean_us), sum(|c| c.best_us), sum(|c| c.auto_us));
        let late = &calls[calls.len() / 2..];
        let times: Vec<f64> = late.iter().map(|c| c.time_us).collect();
        let autos: Vec<f64> = late.iter().map(|c| c.auto_time_us).collect();
        let settled = before.get(settled_at as usize..).unwrap_or(&[]);
        Outcome {
            decided_after: decided_at.map(|d| d as u64),
            explored_until_decided: learning.iter().filter(|c| c.is_explore).count() as u64,
            wrong_choices: wrong_choices(calls),
            wrong_calls: calls.iter().filter(|c| is_wrong(c)).count() as u64,
            regret: mean / best - 1.0,
            improvement_expected: 1.0 - mean / auto,
            improvement_late_median: 1.0 - stats::median(&times) / stats::median(&autos),
            explore_cost_us: explore_cost_us(before),
            break_even: break_even(calls),
            looking_cost: looking_cost(settled),
            looks_at_slow_max: looks_max(settled, SLOW_FACTOR),
            looks_at_clearly_slow_max: looks_max(settled, CLEARLY_SLOW_FACTOR),
            recovered_after: change.map(|at| decided(&calls[at..]).map(|d| d as u64)),
            differing_calls: calls.iter().filter(|c| c.do_ranks_differ).count() as u64,
            iqr_us: (stats::iqr(&autos), stats::iqr(&times)),
            sd_us: (stats::standard_deviation(&autos), stats::standard_deviation(&times)),
            last_in_use: calls.last().map_or(0, |c| c.in_use),
        }
    }
}

fn is_wrong(c: &Call) -> bool {
    !c.is_auto && c.in_use_us >= c.auto_us
}

/// A wrong choice: the arm is no better than AUTO when it comes into use. An arm that becomes bad while in use does not count.
fn wrong_choices(calls: &[Call]) -> u64 {
    let came_into_use = |i: usize| i == 0 || calls[i - 1].in_use != calls[i].in_use;
    (0..calls.len()).filter(|i| came_into_use(*i) && is_wrong(&calls[*i])).count() as u64
}

fn break_even(calls: &[Call]) -> Option<u64> {
    let mut saved_us = 0.0;
    let mut since = Some(0);
    for (i, c) in calls.iter().enumerate() {
        saved_us += c.auto_us - c.mean_us;
        match (saved_us < -1e-9 * c.auto_us, since) {
            (true, _) => since = None,
            (false, None) => since = Some(i as u64),
            (false, Some(_)) => {}
        }
    }
    since
}

fn explore_cost_us(calls: &[Call]) -> f64 {
    let off = calls.iter().filter(|c| c.arm != c.in_use);
    off.fold(0.0, |sum, c| sum + c.mean_us - c.auto_us.min(c.in_use_us)) // the sum of an empty iterator is -0
}

fn looking_cost(calls: &[Call]) -> Option<f64> {
    let in_use: f64 = calls.iter().map(|c| c.in_use_us).sum();
    (in_use > 0.0).then(|| calls.iter().map(|c| c.mean_us).sum::<f64>() / in_use - 1.0)
}

fn looks_max(calls: &[Call], factor: f64) -> u64 {
    let mut looks = [0u64; tune::ledger::ARMS_MAX];
    for c in calls.iter().take(LOOKS_CALLS).filter(|c| c.mean_us > factor * c.in_use_us) {
        looks[c.arm.min(tune::ledger::ARMS_MAX - 1)] += 1;
    }
    looks.into_iter().max().unwrap_or(0)
}

/// Means over runs, call by call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curve {
    /// Runs that were added.
    pub runs: u64,
    /// Runs with the right arm in use when call i is decided, that is after i readings.
    pub right: Vec<u64>,
    /// Sum over runs of expected time over the best arm's.
    pub over_best: Vec<f64>,
    /// Sum over runs of expected time over AUTO's.
    pub over_auto: Vec<f64>,
}

impl Curve {
    pub(crate) fn add(&mut self, calls: &[Call]) {
        let length = calls.len().max(self.right.len());
        self.right.resize(length, 0);
        self.over_best.resize(length, 0.0);
        self.over_auto.resize(length, 0.0);
        self.runs += 1;
        for (i, c) in calls.iter().enumerate() {
            self.right[i] += u64::from(c.is_right);
            self.over_best[i] += c.mean_us / c.best_us;
            self.over_auto[i] += c.mean_us / c.auto_us;
        }
    }

    /// Adds the runs of another curve.
    pub fn merge(&mut self, other: &Curve) {
        let length = other.right.len().max(self.right.len());
        self.right.resize(length, 0);
        self.over_best.resize(length, 0.0);
        self.over_auto.resize(length, 0.0);
        self.runs += other.runs;
        for (i, r) in other.right.iter().enumerate() {
            self.right[i] += r;
            self.over_best[i] += other.over_best[i];
            self.over_auto[i] += other.over_auto[i];
        }
    }
}
