//! Is computation running beside the calls? From their times alone.

/// Samples of one arm that make its level, at most.
pub const BASELINE_SAMPLES: usize = 32;
/// Fewest samples of an arm before its level means anything.
pub const BASELINE_MIN: usize = 12;
/// Newest samples of an arm that are held against its level.
pub const RECENT_SAMPLES: usize = 6;
/// Smallest step that counts, as a share of the time.
pub const STEP_MIN: f64 = 0.10;
/// The step must also exceed this many standard errors of the mean of the newest samples.
pub const STEP_ERRORS_MIN: f64 = 4.0;

/// Finds steps in the times of an arm. Definition: computation is taken to have begun when the mean log time of an arm's six
/// newest samples lies above that of the up to 32 before them by at least 10 % and four standard errors, and to have ended when it
/// lies as far below. Until the first step nothing is known. After a step the levels of all arms are forgotten.
///
/// It cannot tell computation from anything else that makes all calls slower for a while; a step of less than a tenth, or one that
/// drowns in noise, is not seen. The trial scores it (`linkwise tune evaluate --detector`).
#[derive(Debug, Clone)]
pub struct Detector {
    /// Log times per arm, oldest first.
    samples: Vec<Vec<f64>>,
    is_overlapped: Option<bool>,
}

impl Detector {
    /// For so many arms.
    pub fn new(arms: usize) -> Self {
        let room = || Vec::with_capacity(BASELINE_SAMPLES + RECENT_SAMPLES + 1);
        Detector { samples: (0..arms).map(|_| room()).collect(), is_overlapped: None }
    }

    /// What the samples say about the next call; `None` while nothing is known.
    pub fn is_overlapped(&self) -> Option<bool> {
        self.is_overlapped
    }

    /// Takes a sample, microseconds, finite and above 0. O([`BASELINE_SAMPLES`]).
    pub fn learn(&mut self, arm: usize, time_us: f64) {
        let Some(samples) = self.samples.get_mut(arm) else { return };
        samples.push(time_us.ln());
        if samples.len() > BASELINE_SAMPLES + RECENT_SAMPLES {
            samples.remove(0);
        }
        let Some(split) = samples.len().checked_sub(RECENT_SAMPLES).filter(|n| *n >= BASELINE_MIN) else { return };
        let (baseline, recent) = samples.split_at(split);
        let step = crate::stats::mean(recent) - crate::stats::mean(baseline);
        let error = crate::stats::standard_deviation(baseline)
            * (1.0 / RECENT_SAMPLES as f64 + 1.0 / baseline.len() as f64).sqrt();
        if step.abs() < (1.0 + STEP_MIN).ln().max(STEP_ERRORS_MIN * error) {
            return;
        }
        self.is_overlapped = Some(step > 0.0);
        let recent = recent.to_vec();
        self.samples.iter_mut().for_each(Vec::clear);
        self.samples[arm].extend(recent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_step_up_is_overlap_and_a_step_down_its_end() {
        let mut d = Detector::new(2);
        let mut r = Random::new(1);
        let mut seen = Vec::new();
        for call in 0..200 {
            let level = if call / 50 % 2 == 1 { 130.0 } else { 100.0 };
            d.learn(0, level * r.log_normal(0.03));
            seen.push(d.is_overlapped());
        }
        assert!(seen[..50].iter().all(Option::is_none));
        assert!(seen[58..100].iter().all(|s| *s == Some(true)), "{seen:?}");
        assert!(seen[108..150].iter().all(|s| *s == Some(false)));
        assert!(seen[158..].iter().all(|s| *s == Some(true)));
    }

    #[test]
    fn steady_times_and_independent_modes_are_seldom_taken_for_overlap() {
        let mut r = Random::new(2);
        for (name, cv, modes) in [("steady", 0.05, [1.0, 1.0]), ("modes", 0.15, [1.1, 2.95])] {
            let mut steps = 0;
            let mut d = Detector::new(1);
            let mut before = None;
            for _ in 0..5_000 {
                d.learn(0, modes[r.below(2)] * r.log_normal(cv));
                steps += u32::from(d.is_overlapped() != before);
                before = d.is_overlapped();
            }
            assert!(steps < 10, "{name}: {steps} steps in 5,000 calls");
        }
    }

    #[test]
    fn an_arm_that_does_not_exist_is_passed_over() {
        let mut d = Detector::new(1);
        d.learn(7, 1.0);
        assert_eq!(d.is_overlapped(), None);
    }
}
