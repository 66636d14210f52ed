//! Coordinates the epochs of a communicator on the rank that leads it: the loop's tuner, the plans of the next epoch, and the readings of all ranks.
//!
//! The worker calls [`on_call`](EpochCoordinator::on_call) for each call of the leader's rank, [`on_step`](EpochCoordinator::on_step) for each step that
//! the program reports, [`on_message`](EpochCoordinator::on_message) for each message of a member and [`tick`](EpochCoordinator::tick) at every poll. A
//! proposal must be committed before its plans count. [`tune::steps`] decides which arms are tried, and when.

mod freeze;
mod readings;
mod slots;
#[cfg(test)]
mod tests;

pub use freeze::FreezeAfter;
pub use readings::LearnedTime;

use crate::rewards::Reduction;
use crate::views::Asking;
use agreement::leader::{Difference, GIVE_UP_US, REPEAT_US};
use agreement::{Leader, Slot, SlotPlan, ToLeader, ToMember};
use slots::{SlotObservation, SlotState};
use std::collections::BTreeMap;
use tune::steps::{LoopTuner, SeenCall, SlotLearner};
use tune::{Algorithm, Arm, Protocol};

/// Builds a learner for the arms of a slot, AUTO first.
pub type LearnerBuilder = Box<dyn Fn(&[Arm], Slot) -> Option<Box<dyn SlotLearner>> + Send>;

/// The source of the arms of an epoch.
pub enum CoordinatorMode {
    /// A fixed table, proposed once.
    Fixed(Vec<SlotPlan>),
    /// Arms are compared.
    Learn {
        build: LearnerBuilder,
        /// Also try algorithms that the communicator does not use at AUTO.
        explore_all: bool,
        /// A test's script gives the times of single calls, which judge the arms.
        is_scripted: bool,
        /// GPU times judge the arms.
        by_kernel: bool,
        /// NCCL reports GPU times: they judge the arms if steps cannot.
        has_kernel_times: bool,
    },
}

/// See the module documentation.
pub struct EpochCoordinator {
    leader: Leader,
    members: usize,
    mode: CoordinatorMode,
    observed: BTreeMap<Slot, SlotObservation>,
    slots: BTreeMap<Slot, SlotState>,
    tuner: LoopTuner,
    /// GPU times judge the arms because steps could not.
    fell_back: bool,
    by_kernel: bool,
    /// Arms with which steps are longer, whatever GPU times say.
    vetoed: Vec<(Slot, Arm)>,
    /// Bit set of algorithms that AUTO has used: their connections exist.
    connected: u8,
    in_force: u64,
    /// Plans of the epoch in force, of the one before, and of the proposal.
    plans: Vec<SlotPlan>,
    previous: (u64, Vec<SlotPlan>),
    pending: Option<Vec<SlotPlan>>,
    stopped: bool,
    /// The epoch that returns to AUTO after a stop, proposed or in force.
    stop_epoch: Option<u64>,
    freeze_after: Option<FreezeAfter>,
    /// The epoch without runs, proposed or in force.
    freeze_epoch: Option<u64>,
    left: bool,
    learned: Vec<LearnedTime>,
    /// The last line about the loop.
    said: String,
    asking: Asking,
    /// Proposals refused in a row, and the time of the last proposal.
    refusals: u32,
    proposed_us: u64,
}

/// The state of a slot.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    pub slot: Slot,
    /// The arm in use, and why.
    pub arm: Arm,
    pub because: String,
    /// What comparing arms has cost so far, in steps.
    pub spent_steps: f64,
    /// The arm's gain over AUTO as a share of AUTO's step, and its standard error, from times after the choice.
    pub gain: Option<(f64, f64)>,
}

/// Pause after a refused proposal, microseconds; it doubles with each one in a row, up to half a second.
const RETRY_US: u64 = 1000;
const RETRY_DOUBLINGS: u32 = 9;

/// A message to the member at a position in the roster.
pub type Outgoing = (usize, ToMember);

impl EpochCoordinator {
    /// A coordinator for a communicator of `members` ranks.
    pub fn new(members: usize, mode: CoordinatorMode) -> Self {
        let (by_kernel, by_call) = match &mode {
            CoordinatorMode::Learn { is_scripted, by_kernel, .. } => (*by_kernel, *is_scripted || *by_kernel),
            CoordinatorMode::Fixed(_) => (false, false),
        };
        EpochCoordinator {
            leader: Leader::new(members, REPEAT_US, GIVE_UP_US),
            members,
            mode,
            observed: BTreeMap::new(),
            slots: BTreeMap::new(),
            tuner: LoopTuner::new(by_call),
            fell_back: false,
            by_kernel,
            vetoed: Vec::new(),
            connected: 0,
            in_force: 0,
            plans: Vec::new(),
            previous: (0, Vec::new()),
            pending: None,
            stopped: false,
            stop_epoch: None,
            freeze_after: None,
            freeze_epoch: None,
            left: false,
            learned: Vec::new(),
            said: String::new(),
            asking: Asking::new(members),
            refusals: 0,
            proposed_us: 0,
        }
    }

