//! Detects from the times of calls whether computation runs at the same time.
//!
//! The model: calls run in one of two regimes, alone or during computation, and stay in one for tens of calls
//! ([`HAZARD`]). Every arm has a mean log time in each regime (computation may make one arm slower and another faster).
//! The noise is normal with one standard deviation for all arms. That is a hidden Markov model with two states;
//! expectation maximisation fits its levels and noise to the newest readings. The model is used only if it explains the
//! readings better than one regime, constant or drifting, by the Bayesian information criterion. The result for the
//! next call is its filtered probability.
//!
//! The upper limit: [`RegimeFilter`] with the true levels is the best detector that sees only times and does not know
//! when phases end. The trial compares the two.

use std::collections::VecDeque;

/// Number of newest readings that the model is fitted to.
pub const READINGS_MAX: usize = 384;
/// Smallest number of readings for a fit.
pub const READINGS_MIN: usize = 24;
/// Share of calls that begin a new phase: phases of 50 calls.
pub const HAZARD: f64 = 0.02;
/// Readings between two fits, before and after a detection.
const FIT_EVERY: [usize; 2] = [8, 16];
/// Rounds of expectation-maximisation in a fit from scratch, and in one from the previous fit.
const FIT_ROUNDS: [usize; 2] = [4, 2];
/// One fit in this many starts from scratch, because the previous fit may be the worse of two optima.
const FRESH_EVERY: u32 = 4;
/// Prior standard deviation of a level around the arm's mean, in log time: steps of a few tens of percent.
const STEP_SD: f64 = 0.25;
/// Smallest noise, in log time.
const NOISE_MIN: f64 = 0.005;
/// Smallest mean step that counts, in log time: a difference of 2 % is not worth two policies.
const STEP_MIN: f64 = 0.02;
/// Nats beyond the criterion that a new detection needs. An existing detection needs none.
const MARGIN: f64 = 3.0;
/// Half of the window whose mean starts a fit from scratch.
const SMOOTH: usize = 5;

/// The arm of a reading and the log of its time.
type LogReading = (usize, f64);

/// The probability that the next call is in the second of two regimes whose levels are known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RegimeFilter {
    second: f64,
}

impl Default for RegimeFilter {
    /// No result.
    fn default() -> Self {
        RegimeFilter { second: 0.5 }
    }
}

impl RegimeFilter {
    /// The probability for the next call.
    pub fn probability(self) -> f64 {
        self.second
    }

    /// Takes the log likelihoods of a reading in the two regimes and moves to the next call.
    pub fn learn(&mut self, first: f64, second: f64) {
        self.learn_ratio(ratio(first, second));
    }

    fn learn_ratio(&mut self, ratio: f64) {
        self.second = next(self.second / (self.second + (1.0 - self.second) * ratio).max(f64::MIN_POSITIVE));
    }
}

/// Likelihood ratio of the first regime to the second for a reading, from the logs of both likelihoods; bounded.
fn ratio(first: f64, second: f64) -> f64 {
    (first - second).clamp(-500.0, 500.0).exp()
}

/// The probability at the next call, or at the previous one, from the probability at one call.
fn next(now: f64) -> f64 {
    now * (1.0 - HAZARD) + (1.0 - now) * HAZARD
}

/// The fitted model.
#[derive(Debug, Clone, PartialEq)]
struct Regimes {
    /// Level of every arm in both regimes.
    levels: Vec<[Level; 2]>,
    noise: f64,
    /// Index of the regime that is slower on average over the readings. It counts as overlap.
    slower: usize,
    /// Distance of the regimes, in log time.
    step: f64,
}

/// The log time of an arm in a regime.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Level {
    mean: f64,
    /// Variance of the estimated mean.
    variance: f64,
    /// Inverse of the variance of a reading including noise, and its log.
    precision: f64,
    log_precision: f64,
}

impl Level {
    fn log_likelihood(&self, x: f64) -> f64 {
        0.5 * (self.log_precision - (x - self.mean).powi(2) * self.precision)
    }
}

impl Regimes {
    fn log_likelihoods(&self, (arm, x): LogReading) -> [f64; 2] {
        self.levels[arm].map(|l| l.log_likelihood(x))
    }
}

/// Finds the two regimes in the times of the calls. The slower one counts as overlap. `None` while one regime explains
/// the readings equally well.
///
/// Any other cause that changes all calls for a while looks like computation. A step that is small compared with the
/// noise is not detectable. The trial scores both cases (`linkwise-lab tune evaluate --detector`).
#[derive(Debug, Clone)]
pub struct OverlapDetector {
    arms: usize,
    readings: VecDeque<LogReading>,
    since_fit: usize,
    fits: u32,
    regimes: Option<Regimes>,
    filter: RegimeFilter,
}

