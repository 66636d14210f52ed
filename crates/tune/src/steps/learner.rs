//! The learners of one slot, which decide in blocks of whole steps.

use super::fit::{Fit, LAG_MAX};
use crate::policy::{Context, Policy, Reading};

/// Consecutive steps with one arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Index of the arm.
    pub arm: usize,
    /// Number of steps, at least 1.
    pub steps: u32,
}

/// What a learner wants its next plan to contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Steps of a block.
    pub grain: u32,
    /// Number of blocks.
    pub blocks: usize,
    /// Arms that the blocks go through, in random order in every round; the arm in use may be among them.
    pub cycle: Vec<usize>,
}

/// Chooses the arm of one slot from the times of whole steps. All steps outside of its plans use the arm in use.
pub trait SlotLearner: Send {
    /// What the next plan should contain; `None` if there is nothing to compare, or if the learner makes its own plans.
    fn wish(&mut self) -> Option<Wish> {
        None
    }
    /// Takes the fit of the plans since [`begins`](Self::begins) was last true.
    /// `blocks` are the newest of them.
    fn learn(&mut self, _slot: u32, _fit: &Fit, _blocks: &[Block]) {}
    /// True once if earlier plans count no longer.
    fn begins(&mut self) -> bool {
        false
    }
    /// Expected excess of an arm over the arm in use, as a share of the step; `share` is the slot's share of the bytes.
    /// If it is not known, next to nothing: it runs as long as anything of the budget is left.
    fn expected(&self, _arm: usize, _share: f64) -> f64 {
        f64::MIN_POSITIVE
    }
    /// The next blocks of a learner that makes its own plans: only its slot is in them.
    fn own_plan(&mut self) -> Option<Vec<Block>> {
        None
    }
    /// Takes the times of an own plan's steps in order, microseconds; `None` throughout if it was not carried out.
    fn learn_own(&mut self, _blocks: &[Block], _times_us: &[Option<f64>]) {}
    /// Further plans are only worth their steps now and then.
    fn is_settled(&self) -> bool;
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
}

impl SlotLearner for ByPolicy {
    fn own_plan(&mut self) -> Option<Vec<Block>> {
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

    fn learn_own(&mut self, blocks: &[Block], times_us: &[Option<f64>]) {
        let decisions = blocks.iter().map(|b| b.steps / DECISION_STEPS).sum::<u32>();
        let mut call = self.decided.saturating_sub(decisions.into());
        let mut end = 0;
        for b in blocks {
            for _ in 0..b.steps / DECISION_STEPS {
                end += DECISION_STEPS as usize;
                let time_us = times_us.get(end - 1).copied().flatten();
                self.policy.learn(Reading { call, arm: b.arm, time_us, channels: None });
                call += 1;
            }
        }
    }

    fn is_settled(&self) -> bool {
        false
    }

    fn in_use(&self) -> usize {
        self.policy.in_use()
    }

    fn because(&self) -> String {
        self.policy.because()
    }
}
