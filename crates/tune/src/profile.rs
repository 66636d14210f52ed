//! The paper's offline tuner: a policy that uses measurements from before the job and does not learn.
//!
//! Source: Bandit-Guided NCCL Tuning, section 4.1. An arm other than AUTO is used only if it passed all five gates. The
//! result does not transfer to other nodes, as the trial shows.

use crate::arm::Arm;
use crate::bucket;
use crate::gates::{self, GateVerdict};
use crate::policy::{ArmDecision, Context, Phase, Policy, Reading};

/// The most sizes of one table.
pub const SIZES_MAX: usize = 64;

/// The measurements at one size.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileLine {
    /// Whole buffer, bytes.
    pub size_bytes: u64,
    /// Median time of each arm, microseconds, in the order of the table's arms; 0 for an arm without a time.
    pub medians_us: Vec<f64>,
    /// The arm to use, AUTO unless another passed all gates.
    pub use_arm: usize,
}

/// A measured table for one kind of execution (isolated, or overlapped): lines in rising order of size.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Profile {
    /// The arms.
    pub arms: Vec<Arm>,
    /// One line per size, rising.
    pub lines: Vec<ProfileLine>,
}

impl Profile {
    /// [`Profile::line_of_turns`] where each arm's readings count as one turn.
    pub fn line(arms: &[Arm], readings_us: &[Vec<f64>], size_bytes: u64) -> (ProfileLine, Vec<Option<GateVerdict>>) {
        let turns: Vec<Vec<Vec<f64>>> = readings_us.iter().map(|s| vec![s.clone()]).collect();
        Profile::line_of_turns(arms, &turns, size_bytes)
    }

    /// The line of one size from the readings of each arm, in the order of the arms and by turn, and the verdict on
    /// each arm other than AUTO. The line uses the arm with the lowest median among those that pass all gates.
    pub fn line_of_turns(
        arms: &[Arm],
        turns_us: &[Vec<Vec<f64>>],
        size_bytes: u64,
    ) -> (ProfileLine, Vec<Option<GateVerdict>>) {
        let median_us = |turns: &Vec<Vec<f64>>| match turns.concat() {
            none if none.is_empty() => 0.0,
            readings => stats::median(&readings),
        };
        let medians_us: Vec<f64> = turns_us.iter().map(median_us).collect();
        let auto = arms.iter().position(|a| a.is_auto()).unwrap_or(0);
        let verdicts: Vec<Option<GateVerdict>> = (0..arms.len())
            .map(|i| (i != auto).then(|| gates::check_turns(&turns_us[i], &turns_us[auto], size_bytes)))
            .collect();
        let passed = (0..arms.len()).filter(|i| verdicts[*i].is_some_and(|v| v.is_passed()));
        let use_arm = passed.min_by(|a, b| medians_us[*a].total_cmp(&medians_us[*b])).unwrap_or(auto);
        (ProfileLine { size_bytes, medians_us, use_arm }, verdicts)
    }

    /// Checks a table from a file.
    ///
    /// # Errors
    /// No or too many lines, sizes that do not rise, a number of columns that differs from the number of arms,
    /// impossible times, arms without AUTO.
    pub fn check(&self) -> Result<(), String> {
        crate::registry::check_arms(&self.arms)?;
        if self.lines.is_empty() || self.lines.len() > SIZES_MAX {
            return Err(format!("{} sizes; 1 to {SIZES_MAX} were expected", self.lines.len()));
        }
        for pair in self.lines.windows(2) {
            if pair[0].size_bytes >= pair[1].size_bytes {
                return Err(format!("size {} after {}: sizes must rise", pair[1].size_bytes, pair[0].size_bytes));
            }
        }
        for line in &self.lines {
            let size = line.size_bytes;
            if line.medians_us.len() != self.arms.len() || line.use_arm >= self.arms.len() {
                return Err(format!("size {size}: {} times for {} arms", line.medians_us.len(), self.arms.len()));
            }
            if let Some(t) = line.medians_us.iter().find(|t| !t.is_finite() || **t < 0.0) {
                return Err(format!("size {size}: a time of {t} us"));
            }
        }
        Ok(())
    }