impl OverlapDetector {
    /// A detector for `arms` arms.
    pub fn new(arms: usize) -> Self {
        let readings = VecDeque::with_capacity(READINGS_MAX);
        OverlapDetector { arms, readings, since_fit: 0, fits: 0, regimes: None, filter: RegimeFilter::default() }
    }

    /// The probability that the next call is overlapped; `None` without a result.
    pub fn probability(&self) -> Option<f64> {
        let second = self.filter.probability();
        self.regimes.as_ref().map(|r| if r.slower == 1 { second } else { 1.0 - second })
    }

    /// Whether the next call is overlapped according to the readings; `None` without a result.
    pub fn is_overlapped(&self) -> Option<bool> {
        self.probability().map(|p| p > 0.5)
    }

    /// Adds a reading, microseconds, finite and above 0. O(1), and O([`READINGS_MAX`]) at a fit, which happens at most
    /// every sixteenth time.
    pub fn learn(&mut self, arm: usize, time_us: f64) {
        if arm >= self.arms {
            return;
        }
        if self.readings.len() == READINGS_MAX {
            self.readings.pop_front();
        }
        let reading = (arm, time_us.ln());
        self.readings.push_back(reading);
        if let Some(r) = &self.regimes {
            let [first, second] = r.log_likelihoods(reading);
            self.filter.learn(first, second);
        }
        self.since_fit += 1;
        if self.since_fit >= FIT_EVERY[usize::from(self.regimes.is_some())] && self.readings.len() >= READINGS_MIN {
            self.since_fit = 0;
            self.fit();
        }
    }

    fn fit(&mut self) {
        let readings = self.readings.make_contiguous();
        let one = one_regime(readings, self.arms).max(drifting(readings, self.arms));
        let fresh = || fitted(readings, self.arms, &first_guess(readings, self.arms), FIT_ROUNDS[0]);
        let again = self.regimes.as_ref().map(|r| fitted(readings, self.arms, &smoothed(readings, r).0, FIT_ROUNDS[1]));
        self.fits = self.fits.wrapping_add(1);
        let (mut regimes, log_likelihood, filter) = match again {
            None => fresh(),
            Some(again) if !self.fits.is_multiple_of(FRESH_EVERY) => again,
            Some(again) => [again, fresh()].into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_else(fresh),
        };
        let seen = (0..self.arms).filter(|a| readings.iter().any(|s| s.0 == *a)).count();
        let criterion = 0.5 * seen as f64 * (readings.len() as f64).ln();
        let margin = if self.regimes.is_some() { 0.0 } else { MARGIN };
        if log_likelihood - one < criterion + margin || regimes.step < STEP_MIN {
            self.regimes = None;
            return;
        }
        // The numbers of the regimes are arbitrary. Keeping them between fits makes debugging easier.
        if let Some(before) = &self.regimes
            && before.slower != regimes.slower
        {
            regimes.levels.iter_mut().for_each(|l| l.swap(0, 1));
            regimes.slower = before.slower;
            self.filter = RegimeFilter { second: 1.0 - filter.second };
        } else {
            self.filter = filter;
        }
        self.regimes = Some(regimes);
    }
}

/// Log likelihood of one regime: a mean for every arm and one noise.
fn one_regime(readings: &[LogReading], arms: usize) -> f64 {
    let means = means(readings, arms);
    let n = readings.len() as f64;
    let square: f64 = readings.iter().map(|(a, x)| (x - means[*a]).powi(2)).sum();
    let variance = (square / n).max(NOISE_MIN * NOISE_MIN);
    -0.5 * (square / variance + n * variance.ln())
}

/// The same with a common drift. The criterion penalises its additional parameter.
fn drifting(readings: &[LogReading], arms: usize) -> f64 {
    let residuals = differences(readings, arms);
    let n = readings.len() as f64;
    let middle = (n - 1.0) / 2.0;
    let (mut along, mut square) = (0.0, 0.0);
    for (i, r) in residuals.iter().enumerate() {
        along += (i as f64 - middle) * r;
        square += (i as f64 - middle).powi(2);
    }
    let straight: Vec<LogReading> = readings
        .iter()
        .enumerate()
        .map(|(i, (arm, x))| (*arm, x - along / f64::max(square, 1.0) * (i as f64 - middle)))
        .collect();
    one_regime(&straight, arms) - 0.5 * n.ln()
}

