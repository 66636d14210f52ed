//! How well overlap is detected from times alone.

use super::environment::{Environment, Simulated, Spec};
use crate::overlap::Detector;

/// Calls of one run, by what was so and what the detector had said just before the call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Detection {
    /// Overlapped, and said so.
    pub hits: u64,
    /// Alone, but said to be overlapped.
    pub false_alarms: u64,
    /// Overlapped, but said to be alone or unknown.
    pub misses: u64,
    /// Alone, and said so or unknown.
    pub quiet: u64,
}

impl Detection {
    /// Of the calls said to be overlapped, the share that was; `None` if none was said to be.
    pub fn precision(&self) -> Option<f64> {
        let said = self.hits + self.false_alarms;
        (said > 0).then(|| self.hits as f64 / said as f64)
    }

    /// Of the overlapped calls, the share that was said to be; `None` if there were none.
    pub fn recall(&self) -> Option<f64> {
        let were = self.hits + self.misses;
        (were > 0).then(|| self.hits as f64 / were as f64)
    }

    /// Of the calls alone, the share said to be overlapped.
    pub fn false_alarm_rate(&self) -> Option<f64> {
        let were = self.false_alarms + self.quiet;
        (were > 0).then(|| self.false_alarms as f64 / were as f64)
    }

    /// Adds another run's calls.
    pub fn add(&mut self, other: Detection) {
        self.hits += other.hits;
        self.false_alarms += other.false_alarms;
        self.misses += other.misses;
        self.quiet += other.quiet;
    }
}

/// Plays one arm through an environment and asks the detector before every call.
pub fn detect(spec: &Spec, arm: usize, seed: u64) -> Detection {
    let mut environment = Simulated::new(spec, seed);
    let mut detector = Detector::new(spec.arms.len());
    let mut out = Detection::default();
    for call in 0..spec.calls {
        environment.begin(call, arm);
        let said = detector.is_overlapped() == Some(true);
        match (environment.is_overlapped(), said) {
            (true, true) => out.hits += 1,
            (true, false) => out.misses += 1,
            (false, true) => out.false_alarms += 1,
            (false, false) => out.quiet += 1,
        }
        detector.learn(arm, environment.time_us(arm));
    }
    out
}
