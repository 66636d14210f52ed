//! The paper's five gates: when an offline measurement justifies overriding AUTO.
//!
//! Source: Bandit-Guided NCCL Tuning, section 4.1. In order: (1) IQR outlier trimming leaves enough readings, (2) a one-sided
//! Mann-Whitney U test has p < 0.01, (3) Cliff's delta exceeds 0.33, (4) two halves of the readings agree on the winner, (5) the
//! improvement of the median exceeds 5 % below 64 MiB and 10 % from there on.
//!
//! The readings of one launch share its memory, connections and time: a slow launch is slow in every reading. So the halves of gate 4
//! are odd and even **turns** (launches) where there are two or more. With a single turn the halves are odd and even readings, and
//! [`GateVerdict::turns`] shows that no second launch confirmed them.

use std::fmt;

/// Readings that must be left after trimming, of each arm.
pub const READINGS_MIN: usize = 8;
/// Largest p of gate 2.
pub const P_MAX: f64 = 0.01;
/// Least Cliff's delta of gate 3.
pub const DELTA_MIN: f64 = 0.33;
/// The size from which gate 5 requires more, bytes.
pub const LARGE_BYTES: u64 = 64 << 20;
/// Least improvement of gate 5 below [`LARGE_BYTES`].
pub const IMPROVEMENT_MIN: f64 = 0.05;
/// Least improvement of gate 5 from [`LARGE_BYTES`] on.
pub const IMPROVEMENT_LARGE_MIN: f64 = 0.10;

/// One of the five gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gate {
    /// Enough readings after trimming.
    Readings,
    /// Mann-Whitney.
    Significance,
    /// Cliff's delta.
    Effect,
    /// Split halves.
    Agreement,
    /// The threshold that grows with the size.
    Improvement,
}

impl Gate {
    /// The word for tables and files.
    pub const fn word(self) -> &'static str {
        match self {
            Gate::Readings => "samples",
            Gate::Significance => "significance",
            Gate::Effect => "effect",
            Gate::Agreement => "agreement",
            Gate::Improvement => "improvement",
        }
    }
}

/// The result of the gates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateVerdict {
    /// The first gate that failed; `None` when all passed.
    pub failed: Option<Gate>,
    /// Readings of the candidate and of AUTO after trimming.
    pub readings: (usize, usize),
    /// One-sided p that the candidate is faster by chance.
    pub p: f64,
    /// Cliff's delta, positive when the candidate is faster.
    pub delta: f64,
    /// Whether both halves of the readings agree that the candidate is faster.
    pub halves_agree: bool,
    /// Turns in which both were measured. The halves are odd and even turns; with fewer than two turns, odd and even readings.
    pub turns: usize,
    /// 1 - median of the candidate over AUTO's.
    pub improvement: f64,
    /// The improvement that gate 5 requires at this size.
    pub improvement_min: f64,
}

impl GateVerdict {
    /// All five passed.
    pub fn is_passed(&self) -> bool {
        self.failed.is_none()
    }
}

impl fmt::Display for GateVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gain = 100.0 * self.improvement;
        match self.failed {
            None => {
                write!(f, "passed all gates: {gain:.1} % faster, p {:.1e}, delta {:.2}", self.p, self.delta)?;
                if self.turns < 2 { f.write_str("; in one launch only") } else { Ok(()) }
            }
            Some(Gate::Readings) => {
                write!(
                    f,
                    "gate 1 failed: {} and {} readings left, {READINGS_MIN} needed",
                    self.readings.0, self.readings.1
                )
            }
            Some(Gate::Significance) => write!(f, "gate 2 failed: p {:.3} is not below {P_MAX}", self.p),
            Some(Gate::Effect) => write!(f, "gate 3 failed: Cliff's delta {:.2} is not above {DELTA_MIN}", self.delta),
            Some(Gate::Agreement) => {
                write!(f, "gate 4 failed: odd and even {} disagree", if self.turns < 2 { "readings" } else { "turns" })
            }
            Some(Gate::Improvement) => {
                write!(f, "gate 5 failed: {gain:.1} % faster, {:.0} % needed", 100.0 * self.improvement_min)
            }
        }
    }
}

/// [`check_turns`] for readings of which the launch is not known.
pub fn check(candidate: &[f64], auto: &[f64], size_bytes: u64) -> GateVerdict {
    check_turns(&[candidate], &[auto], size_bytes)
}

/// The two halves of gate 4: odd and even turns of `common` if there are two or more, otherwise odd and even readings.
fn halves(turns: &[impl AsRef<[f64]>], common: &[usize]) -> [Vec<f64>; 2] {
    let mut halves = [Vec::new(), Vec::new()];
    match common {
        [] | [_] => {
            let readings = turns.iter().flat_map(|t| t.as_ref());
            readings.enumerate().for_each(|(i, time)| halves[i % 2].push(*time));
        }
        _ => common.iter().enumerate().for_each(|(i, turn)| halves[i % 2].extend(turns[*turn].as_ref())),
    }
    halves
}

