//! Coordinates the epochs of a communicator on the rank that leads it: the loop's tuner, the plans of the next epoch, and the readings of all ranks.
//!
//! The worker calls [`on_call`](EpochCoordinator::on_call) for each call of the leader's rank, [`on_step`](EpochCoordinator::on_step) for each step that
//! the program reports, [`on_message`](EpochCoordinator::on_message) for each message of a member and [`tick`](EpochCoordinator::tick) at every poll. A
//! proposal must be committed before its plans count. What is tried, and when, is decided by [`tune::steps`].

use crate::rewards::{Reduced, Reduction};
use crate::views::{Asking, can_use};
use agreement::leader::{Difference, GIVE_UP_US, REPEAT_US};
use agreement::{ArmRun, Leader, RankReading, Slot, SlotPlan, TimeSource, ToLeader, ToMember};
use std::collections::BTreeMap;
use tune::steps::{CallPlan, LoopTuner, SeenCall, SlotLearner, StepSource, StepVeto};
use tune::{Algorithm, Arm, Protocol};

/// Calls of a slot before it is tuned.
const CALLS_BEFORE_TUNING: u64 = 2;

/// Builds a learner for the arms of a slot, AUTO first.
pub type LearnerBuilder = Box<dyn Fn(&[Arm], Slot) -> Option<Box<dyn SlotLearner>> + Send>;

/// A slot that is tuned.
#[derive(Default)]
struct SlotState {
    /// AUTO first.
    arms: Vec<Arm>,
    /// Times that judge arms, of calls that not all ranks have reported.
    times: Reduction,
    /// GPU times, for the trace only.
    kernels: Reduction,
    /// Lengths of steps, where GPU times judge.
    steps: Reduction,
    veto: StepVeto,
}

/// A slot that is not tuned yet.
#[derive(Debug, Clone, Copy)]
struct SlotObservation {
    calls: u64,
    mask: u32,
    autos: u32,
}

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

/// When exploring ends for good: `freeze_after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreezeAfter {
    /// After so many calls of the communicator.
    Calls(u64),
    /// After so many microseconds of the worker.
    Us(u64),
}

impl FreezeAfter {
    /// `calls` of the communicator and `now_us` of the worker are past the end.
    pub fn is_over(self, calls: u64, now_us: u64) -> bool {
        match self {
            FreezeAfter::Calls(n) => calls >= n,
            FreezeAfter::Us(us) => now_us >= us,
        }
    }
}

impl std::str::FromStr for FreezeAfter {
    type Err = String;