    /// The leader's own rank has made a call.
    pub fn on_call(&mut self, d: &crate::comm::CallDecision, now_us: u64) {
        let slot = d.slot();
        let concerns = match &self.mode {
            CoordinatorMode::Fixed(table) => table.iter().any(|p| p.slot == slot),
            CoordinatorMode::Learn { .. } => true,
        };
        if concerns {
            self.asking.on_call(slot, d.mask, d.auto);
        }
        if let Some((a, _)) = crate::cost_table::entry(d.auto) {
            self.connected |= 1 << a as u8;
        }
        let observed = self.observed.entry(slot).or_insert(SlotObservation { calls: 0, mask: d.mask, autos: 0 });
        observed.calls += 1;
        observed.mask &= d.mask;
        observed.autos |= 1u32.checked_shl(d.auto.into()).unwrap_or(0);
        if matches!(self.mode, CoordinatorMode::Learn { .. }) {
            let call = SeenCall { number: d.call, slot: slot.index() as u32, group: d.group, at_ns: d.at_ns };
            let k = (d.counted && d.epoch == self.in_force).then_some(d.k);
            self.tuner.on_call(call, d.bytes, k, now_us);
        }
    }

    /// The program has reported a step; its first call on the leader's rank has this number.
    pub fn on_step(&mut self, first_call: u64) {
        self.tuner.on_step(first_call);
    }

    /// Handles a message of the member at position `from`.
    pub fn on_message(&mut self, from: usize, message: &ToLeader, now_us: u64, out: &mut Vec<Outgoing>) {
        match message {
            ToLeader::Readings(all) => all.iter().for_each(|s| self.on_reading(from, s)),
            ToLeader::Stop => self.stop(),
            ToLeader::Ready { slots, .. } => {
                for view in slots {
                    if self.asking.views.add(from, view) {
                        self.drop_impossible(view.slot);
                    }
                }
                self.leader.on_message(from, message, now_us, |to, m| out.push((to, m)));
            }
            m => self.leader.on_message(from, m, now_us, |to, m| out.push((to, m))),
        }
        self.apply_outcome();
    }

    /// Proposals begin this much later, and lapse unless renewed: see [`Leader::lead`].
    pub fn with_lead(mut self, lead_us: u64, lapses: bool) -> Self {
        self.leader = self.leader.lead(lead_us);
        if !lapses {
            self.leader = self.leader.without_lease();
        }
        self
    }

