//! The slots of a communicator: which are tuned, with which arms, and their plans.

use super::{CoordinatorMode, EpochCoordinator};
use crate::rewards::Reduction;
use crate::views::can_use;
use agreement::{ArmRun, Slot, SlotPlan};
use tune::Arm;
use tune::steps::{CallPlan, LoopTuner, StepVeto};

/// Calls of a slot before it is tuned.
const CALLS_BEFORE_TUNING: u64 = 2;

/// A slot that is tuned.
#[derive(Default)]
pub(super) struct SlotState {
    /// AUTO first.
    pub(super) arms: Vec<Arm>,
    /// Times that judge arms, of calls that not all ranks have reported.
    pub(super) times: Reduction,
    /// GPU times, for the trace only.
    pub(super) kernels: Reduction,
    /// Lengths of steps, where GPU times judge.
    pub(super) steps: Reduction,
    pub(super) veto: StepVeto,
}

/// A slot that is not tuned yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotObservation {
    pub(super) calls: u64,
    pub(super) mask: u32,
    pub(super) autos: u32,
}

impl EpochCoordinator {
    /// Where steps cannot judge arms, GPU times do if there are any.
    pub(super) fn fall_back_on_gpu_times(&mut self) {
        let has_kernel_times = matches!(self.mode, CoordinatorMode::Learn { has_kernel_times: true, .. });
        if self.tuner.never().is_some() && has_kernel_times && !self.by_kernel {
            (self.by_kernel, self.fell_back) = (true, true);
            self.tuner = LoopTuner::new(true);
        }
    }

    /// GPU times judge, but steps have a veto: a slot begins again without an arm that makes them longer.
    pub(super) fn heed_steps(&mut self) {
        let longer = |s: &SlotState| s.arms.iter().enumerate().skip(1).find(|(i, _)| s.veto.forbids(*i)).map(|x| *x.1);
        let forbidden: Vec<(Slot, Arm)> = self.slots.iter().filter_map(|(slot, s)| Some((*slot, longer(s)?))).collect();
        for (slot, arm) in forbidden {
            self.slots.remove(&slot);
            self.tuner.remove_slot(slot.index() as u32);
            self.vetoed.push((slot, arm));
        }
    }

    /// A rank no longer has an arm: the slot begins again with the other arms.
    pub(super) fn drop_impossible(&mut self, slot: Slot) {
        let Some(view) = self.asking.views.of_all(slot) else { return };
        let plan = |arm: &Arm| SlotPlan { slot, runs: Vec::new(), settled: *arm };
        if self.slots.get(&slot).is_some_and(|s| !s.arms.iter().all(|arm| can_use(&plan(arm), &view))) {
            self.slots.remove(&slot);
            self.tuner.remove_slot(slot.index() as u32);
        }
    }

    /// The arm in use of every slot, without runs.
    pub(super) fn settled_plans(&self) -> Vec<SlotPlan> {
        let chosen = self.findings().filter(|f| !f.arm.is_auto());
        chosen.map(|f| SlotPlan { slot: f.slot, runs: Vec::new(), settled: f.arm }).collect()
    }

    /// Adds the slots with enough calls to the tuner, with the arms that all ranks have. After a change of the loop's rhythm the tuner has none, so all
    /// are added again.
    pub(super) fn add_slots(&mut self) {
        let CoordinatorMode::Learn { build, explore_all, .. } = &self.mode else { return };
        for (slot, observed) in &self.observed {
            let key = slot.index() as u32;
            if observed.calls < CALLS_BEFORE_TUNING || self.tuner.has_slot(key) {
                continue;
            }
            let Some(view) = self.asking.views.of_all(*slot) else { continue };
            let mask = observed.mask & view.mask;
            let slot_state = self.slots.entry(*slot).or_default();
            if slot_state.arms.is_empty() {
                slot_state.arms.push(Arm::AUTO);
                for i in 0..crate::cost_table::ENTRIES as u8 {
                    let Some((a, p)) = crate::cost_table::entry(i).filter(|_| mask >> i & 1 == 1) else {
                        continue;
                    };
                    let usable = *explore_all || self.connected >> a as u8 & 1 == 1;
                    // The entry that AUTO always takes is the arm AUTO.
                    let arm = Arm::new(a, p);
                    if usable && observed.autos != 1 << i && !self.vetoed.contains(&(*slot, arm)) {
                        slot_state.arms.push(arm);
                    }
                }
            }
            if let Some(learner) = build(&slot_state.arms, *slot) {
                self.tuner.add_slot(key, learner);
            }
        }
    }

    /// A plan of the tuner as the ranks agree on it.
    pub(super) fn slot_plans(&self, plan: CallPlan) -> Vec<SlotPlan> {
        let arm = |s: &SlotState, i: usize| s.arms.get(i).copied().unwrap_or(Arm::AUTO);
        let of = |(slot, s): (&Slot, &SlotState)| {
            let key = slot.index() as u32;
            let settled = plan.in_use.get(&key).map_or(Arm::AUTO, |i| arm(s, *i));
            let runs: Vec<ArmRun> = plan.runs.get(&key).map_or(Vec::new(), |runs| {
                runs.iter().map(|(i, calls)| ArmRun { arm: arm(s, *i), calls: *calls }).collect()
            });
            (!runs.is_empty() || !settled.is_auto()).then_some(SlotPlan { slot: *slot, runs, settled })
        };
        self.slots.iter().filter_map(of).collect()
    }
}
