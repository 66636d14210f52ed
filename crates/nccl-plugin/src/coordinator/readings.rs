//! The times that ranks report.

use super::EpochCoordinator;
use crate::rewards::Reduced;
use agreement::{RankReading, Slot, TimeSource};
use tune::Arm;
use tune::steps::StepSource;

/// The time of a step or a call, reduced over all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearnedTime {
    pub slot: Slot,
    pub arm: Arm,
    pub source: TimeSource,
    pub time_us: f64,
    /// Calls of the slot that the time covers.
    pub calls: u64,
    /// The time is the arm's alone: earlier steps with another arm are over.
    pub is_steady: bool,
    /// It was measured after the arm in use was chosen, to confirm it.
    pub is_fresh: bool,
}

impl EpochCoordinator {
    /// The arm of a call in the epoch in force or the one before.
    pub(super) fn arm_of(&self, epoch: u64, slot: Slot, k: u64) -> Option<Arm> {
        let plans = match epoch {
            e if e == self.in_force => &self.plans,
            e if e == self.previous.0 => &self.previous.1,
            _ => return None,
        };
        plans.iter().find(|p| p.slot == slot).map(|p| p.arm_of(k))
    }

    /// Handles one rank's time. A time that judges arms goes to the tuner; other GPU times go to the trace.
    pub(super) fn on_reading(&mut self, from: usize, s: &RankReading) {
        let (members, in_force) = (self.members, self.in_force);
        let arm = self.arm_of(s.epoch, s.slot, s.k);
        let Some(slot_state) = self.slots.get_mut(&s.slot) else { return };
        if s.source == TimeSource::Kernel && !self.by_kernel {
            if let (Some(arm), Reduced::Time(time_us)) = (arm, slot_state.kernels.add(from, members, s)) {
                let (slot, source) = (s.slot, s.source);
                let one = LearnedTime { slot, arm, source, time_us, calls: 1, is_steady: true, is_fresh: false };
                self.learned.push(one);
            }
            return;
        }
        if s.epoch != in_force {
            return;
        }
        if self.fell_back && s.source != TimeSource::Kernel {
            if let (Some(arm), Reduced::Time(time_us)) = (arm, slot_state.steps.add(from, members, s))
                && let Some(at) = slot_state.arms.iter().position(|a| *a == arm)
            {
                slot_state.veto.note(at, time_us);
            }
            return;
        }
        let time_us = match slot_state.times.add(from, members, s) {
            Reduced::Waiting => return,
            Reduced::NoTime => None,
            Reduced::Time(time_us) => Some(time_us),
        };
        let source = match s.source {
            TimeSource::Step => StepSource::Steps,
            TimeSource::Interval | TimeSource::Calls => StepSource::Groups,
            TimeSource::Kernel | TimeSource::Scripted => StepSource::Calls,
        };
        let Some(step) = self.tuner.on_time(s.slot.index() as u32, s.k, source, time_us) else { return };
        if let Some(arm) = slot_state.arms.get(step.arm) {
            self.learned.push(LearnedTime {
                slot: s.slot,
                arm: *arm,
                source: s.source,
                time_us: step.time_us,
                calls: step.calls,
                is_steady: step.is_steady,
                is_fresh: step.is_fresh,
            });
        }
    }
}