/// Compares a candidate's times with AUTO's at one size; any unit, the same for both. Turn i of both ran at about the same time; a
/// turn may be empty. Every figure is computed, also after a failed gate.
pub fn check_turns<T: AsRef<[f64]>>(candidate: &[T], auto: &[T], size_bytes: u64) -> GateVerdict {
    let is_in = |turns: &[T], i: usize| turns.get(i).is_some_and(|t| !t.as_ref().is_empty());
    let common: Vec<usize> = (0..candidate.len()).filter(|i| is_in(candidate, *i) && is_in(auto, *i)).collect();
    let ([c0, c1], [a0, a1]) = (halves(candidate, &common), halves(auto, &common));
    let all = |turns: &[T]| turns.iter().flat_map(|t| t.as_ref()).copied().collect::<Vec<f64>>();
    let (candidate, auto) = (stats::iqr_trimmed(&all(candidate)), stats::iqr_trimmed(&all(auto)));
    let mut verdict = GateVerdict {
        failed: None,
        readings: (candidate.len(), auto.len()),
        p: stats::mann_whitney_below(&candidate, &auto),
        delta: stats::cliffs_delta_below(&candidate, &auto),
        halves_agree: stats::halves_agree_below([&c0, &c1], [&a0, &a1]),
        turns: common.len(),
        improvement: 1.0 - stats::median(&candidate) / stats::median(&auto),
        improvement_min: if size_bytes < LARGE_BYTES { IMPROVEMENT_MIN } else { IMPROVEMENT_LARGE_MIN },
    };
    // A comparison with NaN is false, so a NaN fails its gate.
    let passes = [
        (Gate::Readings, verdict.readings.0.min(verdict.readings.1) >= READINGS_MIN),
        (Gate::Significance, verdict.p < P_MAX),
        (Gate::Effect, verdict.delta > DELTA_MIN),
        (Gate::Agreement, verdict.halves_agree),
        (Gate::Improvement, verdict.improvement > verdict.improvement_min),
    ];
    verdict.failed = passes.into_iter().find(|(_, passed)| !passed).map(|(gate, _)| gate);
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use stats::random::Random;

    fn draws(seed: u64, n: usize, mean: f64, cv: f64) -> Vec<f64> {
        let mut r = Random::new(seed);
        (0..n).map(|_| mean * r.log_normal(cv)).collect()
    }

    proptest! {
        #[test]
        fn an_arm_that_passes_against_auto_fails_the_other_way_round(seed: u64, level in 0.5f64..1.5, cv in 0.01f64..0.4) {
            let (a, b) = (draws(seed, 50, level, cv), draws(seed ^ 1, 50, 1.0, cv));
            let there = check(&a, &b, 1 << 20);
            prop_assert!(!(there.is_passed() && check(&b, &a, 1 << 20).is_passed()));
            prop_assert!(!there.is_passed() || there.improvement > 0.05);
        }

        #[test]
        fn any_values_are_judged_without_panic(a in proptest::collection::vec(0.0f64..10.0, 0..20), b in proptest::collection::vec(0.0f64..10.0, 0..20), size: u64) {
            let _ = check(&a, &b, size).to_string();
        }
    }

    #[test]
    fn each_gate_can_be_the_one_that_fails() {
        let auto = draws(1, 50, 100.0, 0.02);
        assert_eq!(check(&auto[..5], &auto, 0).failed, Some(Gate::Readings));
        assert_eq!(check(&draws(2, 50, 100.0, 0.02), &auto, 0).failed, Some(Gate::Significance));
        // Many readings make a small effect significant.
        let (many, few) = (draws(3, 900, 100.0, 0.1), draws(4, 900, 98.0, 0.1));
        assert_eq!(check(&few, &many, 0).failed, Some(Gate::Effect));
        // Odd readings equal AUTO's, even ones are much faster: a trend or a periodic effect, not a faster arm.
        let mixed: Vec<f64> = (0..50).map(|i| if i % 2 == 1 { 102.6 } else { 80.0 }).collect();
        let steady: Vec<f64> = (0..50).map(|i| 100.0 + f64::from(i) * 0.1).collect();
        let verdict = check(&mixed, &steady, 0);
        assert_eq!(verdict.failed, Some(Gate::Agreement), "{verdict:?}");
        assert!(verdict.to_string().contains("readings disagree"), "{verdict}");
        let seven = draws(5, 50, 93.0, 0.02);
        assert_eq!(check(&seven, &auto, LARGE_BYTES).failed, Some(Gate::Improvement));
        assert_eq!(check(&seven, &auto, LARGE_BYTES - 1).failed, None);
    }

    #[test]
    fn one_outlier_does_not_hide_that_the_halves_disagree() {
        let mut mixed: Vec<f64> = (0..50).map(|i| if i % 2 == 1 { 102.6 } else { 80.0 }).collect();
        let mut steady: Vec<f64> = (0..50).map(|i| 100.0 + f64::from(i) * 0.1).collect();
        mixed[25] = 1_000.0;
        assert_eq!(check(&mixed, &steady, 0).failed, Some(Gate::Agreement), "the candidate's");
        mixed[25] = 102.6;
        steady[25] = 1_000.0;
        assert_eq!(check(&mixed, &steady, 0).failed, Some(Gate::Agreement), "AUTO's");
    }

    #[test]
    fn an_arm_that_was_fast_in_one_launch_of_two_fails() {
        let auto = [draws(1, 25, 100.0, 0.02), draws(2, 25, 100.0, 0.02)];
        let lucky = [draws(3, 25, 70.0, 0.02), draws(4, 25, 100.5, 0.02)];
        let verdict = check_turns(&lucky, &auto, 0);
        assert_eq!((verdict.failed, verdict.turns), (Some(Gate::Agreement), 2));
        assert!(verdict.to_string().contains("turns disagree"), "{verdict}");
        assert_eq!(
            check(&lucky.concat(), &auto.concat(), 0).failed,
            None,
            "readings without their launch do not show the difference"
        );
        let steady = [draws(3, 25, 80.0, 0.02), draws(4, 25, 80.0, 0.02)];
        assert!(check_turns(&steady, &auto, 0).is_passed());
        // One launch failed: both arms were measured in one turn only, and the verdict says so.
        let once = check_turns(&[steady[0].clone(), vec![]], &auto, 0);
        assert!(once.is_passed() && once.turns == 1 && once.to_string().ends_with("in one launch only"), "{once}");
    }
}