    /// The arm for a size.
    ///
    /// - Between two lines with the same arm: that arm.
    /// - Between two lines with different arms: the arm with the lower interpolated median, if that median is below
    ///   AUTO's. An arm that passed its gates at one end may be far slower than AUTO before the other end. AUTO if one
    ///   of the three has no time at one of the ends.
    /// - Beyond the ends: the arm of the nearest line, up to one power of two; further away AUTO.
    pub fn arm_for(&self, size_bytes: u64) -> Arm {
        let above = self.lines.partition_point(|l| l.size_bytes < size_bytes);
        let (low, high) = (above.checked_sub(1).and_then(|i| self.lines.get(i)), self.lines.get(above));
        let arm = |index: usize| self.arms.get(index).copied().unwrap_or(Arm::AUTO);
        match (low, high) {
            (None, None) => Arm::AUTO,
            (None, Some(one)) => {
                if one.size_bytes / 2 <= size_bytes {
                    arm(one.use_arm)
                } else {
                    Arm::AUTO
                }
            }
            (Some(one), None) => {
                if size_bytes / 2 <= one.size_bytes {
                    arm(one.use_arm)
                } else {
                    Arm::AUTO
                }
            }
            (Some(low), Some(high)) if low.use_arm == high.use_arm || high.size_bytes == size_bytes => {
                arm(high.use_arm)
            }
            (Some(low), Some(high)) => {
                let time = |index: usize| {
                    let points = [low, high].map(|l| (l.size_bytes, l.medians_us.get(index).copied().unwrap_or(0.0)));
                    points.iter().all(|p| p.1 > 0.0).then(|| bucket::interpolated(&points, size_bytes)).flatten()
                };
                let auto = self.arms.iter().position(|a| a.is_auto()).and_then(time);
                match (time(low.use_arm), time(high.use_arm), auto) {
                    (Some(a), Some(b), Some(auto)) if a.min(b) < auto => {
                        arm(if a <= b { low.use_arm } else { high.use_arm })
                    }
                    _ => Arm::AUTO,
                }
            }
        }
    }
}

/// Always uses the arm of a [`Profile`]. Calls that are known to run during computation use a second profile, if there
/// is one.
pub struct Static {
    name: &'static str,
    /// Arms for calls alone and for calls during computation.
    kinds: [Use; 2],
    current: usize,
}

#[derive(Clone)]
struct Use {
    arm: usize,
    because: String,
}

impl Static {
    /// A policy for calls of `size_bytes`. AUTO without a profile, or if the profile's arm is not available.
    pub fn new(arms: &[Arm], auto: usize, profile: Option<&Profile>, size_bytes: u64) -> Self {
        let (arm, because) = match profile.map(|p| p.arm_for(size_bytes)) {
            None => (auto, "AUTO: no profile was given".into()),
            Some(wanted) => match arms.iter().position(|a| *a == wanted) {
                Some(arm) if arm == auto => (auto, format!("AUTO: no arm passed all gates at {size_bytes} bytes")),
                Some(arm) => (arm, format!("{wanted} passed all gates near {size_bytes} bytes in the profile")),
                None => (auto, format!("AUTO: the profile says {wanted}, which is not among the arms")),
            },
        };
        let one = Use { arm, because };
        Static { name: "profile", kinds: [one.clone(), one], current: 0 }
    }

    /// The same policy with a second profile for calls that are known to run during computation.
    pub fn with_overlapped(self, arms: &[Arm], auto: usize, overlapped: Option<&Profile>, size_bytes: u64) -> Self {
        if overlapped.is_none() {
            return self;
        }
        let [_, other] = Static::new(arms, auto, overlapped, size_bytes).kinds;
        let [alone, _] = self.kinds;
        Static { kinds: [alone, other], ..self }
    }

    /// A policy that always uses AUTO.
    pub fn auto(auto: usize) -> Self {
        let one = Use { arm: auto, because: "AUTO: no other arm was requested".into() };
        Static { name: "auto", kinds: [one.clone(), one], current: 0 }
    }
}