    /// `5000` calls, or `90s`, `10min`, `2h`.
    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("min", 60), ("s", 1), ("h", 3600)];
        let (number, seconds) =
            units.iter().find_map(|(unit, s)| Some((text.strip_suffix(unit)?, *s))).unwrap_or((text, 0));
        let number: Option<u64> = number.trim().parse().ok().filter(|n| (1..=1 << 40).contains(n));
        match number {
            Some(n) if seconds == 0 => Ok(FreezeAfter::Calls(n)),
            Some(n) => Ok(FreezeAfter::Us(n.saturating_mul(seconds * 1_000_000))),
            None => Err(format!("`{text}` is not a number of calls (5000) or a time (90s, 10min, 2h)")),
        }
    }
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
    /// What was last said about the loop.
    said: String,
    asking: Asking,
    /// Proposals refused in a row, and the time of the last proposal.
    refusals: u32,
    proposed_us: u64,
}

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

    /// AUTO for the rest of the job: at the next call that all ranks agree on, and where some cannot be reached, when the epoch in force lapses.
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

    /// The arm of a call in the epoch in force or the one before.
    fn arm_of(&self, epoch: u64, slot: Slot, k: u64) -> Option<Arm> {
        let plans = match epoch {
            e if e == self.in_force => &self.plans,
            e if e == self.previous.0 => &self.previous.1,
            _ => return None,
        };
        plans.iter().find(|p| p.slot == slot).map(|p| p.arm_of(k))
    }

    /// Handles one rank's time. A time that judges arms goes to the tuner; other GPU times go to the trace.
    fn on_reading(&mut self, from: usize, s: &RankReading) {
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

    /// Where steps cannot judge arms, GPU times do if there are any.
    fn fall_back_on_gpu_times(&mut self) {
        let has_kernel_times = matches!(self.mode, CoordinatorMode::Learn { has_kernel_times: true, .. });
        if self.tuner.never().is_some() && has_kernel_times && !self.by_kernel {
            (self.by_kernel, self.fell_back) = (true, true);
            self.tuner = LoopTuner::new(true);
        }
    }

    /// GPU times judge, but steps have a veto: a slot begins again without an arm that makes them longer.
    fn heed_steps(&mut self) {
        let longer = |s: &SlotState| s.arms.iter().enumerate().skip(1).find(|(i, _)| s.veto.forbids(*i)).map(|x| *x.1);
        let forbidden: Vec<(Slot, Arm)> = self.slots.iter().filter_map(|(slot, s)| Some((*slot, longer(s)?))).collect();
        for (slot, arm) in forbidden {
            self.slots.remove(&slot);
            self.tuner.remove_slot(slot.index() as u32);
            self.vetoed.push((slot, arm));
        }
    }

    /// A rank has an arm no longer: the slot begins again with those that are left.
    fn drop_impossible(&mut self, slot: Slot) {
        let Some(view) = self.asking.views.of_all(slot) else { return };
        let plan = |arm: &Arm| SlotPlan { slot, runs: Vec::new(), settled: *arm };
        if self.slots.get(&slot).is_some_and(|s| !s.arms.iter().all(|arm| can_use(&plan(arm), &view))) {
            self.slots.remove(&slot);
            self.tuner.remove_slot(slot.index() as u32);
        }
    }

    /// The arm in use of every slot, without runs.
    fn settled_plans(&self) -> Vec<SlotPlan> {
        let chosen = self.findings().filter(|f| !f.arm.is_auto());
        chosen.map(|f| SlotPlan { slot: f.slot, runs: Vec::new(), settled: f.arm }).collect()
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

    /// Adds the slots with enough calls to the tuner, with the arms that all ranks have; all of them after a change of the loop's rhythm.
    fn add_slots(&mut self) {
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
    fn slot_plans(&self, plan: CallPlan) -> Vec<SlotPlan> {
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

    /// What is known about the loop, once after every change: its rhythm, or why nothing can be learned. True for the second.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::CallDecision;
    use tune::Collective;

    fn call(k: u64, epoch: u64) -> CallDecision {
        CallDecision {
            counted: epoch > 0,
            mask: 0b11_1111,
            auto: 3,
            epoch,
            ..CallDecision::for_test(k, 1 << 20, Arm::AUTO)
        }
    }

    /// Delivers all messages to the only member, which always agrees.
    fn agree(c: &mut EpochCoordinator, now_us: u64) {
        let mut out = Vec::new();
        c.tick(0, now_us, &mut out);
        while let Some((_, message)) = out.pop() {
            let answer = match message {
                ToMember::Ask(e) => {
                    let view = |p: &SlotPlan| agreement::SlotView { slot: p.slot, mask: 0b11_1111, auto: 3 };
                    let slots = e.plans.iter().map(view).collect();
                    ToLeader::Ready { epoch: e.number, begun: 0, digest: None, slots }
                }
                ToMember::Check { .. } => ToLeader::Status { begun: 0, digest: None },
                ToMember::Propose(e) => ToLeader::Ack { epoch: e.number, begun: 0, digest: None },
                ToMember::Commit(n) | ToMember::Abort(n) => ToLeader::Confirm { epoch: n, begun: 0 },
            };
            c.on_message(0, &answer, now_us, &mut out);
        }
    }

    /// One step of `k` calls after another, from the given call on; the best arm is TREE/LL. Returns the number of the next call.
    fn train(c: &mut EpochCoordinator, steps: u64, k: u64, from: u64) -> u64 {
        let mut number = from;
        let mut begun: std::collections::BTreeMap<u64, u64> = Default::default();
        for _ in 0..steps {
            let first = number;
            let mut reading = None;
            for _ in 0..k {
                // A plan begins four calls after it was committed at the earliest; here at once.
                let epoch = c.in_force;
                let mine = begun.entry(epoch).or_insert(0);
                let counted = c.plans.iter().any(|p| !p.runs.is_empty());
                let d = CallDecision { k: *mine, counted, ..call(number, epoch) };
                let arm = c.arm_of(epoch, d.slot(), *mine).unwrap_or(Arm::AUTO);
                reading = reading.or(counted.then_some((epoch, *mine, arm)));
                *mine += 1;
                number += 1;
                c.on_call(&d, number * 1000);
            }
            c.on_step(first);
            if let Some((epoch, k, arm)) = reading {
                let slot = Slot::of(Collective::AllReduce, 1 << 20);
                let time_us = if arm == Arm::new(Algorithm::Tree, Protocol::Ll) { 800.0 } else { 1000.0 };
                let time_us = time_us * (1.0 + 0.01 * ((number * 7 % 5) as f64 - 2.0));
                let all = vec![RankReading { epoch, slot, k, source: TimeSource::Step, time_us }];
                c.on_message(0, &ToLeader::Readings(all), number * 1000, &mut Vec::new());
            }
            agree(c, number * 1000);
        }
        number
    }

    fn learning(members: usize) -> EpochCoordinator {
        let build: LearnerBuilder = Box::new(|arms, slot| crate::policies::build("adaptive", arms, slot));
        let mode = CoordinatorMode::Learn {
            build,
            explore_all: true,
            is_scripted: false,
            by_kernel: false,
            has_kernel_times: false,
        };
        EpochCoordinator::new(members, mode)
    }

    /// Calls per step vary, so GPU times judge: TREE/LL has the shortest kernels. `longer`: what a step with it takes more.
    fn train_by_gpu_times(longer: f64) -> EpochCoordinator {
        let mut c = learning(1);
        let CoordinatorMode::Learn { has_kernel_times, .. } = &mut c.mode else { unreachable!() };
        *has_kernel_times = true;
        let (mut number, mut of_epoch) = (0u64, std::collections::BTreeMap::new());
        let slot = Slot::of(Collective::AllReduce, 1 << 20);
        for step in 0..3000u64 {
            let (first, epoch) = (number, c.in_force);
            let counted = c.plans.iter().any(|p| !p.runs.is_empty());
            let (mut arms, mut all) = (Vec::new(), Vec::new());
            let mine = *of_epoch.entry(epoch).or_insert(0u64);
            for i in 0..1 + step * step % 7 {
                let k = mine + i;
                let arm = c.arm_of(epoch, slot, k).unwrap_or(Arm::AUTO);
                c.on_call(&CallDecision { k, counted, ..call(number, epoch) }, number * 1000);
                let us = if arm == Arm::new(Algorithm::Tree, Protocol::Ll) { 80.0 } else { 100.0 };
                all.push(RankReading { epoch, slot, k, source: TimeSource::Kernel, time_us: us + (number % 3) as f64 });
                arms.push(arm);
                number += 1;
            }
            *of_epoch.entry(epoch).or_insert(0) += arms.len() as u64;
            c.on_step(first);
            if arms.iter().all(|a| *a == arms[0]) {
                let more = if arms[0] == Arm::new(Algorithm::Tree, Protocol::Ll) { longer } else { 0.0 };
                let time_us = 1000.0 * (1.0 + more + 0.01 * ((step % 5) as f64 - 2.0));
                all.insert(0, RankReading { epoch, slot, k: mine, source: TimeSource::Step, time_us });
            }
            if counted {
                c.on_message(0, &ToLeader::Readings(all), number * 1000, &mut Vec::new());
            }
            agree(&mut c, number * 1000);
        }
        c
    }

    #[test]
    fn where_gpu_times_judge_an_arm_that_makes_steps_longer_is_out() {
        let tree = Arm::new(Algorithm::Tree, Protocol::Ll);
        let c = train_by_gpu_times(0.0);
        assert!(
            c.fell_back && c.vetoed.is_empty() && c.findings().any(|f| f.arm == tree),
            "{:?}",
            c.findings().collect::<Vec<_>>()
        );
        let mut c = train_by_gpu_times(0.1);
        assert!(c.fell_back && c.findings().all(|f| f.arm != tree), "{:?}", c.findings().collect::<Vec<_>>());
        let said = c.news().unwrap_or_default().0;
        assert!(said.contains("steps are longer with TREE/LL"), "{said}");
    }

    #[test]
    fn plans_cover_whole_steps_and_begin_with_a_step() {
        let mut c = learning(1);
        train(&mut c, 8, 6, 0);
        let plan = c.plans.first().unwrap_or_else(|| panic!("no plan after eight steps"));
        assert!(plan.runs.len() > 4 && plan.runs.iter().all(|r| r.calls % 6 == 0), "{plan:?}");
        assert_eq!(c.news(), Some(("6 calls per step (steps reported by the program)".into(), false)));
        assert_eq!(c.news(), None, "said once");
    }

    #[test]
    fn the_best_arm_of_many_calls_per_step_is_found() {
        for k in [1, 4, 8, 64] {
            let mut c = learning(1);
            train(&mut c, 400, k, 0);
            let found: Vec<_> = c.findings().collect();
            assert_eq!(found[0].arm, Arm::new(Algorithm::Tree, Protocol::Ll), "K = {k}: {found:?}");
            assert!(found[0].gain.is_some_and(|g| (g.0 - 0.2).abs() < 0.03), "K = {k}: {found:?}");
            assert!(c.drain_learned().iter().any(|l| l.is_fresh && l.calls == k));
        }
    }

    #[test]
    fn after_the_freeze_the_arms_found_stay_and_no_epoch_follows() {
        let mut c = learning(1).freezing(Some("1s".parse().unwrap()));
        let number = train(&mut c, 200, 4, 0); // a call takes a millisecond: the freeze comes after 250 steps
        let found: Vec<_> = c.findings().map(|f| f.arm).collect();
        assert_eq!((c.is_frozen(), found), (false, vec![Arm::new(Algorithm::Tree, Protocol::Ll)]));
        let number = train(&mut c, 100, 4, number);
        assert!(c.is_frozen() && number > 1000, "{number}");
        assert!(c.plans.len() == 1 && c.plans[0].runs.is_empty(), "{:?}", c.plans);
        assert_eq!(c.plans[0].settled, Arm::new(Algorithm::Tree, Protocol::Ll));
        for now in [2_000_000, 10_000_000, 100_000_000] {
            let mut out = Vec::new();
            c.tick(5000, now, &mut out);
            assert!(out.is_empty(), "no more epochs");
        }
    }

    #[test]
    fn a_freeze_is_a_number_of_calls_or_a_time() {
        for (text, freeze) in [
            ("5000", FreezeAfter::Calls(5000)),
            ("90s", FreezeAfter::Us(90_000_000)),
            ("10min", FreezeAfter::Us(600_000_000)),
            ("2h", FreezeAfter::Us(7_200_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(freeze), "{text}");
        }
        for text in ["", "0", "-1", "soon", "1d", "99999999999999999999", "s"] {
            assert!(text.parse::<FreezeAfter>().is_err(), "{text}");
        }
    }

    #[test]
    fn steps_whose_calls_vary_end_learning_and_the_reason_is_said() {
        let mut c = learning(1);
        let mut number = 0;
        for step in 0..100u64 {
            number = train(&mut c, 1, 1 + step * step % 7, number);
        }
        let (why, is_never) = c.news().unwrap_or_default();
        assert!(is_never && why.contains("cannot learn"), "{why}");
        assert!(c.plans.is_empty());
    }
}