fn means(readings: &[LogReading], arms: usize) -> Vec<f64> {
    let mut sums = vec![(0.0, 0.0); arms];
    for (arm, x) in readings {
        sums[*arm].0 += x;
        sums[*arm].1 += 1.0;
    }
    sums.into_iter().map(|(sum, n)| sum / f64::max(n, 1.0)).collect()
}

/// Initial probabilities of the second regime: from the moving mean of the arm with most readings, above or below its
/// overall mean.
fn first_guess(readings: &[LogReading], arms: usize) -> Vec<f64> {
    let count = |arm: usize| readings.iter().filter(|s| s.0 == arm).count();
    let most = (0..arms).max_by_key(|a| (count(*a), arms - a)).unwrap_or(0);
    let own: Vec<f64> = readings.iter().filter(|s| s.0 == most).map(|s| s.1).collect();
    let smooth: Vec<f64> =
        (0..own.len()).map(|i| stats::mean(&own[i.saturating_sub(SMOOTH)..(i + SMOOTH + 1).min(own.len())])).collect();
    let (low, high) = smooth.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(*x), h.max(*x)));
    let middle = (low + high) / 2.0;
    let mut last = smooth.first().copied().unwrap_or(0.0);
    let mut next = smooth.iter();
    readings
        .iter()
        .map(|s| {
            if s.0 == most {
                last = next.next().copied().unwrap_or(last);
            }
            if last > middle { 0.95 } else { 0.05 }
        })
        .collect()
}

/// Fits the model from probabilities of the second regime. Returns the model, its log likelihood, and the probability
/// for the next call.
fn fitted(readings: &[LogReading], arms: usize, guess: &[f64], rounds: usize) -> (Regimes, f64, RegimeFilter) {
    let mut noise = stats::standard_deviation(&differences(readings, arms)).max(NOISE_MIN);
    let mut probabilities = guess.to_vec();
    let centres = means(readings, arms);
    for _ in 0..rounds {
        let regimes = maximised(readings, arms, &centres, &probabilities, noise);
        noise = regimes.noise;
        probabilities = smoothed(readings, &regimes).0;
    }
    let regimes = maximised(readings, arms, &centres, &probabilities, noise);
    let (_, log_likelihood, filter) = smoothed(readings, &regimes);
    (regimes, log_likelihood, filter)
}

/// Differences of the readings from their arms' means.
fn differences(readings: &[LogReading], arms: usize) -> Vec<f64> {
    let means = means(readings, arms);
    readings.iter().map(|(a, x)| x - means[*a]).collect()
}

/// Levels and noise from the probabilities of the second regime. Levels have a normal prior around the arm's mean.
fn maximised(readings: &[LogReading], arms: usize, centres: &[f64], probabilities: &[f64], noise: f64) -> Regimes {
    let mut sums = vec![[(0.0, 0.0); 2]; arms];
    for ((arm, x), p) in readings.iter().zip(probabilities) {
        for (sum, weight) in sums[*arm].iter_mut().zip([1.0 - p, *p]) {
            sum.0 += weight * x;
            sum.1 += weight;
        }
    }
    let prior = 1.0 / (STEP_SD * STEP_SD);
    let level = |arm: usize, (sum, weight): (f64, f64)| {
        let variance = 1.0 / (prior + weight / (noise * noise));
        let mean = variance * (prior * centres[arm] + sum / (noise * noise));
        Level { mean, variance, precision: 0.0, log_precision: 0.0 }
    };
    let mut levels: Vec<[Level; 2]> = (0..arms).map(|a| sums[a].map(|s| level(a, s))).collect();
    let mut square = 0.0;
    for ((arm, x), p) in readings.iter().zip(probabilities) {
        square += (1.0 - p) * (x - levels[*arm][0].mean).powi(2) + p * (x - levels[*arm][1].mean).powi(2);
    }
    let noise = (square / readings.len() as f64).sqrt().max(NOISE_MIN);
    for level in levels.iter_mut().flatten() {
        level.precision = 1.0 / (noise * noise + level.variance);
        level.log_precision = level.precision.ln();
    }
    let (mut up, mut apart, mut weight) = (0.0, 0.0, 0.0);
    for (l, s) in levels.iter().zip(&sums) {
        let both = s[0].1.min(s[1].1);
        let difference = l[1].mean - l[0].mean;
        up += both * difference;
        apart += both * difference.abs();
        weight += both;
    }
    Regimes { levels, noise, slower: usize::from(up >= 0.0), step: apart / f64::max(weight, 1e-9) }
}