impl Policy for Static {
    fn name(&self) -> &'static str {
        self.name
    }

    fn decide(&mut self, context: Context) -> ArmDecision {
        self.current = usize::from(crate::overlap::told(context).unwrap_or(false));
        ArmDecision { arm: self.in_use(), phase: Phase::Exploit }
    }

    fn learn(&mut self, _: Reading) {}

    fn in_use(&self) -> usize {
        self.kinds[self.current].arm
    }

    fn because(&self) -> String {
        self.kinds[self.current].because.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arms() -> Vec<Arm> {
        ["TREE/SIMPLE", "RING/SIMPLE", "AUTO"].iter().map(|a| a.parse().unwrap()).collect()
    }

    fn profile(lines: &[(u64, [f64; 3], usize)]) -> Profile {
        let line = |l: &(u64, [f64; 3], usize)| ProfileLine { size_bytes: l.0, medians_us: l.1.to_vec(), use_arm: l.2 };
        Profile { arms: arms(), lines: lines.iter().map(line).collect() }
    }

    #[test]
    fn between_sizes_the_lower_interpolated_time_decides_and_far_outside_auto() {
        let p = profile(&[(1 << 20, [50.0, 100.0, 90.0], 0), (1 << 24, [1600.0, 800.0, 1500.0], 1)]);
        let name = |bytes: u64| p.arm_for(bytes).to_string();
        assert_eq!(
            (name(1 << 20), name(1 << 21), name(1 << 23), name(1 << 24)),
            ("TREE/SIMPLE".into(), "TREE/SIMPLE".into(), "RING/SIMPLE".into(), "RING/SIMPLE".into())
        );
        assert_eq!(
            (name(1 << 19), name((1 << 19) - 1), name(1 << 25), name(1 << 26)),
            ("TREE/SIMPLE".into(), "AUTO".into(), "RING/SIMPLE".into(), "AUTO".into())
        );
        let gap = profile(&[(1 << 20, [50.0, 0.0, 90.0], 0), (1 << 24, [1600.0, 800.0, 1500.0], 1)]);
        assert_eq!(gap.arm_for(1 << 22), Arm::AUTO, "RING/SIMPLE has no time at the lower size");
    }

    #[test]
    fn between_sizes_whose_winners_change_auto_is_used_where_it_is_faster_than_both() {
        let p = profile(&[(1 << 20, [90.0, 300.0, 100.0], 0), (4 << 20, [1200.0, 360.0, 400.0], 1)]);
        // At 2 MiB the arms would take 329 us, AUTO 200.
        assert_eq!(p.arm_for(2 << 20), Arm::AUTO);
        assert_eq!(
            (p.arm_for(1 << 20).to_string(), p.arm_for(4 << 20).to_string()),
            ("TREE/SIMPLE".into(), "RING/SIMPLE".into())
        );
    }

    #[test]
    fn calls_known_to_run_during_computation_use_their_own_profile() {
        let size = 1 << 20;
        let (alone, beside) = (profile(&[(size, [50.0, 60.0, 90.0], 0)]), profile(&[(size, [80.0, 60.0, 90.0], 1)]));
        let new =
            |overlapped| Static::new(&arms(), 2, Some(&alone), size).with_overlapped(&arms(), 2, overlapped, size);
        let told = |overlapped, compute_intensity| Context { overlapped, compute_intensity };
        let mut policy = new(Some(&beside));
        let contexts = [told(None, None), told(Some(true), None), told(None, Some(0.5)), told(Some(false), Some(0.5))];
        assert_eq!(contexts.map(|c| policy.decide(c).arm), [0, 1, 1, 0]);
        assert_eq!(contexts.map(|c| new(None).decide(c).arm), [0; 4], "without it all calls use the only profile");
    }

    #[test]
    fn a_line_uses_the_fastest_arm_that_passed() {
        let flat = |t: f64| (0..50).map(|i| t + f64::from(i % 7) * 0.01 * t).collect::<Vec<f64>>();
        let (line, verdicts) = Profile::line(&arms(), &[flat(80.0), flat(70.0), flat(100.0)], 1 << 20);
        assert_eq!((line.use_arm, verdicts[2].is_none()), (1, true));
        let (line, verdicts) = Profile::line(&arms(), &[flat(99.0), vec![], flat(100.0)], 1 << 20);
        assert_eq!((line.use_arm, line.medians_us[1]), (2, 0.0));
        assert_eq!(verdicts[1].unwrap().failed, Some(crate::gates::Gate::Readings));
    }

    proptest! {
        #[test]
        fn any_size_has_an_arm_of_the_table(a in 0usize..3, b in 0usize..3, times in proptest::array::uniform6(0.0f64..10.0), bytes: u64) {
            let p = profile(&[(1 << 10, [times[0], times[1], times[2]], a), (1 << 30, [times[3], times[4], times[5]], b)]);
            prop_assert_eq!(p.check(), Ok(()));
            prop_assert!(arms().contains(&p.arm_for(bytes)));
        }

        #[test]
        fn no_size_gets_an_arm_that_should_take_longer_than_auto(
            a in 0usize..3, b in 0usize..3, times in proptest::array::uniform6(1.0f64..1000.0), bytes in 1u64 << 10..=1 << 30
        ) {
            // An arm that is used has passed its gates: at its own size it is faster than AUTO.
            let proven = |arm: usize, t: &[f64]| if t[arm] < t[2] { arm } else { 2 };
            let ends = [[times[0], times[1], times[2]], [times[3], times[4], times[5]]];
            let p = profile(&[(1 << 10, ends[0], proven(a, &ends[0])), (1 << 30, ends[1], proven(b, &ends[1]))]);
            let at = |arm: usize| bucket::interpolated(&[(1 << 10, ends[0][arm]), (1 << 30, ends[1][arm])], bytes).unwrap();
            let used = arms().iter().position(|x| *x == p.arm_for(bytes)).unwrap();
            prop_assert!(at(used) <= at(2) * (1.0 + 1e-12), "{} us, AUTO {} us", at(used), at(2));
        }
    }

    #[test]
    fn invalid_tables_are_refused() {
        let good = profile(&[(4, [1.0; 3], 2), (8, [1.0; 3], 2)]);
        assert_eq!(good.check(), Ok(()));
        let broken = |f: fn(&mut Profile)| {
            let mut p = good.clone();
            f(&mut p);
            p.check().unwrap_err()
        };
        assert!(broken(|p| p.lines.clear()).contains("0 sizes"));
        assert!(broken(|p| p.lines[1].size_bytes = 4).contains("rise"));
        assert!(broken(|p| p.lines[0].use_arm = 3).contains("size 4"));
        assert!(broken(|p| p.lines[0].medians_us[1] = f64::NAN).contains("NaN"));
        assert!(broken(|p| p.arms[2] = p.arms[0]).contains("twice"));
    }
}