    /// Returns to AUTO for the rest of the job: at the next call that all ranks agree on, or, if a rank cannot be reached, when the epoch in force lapses.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.leader.stop();
    }

    /// The first difference between the calls that two ranks count, once. The communicator's arms change no more.
    pub fn take_difference(&mut self) -> Option<Difference> {
        self.leader.take_difference()
    }

    /// The epoch in force has lapsed, or will at a call that all ranks know: another one may follow.
    fn apply_lapse(&mut self) {
        if self.leader.take_lapsed() {
            self.previous = (std::mem::take(&mut self.in_force), std::mem::take(&mut self.plans));
            self.tuner.lapsed();
        }
    }

    fn apply_outcome(&mut self) {
        let Some(ended) = self.leader.take_ended() else { return };
        let Some(plans) = self.pending.take() else { return };
        if !ended.committed {
            self.refusals = self.refusals.saturating_add(1);
            self.asking.ask_again(ended.epoch.plans.iter().map(|plan| plan.slot));
            self.tuner.voided();
            return;
        }
        self.refusals = 0;
        let before = std::mem::replace(&mut self.in_force, ended.epoch.number);
        self.previous = (before, std::mem::replace(&mut self.plans, plans));
        for slot_state in self.slots.values_mut() {
            slot_state.times = Reduction::default();
            slot_state.steps = Reduction::default();
            slot_state.kernels.forget_before(before);
        }
        self.tuner.committed();
    }

    /// Repeats messages, and proposes an epoch when one is due. Must be called regularly.
    pub fn tick(&mut self, begun_here: u64, now_us: u64, out: &mut Vec<Outgoing>) {
        self.leader.note_begun(begun_here);
        self.leader.tick(now_us, |to, m| out.push((to, m)));
        self.apply_outcome();
        self.apply_lapse();
        if !self.leader.is_idle() || self.leader.is_closed() || self.left {
            return;
        }
        if let Some(question) = self.asking.due(now_us).filter(|_| !self.stopped) {
            out.extend((0..self.members).map(|to| (to, question.clone())));
        }
        // Members refuse while earlier epochs have not begun on them: asking again at once would only keep them busy.
        let pause_us = RETRY_US << self.refusals.min(RETRY_DOUBLINGS);
        if self.refusals > 0 && !self.stopped && now_us < self.proposed_us + pause_us {
            return;
        }
        let mut freezes = false;
        let plans = if self.stopped {
            if self.stop_epoch == Some(self.in_force) {
                return; // AUTO is in force for the rest of the job
            }
            Vec::new()
        } else if let CoordinatorMode::Fixed(table) = &self.mode {
            let usable = self.asking.views.usable(table);
            if usable == self.plans {
                return;
            }
            usable
        } else if self.freeze_after.is_some_and(|f| f.is_over(begun_here, now_us)) {
            if self.is_frozen() {
                return; // the arms found stay
            }
            freezes = true;
            self.settled_plans()
        } else {
            self.fall_back_on_gpu_times();
            self.heed_steps();
            self.add_slots();
            let Some(plan) = self.tuner.propose(now_us) else { return };
            self.leader.align(plan.align);
            self.slot_plans(plan)
        };
        self.pending = Some(plans.clone());
        self.proposed_us = now_us;
        let epoch = self.leader.propose(plans, begun_here, now_us, |to, m| out.push((to, m)));
        if self.stopped {
            self.stop_epoch = epoch.map(|e| e.number);
        } else if freezes {
            self.freeze_epoch = epoch.map(|e| e.number);
        }
    }

    /// Exploring ends after this.
    pub fn freezing(mut self, after: Option<FreezeAfter>) -> Self {
        self.freeze_after = after;
        self
    }

    /// Exploring has ended, and the arms found are in force.
    pub fn is_frozen(&self) -> bool {
        self.in_force > 0 && self.freeze_epoch == Some(self.in_force)
    }

    /// The slots of a fixed table that is in force.
    pub fn table(&self) -> impl Iterator<Item = (Slot, Arm)> + '_ {
        let plans = match &self.mode {
            CoordinatorMode::Fixed(plans) if self.in_force > 0 && !self.stopped => plans.as_slice(),
            _ => &[],
        };
        plans.iter().map(|p| (p.slot, p.settled))
    }

    /// The communicator ends on this rank: aborts an undecided proposal, so that no rank waits for its verdict.
    pub fn leave(&mut self, now_us: u64, out: &mut Vec<Outgoing>) {
        self.left = true;
        self.leader.abort_undecided(now_us, |to, m| out.push((to, m)));
        self.apply_outcome();
    }

    /// Positions of the members whose answer is outstanding.
    pub fn unanswered(&self) -> impl Iterator<Item = usize> + '_ {
        self.leader.unanswered()
    }

    /// No member's answer is outstanding.
    pub fn is_idle(&self) -> bool {
        self.leader.is_idle()
    }

    /// Removes and returns the times learned since the last call.
    pub fn drain_learned(&mut self) -> Vec<LearnedTime> {
        std::mem::take(&mut self.learned)
    }

    /// Number of the epoch in force.
    pub fn in_force(&self) -> u64 {
        self.in_force
    }

    /// A line about the loop after every change: its rhythm, or, with `true`, the reason why nothing can be learned.
    pub fn news(&mut self) -> Option<(String, bool)> {
        let (text, is_never) = match (self.tuner.never(), self.tuner.cadence()) {
            (Some(why), _) => (why.to_owned(), true),
            _ if self.fell_back => {
                let arms: Vec<String> =
                    self.vetoed.iter().map(|(slot, arm)| format!("{arm} for {}", slot.collective)).collect();
                let veto = if arms.is_empty() {
                    String::new()
                } else {
                    format!("; steps are longer with {}", arms.join(", "))
                };
                (format!("steps cannot judge arms here; GPU times do{veto}"), false)
            }
            (None, Some(c)) => {
                let how =
                    if c.told { "steps reported by the program" } else { "period found in the sequence of calls" };
                (format!("{} calls per step ({how})", c.calls), false)
            }
            (None, None) => return None,
        };
        if text == self.said {
            return None;
        }
        self.said.clone_from(&text);
        Some((text, is_never))
    }

    /// By slot: the arm in use, and the reason.
    pub fn findings(&self) -> impl Iterator<Item = Finding> + '_ {
        let of_tuner: BTreeMap<u32, (usize, String)> =
            self.tuner.findings().into_iter().map(|(k, arm, because)| (k, (arm, because))).collect();
        self.slots.iter().filter_map(move |(slot, s)| {
            let key = slot.index() as u32;
            let (arm, because) = of_tuner.get(&key)?.clone();
            Some(Finding {
                slot: *slot,
                arm: s.arms.get(arm).copied().unwrap_or(Arm::AUTO),
                because,
                spent_steps: self.tuner.spent_steps(key),
                gain: self.tuner.fresh_gain(key),
            })
        })
    }
}

/// The arm of a cost-table entry that AUTO chose.
pub fn auto_arm(entry: u8) -> Arm {
    crate::cost_table::entry(entry).map_or(Arm::AUTO, |(a, p): (Algorithm, Protocol)| Arm::new(a, p))
}