/// Probabilities of the second regime given all readings (forward and backward), the log likelihood, and the filter after the last reading.
fn smoothed(readings: &[LogReading], regimes: &Regimes) -> (Vec<f64>, f64, RegimeFilter) {
    let mut filter = RegimeFilter::default();
    let mut log_likelihood = 0.0;
    // The filter's probability before every reading, and the reading's ratio of likelihoods.
    let mut steps = Vec::with_capacity(readings.len());
    for reading in readings {
        let [first, second] = regimes.log_likelihoods(*reading);
        let (p, ratio) = (filter.probability(), ratio(first, second));
        steps.push((p, ratio));
        log_likelihood += second + ((1.0 - p) * ratio + p).ln();
        filter.learn_ratio(ratio);
    }
    // Backward pass: the probability of the readings after a call.
    let mut after = 0.5;
    let mut out = vec![0.0; readings.len()];
    for (i, (p, ratio)) in steps.into_iter().enumerate().rev() {
        let against = ratio * (1.0 - after) / f64::max(after, f64::MIN_POSITIVE);
        out[i] = p / (p + (1.0 - p) * against).max(f64::MIN_POSITIVE);
        after = next(1.0 / (1.0 + against));
    }
    (out, log_likelihood, filter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stats::random::Random;

    #[test]
    fn phases_are_seen_within_a_few_calls_once_two_have_passed() {
        let mut d = OverlapDetector::new(2);
        let mut r = Random::new(1);
        let mut seen = Vec::new();
        for call in 0..300 {
            let level = if call / 50 % 2 == 1 { 130.0 } else { 100.0 };
            d.learn(0, level * r.log_normal(0.03));
            seen.push(d.is_overlapped());
        }
        assert!(seen[..50].iter().all(Option::is_none));
        for (from, what) in [(62, true), (102, false), (152, true), (202, false), (252, true)] {
            assert!(seen[from..from / 50 * 50 + 50].iter().all(|s| *s == Some(what)), "from {from}: {seen:?}");
        }
    }

    #[test]
    fn an_arm_that_gets_faster_during_computation_does_not_reverse_the_result() {
        // One arm runs alone, another during computation. Each is slower in the regime where it is not used.
        let mut d = OverlapDetector::new(3);
        let mut r = Random::new(3);
        let levels = |overlapped: bool| if overlapped { [100.0, 80.0, 130.0] } else { [70.0, 110.0, 100.0] };
        let mut right = 0;
        for call in 0..2_000 {
            let overlapped = call / 50 % 2 == 1;
            let said = d.is_overlapped().unwrap_or(false);
            right += u32::from(call >= 200 && said == overlapped);
            // Every tenth call explores an arm in turn. The other calls use the arm of the detected regime.
            let arm = if call % 10 == 0 { call / 10 % 3 } else { usize::from(said) };
            d.learn(arm, levels(overlapped)[arm] * r.log_normal(0.10));
        }
        assert!(right > 1_800 * 90 / 100, "{right} of 1,800");
    }

    #[test]
    fn steady_times_drift_and_independent_modes_are_seldom_taken_for_overlap() {
        let mut r = Random::new(2);
        for (name, cv, modes, drift) in
            [("steady", 0.05, [1.0, 1.0], 0.0), ("modes", 0.15, [1.1, 2.95], 0.0), ("drift", 0.10, [1.0, 1.0], 0.2)]
        {
            let mut said = 0;
            let mut d = OverlapDetector::new(1);
            for call in 0..5_000 {
                let level = modes[r.below(2)] * (1.0 + drift * f64::from(call) / 1_000.0);
                d.learn(0, level * r.log_normal(cv));
                said += u32::from(d.is_overlapped() == Some(true));
            }
            assert!(said < 250, "{name}: {said} of 5,000 calls");
        }
    }

    #[test]
    fn a_filter_moves_as_bayes_says() {
        let mut f = RegimeFilter::default();
        f.learn(0.0, 9f64.ln());
        assert!((f.probability() - (0.9 * 0.98 + 0.1 * 0.02)).abs() < 1e-12);
        (0..100).for_each(|_| f.learn(1e9, -1e9));
        assert!((f.probability() - HAZARD).abs() < 1e-12, "even a certain filter allows a new phase at the next call");
    }

    #[test]
    fn an_arm_that_does_not_exist_is_ignored() {
        let mut d = OverlapDetector::new(1);
        d.learn(7, 1.0);
        assert_eq!(d.is_overlapped(), None);
    }
}
