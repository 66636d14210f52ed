//! The learners of one slot, which decide in blocks of whole steps.

use super::race::{Block, LAG_MAX, StepRace};
use crate::policy::{Context, Policy, Reading};

/// Chooses the arm of one slot from the times of whole steps. All steps outside of its plans use the arm in use.
pub trait SlotLearner: Send {
    /// The next blocks, the first one long enough for steps before it to pass; `None` if there is nothing to compare.
    fn plan(&mut self) -> Option<Vec<Block>>;
    /// What the blocks are expected to cost, in steps.
    fn expected_cost(&self, blocks: &[Block]) -> f64;
    /// Takes the times of a plan's steps in order, the steps after its last block included, microseconds.
    fn learn(&mut self, blocks: &[Block], times_us: &[Option<f64>]);
    /// The plan was not carried out.
    fn discard(&mut self, _blocks: &[Block]) {}
    /// Further plans are only worth their steps now and then.
    fn is_settled(&self) -> bool;
    /// What its plans have cost so far, in steps.
    fn spent_steps(&self) -> f64;
    /// The arm in use.
    fn in_use(&self) -> usize;
    /// Why that arm is in use, in one line.
    fn because(&self) -> String;
    /// Its next plan confirms a choice that was made before.
    fn is_fresh(&self) -> bool {
        false
    }
    /// The gain over AUTO, as a share of AUTO's step, and its standard error, from steps after the choice.
    fn fresh_gain(&self) -> Option<(f64, f64)> {
        None
    }
}

impl SlotLearner for StepRace {
    fn plan(&mut self) -> Option<Vec<Block>> {
        StepRace::plan(self)
    }

    fn expected_cost(&self, blocks: &[Block]) -> f64 {
        StepRace::expected_cost(self, blocks)
    }

    fn learn(&mut self, blocks: &[Block], times_us: &[Option<f64>]) {
        StepRace::learn(self, blocks, times_us);
    }

    fn is_settled(&self) -> bool {
        StepRace::is_settled(self)
    }

    fn spent_steps(&self) -> f64 {
        StepRace::spent_steps(self)
    }

    fn in_use(&self) -> usize {
        StepRace::in_use(self)
    }

    fn because(&self) -> String {
        StepRace::because(self).to_owned()
    }

    fn is_fresh(&self) -> bool {
        StepRace::is_fresh(self)
    }

    fn fresh_gain(&self) -> Option<(f64, f64)> {
        StepRace::fresh_gain(self)
    }
}

/// Decisions of a policy in one plan.
const DECISIONS: usize = 12;
/// Steps of one decision: those that an earlier arm may still touch, and one more.
const DECISION_STEPS: u32 = LAG_MAX as u32 + 1;

/// A policy that decides once per block instead of once per call. The last step of a block is its reading.
pub struct ByPolicy {
    policy: Box<dyn Policy>,
    /// Decisions before the plan.
    decided: u64,
}

impl ByPolicy {
    /// A learner that asks `policy`.
    pub fn new(policy: Box<dyn Policy>) -> Self {
        ByPolicy { policy, decided: 0 }
    }

    fn answer(&mut self, blocks: &[Block], time: impl Fn(usize) -> Option<f64>) {
        let mut end = 0;
        let first = self.decided - (blocks.iter().map(|b| b.steps).sum::<u32>() / DECISION_STEPS) as u64;
        let mut call = first;
        for b in blocks {
            for _ in 0..b.steps / DECISION_STEPS {
                end += DECISION_STEPS as usize;
                self.policy.learn(Reading { call, arm: b.arm, time_us: time(end - 1), channels: None });
                call += 1;
            }
        }
    }
}

impl SlotLearner for ByPolicy {
    fn plan(&mut self) -> Option<Vec<Block>> {
        let mut blocks: Vec<Block> = Vec::new();
        for _ in 0..DECISIONS {
            let arm = self.policy.decide(Context::default()).arm;
            self.decided += 1;
            match blocks.last_mut() {
                Some(b) if b.arm == arm => b.steps += DECISION_STEPS,
                _ => blocks.push(Block { arm, steps: DECISION_STEPS }),
            }
        }
        Some(blocks)
    }

    fn expected_cost(&self, _: &[Block]) -> f64 {
        0.0 // the policy has its own budget
    }

    fn learn(&mut self, blocks: &[Block], times_us: &[Option<f64>]) {
        self.answer(blocks, |step| times_us.get(step).copied().flatten());
    }

    fn discard(&mut self, blocks: &[Block]) {
        self.answer(blocks, |_| None);
    }

    fn is_settled(&self) -> bool {
        false
    }

    fn spent_steps(&self) -> f64 {
        0.0
    }

    fn in_use(&self) -> usize {
        self.policy.in_use()
    }

    fn because(&self) -> String {
        self.policy.because()
    }
}
