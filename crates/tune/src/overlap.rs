//! Separate decisions for calls during computation and calls alone: overlap changes the best arm.
//!
//! Source: Bandit-Guided NCCL Tuning, section 3.1 (6 of 9 sizes change their best arm under overlap) and its overlap-aware tuner.

mod detector;

pub use detector::{HAZARD, OverlapDetector, READINGS_MAX, READINGS_MIN, RegimeFilter};

use crate::arm::Arm;
use crate::ledger::{Ledger, PENDING_MAX};
use crate::objective::Objective;
use crate::policy::{ArmDecision, Context, Policy, Reading};

/// Share of a step that must be computation for a call to count as overlapped, where only the intensity is known.
pub const INTENSITY_MIN: f64 = 0.05;

/// Two policies of one kind, one for calls alone and one for calls during computation.
///
/// The policy of a call is chosen by the first of these that is known: the context's `overlapped`; its compute
/// intensity ([`INTENSITY_MIN`]); the result of the [`OverlapDetector`] on the readings. Otherwise the call counts as
/// alone.
pub struct Overlap {
    arms: Vec<Arm>,
    objective: Objective,
    inner: [Box<dyn Policy>; 2],
    detector: OverlapDetector,
    ledger: Ledger,
    /// At index c modulo the length, for call c: the policy that decided it, that policy's own call number, and whether
    /// the detector chose the policy.
    routes: Box<[(u8, u64, bool)]>,
    calls: [u64; 2],
    current: usize,
}

impl Overlap {
    /// Two fresh policies with the same `arms`: the first for calls alone.
    pub fn new(arms: &[Arm], objective: Objective, alone: Box<dyn Policy>, overlapped: Box<dyn Policy>) -> Self {
        Overlap {
            arms: arms.to_vec(),
            objective,
            inner: [alone, overlapped],
            detector: OverlapDetector::new(arms.len()),
            ledger: Ledger::default(),
            routes: vec![(0, 0, false); PENDING_MAX].into_boxed_slice(),
            calls: [0; 2],
            current: 0,
        }
    }

    fn is_overlapped(&self, context: Context) -> bool {
        told(context).or(self.detector.is_overlapped()).unwrap_or(false)
    }
}

/// Whether the caller says that calls overlap: directly, or by the compute intensity.
pub(crate) fn told(context: Context) -> Option<bool> {
    let by_intensity = context.compute_intensity.filter(|i| i.is_finite()).map(|i| i >= INTENSITY_MIN);
    context.overlapped.or(by_intensity)
}

impl Policy for Overlap {
    fn name(&self) -> &'static str {
        "overlap"
    }

    fn decide(&mut self, context: Context) -> ArmDecision {
        self.current = usize::from(self.is_overlapped(context));
        let decision = self.inner[self.current].decide(context);
        let call = self.ledger.decided(decision.arm);
        self.routes[(call % PENDING_MAX as u64) as usize] =
            (self.current as u8, self.calls[self.current], told(context).is_none());
        self.calls[self.current] += 1;
        decision
    }

    fn learn(&mut self, reading: Reading) {
        let (which, call, is_untold) = self.routes[(reading.call % PENDING_MAX as u64) as usize];
        let accepted = self.ledger.accept(&reading);
        if let Some((arm, time_us)) = accepted {
            if is_untold {
                self.detector.learn(arm, self.objective.of(time_us, &self.arms, &reading));
            }
            self.inner[usize::from(which)].learn(Reading { call, ..reading });
        }
    }

    fn in_use(&self) -> usize {
        self.inner[self.current].in_use()
    }

    fn because(&self) -> String {
        let [alone, overlapped] = [&self.inner[0], &self.inner[1]].map(|p| p.because());
        format!("alone: {alone}; during computation: {overlapped}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round_robin::RoundRobin;

    fn arms() -> Vec<Arm> {
        ["TREE/SIMPLE", "RING/SIMPLE", "AUTO"].iter().map(|a| a.parse().unwrap()).collect()
    }

    fn policy() -> Overlap {
        let one = || Box::new(RoundRobin::new(&arms(), 2, Objective::Time)) as Box<dyn Policy>;
        Overlap::new(&arms(), Objective::Time, one(), one())
    }

    /// Plays phases of `phase` calls; returns the arms in use in the last two phases.
    fn play(policy: &mut Overlap, calls: u64, phase: u64, told: impl Fn(bool) -> Context) -> [usize; 2] {
        let mut last = [9, 9];
        for call in 0..calls {
            let is_overlapped = call / phase % 2 == 1;
            let d = policy.decide(told(is_overlapped));
            last[usize::from(is_overlapped)] = policy.in_use();
            let time = if is_overlapped { [200.0, 120.0, 160.0] } else { [70.0, 110.0, 100.0] }[d.arm];
            policy.learn(Reading { call, arm: d.arm, time_us: Some(time), channels: None });
        }
        last
    }

    #[test]
    fn each_kind_of_execution_gets_its_own_best_arm() {
        let told = |o| Context { overlapped: Some(o), compute_intensity: None };
        assert_eq!(play(&mut policy(), 200, 10, told), [0, 1]);
        let intensity = |o| Context { overlapped: None, compute_intensity: Some(if o { 0.6 } else { 0.0 }) };
        assert_eq!(play(&mut policy(), 200, 10, intensity), [0, 1]);
    }

    #[test]
    fn an_explicit_overlap_takes_precedence_over_the_intensity() {
        let policy = policy();
        assert!(!policy.is_overlapped(Context { overlapped: Some(false), compute_intensity: Some(1.0) }));
        assert!(!policy.is_overlapped(Context { overlapped: None, compute_intensity: Some(f64::NAN) }));
    }
}
